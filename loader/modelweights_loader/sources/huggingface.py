"""Lists and reads a repository of a Hugging Face hub, or of a mirror that speaks as it does.

Made by `open_source.open_source`, used by `fetch`. huggingface_hub speaks the protocol of listings, over `http_ranges`
(see `hub_listing`); ranges are read over `http_ranges` directly. Must not write anything.
"""

from __future__ import annotations

import os
import re
import threading
from typing import TYPE_CHECKING
from urllib.parse import quote

from modelweights_loader.errors import UsageError, WillNotWorkError
from modelweights_loader.sources.contract import Listing, SourceChangedError
from modelweights_loader.sources.http_ranges import (
    REDIRECTS,
    format_range,
    join_url,
    make_client,
    parse_origin,
    read_answer,
)
from modelweights_loader.sources.hub_errors import HubRequest, explain_hub_status, explain_storage_status
from modelweights_loader.sources.secret_file import SECRET_MISSING, read_secret

if TYPE_CHECKING:
    from collections.abc import Iterator

    from modelweights_loader.sources.contract import RemoteFile, SourceOptions
    from modelweights_loader.sources.http_ranges import Answer

_HUB = "https://huggingface.co"
_DEFAULT_REVISION = "main"
_TOKEN = re.compile(r"[!-~]{1,4096}")
_MAX_REDIRECTS = 5
_RANGE_STATUS = frozenset({200, 206, 416})
# The hub gives such a file itself; or the mirror knows no HEAD, and the first range shows what it does.
_HEAD_STATUS = frozenset({200, 405, 501})
# What storages answer to a signed URL whose time is over.
_EXPIRED = frozenset({400, 401, 403, 404, 410})
_NUM_LOCKS = 64


