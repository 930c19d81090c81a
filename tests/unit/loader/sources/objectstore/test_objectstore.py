"""Buckets of a real S3 server: lists, ranges, versions, hashes, identities."""

from __future__ import annotations

import hashlib
import json
import random
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from modelweights_loader.errors import UsageError, WillNotWorkError
from modelweights_loader.sources.contract import RemoteFile, SourceChangedError, SourceOptions
from tests.checkpoints.real import make_real
from tests.servers.fault_proxy import Fault, FaultProxy
from tests.servers.s3 import ACCESS_KEY, SECRET_KEY
from tests.unit.loader.sources.objectstore.opening import open_source

if TYPE_CHECKING:
    from pathlib import Path

    from modelweights_loader.sources.objectstore import ObjectStoreSource
    from tests.servers.s3 import S3Server
    from tests.servers.web import WebServer

MIB = 2**20


def _options(server: S3Server, **changes: object) -> SourceOptions:
    options = SourceOptions(endpoint=server.url, credentials_dir=str(server.credentials()), stall_seconds=20)
    return options._replace(**changes)  # type: ignore[arg-type] # fields of it


def _read(source: ObjectStoreSource, file: RemoteFile, begin: int = 0, end: int | None = None) -> bytes:
    return b"".join(bytes(piece) for piece in source.read_range(file, begin, file.size_bytes if end is None else end))


def _bytes(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)  # noqa: S311 - bytes that differ, no secret


class TestList:
    """What is listed."""

    def test_names_are_below_the_prefix_and_neighbours_are_not_listed(self, s3: S3Server) -> None:
        s3.make_bucket("names")
        for key in ("m/config.json", "m/sub/deep/x.bin", "m2/other", "m.txt", "other"):
            s3.put("names", key, b"12345")

        found = open_source("s3://names/m/", _options(s3)).list_files()

        assert [("config.json", 5), ("sub/deep/x.bin", 5)] == sorted(
            (file.path, file.size_bytes) for file in found.files
        )
        assert {f'"{hashlib.md5(b"12345").hexdigest()}"'} == {file.version for file in found.files}  # noqa: S324 - S3's
        assert {""} == {file.sha256 for file in found.files}

    def test_a_whole_bucket_is_listed_without_a_prefix(self, s3: S3Server) -> None:
        s3.make_bucket("whole")
        s3.put("whole", "a/b", b"x")

        [file] = open_source("s3://whole", _options(s3)).list_files().files

        assert "a/b" == file.path

    def test_markers_of_folders_are_no_files(self, s3: S3Server) -> None:
        s3.make_bucket("markers")
        for key, content in (("m/", b""), ("m/sub/", b""), ("m/sub/x", b"x"), ("m/empty", b"")):
            s3.put("markers", key, content)

        found = open_source("s3://markers/m", _options(s3)).list_files()

        assert ["empty", "sub/x"] == sorted(file.path for file in found.files)

    def test_more_objects_than_a_page_has(self, s3: S3Server) -> None:
        s3.make_bucket("pages")
        names = [f"f{number:05}" for number in range(1200)]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda name: s3.put("pages", f"m/{name}", name.encode()), names))

        found = open_source("s3://pages/m", _options(s3)).list_files()

        assert names == sorted(file.path for file in found.files)

    def test_the_revision_stays_until_something_changes_and_can_be_pinned(self, s3: S3Server) -> None:
        s3.make_bucket("pin")
        s3.put("pin", "m/a", b"one")
        first = open_source("s3://pin/m", _options(s3)).list_files().revision
        s3.put("pin", "m/a", b"one")

        assert first == open_source("s3://pin/m", _options(s3, revision=first)).list_files().revision

        s3.put("pin", "m/a", b"two")
        with pytest.raises(WillNotWorkError, match="remove the pin, or put the objects back") as caught:
            open_source("s3://pin/m", _options(s3, revision=first)).list_files()
        assert ("SourceChanged", 20) == (caught.value.reason, caught.value.exit_code)

    @pytest.mark.parametrize("key", ["m/../x", "m/a//b", "m/./x", "m/a&#10;b", "m/a&#1;b"])
    def test_a_name_that_no_folder_could_hold_ends_it(self, s3_proxy: FaultProxy, s3: S3Server, key: str) -> None:
        s3_proxy.faults = [_fake_list(key)]

        with pytest.raises(WillNotWorkError, match="remove or rename") as caught:
            open_source("s3://hostile/m", _options(s3, endpoint=s3_proxy.url)).list_files()
        assert "UnsafePath" == caught.value.reason

    @pytest.mark.parametrize("name", ["k" * 1022, "a\\b", "ä€", "a%2Fb", "..hidden", "CON"])
    def test_other_odd_names_reach_the_list_unchanged(self, s3_proxy: FaultProxy, s3: S3Server, name: str) -> None:
        s3_proxy.faults = [_fake_list(f"m/{name}")]

        [file] = open_source("s3://hostile/m", _options(s3, endpoint=s3_proxy.url)).list_files().files

        assert name == file.path

    def test_a_name_outside_of_the_prefix_reaches_the_list_as_it_is(self, s3_proxy: FaultProxy, s3: S3Server) -> None:
        s3_proxy.faults = [_fake_list("/etc/passwd")]

        [file] = open_source("s3://hostile/m", _options(s3, endpoint=s3_proxy.url)).list_files().files

        # obstore takes the '/' from its front: it can't leave the folder then.
        assert "etc/passwd" == file.path


