"""What goes wrong on the way to a bucket: each with a reason and a remedy, and nothing secret in it."""

from __future__ import annotations

import hashlib
import threading
import traceback
from typing import TYPE_CHECKING, NamedTuple

import pytest

from modelweights_loader.errors import LoaderError, WillNotWorkError
from modelweights_loader.sources.contract import (
    RangesNotSupportedError,
    RemoteFile,
    SourceOptions,
    SourceUnavailableError,
)
from tests.servers.fault_proxy import Fault, FaultProxy
from tests.servers.s3 import ACCESS_KEY, SECRET_KEY
from tests.unit.loader.sources.objectstore.opening import STALL_SECONDS, open_source

if TYPE_CHECKING:
    from modelweights_loader.sources.objectstore import ObjectStoreSource
    from tests.servers.s3 import S3Server
    from tests.servers.web import WebServer

CONTENT = b"0123456789" * 500_000
ANONYMOUS: dict[str, object] = {"anonymous": True, "credentials_dir": None}
SECRETS = (ACCESS_KEY, SECRET_KEY, "Signature=", "Debug", "X-Amz", "AWS4", "hunter2")


@pytest.fixture(scope="module")
def bucket(s3: S3Server) -> str:
    """A bucket with one file of 5 MB."""
    s3.make_bucket("errors")
    s3.put("errors", "m/x", CONTENT)
    # Read without a signature, by obstore itself.
    s3.make_bucket("errors-open", anonymous=True)
    s3.put("errors-open", "m/x", CONTENT)
    return "s3://errors/m"


def _open(s3: S3Server, bucket: str, **changes: object) -> ObjectStoreSource:
    options = SourceOptions(endpoint=s3.url, credentials_dir=str(s3.credentials()), stall_seconds=20)
    return open_source(bucket, options._replace(**changes))  # type: ignore[arg-type] # fields of it


def _read(source: ObjectStoreSource, file: RemoteFile) -> bytes:
    return b"".join(bytes(piece) for piece in source.read_range(file, 0, file.size_bytes))


def _assert_clean(error: LoaderError) -> None:
    """Neither it nor its traceback shows a secret; a library's own error may not even be told of."""
    shown = "".join(traceback.format_exception(error)[-1:]) + repr(error.__cause__)
    assert not [secret for secret in SECRETS if secret in shown]
    assert "\n" not in str(error)
    assert not type(error.__cause__).__module__.startswith("obstore")
    assert error.__context__ is None or error.__suppress_context__


class TestRealAnswers:
    """What the real server says by itself."""

    @pytest.mark.parametrize(
        ("url", "changes", "reason", "said"),
        [
            ("s3://no-such-bucket/m", {}, "BucketNotFound", "check its name, the endpoint and the region"),
            ("s3://errors/other", {}, "NotFound", "no objects below it"),
            ("s3://errors/m/x", {}, "NotFound", "has to be a whole folder's name"),
            ("s3://errors/m", {"region": "eu-west-1"}, "WrongRegion", "set the region us-east-1"),
            ("s3://errors/m", {"anonymous": True, "credentials_dir": None}, "Unauthorized", "give a Secret"),
        ],
    )
    def test_reasons_are_apart(
        self, s3: S3Server, bucket: str, url: str, changes: dict[str, object], reason: str, said: str
    ) -> None:
        assert bucket

        with pytest.raises(WillNotWorkError, match=said) as caught:
            _open(s3, url, **changes).list_files()
        assert (reason, 20) == (caught.value.reason, caught.value.exit_code)
        _assert_clean(caught.value)

    @pytest.mark.parametrize("access", [ACCESS_KEY, "unknown-key"])
    def test_wrong_credentials(self, s3: S3Server, bucket: str, access: str) -> None:
        folder = s3.credentials(AWS_ACCESS_KEY_ID=access, AWS_SECRET_ACCESS_KEY="hunter2")  # noqa: S106 - a wrong one

        with pytest.raises(WillNotWorkError, match="check the Secret's values") as caught:
            _open(s3, bucket, credentials_dir=str(folder)).list_files()
        assert "Unauthorized" == caught.value.reason
        _assert_clean(caught.value)

    def test_a_user_without_rights(self, s3: S3Server, bucket: str) -> None:
        s3.make_user("poor", "hunter2-hunter2")
        folder = s3.credentials(AWS_ACCESS_KEY_ID="poor", AWS_SECRET_ACCESS_KEY="hunter2-hunter2")  # noqa: S106 - a test's

        with pytest.raises(WillNotWorkError, match="permit these credentials to list and read") as caught:
            _open(s3, bucket, credentials_dir=str(folder)).list_files()
        assert "Forbidden" == caught.value.reason
        _assert_clean(caught.value)

    def test_without_encryption_is_said(self, s3: S3Server, bucket: str) -> None:
        assert "WARNING: without encryption" in _open(s3, bucket).list_files().described


