"""Plain files of a real nginx: how they are found, ranges, versions, tokens, redirects, certificates."""

from __future__ import annotations

import hashlib
import json
import os
from typing import TYPE_CHECKING, Protocol
from urllib.parse import quote

import pytest

from modelweights_loader.errors import LoaderError, UsageError, WillNotWorkError
from modelweights_loader.sources.contract import (
    RangesNotSupportedError,
    RemoteFile,
    SourceChangedError,
    SourceOptions,
    SourceUnavailableError,
)
from tests.checkpoints.real import make_real
from tests.servers.fault_proxy import Fault, FaultProxy
from tests.servers.web import TOKEN
from tests.unit.loader.sources.objectstore.opening import STALL_SECONDS, open_source

if TYPE_CHECKING:
    from pathlib import Path

    from modelweights_loader.sources.objectstore import ObjectStoreSource
    from tests.servers.web import WebServer

WEIGHTS = b"weights!" * 250_000
SUM = hashlib.sha256(WEIGHTS).hexdigest()
FILES = {
    "model.safetensors": WEIGHTS,
    "config.json": b'{"a": 1}',
    "readme.md": b"# model",
    "tokenizer.json": b"{}" * 4_000,
}
INDEX = {"weight_map": {"a": "model-1-of-2.safetensors", "b": "model-2-of-2.safetensors"}}


def _put(web: WebServer, name: str, files: dict[str, bytes]) -> Path:
    folder = web.folder / name
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return folder


class Open(Protocol):
    """Opens a source that trusts the server."""

    def __call__(self, url: str, **changes: object) -> ObjectStoreSource:
        """Open it; it is closed when the test ends."""


@pytest.fixture
def open_url(web: WebServer) -> Open:
    """Opens sources."""

    def opener(url: str, **changes: object) -> ObjectStoreSource:
        options = SourceOptions(ca_file=str(web.ca_file), stall_seconds=20)
        return open_source(url, options._replace(**changes))  # type: ignore[arg-type] # fields of it

    return opener


def _read(source: ObjectStoreSource, file: RemoteFile, begin: int = 0, end: int | None = None) -> bytes:
    return b"".join(bytes(piece) for piece in source.read_range(file, begin, file.size_bytes if end is None else end))


def _read_all(source: ObjectStoreSource) -> dict[str, bytes]:
    return {file.path: _read(source, file) for file in source.list_files().files}


