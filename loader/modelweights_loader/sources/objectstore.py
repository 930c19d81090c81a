"""A bucket as a source: s3, gs and az through obstore; https is handed on to `objectstore_https`.

Called by `open_source`. Never shows what obstore says: see `objectstore_errors`.

What the stores vouch for: an ETag names a version, it is no hash (that of a multipart upload never is one). S3 keeps
sha256 of whole objects for some uploads, but obstore neither asks for them nor passes such headers on, and a header of our
own would not be signed; Google and Azure keep CRC32C and MD5. So hashes come from a manifest beside the weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from modelweights_loader.errors import LoaderError, WillNotWorkError
from modelweights_loader.interruptible import call
from modelweights_loader.sources.bounds import LibraryWatch, NamesBudget
from modelweights_loader.sources.contract import (
    Listing,
    RangesNotSupportedError,
    RemoteFile,
    SourceChangedError,
    SourceUnavailableError,
    pin_listing,
)
from modelweights_loader.sources.objectstore_config import allows_http, open_store, parse_bucket
from modelweights_loader.sources.objectstore_errors import Place, convert_error
from modelweights_loader.sources.objectstore_https import HttpsSource
from modelweights_loader.sources.objectstore_signed import SignedReader
from modelweights_loader.sources.remote_manifest import add_hashes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from obstore import GetOptions, GetResult, ObjectMeta
    from obstore.store import S3Store

    from modelweights_loader.sources.contract import Source, SourceOptions

# Whole ranges take twice the CPU and, eight of 32 MiB at a time, 250 MiB in place of 52. What is no larger than one piece is
# read so from S3 too, with half the CPU of a request of ours, until the store is busy: then Retry-After counts.
_PIECE_BYTES = 256 * 2**10
_PAGE_FILES = 1000
# Without one object for so long a list is ended, and tried again: no single answer may take longer than one stall.
_PAGE_STALLS = 4
# In front of a version that is no ETag: the store lists none.
_TIME = "modified "


class ObjectStoreSource:
    """Files below a prefix of a bucket, or below a URL of a web server."""

    def __init__(self, url: str, options: SourceOptions) -> None:
        """Makes the client; asks nothing of the network.

        Args:
            url: `s3://bucket/prefix`, `gs://…`, `az://container/prefix`, `https://…`.
            options: What it is told beside.

        Raises:
            LoaderError: The URL or the options are wrong, or credentials are missing.
        """
        is_web = url.startswith(("https://", "http://"))
        self._inner: Source = HttpsSource(url, options) if is_web else BucketSource(url, options)

    def list_files(self) -> Listing:
        """Lists all files; see `contract.Source`."""
        return self._inner.list_files()

    def read_range(self, file: RemoteFile, begin: int, end: int) -> Iterator[bytes | memoryview]:
        """Reads a range; see `contract.Source`."""
        return self._inner.read_range(file, begin, end)

    def close(self) -> None:
        """Gives back connections."""
        self._inner.close()


class BucketSource:
    """Objects below a prefix."""

    def __init__(self, url: str, options: SourceOptions) -> None:
        self._bucket = parse_bucket(url)
        self._options = options
        opened = open_store(self._bucket, options)
        self._store, self._has_credentials = opened.store, opened.has_credentials
        self._signed = SignedReader(cast("S3Store", self._store), options) if opened.is_static else None
        self._is_busy = False

    def list_files(self) -> Listing:
        """Lists all objects below the prefix, page by page.

        Returns:
            With a digest over names, sizes and ETags as revision.

        Raises:
            LoaderError: See `objectstore_errors`, or nothing is there.
        """
        url = self._bucket.url
        if self._signed is not None:
            self._signed.reopen()
        try:
            files = self._list_pages()
        except Exception as error:  # noqa: BLE001 - obstore's have no common ancestor: ValueError, FileNotFoundError, ...
            raise self._convert(error, url, listing=True) from None
        found = _drop_markers(files)
        if not found:
            message = f"{url} has no objects below it; check the prefix, which has to be a whole folder's name"
            raise WillNotWorkError(message, reason="NotFound")
        return self._finish(found)

    def _list_pages(self) -> list[RemoteFile]:
        """Page by page; obstore itself takes pages of any length, and any number of empty ones."""
        import obstore  # noqa: PLC0415 - see objectstore_config.open_store

        url = self._bucket.url
        budget, watch = NamesBudget(url), LibraryWatch(url, _PAGE_STALLS * self._options.stall_seconds)
        files: list[RemoteFile] = []
        pages = obstore.list(self._store, chunk_size=_PAGE_FILES)
        while True:
            page = call(lambda: next(pages, None), watch=watch.check)
            if page is None:
                return files
            watch.begin_page()
            budget.add(entry["path"] for entry in page)
            files += [self._make_file(entry) for entry in page]

    def _make_file(self, entry: ObjectMeta) -> RemoteFile:
        version = _find_version(entry, by_time=not entry["e_tag"])
        return RemoteFile(entry["path"], entry["size"], version=version)

    def _finish(self, files: tuple[RemoteFile, ...]) -> Listing:
        url = self._bucket.url
        revision = pin_listing(files, self._options.revision, url, what="objects")
        hashed = add_hashes(files, self._read_whole, url)
        notes = [hashed.said] if hashed.said else []
        if allows_http(self._options.endpoint):
            notes.append("WARNING: without encryption, since the endpoint says http://")
        said = f" ({'; '.join(notes)})" if notes else ""
        described = f"{url} at {revision[:19]}…{said}"
        return Listing(revision, hashed.files, described)

    def _read_whole(self, file: RemoteFile) -> bytes:
        return b"".join(self.read_range(file, 0, file.size_bytes))

    def read_range(self, file: RemoteFile, begin: int, end: int) -> Iterator[bytes | memoryview]:
        """Reads a range of exactly the version that was listed; see `contract.Source`."""
        if begin >= end:
            return iter(())
        said = f"{self._bucket.url}/{file.path}"
        if self._signed is None or (end - begin <= _PIECE_BYTES and not self._is_busy):
            return self._stream(file, begin, end, said)
        condition = file.version if _is_strong(file.version) else ""
        return self._signed.read(file, begin, end, condition, self._place(said, listing=False))

    def _stream(self, file: RemoteFile, begin: int, end: int, said: str) -> Iterator[bytes]:
        left = end - begin
        try:
            answer = self._get(file, begin, end)
            self._check(answer, file, said)
            # A copy each, in Python's own bytes: that is all that obstore offers for streams.
            for piece in answer.stream(_PIECE_BYTES):
                left -= len(piece)
                if left < 0:
                    break
                yield piece
        except Exception as error:  # noqa: BLE001 - see list_files
            converted = self._convert(error, said, listing=False)
            self._is_busy |= isinstance(converted, SourceUnavailableError)
            raise converted from None
        if left:
            how = "too much" if left < 0 else "too little"
            raise SourceUnavailableError(f"{said}: the transfer gave {how}; try again")

    def _get(self, file: RemoteFile, begin: int, end: int) -> GetResult:
        import obstore  # noqa: PLC0415 - see objectstore_config.open_store

        options: GetOptions = {"range": (begin, end)}
        if _is_strong(file.version):
            options["if_match"] = file.version
        try:
            return obstore.get(self._store, file.path, options=options)
        except Exception as error:
            whole = begin == 0 and end == file.size_bytes
            if not (whole and isinstance(self._convert(error, "", listing=False), RangesNotSupportedError)):
                raise
        del options["range"]
        return obstore.get(self._store, file.path, options=options)

    def _check(self, answer: GetResult, file: RemoteFile, said: str) -> None:
        """Also of stores that don't know If-Match nothing else is taken."""
        meta = answer.meta
        found = _find_version(meta, by_time=_is_time(file.version))
        if meta["size"] != file.size_bytes or (found and _bare(found) != _bare(file.version)):
            raise SourceChangedError(f"{said} has changed since it was listed; list it again")

    def _convert(self, error: Exception, said: str, *, listing: bool) -> LoaderError:
        if isinstance(error, LoaderError):
            return error
        return convert_error(error, self._place(said, listing=listing))

    def _place(self, said: str, *, listing: bool) -> Place:
        return Place(said, self._has_credentials, listing, self._options.stall_seconds)

    def close(self) -> None:
        """Ends connections; those of obstore end with its client, or when they stall."""
        if self._signed is not None:
            self._signed.close()


def _drop_markers(files: list[RemoteFile]) -> tuple[RemoteFile, ...]:
    """Without the empty objects by which consoles show folders: obstore takes the '/' from the end of their names."""
    folders: set[str] = {""}
    for file in files:
        parts = file.path.split("/")[:-1]
        folders.update("/".join(parts[:count]) for count in range(1, len(parts) + 1))
    return tuple(file for file in files if file.size_bytes or file.path not in folders)


def _find_version(meta: ObjectMeta, *, by_time: bool) -> str:
    return f"{_TIME}{meta['last_modified'].isoformat()}" if by_time else meta["e_tag"] or ""


def _is_time(version: str) -> bool:
    return version.startswith(_TIME)


def _is_strong(version: str) -> bool:
    return not _is_time(version) and not version.startswith("W/")


def _bare(version: str) -> str:
    """Azure writes an ETag in quotes in an answer and without in a list."""
    return version.removeprefix("W/").strip('"')