class Row(NamedTuple):
    """An answer, and what it should become when it comes for a list and for a range."""

    status: str
    code: str
    list_reason: str
    read_reason: str = ""
    retry: bool = False

    def __str__(self) -> str:
        return f"{self.status} {self.code}"


ROWS = [
    Row("403 Forbidden", "AccessDenied", "Forbidden"),
    Row("403 Forbidden", "InvalidAccessKeyId", "Unauthorized"),
    Row("403 Forbidden", "SignatureDoesNotMatch", "Unauthorized"),
    Row("403 Forbidden", "RequestTimeTooSkewed", "ClockSkew"),
    Row("403 Forbidden", "AuthenticationFailed", "Unauthorized"),
    Row("403 Forbidden", "", "Forbidden"),
    Row("400 Bad Request", "ExpiredToken", "CredentialsExpired"),
    Row("400 Bad Request", "AuthorizationHeaderMalformed", "WrongRegion"),
    Row("400 Bad Request", "InvalidArgument", "Refused"),
    Row("301 Moved Permanently", "PermanentRedirect", "WrongRegion"),
    Row("401 Unauthorized", "", "Unauthorized"),
    Row("404 Not Found", "NoSuchBucket", "BucketNotFound", "BucketNotFound"),
    Row("404 Not Found", "ContainerNotFound", "BucketNotFound", "BucketNotFound"),
    Row("404 Not Found", "", "BucketNotFound", "SourceChanged"),
    Row("407 Proxy Authentication Required", "", "ProxyRefused"),
    Row("409 Conflict", "PublicAccessNotPermitted", "Forbidden"),
    Row("412 Precondition Failed", "PreconditionFailed", "SourceChanged"),
    Row("429 Too Many Requests", "", "SourceUnavailable", retry=True),
    Row("500 Internal Server Error", "InternalError", "SourceUnavailable", retry=True),
    Row("501 Not Implemented", "NotImplemented", "Refused"),
    Row("503 Slow Down", "SlowDown", "SourceUnavailable", retry=True),
    Row("503 Service Unavailable", "", "SourceUnavailable", retry=True),
    Row("400 Bad Request", "RequestTimeout", "SourceUnavailable", retry=True),
]