class TestNames:
    """How it is found out which files there are."""

    def test_our_own_manifest_decides_alone(self, open_url: Open, web: WebServer) -> None:
        manifest = {"files": [{"path": "model.safetensors", "sizeBytes": len(WEIGHTS), "sha256": SUM}]}
        _put(web, "ours", {**FILES, "manifest.json": json.dumps(manifest).encode()})

        for url in (
            f"{web.https}/ours/",
            f"{web.https}/ours",
            f"{web.https}/ours/manifest.json",
            f"{web.https}/index/ours/",
        ):
            listing = open_url(url).list_files()
            assert [("model.safetensors", len(WEIGHTS), SUM)] == [
                (file.path, file.size_bytes, file.sha256) for file in listing.files
            ]
            assert "files from manifest.json" in listing.described

    @pytest.mark.parametrize("name", ["SHA256SUMS", "sha256sum.txt"])
    def test_sums_name_the_files_and_the_usual_small_ones_come_along(
        self, open_url: Open, web: WebServer, name: str
    ) -> None:
        _put(web, f"sums-{name}", {**FILES, name: f"{SUM} *model.safetensors\n".encode()})

        files = {file.path: file.sha256 for file in open_url(f"{web.https}/sums-{name}/").list_files().files}

        assert {"model.safetensors": SUM, "config.json": "", "tokenizer.json": ""} == files

    def test_a_json_index_is_walked_with_its_folders(self, open_url: Open, web: WebServer) -> None:
        _put(web, "walked", {**FILES, "sub/deeper/x.bin": b"x", ".git/config": b"no"})

        assert {**FILES, "sub/deeper/x.bin": b"x"} == _read_all(open_url(f"{web.https}/index/walked/"))

    def test_an_index_of_weights_names_its_shards(self, open_url: Open, web: WebServer) -> None:
        content = {name: name.encode() for name in ("model-1-of-2.safetensors", "model-2-of-2.safetensors")}
        content = {**content, "config.json": b"{}", "model.safetensors.index.json": json.dumps(INDEX).encode()}
        _put(web, "shards", {**content, "other.bin": b"no"})

        for url in (f"{web.https}/shards/", f"{web.https}/shards/model.safetensors.index.json"):
            assert content == _read_all(open_url(url))

    def test_a_single_file_is_found_by_its_usual_name_or_its_own(self, open_url: Open, web: WebServer) -> None:
        _put(web, "single", {"model.safetensors": b"a", "other.safetensors": b"b", "config.json": b"{}"})

        assert {"model.safetensors": b"a", "config.json": b"{}"} == _read_all(open_url(f"{web.https}/single/"))
        other = open_url(f"{web.https}/single/other.safetensors")
        assert {"other.safetensors": b"b", "config.json": b"{}"} == _read_all(other)

    def test_the_real_checkpoint_arrives(self, open_url: Open, web: WebServer) -> None:
        folder = make_real(web.folder / "real")

        found = _read_all(open_url(f"{web.https}/index/real/"))

        # Hidden files are in no index of nginx.
        paths = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")]
        assert found == {str(path.relative_to(folder)): path.read_bytes() for path in paths}

    def test_odd_names(self, open_url: Open, web: WebServer) -> None:
        files = {"a b.json": b"1", "ü#?.json": b"2", "100%25.json": b"3", "a+b&c=d;e.json": b"4"}
        _put(web, "odd", files)

        assert files == _read_all(open_url(f"{web.https}/index/odd/"))

    @pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a//b", "./../x"])
    def test_a_name_that_leaves_the_folder_ends_it(self, open_url: Open, web: WebServer, name: str) -> None:
        folder = f"leaving-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
        _put(web, folder, {"SHA256SUMS": f"{SUM}  {name}\n".encode()})

        with pytest.raises(WillNotWorkError, match="remove or rename") as caught:
            open_url(f"{web.https}/{folder}/").list_files()
        assert "UnsafePath" == caught.value.reason

    @pytest.mark.parametrize(
        ("files", "reason", "said"),
        [
            ({"x.bin": b"x"}, "NotFound", "nothing but the usual name model.safetensors"),
            (
                {"SHA256SUMS": f"{SUM}  gone.bin\n".encode()},
                "NotFound",
                r"'gone.bin' is not there \(named by SHA256SUMS\); check the URL",
            ),
            ({"SHA256SUMS": b"<html>"}, "BadManifest", "not what sha256sum prints"),
            ({"model.safetensors.index.json": b"{}"}, "BadManifest", "names no shards"),
            ({"model.safetensors.index.json": json.dumps(INDEX).encode()}, "NotFound", "model-1-of-2.safetensors"),
        ],
    )
    def test_what_tells_nothing_is_said(
        self, open_url: Open, web: WebServer, files: dict[str, bytes], reason: str, said: str
    ) -> None:
        folder = f"bad-{hashlib.sha256(repr(files).encode()).hexdigest()[:8]}"
        _put(web, folder, files)

        with pytest.raises(WillNotWorkError, match=said) as caught:
            open_url(f"{web.https}/{folder}/").list_files()
        assert (reason, 20) == (caught.value.reason, caught.value.exit_code)

    def test_the_revision_can_be_pinned(self, open_url: Open, web: WebServer) -> None:
        folder = _put(web, "pinned", FILES)
        url = f"{web.https}/index/pinned/"
        revision = open_url(url).list_files().revision

        assert revision == open_url(url, revision=revision).list_files().revision
        (folder / "config.json").write_bytes(b'{"a": 12}')
        with pytest.raises(WillNotWorkError, match="remove the pin") as caught:
            open_url(url, revision=revision).list_files()
        assert "SourceChanged" == caught.value.reason