def _fake_list(key: str) -> Fault:
    entry = f"<Contents><Key>{key}</Key><LastModified>2026-01-01T00:00:00Z</LastModified><ETag>e</ETag><Size>5</Size></Contents>"
    text = f"<ListBucketResult><Name>hostile</Name><KeyCount>1</KeyCount><IsTruncated>false</IsTruncated>{entry}</ListBucketResult>"
    return Fault("status", path="list-type=2", status="200 OK", body=text.encode())


class TestRead:
    """What is read, and of which version."""

    def test_multipart_objects_are_read_in_parallel_ranges_bit_by_bit(self, s3: S3Server, tmp_path: Path) -> None:
        s3.make_bucket("parts")
        content = _bytes(21 * MIB + 12_345)
        (tmp_path / "model.safetensors").write_bytes(content)
        s3.put_folder("parts", "m", tmp_path)
        source = open_source("s3://parts/m", _options(s3))
        [file] = source.list_files().files
        ranges = [(begin, min(begin + 4 * MIB, len(content))) for begin in range(0, len(content), 4 * MIB)]

        with ThreadPoolExecutor(8) as pool:
            pieces = list(pool.map(lambda each: _read(source, file, *each), ranges))

        assert "-" in file.version, "a multipart upload has an ETag that is no hash"
        assert content == b"".join(pieces)
        assert b"" == _read(source, file, 7, 7)

    @pytest.mark.parametrize("anonymous", [False, True])
    def test_odd_names_are_read(self, s3: S3Server, *, anonymous: bool) -> None:
        bucket = f"odd-names-{int(anonymous)}"
        s3.make_bucket(bucket, anonymous=True)
        names = ["a b.json", "ü+&=;.json", "100%25.json", "x#y?z.json", "(1)~'*!.json"]
        for name in names:
            s3.put(bucket, f"m/{name}", name.encode())
        options = _options(s3, anonymous=True, credentials_dir=None) if anonymous else _options(s3)
        source = open_source(f"s3://{bucket}/m", options)

        found = {file.path: _read(source, file) for file in source.list_files().files}

        assert {name: name.encode() for name in names} == found

    def test_pieces_are_small_whatever_the_range(self, s3: S3Server) -> None:
        s3.make_bucket("pieces")
        s3.put("pieces", "m/x", _bytes(8 * MIB))
        source = open_source("s3://pieces/m", _options(s3))
        [file] = source.list_files().files

        assert max(len(piece) for piece in source.read_range(file, 0, file.size_bytes)) <= MIB

    def test_an_object_that_is_overwritten_is_never_mixed(self, s3: S3Server) -> None:
        s3.make_bucket("changing")
        old, new = _bytes(12 * MIB, 1), _bytes(12 * MIB, 2)
        s3.put("changing", "m/x", old)
        source = open_source("s3://changing/m", _options(s3))
        [file] = source.list_files().files
        reading = source.read_range(file, 0, 6 * MIB)
        first = bytes(next(reading))
        s3.put("changing", "m/x", new)

        assert old[: 6 * MIB] == first + b"".join(bytes(piece) for piece in reading), (
            "what had begun goes on with the old content"
        )
        with pytest.raises(SourceChangedError, match="list it again"):
            _read(source, file, 6 * MIB)

    def test_also_a_store_that_ignores_the_condition_is_found_out(self, s3_proxy: FaultProxy, s3: S3Server) -> None:
        headers = {"ETag": '"other"', "Content-Range": "bytes 0-4/5", "Last-Modified": "Mon, 05 Jan 2026 00:00:00 GMT"}
        answer = Fault("status", path="/m/x", status="206 Partial Content", body=b"other", headers=headers)
        s3.make_bucket("ignoring")
        s3.put("ignoring", "m/x", b"right")
        source = open_source("s3://ignoring/m", _options(s3, endpoint=s3_proxy.url))
        [file] = source.list_files().files
        s3_proxy.faults = [answer]

        with pytest.raises(SourceChangedError):
            _read(source, file)

    def test_an_object_that_is_gone_has_changed(self, s3: S3Server) -> None:
        s3.make_bucket("going")
        s3.put("going", "m/x", b"right")
        source = open_source("s3://going/m", _options(s3))
        [file] = source.list_files().files
        s3.delete("going", "m/x")

        with pytest.raises(SourceChangedError, match="is gone"):
            _read(source, file)

    def test_closing_ends_the_transfer(self, s3_proxy: FaultProxy, s3: S3Server) -> None:
        s3.make_bucket("closing")
        s3.put("closing", "m/x", _bytes(64 * MIB))
        source = open_source("s3://closing/m", _options(s3, endpoint=s3_proxy.url))
        [file] = source.list_files().files

        reading = source.read_range(file, 0, file.size_bytes)
        next(reading)
        reading.close()  # type: ignore[attr-defined] # it is a generator
        s3_proxy.wait_until_idle()

        assert s3_proxy.sent_bytes < 48 * MIB

    def test_the_real_checkpoint_arrives(self, s3: S3Server, tmp_path: Path) -> None:
        folder = make_real(tmp_path / "real")
        s3.make_bucket("real")
        s3.put_folder("real", "org/model", folder)
        source = open_source("s3://real/org/model", _options(s3))

        found = {file.path: _read(source, file) for file in source.list_files().files}

        assert found == {
            str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()
        }