class HuggingFaceSource:
    """A repository at one revision; after `list_files` all is read from that commit, wherever the branch moves."""

    def __init__(self, name: str, options: SourceOptions) -> None:
        """Make one; connects to nothing.

        Args:
            name: `org/name`, or the name alone.
            options: Without an endpoint it is HF_ENDPOINT, else the hub itself.

        Raises:
            UsageError: The endpoint is no URL, or carries credentials.
        """
        self._name, self._options = name, options
        self._token_file = None if options.anonymous else options.token_file
        self._endpoint = (options.endpoint or os.environ.get("HF_ENDPOINT") or _HUB).rstrip("/")
        try:
            self._origin = parse_origin(self._endpoint)
        except WillNotWorkError as error:
            raise UsageError(f"the endpoint of the hub: {error.message}") from error
        self._http = make_client(options)
        # Signed URLs by path: never to be shown.
        self._locations: dict[str, str] = {}
        # One thread at a time asks for the signed URL of a file.
        self._locks = tuple(threading.Lock() for _ in range(_NUM_LOCKS))

    def list_files(self) -> Listing:
        """See `contract.Source`: the revision is resolved first, and the files are those of its commit."""
        from modelweights_loader.sources.hub_listing import list_repository  # noqa: PLC0415 - imports the library

        asked = self._options.revision or _DEFAULT_REVISION
        request = HubRequest(self._endpoint, self._name, asked, self._token_file)
        commit, files = list_repository(request, self._get, self._read_token())
        described = f"{self._name} at {commit}" + ("" if asked == commit else f" ({asked})")
        return Listing(commit, files, f"{described} of {self._origin.described}", self._name)

    def read_range(self, file: RemoteFile, begin: int, end: int) -> Iterator[memoryview]:
        """See `contract.Source`: what the hub keeps in its storage is read there, by a signed URL that is kept."""
        if begin < end:
            yield from read_answer(self._open(file, begin, end), file.path, file.size_bytes, begin, end)

    def close(self) -> None:
        """See `contract.Source`."""
        self._http.close()

    def _open(self, file: RemoteFile, begin: int, end: int) -> Answer:
        """Send the request for a range, and once more with a new link where the one known is refused."""
        if begin == 0 and end == file.size_bytes:
            # One request for each of ten thousand small files, and no link to keep.
            return self._accept(*self._follow(self._make_url(file), file, begin, end), file)
        location, known = self._locate(file)
        answer, storage = self._follow(location, file, begin, end)
        if known and storage is not None and answer.status in _EXPIRED:
            answer.close()
            location, _ = self._locate(file, refused=location)
            answer, storage = self._follow(location, file, begin, end)
        return self._accept(answer, storage, file)

    def _locate(self, file: RemoteFile, refused: str | None = None) -> tuple[str, bool]:
        """Find where the ranges of a file are read: its signed link in the storage, or the hub itself.

        Args:
            file: Which.
            refused: A link that is of no use any more; another thread may have got a new one meanwhile.

        Returns:
            The URL, and whether it was known before.
        """
        with self._locks[hash(file.path) % _NUM_LOCKS]:
            known = self._locations.get(file.path)
            if known is not None and known != refused:
                return known, True
            url = self._make_url(file)
            for _ in range(_MAX_REDIRECTS):
                # Without a range: the hub binds a link to the range that it was asked for with.
                answer = self._send("HEAD", url, {})
                self._check_commit(answer, file)
                if answer.status not in REDIRECTS:
                    if answer.status not in _HEAD_STATUS:
                        self._accept(answer, None, file)
                    answer.close()
                    break
                url = _take_location(answer, url, file)
                if parse_origin(url) != self._origin:
                    break
            self._locations[file.path] = url
            return url, False

    def _make_url(self, file: RemoteFile) -> str:
        return f"{self._endpoint}/{self._name}/resolve/{file.version}/{quote(file.path)}"

    def _follow(self, url: str, file: RemoteFile, begin: int, end: int) -> tuple[Answer, str | None]:
        """Ask for a range and follow redirects; once they have left the hub, no token is sent any more.

        Returns:
            The answer, and the first URL outside of the hub.
        """
        storage = None if parse_origin(url) == self._origin else url
        for _ in range(_MAX_REDIRECTS):
            answer = self._send("GET", url, format_range(begin, end), trusted=storage is None)
            if storage is None:
                self._check_commit(answer, file)
            if answer.status not in REDIRECTS:
                return answer, storage
            url = _take_location(answer, url, file)
            if storage is None and parse_origin(url) != self._origin:
                storage = url
        raise WillNotWorkError(f"{file.path}: {self._origin.described} redirects without an end", reason="BadRedirect")

    def _get(self, url: str, headers: dict[str, str]) -> Answer:
        return self._send("GET", url, headers)

    def _send(self, method: str, url: str, headers: dict[str, str], *, trusted: bool = True) -> Answer:
        """Send a request; the token goes to the endpoint's own origin and nowhere else."""
        if trusted and parse_origin(url) == self._origin:
            token = self._read_token()
            if token is not None:
                headers = {**headers, "Authorization": f"Bearer {token}"}
        return self._http.send(method, url, headers)

    def _accept(self, answer: Answer, storage: str | None, file: RemoteFile) -> Answer:
        if answer.status in _RANGE_STATUS:
            return answer
        answer.close()
        if storage is not None:
            raise explain_storage_status(answer.status, answer.headers, answer.origin, file.path)
        request = HubRequest(self._endpoint, self._name, file.version, self._token_file)
        raise explain_hub_status(answer.status, answer.headers, request, path=file.path)

    def _check_commit(self, answer: Answer, file: RemoteFile) -> None:
        commit = answer.headers.get("X-Repo-Commit")
        if commit is not None and commit != file.version:
            answer.close()
            message = f"{file.path}: {self._origin.described} gives it of commit {commit[:40]!r}, not {file.version}"
            raise SourceChangedError(message)

    def _read_token(self) -> str | None:
        """Read it anew each time: it may have been rotated."""
        return None if self._token_file is None else _read_token(self._token_file)


def _take_location(answer: Answer, url: str, file: RemoteFile) -> str:
    answer.close()
    location = answer.headers.get("Location")
    who = answer.origin.described
    if not location:
        raise WillNotWorkError(f"{file.path}: {who} redirects to nowhere", reason="BadRedirect")
    target = join_url(url, location)
    if answer.origin.scheme == "https" and parse_origin(target).scheme == "http":
        message = f"{file.path}: {who} redirects from https to http; use an endpoint that doesn't"
        raise WillNotWorkError(message, reason="BadRedirect")
    return target


def _read_token(path: str) -> str:
    remedy = "put the token into the Secret (or the file), or leave the token out for public repositories"
    text = read_secret(path, "token", remedy)
    if _TOKEN.fullmatch(text) is None:
        message = f"{path} holds no token (one line without blanks); {remedy}"
        raise WillNotWorkError(message, reason=SECRET_MISSING)
    return text