class TestRead:
    """Ranges and versions."""

    def test_ranges(self, open_url: Open, web: WebServer) -> None:
        _put(web, "ranges", FILES)
        source = open_url(f"{web.https}/ranges/")
        file = next(file for file in source.list_files().files if file.path == "model.safetensors")

        middle = len(WEIGHTS) // 2 + 1
        assert WEIGHTS == _read(source, file, 0, middle) + _read(source, file, middle)
        assert b"" == _read(source, file, 3, 3)

    def test_a_server_without_ranges_gives_whole_files(self, open_url: Open, web: WebServer) -> None:
        _put(web, "unranged", FILES)
        source = open_url(f"{web.whole}/unranged/")
        file = next(file for file in source.list_files().files if file.path == "model.safetensors")

        with pytest.raises(RangesNotSupportedError):
            _read(source, file, 8)
        assert WEIGHTS == _read(source, file)

    def test_a_file_that_changes_is_never_mixed(self, open_url: Open, web: WebServer) -> None:
        folder = _put(web, "changing", FILES)
        source = open_url(f"{web.https}/changing/")
        file = next(file for file in source.list_files().files if file.path == "model.safetensors")
        assert WEIGHTS[:8] == _read(source, file, 0, 8)
        (folder / "new").write_bytes(bytes(len(WEIGHTS)))
        os.utime(folder / "new", (1, 1))
        (folder / "new").rename(folder / "model.safetensors")

        with pytest.raises(SourceChangedError, match="list it again"):
            _read(source, file, 8)
        (folder / "model.safetensors").unlink()
        with pytest.raises(SourceChangedError, match="list it again"):
            _read(source, file, 8)

    @pytest.mark.parametrize("version", ['W/"weak"', "Mon, 05 Jan 2026 00:00:00 GMT", ""])
    def test_servers_with_weaker_versions(self, open_url: Open, version: str) -> None:
        header = {"ETag" if version.startswith("W/") else "Last-Modified": version} if version else {}
        lists = Fault("status", path="/m/", method="GET", status="404 Not Found", body=b"")
        head = Fault("status", path="model.safetensors", method="HEAD", status="200 OK", body=b"12345", headers=header)
        none = Fault("status", method="HEAD", status="404 Not Found", body=b"")
        same = Fault("status", path="model.safetensors", method="GET", status="200 OK", body=b"12345", headers=header)
        other = Fault("status", status="200 OK", body=b"12345", headers={**header, "ETag": '"another"'})
        with FaultProxy() as server:
            server.faults = [head, none, lists]
            source = open_url(f"{server.url}/m/")
            listing = source.list_files()
            server.faults = [same]
            content = _read(source, listing.files[0])
            server.faults = [other]
            if version:
                with pytest.raises(SourceChangedError):
                    _read(source, listing.files[0])

        assert (version, b"12345") == (listing.files[0].version, content)
        assert ("has no versions" in listing.described) == (not version)

    def test_a_file_whose_length_nobody_says_is_read_in_one_piece(self, open_url: Open) -> None:
        head = Fault("status", path="model.safetensors", method="HEAD", status="200 OK", body=b"", headers={"X-A": "b"})
        head.without_length = True
        none = Fault("status", method="HEAD", status="404 Not Found", body=b"")
        lists = Fault("status", path="/m/", method="GET", status="404 Not Found", body=b"")
        chunks = {"Transfer-Encoding": "chunked"}
        content = Fault("status", method="GET", status="200 OK", body=b"5\r\n12345\r\n0\r\n\r\n", headers=chunks)
        content.without_length = True
        with FaultProxy() as server:
            server.faults = [head, none, lists]
            source = open_url(f"{server.url}/m/")
            [file] = source.list_files().files
            server.faults = [content]
            found = b"".join(bytes(piece) for piece in source.read_range(file, 0, 2**62))
            with pytest.raises(RangesNotSupportedError):
                list(source.read_range(file, 3, 2**62))
            content.body = b"5\r\n123"
            with pytest.raises(SourceUnavailableError):
                list(source.read_range(file, 0, 2**62))

        assert (-1, b"12345") == (file.size_bytes, found)

    def test_signed_links_are_read_and_not_shown(self, open_url: Open) -> None:
        """Signed for GET alone, as they are: HEAD is refused."""
        content = Fault("status", path="/b/x.safetensors?X-Sig=secret", method="GET", status="200 OK", body=b"12345")
        with FaultProxy() as server:
            server.faults = [content, Fault("status", status="403 Forbidden", body=b"")]
            source = open_url(f"{server.url}/b/x.safetensors?X-Sig=secret")
            listing = source.list_files()
            found = _read(source, listing.files[0])
            server.faults = [Fault("status")]
            with pytest.raises(LoaderError) as caught:
                _read(source, listing.files[0])

        assert ("x.safetensors", 5, b"12345") == (listing.files[0].path, listing.files[0].size_bytes, found)
        assert "secret" not in f"{listing.described} {listing.files[0].path} {caught.value}"