class TestHashes:
    """Manifests beside the weights."""

    def test_sums_beside_the_weights_are_taken_and_what_is_missing_is_said(self, s3: S3Server) -> None:
        s3.make_bucket("sums")
        digest = hashlib.sha256(b"weights").hexdigest()
        s3.put("sums", "m/model.safetensors", b"weights")
        s3.put("sums", "m/config.json", b"{}")
        s3.put(
            "sums",
            "m/SHA256SUMS",
            f"{digest}  ./model.safetensors\n{'0' * 64}  gone.bin\n{'1' * 64}  SHA256SUMS\n".encode(),
        )

        found = open_source("s3://sums/m", _options(s3)).list_files()

        assert {"model.safetensors": digest, "config.json": "", "SHA256SUMS": ""} == {
            file.path: file.sha256 for file in found.files
        }
        assert "2 hashes from SHA256SUMS, which names 1 that are not there: 'gone.bin'" in found.described

    def test_our_own_manifest_goes_before_sums(self, s3: S3Server) -> None:
        s3.make_bucket("manifest")
        s3.put("manifest", "m/model.safetensors", b"weights")
        s3.put("manifest", "m/SHA256SUMS", f"{'0' * 64}  model.safetensors\n".encode())
        entry = {"path": "model.safetensors", "sizeBytes": 7, "sha256": "a" * 64}
        s3.put("manifest", "m/manifest.json", json.dumps({"files": [entry]}).encode())

        found = open_source("s3://manifest/m", _options(s3)).list_files()

        assert "a" * 64 in {file.sha256 for file in found.files}
        assert "1 hashes from manifest.json" in found.described

    @pytest.mark.parametrize(
        ("name", "content"),
        [
            ("SHA256SUMS", b"no sums\n"),
            ("SHA256SUMS", f"{'0' * 64}  x\n{'1' * 64}  x\n".encode()),
            ("manifest.json", b'{"files": [{"path": "x", "sha256": "short"}]}'),
            ("manifest.json", b'{"files": [{"path": "x"'),
            ("sha256sum.txt", b""),
        ],
    )
    def test_a_broken_one_is_an_end(self, s3: S3Server, name: str, content: bytes) -> None:
        bucket = f"broken-{hashlib.sha256(content).hexdigest()[:8]}"
        s3.make_bucket(bucket)
        s3.put(bucket, "m/x", b"x")
        s3.put(bucket, f"m/{name}", content)

        with pytest.raises(WillNotWorkError) as caught:
            open_source(f"s3://{bucket}/m", _options(s3)).list_files()
        assert "BadManifest" == caught.value.reason

    def test_a_huge_one_is_not_read(self, s3: S3Server, s3_proxy: FaultProxy) -> None:
        s3.make_bucket("huge")
        s3.put("huge", "m/SHA256SUMS", bytes(16 * MIB + 1))

        with pytest.raises(WillNotWorkError, match="more than 16777216 bytes"):
            open_source("s3://huge/m", _options(s3, endpoint=s3_proxy.url)).list_files()
        assert s3_proxy.sent_bytes < MIB

    def test_a_json_file_of_another_kind_is_a_file_like_others(self, s3: S3Server) -> None:
        s3.make_bucket("foreign")
        s3.put("foreign", "m/manifest.json", b'{"name": "an app", "icons": []}')

        [file] = open_source("s3://foreign/m", _options(s3)).list_files().files

        assert ("manifest.json", "") == (file.path, file.sha256)