class TestAnswers:
    """Answers that a real server gives when something is wrong that can't be made wrong here."""

    @pytest.mark.parametrize("row", ROWS, ids=str)
    @pytest.mark.parametrize("identity", [{}, ANONYMOUS], ids=["signed", "anonymous"])
    def test_each_has_its_reason(
        self, s3: S3Server, s3_proxy: FaultProxy, bucket: str, row: Row, identity: dict[str, object]
    ) -> None:
        place = "s3://errors-open/m" if identity else bucket
        source = _open(s3, place, endpoint=s3_proxy.url, **identity)
        [file] = source.list_files().files
        body = f"<Error><Code>{row.code}</Code><Message>key {ACCESS_KEY} of status: 200</Message></Error>".encode()
        headers = {"Retry-After": "7"}
        s3_proxy.faults = [Fault("status", status=row.status, body=body if row.code else b"", headers=headers)]

        with pytest.raises(LoaderError) as listed:
            source.list_files()
        with pytest.raises(LoaderError) as read:
            _read(source, file)

        reasons = [row.list_reason, row.read_reason or row.list_reason]
        if identity:
            reasons = ["Unauthorized" if reason == "Forbidden" else reason for reason in reasons]
        assert reasons == [listed.value.reason, read.value.reason]
        if row.status.startswith(("429", "503")) and not identity:
            assert 7.0 == getattr(read.value, "retry_after_seconds", None)
        assert row.retry == isinstance(read.value, SourceUnavailableError)
        _assert_clean(listed.value)
        _assert_clean(read.value)

    def test_a_busy_store_is_waited_for_by_its_own_word_for_small_objects_too(
        self, s3: S3Server, s3_proxy: FaultProxy, bucket: str
    ) -> None:
        """The library, which reads these, has no Retry-After."""
        s3.put("errors", "m/small", b"x" * 1000)
        source = _open(s3, bucket, endpoint=s3_proxy.url)
        [file] = [file for file in source.list_files().files if file.path == "small"]
        s3_proxy.faults = [Fault("status", path="/m/small", headers={"Retry-After": "7"}, times=2)]
        told = []
        for _ in range(2):
            with pytest.raises(SourceUnavailableError) as read:
                _read(source, file)
            told.append(read.value.retry_after_seconds)
        s3.delete("errors", "m/small")
        assert [None, 7.0] == told

    @pytest.mark.parametrize("identity", [{}, ANONYMOUS], ids=["signed", "anonymous"])
    def test_without_ranges_the_whole_file_can_still_be_read(
        self, s3: S3Server, s3_proxy: FaultProxy, bucket: str, identity: dict[str, object]
    ) -> None:
        place = "s3://errors-open/m" if identity else bucket
        source = _open(s3, place, endpoint=s3_proxy.url, **identity)
        [file] = source.list_files().files
        headers = {"ETag": file.version, "Last-Modified": "Mon, 05 Jan 2026 00:00:00 GMT"}
        s3_proxy.faults = [Fault("status", status="200 OK", body=CONTENT, headers=headers)]

        assert CONTENT == _read(source, file)
        with pytest.raises(RangesNotSupportedError):
            list(source.read_range(file, 5, 10))

    def test_metadata_that_gives_no_credentials(self, s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
        with FaultProxy() as proxy:
            proxy.faults = [Fault("status", status="404 Not Found", body=b"")]
            monkeypatch.setenv("HTTP_PROXY", proxy.url)
            with pytest.raises(WillNotWorkError, match="the machine's metadata service gave none") as caught:
                open_source("s3://errors/m", SourceOptions(endpoint=s3.url)).list_files()
        assert "Unauthorized" == caught.value.reason


class TestConnections:
    """Cuts, stalls, names and certificates."""

    @pytest.mark.parametrize("kind", ["cut", "end", "stall"])
    @pytest.mark.parametrize("after", [0, 100, 1_000_000])
    @pytest.mark.parametrize("identity", [{}, ANONYMOUS], ids=["signed", "anonymous"])
    def test_a_broken_transfer_can_be_tried_again(
        self, s3: S3Server, s3_proxy: FaultProxy, bucket: str, kind: str, after: int, identity: dict[str, object]
    ) -> None:
        place = "s3://errors-open/m" if identity else bucket
        source = _open(s3, place, endpoint=s3_proxy.url, stall_seconds=STALL_SECONDS, **identity)
        [file] = source.list_files().files
        s3_proxy.faults = [Fault(kind, path="/m/x", after_bytes=after or 1, times=1)]

        with pytest.raises(SourceUnavailableError) as caught:
            _read(source, file)
        _assert_clean(caught.value)
        assert CONTENT == _read(source, file)

    def test_an_answer_that_does_not_begin_is_a_stall(self, s3: S3Server, s3_proxy: FaultProxy, bucket: str) -> None:
        s3_proxy.faults = [Fault("delay", seconds=20)]

        with pytest.raises(SourceUnavailableError, match=r"no byte came for 0\.3 s"):
            _open(s3, bucket, endpoint=s3_proxy.url, stall_seconds=0.3).list_files()

    def test_throttling_hits_only_some_requests(self, s3: S3Server, s3_proxy: FaultProxy, bucket: str) -> None:
        source = _open(s3, bucket, endpoint=s3_proxy.url)
        [file] = source.list_files().files
        s3_proxy.faults = [Fault("status", every=3)]
        outcomes = []
        for begin in range(0, 6_000, 1_000):
            try:
                outcomes.append(b"".join(map(bytes, source.read_range(file, begin, begin + 1_000))) == CONTENT[:1_000])
            except SourceUnavailableError:
                outcomes.append(False)

        assert [False, True, True, False, True, True] == outcomes

    def test_nothing_is_tried_again_behind_the_back(self, s3: S3Server, s3_proxy: FaultProxy, bucket: str) -> None:
        s3_proxy.faults = [Fault("status")]

        with pytest.raises(SourceUnavailableError):
            _open(s3, bucket, endpoint=s3_proxy.url).list_files()
        assert 1 == len(s3_proxy.requests)

    def test_other_threads_go_on_while_one_waits(self, s3: S3Server, s3_proxy: FaultProxy, bucket: str) -> None:
        source = _open(s3, bucket, endpoint=s3_proxy.url)
        [file] = source.list_files().files
        s3_proxy.faults = [Fault("stall", path="/m/x", after_bytes=1_000, seconds=20, times=1)]
        waiting = threading.Thread(target=pytest.raises, args=(SourceUnavailableError, _read, source, file))
        waiting.start()
        s3_proxy.wait_for_request("/m/x")

        assert CONTENT == _read(source, file)
        assert waiting.is_alive()
        s3_proxy.close()
        waiting.join(20)
        assert not waiting.is_alive()

    @pytest.mark.parametrize(
        ("endpoint", "said"),
        [("http://127.0.0.1:1", "no connection"), ("http://no-such-host.invalid", "can't be resolved")],
    )
    def test_nobody_there(self, s3: S3Server, bucket: str, endpoint: str, said: str) -> None:
        with pytest.raises(SourceUnavailableError, match=said) as caught:
            _open(s3, bucket, endpoint=endpoint, path_style=True).list_files()
        _assert_clean(caught.value)

    def test_a_certificate_of_another_authority_is_an_end(self, s3: S3Server, web: WebServer) -> None:
        """An nginx is no S3 server, but what it answers shows that TLS was done."""
        options = SourceOptions(endpoint=web.https, credentials_dir=str(s3.credentials()))

        for wrong in (None, str(web.other_ca_file)):
            with pytest.raises(WillNotWorkError, match="name the authority") as caught:
                open_source("s3://b/m", options._replace(ca_file=wrong)).list_files()
            assert "TlsNotTrusted" == caught.value.reason
        with pytest.raises(WillNotWorkError, match=r"\(404") as answered:
            open_source("s3://b/m", options._replace(ca_file=str(web.ca_file))).list_files()
        assert "BucketNotFound" == answered.value.reason

    def test_no_tls_there(self, s3: S3Server, bucket: str) -> None:
        with pytest.raises(WillNotWorkError, match="check scheme and port") as caught:
            _open(s3, bucket, endpoint=s3.url.replace("http:", "https:")).list_files()
        assert "TlsFailed" == caught.value.reason

    def test_an_authority_that_is_no_certificate(self, s3: S3Server, bucket: str, web: WebServer) -> None:
        with pytest.raises(WillNotWorkError) as caught:
            _open(s3, bucket, ca_file=str(web.ca_file.with_name("ca.key"))).list_files()
        assert "CaNotUsable" == caught.value.reason

    def test_a_proxy_is_used_and_passed_by(self, s3: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
        with FaultProxy() as proxy:
            monkeypatch.setenv("HTTP_PROXY", proxy.url.replace("//", "//user:hunter2@"))
            monkeypatch.delenv("NO_PROXY", raising=False)
            monkeypatch.delenv("no_proxy", raising=False)
            source = _open(s3, bucket)
            assert CONTENT == _read(source, source.list_files().files[0])
            through = len(proxy.requests)
            monkeypatch.setenv("NO_PROXY", "127.0.0.0/8")
            source = _open(s3, bucket)
            assert CONTENT == _read(source, source.list_files().files[0])

        assert (2, 2) == (through, len(proxy.requests))

    def test_a_proxy_that_is_away_does_not_show_its_password(
        self, s3: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HTTP_PROXY", "http://user:hunter2@127.0.0.1:1")

        with pytest.raises(SourceUnavailableError) as caught:
            _open(s3, bucket).list_files()
        _assert_clean(caught.value)


def test_the_representation_of_a_source_has_no_secret(s3: S3Server, bucket: str) -> None:
    source = _open(s3, bucket)

    assert not [secret for secret in SECRETS if secret in f"{source!r} {vars(source)!r} {vars(source._inner)!r}"]


def test_bytes_are_those_that_were_put(s3: S3Server, bucket: str) -> None:
    source = _open(s3, bucket)
    [file] = source.list_files().files

    assert hashlib.sha256(CONTENT).hexdigest() == hashlib.sha256(_read(source, file)).hexdigest()
