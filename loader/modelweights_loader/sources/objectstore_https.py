"""A web server as a source: plain files below a URL, found by `objectstore_https_names`.

Called by `objectstore`. On `http_ranges`, not on obstore: that lists by WebDAV alone, takes no query, has no Retry-After
and refuses servers without ranges. Must not import any library.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

from modelweights_loader.errors import UsageError, WillNotWorkError
from modelweights_loader.sources.contract import (
    Listing,
    RangesNotSupportedError,
    RemoteFile,
    SourceChangedError,
    SourceUnavailableError,
    pin_listing,
)
from modelweights_loader.sources.http_errors import read_retry_after
from modelweights_loader.sources.http_ranges import (
    PIECE_BYTES,
    REDIRECTS,
    format_range,
    join_url,
    make_client,
    parse_origin,
    read_answer,
)
from modelweights_loader.sources.objectstore_https_names import FILES, Names, find_names
from modelweights_loader.sources.redaction import redact_url
from modelweights_loader.sources.secret_file import SECRET_MISSING, read_secret
from modelweights_loader.threads import run_in_threads

if TYPE_CHECKING:
    from collections.abc import Iterator
    from email.message import Message

    from modelweights_loader.errors import LoaderError
    from modelweights_loader.sources.contract import SourceOptions
    from modelweights_loader.sources.http_ranges import Answer

_MAX_REDIRECTS = 5
_GIVEN = {200, 206}
_GONE = {404, 410}
_NO_HEAD = {403, 405, 501}
_BUSY = {408, 425, 429, 500, *range(502, 600)}


class Entry(NamedTuple):
    """What the server says of one file; a size of -1 where it doesn't say."""

    size_bytes: int
    version: str