class TestAccess:
    """Tokens, redirects, certificates, proxies."""

    def test_a_token_is_read_each_time(self, open_url: Open, web: WebServer, tmp_path: Path) -> None:
        _put(web, "closed", FILES)
        token = tmp_path / "token"
        token.write_text(f"{TOKEN}\n")
        source = open_url(f"{web.https}/token/closed/", token_file=str(token))
        listing = source.list_files()
        file = next(file for file in listing.files if file.path == "model.safetensors")

        assert WEIGHTS == _read(source, file)
        token.write_text("hunter2")
        with pytest.raises(WillNotWorkError, match="check the token") as caught:
            _read(source, file)
        assert "Unauthorized" == caught.value.reason
        token.unlink()
        with pytest.raises(WillNotWorkError, match="make the Secret") as caught:
            _read(source, file)
        assert "SecretMissing" == caught.value.reason

    def test_without_a_token(self, open_url: Open, web: WebServer) -> None:
        with pytest.raises(WillNotWorkError, match="give a token") as caught:
            open_url(f"{web.https}/token/closed/").list_files()
        assert "Unauthorized" == caught.value.reason

    def test_a_redirect_is_followed_without_the_token(self, open_url: Open, tmp_path: Path) -> None:
        (tmp_path / "token").write_text(TOKEN)
        with FaultProxy() as first, FaultProxy() as second:
            moved = {"Location": f"{second.url}/x.safetensors"}
            first.faults = [Fault("status", status="302 Found", body=b"", headers=moved)]
            second.faults = [Fault("status", status="200 OK", body=b"12345")]
            url = f"{first.url}/x.safetensors"
            source = open_url(url, token_file=str(tmp_path / "token"), num_connections=1)
            file = next(file for file in source.list_files().files if file.path == "x.safetensors")
            assert b"12345" == _read(source, file)

        assert {f"Bearer {TOKEN}"} == {request.headers.get("authorization") for request in first.requests}
        assert {None} == {request.headers.get("authorization") for request in second.requests}

    def test_a_redirect_to_another_server(self, open_url: Open, web: WebServer) -> None:
        _put(web, "elsewhere", FILES)

        assert WEIGHTS == _read_all(open_url(f"{web.https}/moved/elsewhere/"))["model.safetensors"]

    @pytest.mark.parametrize(("path", "said"), [("away", "without encryption"), ("around", "more than 5 times")])
    def test_redirects_that_are_not_followed(self, open_url: Open, web: WebServer, path: str, said: str) -> None:
        with pytest.raises(WillNotWorkError, match=said) as caught:
            open_url(f"{web.https}/{path}/").list_files()
        assert "Refused" == caught.value.reason

    def test_a_certificate_of_another_authority_is_an_end(self, open_url: Open, web: WebServer) -> None:
        for wrong in (None, str(web.other_ca_file)):
            with pytest.raises(WillNotWorkError, match="isn't trusted") as caught:
                open_url(f"{web.https}/any/", ca_file=wrong).list_files()
            assert "TlsNotTrusted" == caught.value.reason

    def test_plain_http_is_read_with_a_warning(self, open_url: Open, web: WebServer) -> None:
        _put(web, "plain", FILES)

        assert "WARNING: without encryption" in open_url(f"{web.http}/plain/").list_files().described

    def test_a_tunnel_through_a_proxy(self, open_url: Open, web: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
        _put(web, "tunnel", FILES)
        with FaultProxy() as proxy:
            monkeypatch.setenv("HTTPS_PROXY", proxy.url)
            monkeypatch.delenv("NO_PROXY", raising=False)
            monkeypatch.delenv("no_proxy", raising=False)
            source = open_url(f"{web.https}/tunnel/")
            assert WEIGHTS == _read_all(source)["model.safetensors"]
            source.close()

        assert {"CONNECT"} == {request.method for request in proxy.requests}


class TestDisturbances:
    """What passes by itself, and what does not."""

    @pytest.mark.parametrize("status", ["429 Too Many Requests", "503 Service Unavailable"])
    def test_a_busy_server_says_when_to_come_again(self, open_url: Open, web_proxy: FaultProxy, status: str) -> None:
        web_proxy.faults = [Fault("status", status=status, headers={"Retry-After": "7"})]

        with pytest.raises(SourceUnavailableError) as caught:
            open_url(f"{web_proxy.url}/any/").list_files()
        assert 7.0 == caught.value.retry_after_seconds

    @pytest.mark.parametrize("kind", ["cut", "end", "stall"])
    @pytest.mark.parametrize("after", [1, 100_000])
    def test_a_broken_transfer_can_be_tried_again(
        self, open_url: Open, web: WebServer, web_proxy: FaultProxy, kind: str, after: int
    ) -> None:
        _put(web, "broken", {"model.safetensors": WEIGHTS})
        source = open_url(f"{web_proxy.url}/broken/", stall_seconds=STALL_SECONDS)
        [file] = source.list_files().files
        web_proxy.faults = [Fault(kind, path="model.safetensors", after_bytes=after, times=1)]

        with pytest.raises(SourceUnavailableError):
            _read(source, file)
        assert WEIGHTS == _read(source, file)

    @pytest.mark.parametrize(
        ("status", "reason", "code"),
        [
            ("401 Unauthorized", "Unauthorized", 20),
            ("403 Forbidden", "Unauthorized", 20),
            ("407 Proxy Authentication Required", "ProxyRefused", 20),
            ("400 Bad Request", "Refused", 20),
            ("500 Internal Server Error", "SourceUnavailable", 10),
            ("501 Not Implemented", "Refused", 20),
        ],
    )
    def test_each_answer_has_its_reason(
        self, open_url: Open, web_proxy: FaultProxy, status: str, reason: str, code: int
    ) -> None:
        web_proxy.faults = [Fault("status", status=status)]

        with pytest.raises(LoaderError) as caught:
            open_url(f"{web_proxy.url}/any/").list_files()
        assert (reason, code) == (caught.value.reason, caught.value.exit_code)


@pytest.mark.parametrize(
    ("url", "changes"),
    [
        ("https://host/folder/?token=secret", {}),
        ("https://host/a#secret", {}),
        ("https://host/m/", {"credentials_dir": "/nowhere"}),
        ("https://host/m/", {"endpoint": "https://other"}),
        ("https://host/m/", {"region": "r"}),
    ],
)
def test_what_can_not_be_meant_is_refused_at_once(url: str, changes: dict[str, object]) -> None:
    with pytest.raises(UsageError) as caught:
        open_source(url, SourceOptions()._replace(**changes))  # type: ignore[arg-type] # fields of it
    assert "secret" not in str(caught.value)


def test_a_user_in_the_url_is_refused_and_not_shown() -> None:
    with pytest.raises(WillNotWorkError) as caught:
        open_source(f"https://user:{quote('hunter2')}@host/m/", SourceOptions())
    assert "hunter2" not in str(caught.value)