class TestIdentity:
    """Whose credentials are sent."""

    def test_everybody_may_read_an_open_bucket(self, s3: S3Server) -> None:
        s3.make_bucket("open", anonymous=True)
        s3.put("open", "m/x", b"content")
        source = open_source("s3://open/m", SourceOptions(endpoint=s3.url, anonymous=True))

        assert b"content" == _read(source, source.list_files().files[0])

    def test_the_identity_of_a_service_account_is_exchanged_for_credentials(
        self, s3: S3Server, web: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The token service is a stand-in that gives the answer of its documentation; the store is real."""
        s3.make_bucket("identity")
        s3.put("identity", "m/x", b"content")
        credentials = f"<AccessKeyId>{ACCESS_KEY}</AccessKeyId><SecretAccessKey>{SECRET_KEY}</SecretAccessKey>"
        expiry = "<SessionToken></SessionToken><Expiration>2099-01-01T00:00:00Z</Expiration>"
        answer = (
            "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials>"
            f"{credentials}{expiry}</Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"
        )
        (tmp_path / "token").write_text("a-token-of-the-cluster")
        monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
        monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/reader")
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", web.answer(answer))
        source = open_source("s3://identity/m", SourceOptions(endpoint=s3.url, ca_file=str(web.ca_file)))

        assert b"content" == _read(source, source.list_files().files[0])

    @pytest.mark.parametrize("make", [False, True], ids=["missing", "empty"])
    def test_a_secret_that_is_not_there_is_said(self, tmp_path: Path, s3: S3Server, *, make: bool) -> None:
        folder = tmp_path / "secret"
        if make:
            folder.mkdir()
            (folder / "..data").symlink_to(folder)

        with pytest.raises(WillNotWorkError, match="make the Secret, with keys of AWS_ACCESS_KEY_ID") as caught:
            open_source("s3://b/m", _options(s3, credentials_dir=str(folder)))
        assert "SecretMissing" == caught.value.reason

    def test_a_key_that_nobody_knows_is_refused_with_those_that_are_known(self, s3: S3Server) -> None:
        folder = s3.credentials(AWS_ACCESS_KEY_ID="a", accessKey="b")

        with pytest.raises(WillNotWorkError, match="'accessKey', which s3:// doesn't know; its keys may be AWS_ACCESS"):
            open_source("s3://b/m", _options(s3, credentials_dir=str(folder)))

    @pytest.mark.parametrize(
        ("url", "values"),
        [
            ("s3://b/m", {"AWS_ACCESS_KEY_ID": "only-half-of-it"}),
            ("gs://b/m", {"GOOGLE_SERVICE_ACCOUNT_KEY": '{"private_key": "top-secret'}),
            (
                "az://b/m",
                {"AZURE_STORAGE_ACCOUNT_NAME": "account", "AZURE_STORAGE_ACCOUNT_KEY": "top-secret no base64"},
            ),
        ],
    )
    def test_values_that_can_be_none_are_refused_and_not_shown(
        self, s3: S3Server, url: str, values: dict[str, str]
    ) -> None:
        folder = s3.credentials(**values)

        with pytest.raises(WillNotWorkError, match="check the values of") as caught:
            open_source(url, SourceOptions(credentials_dir=str(folder)))
        assert not any(value in str(caught.value) for value in values.values() if value != "account")
        assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("url", "changes"),
    [
        ("s3:///prefix", {}),
        ("s3://bucket/a/../b", {}),
        ("s3://bucket/a//b", {}),
        ("s3://key:secret@bucket/a", {}),
        ("s3://bucket/a?X-Amz-Signature=secret", {}),
        ("az://container/m", {}),
        ("s3://bucket/m", {"endpoint": "host:9000"}),
        ("s3://bucket/m", {"endpoint": "https://user:secret@host"}),
        ("s3://bucket/m", {"endpoint": "https://host/?token=secret"}),
        ("s3://bucket/m", {"anonymous": True, "credentials_dir": "/nowhere"}),
    ],
)
def test_what_can_not_be_meant_is_refused_at_once(url: str, changes: dict[str, object]) -> None:
    options = SourceOptions()._replace(**changes)  # type: ignore[arg-type] # fields of it

    with pytest.raises(UsageError) as caught:
        open_source(url, options)
    assert "secret" not in str(caught.value)