class HttpsSource:
    """Files of a web server, with what it says of their sizes and versions."""

    def __init__(self, url: str, options: SourceOptions) -> None:
        _check_url(url, options)
        self._options = options
        self._client = make_client(options)
        folder, self._query = url.partition("?")[::2]
        self._leaf = "" if folder.endswith("/") else folder.rpartition("/")[2]
        if not self._leaf.endswith(FILES):
            # Without a '/' at its end a folder's URL would lose its last name when a file is looked for beside it.
            folder, self._leaf = f"{folder.rstrip('/')}/", ""
        self._folder = folder.rpartition("/")[0] + "/"
        self._origin = parse_origin(url)
        self.url = redact_url(self._folder)

    def list_files(self) -> Listing:
        """Finds the files' names and asks for the size and the version of each.

        Returns:
            With a digest over names, sizes and versions as revision.

        Raises:
            LoaderError: Nothing is found, or the server refuses.
        """
        # What changed in mid-read is listed anew after a close.
        self._client.close()
        self._client = make_client(self._options)
        # A signature is for one file alone.
        names = Names({self._leaf}, set(), {}, self._leaf) if self._query else find_names(self, self._leaf)
        entries = self._describe_all(names.required | names.optional)
        files = tuple(
            RemoteFile(name, entry.size_bytes, names.sha256.get(name, ""), version=entry.version)
            for name, entry in sorted(entries.items())
            if entry is not None
        )
        missing = sorted(name for name in names.required if entries[name] is None)
        if missing:
            message = f"{self.url}: {missing[0][:200]!r} is not there (named by {names.said}); check the URL, or put the file there"
            raise WillNotWorkError(message, reason="NotFound")
        return self._finish(files, names.said)

    def _finish(self, files: tuple[RemoteFile, ...], said: str) -> Listing:
        revision = pin_listing(files, self._options.revision, self.url)
        notes = [f"files from {said}"]
        if any(not file.version for file in files):
            notes.append("WARNING: the server has no versions (ETag, Last-Modified), so that only hashes show a change")
        if self._origin.scheme == "http":
            notes.append("WARNING: without encryption, since the URL says http://")
        return Listing(revision, files, f"{self.url} at {revision[:19]}… ({'; '.join(notes)})")

    def _describe_all(self, names: set[str]) -> dict[str, Entry | None]:
        entries: dict[str, Entry | None] = {}

        def work(own: Iterator[str]) -> None:
            for name in own:
                entries[name] = self.describe(name)

        run_in_threads(work, sorted(names), self._options.num_connections, "describe")
        return entries

    def describe(self, name: str) -> Entry | None:
        """Asks for the size and the version of a file.

        Args:
            name: Below the folder.

        Returns:
            None where it is not there.

        Raises:
            LoaderError: The server refuses.
        """
        answer = self._send("HEAD", self._locate(name), {})
        if answer.status in _NO_HEAD:
            # A signed URL is for one method alone.
            answer.close()
            answer = self._send("GET", self._locate(name), format_range(0, 1))
        answer.close()
        if answer.status in _GONE:
            return None
        if answer.status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return Entry(0, _find_version(answer.headers))
        if answer.status not in _GIVEN:
            raise self._refuse(answer, name)
        return Entry(_find_size(answer), _find_version(answer.headers))

    def read_small(self, name: str, limit_bytes: int, accept: str = "") -> bytes | None:
        """Reads a whole file into memory.

        Args:
            name: Below the folder; "" for the folder itself.
            limit_bytes: More is an error.
            accept: Content type that it must have to be read; "" for any.

        Returns:
            None where it is not there, or has another type.

        Raises:
            LoaderError: The server refuses, or it is too large.
        """
        answer = self._send("GET", self._locate(name), {})
        kind = answer.headers.get_content_type()
        # A folder whose index is switched off is forbidden, and that says nothing of its files.
        if answer.status in _GONE or (accept and (answer.status == HTTPStatus.FORBIDDEN or kind != accept)):
            answer.close()
            return None
        if answer.status != HTTPStatus.OK:
            answer.close()
            raise self._refuse(answer, name)
        if (answer.length_bytes or 0) > limit_bytes:
            answer.close()
            message = f"{self.url}{name} has more than {limit_bytes} bytes; it can't be what lists the files"
            raise WillNotWorkError(message, reason="BadManifest")
        return answer.read_all(limit_bytes)

    def read_range(self, file: RemoteFile, begin: int, end: int) -> Iterator[memoryview]:
        """Reads a range of the version that was listed; see `contract.Source`."""
        if begin >= end:
            return
        name = f"{self.url}{file.path}"
        # Where nobody says how long a file is, there are no parts of it either.
        is_known = file.size_bytes >= 0
        wanted = format_range(begin, end) if is_known else {}
        answer = self._send("GET", self._locate(file.path), {**wanted, **_make_condition(file.version)})
        refusal = self._check(answer, file, name)
        if refusal is not None:
            answer.close()
            raise refusal
        if is_known:
            yield from read_answer(answer, name, file.size_bytes, begin, end)
            return
        if begin:
            answer.close()
            raise RangesNotSupportedError(f"{name}: the server doesn't say how long it is; it is read in one piece")
        yield from _read_to_end(answer)

    def _check(self, answer: Answer, file: RemoteFile, name: str) -> LoaderError | None:
        if answer.status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return None
        # Also of servers that don't know the condition nothing else is taken.
        found = _find_version(answer.headers)
        is_other = answer.status in _GIVEN and bool(found and file.version) and found != file.version
        if is_other or answer.status in _GONE or answer.status == HTTPStatus.PRECONDITION_FAILED:
            return SourceChangedError(f"{name} has changed since it was listed; list it again")
        return None if answer.status in _GIVEN else self._refuse(answer, file.path)

    def close(self) -> None:
        """Gives back connections."""
        self._client.close()

    def _locate(self, name: str) -> str:
        query = f"?{self._query}" if self._query else ""
        return f"{self._folder}{quote(name)}{query}"

    def _send(self, method: str, url: str, headers: dict[str, str]) -> Answer:
        """Follows redirects, with the token for the first server alone, and never out of TLS."""
        for _ in range(_MAX_REDIRECTS + 1):
            answer = self._client.send(method, url, {**headers, **self._authorize(url)})
            target = answer.headers.get("Location")
            if answer.status not in REDIRECTS or not target:
                return answer
            answer.close()
            target = join_url(url, target)
            if parse_origin(url).scheme == "https" and parse_origin(target).scheme != "https":
                message = f"{self.url} leads to an address without encryption; use the address that it leads to"
                raise WillNotWorkError(message, reason="Refused")
            url = target
        message = f"{self.url} leads from one address to the next more than {_MAX_REDIRECTS} times; check the URL"
        raise WillNotWorkError(message, reason="Refused")

    def _authorize(self, url: str) -> dict[str, str]:
        path = self._options.token_file
        if path is None or self._options.anonymous or parse_origin(url) != self._origin:
            return {}
        token = read_secret(path, "token", "make the Secret, or leave the token out")
        if not (token.isascii() and token.isprintable()):
            message = f"{path} holds no token; put it there in one line"
            raise WillNotWorkError(message, reason=SECRET_MISSING)
        return {"Authorization": f"Bearer {token}"}

    def _refuse(self, answer: Answer, name: str) -> LoaderError:
        status, said = answer.status, f"{self.url}{name}"
        if status in _BUSY:
            message = f"{said}: the server is busy or down ({status}); try again later"
            return SourceUnavailableError(message, retry_after_seconds=read_retry_after(answer.headers))
        if status in {401, 403}:
            has_token = self._options.token_file is not None
            remedy = "check the token" if has_token else "give a token, or permit it to all"
            reason = "Unauthorized" if status == HTTPStatus.UNAUTHORIZED or not has_token else "Forbidden"
            return WillNotWorkError(f"{said}: the server refuses ({status}); {remedy}", reason=reason)
        if status in _GONE:
            return WillNotWorkError(f"{said}: it is not there ({status}); check the URL", reason="NotFound")
        if status == HTTPStatus.PROXY_AUTHENTICATION_REQUIRED:
            return WillNotWorkError(f"{said}: the proxy wants a password; set it in its URL", reason="ProxyRefused")
        return WillNotWorkError(f"{said}: the server refuses the request ({status}); check the URL", reason="Refused")


def _check_url(url: str, options: SourceOptions) -> None:
    shown = redact_url(url)
    if "#" in url:
        raise UsageError(f"{shown} has a '#' in it; write %23 for one in a name")
    path, question, _ = url.partition("?")
    if question and not path.endswith(".safetensors"):
        raise UsageError(f"{shown}: a query (signed URL) can only name a single .safetensors file")
    if options.credentials_dir or options.endpoint or options.region or options.path_style:
        message = f"{shown}: credentials, endpoint, region and path style are for buckets; https takes a token"
        raise UsageError(message)


def _read_to_end(answer: Answer) -> Iterator[memoryview]:
    """Gives all of a chunked answer; one that ends early is an error of the reader below."""
    view = memoryview(bytearray(PIECE_BYTES))
    try:
        while count := answer.read_into(view):
            yield view[:count]
    finally:
        answer.close()


def _find_size(answer: Answer) -> int:
    stated = (
        answer.headers.get("Content-Range", "").rpartition("/")[2]
        if answer.status == HTTPStatus.PARTIAL_CONTENT
        else ""
    )
    stated = stated or answer.headers.get("Content-Length", "")
    compressed = answer.headers.get("Content-Encoding", "identity").strip().lower() not in {"identity", ""}
    return int(stated) if stated.isascii() and stated.isdigit() and not compressed else -1


def _find_version(headers: Message) -> str:
    return headers.get("ETag") or headers.get("Last-Modified") or ""


def _make_condition(version: str) -> dict[str, str]:
    """A weak ETag never matches by definition; it is compared with the answer's alone."""
    if version.startswith('"'):
        return {"If-Match": version}
    return {"If-Unmodified-Since": version} if version and not version.startswith("W/") else {}
