"""What every source offers, and the errors by which it tells whether trying again helps.

Implemented by the modules beside it, used by `fetch`. Must not import any library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from modelweights_loader.errors import TryAgainError, WillNotWorkError

if TYPE_CHECKING:
    from collections.abc import Iterator


class RemoteFile(NamedTuple):
    """One file as its source lists it. Nothing of it is trusted: `fetch.names` checks the path.

    Attributes:
        path: Below the source's root, with '/'.
        size_bytes: As the source says; what arrives must have as many. -1 where it doesn't say.
        sha256: 64 hex digits, where the source vouches for the content (an ETag of an object store is no hash); or "".
        git_blob: 40 hex digits of git's sha1 over the header "blob", the size and the content; or "".
        version: What names this very content at the source (ETag, generation, commit): a read of another is refused.
    """

    path: str
    size_bytes: int
    sha256: str = ""
    git_blob: str = ""
    version: str = ""


class Listing(NamedTuple):
    """All files of one revision.

    Attributes:
        revision: Pins it: a commit, or `sha256:` and 64 hex digits over the listing (see `digest_listing`).
        files: In any order; unfiltered.
        described: The source and its revision in words, without anything secret.
        name: For a Hugging Face repository `org/name`, which names the folder of the layout HuggingFaceCache; else "".
    """

    revision: str
    files: tuple[RemoteFile, ...]
    described: str
    name: str = ""


class Source(Protocol):
    """A place that files come from. Methods are called from several threads at once; all of them may block."""

    def list_files(self) -> Listing:
        """List all files of the revision that was asked for, and pin it.

        Raises:
            LoaderError: See the errors below, and `WillNotWorkError` with a reason of its own for each kind (Unauthorized,
                Gated, Forbidden, RepositoryNotFound, RevisionNotFound, BucketNotFound, NotFound, SecretMissing).
        """

    def read_range(self, file: RemoteFile, begin: int, end: int) -> Iterator[bytes | memoryview]:
        """Read the bytes from begin up to end, in order, in pieces of any size; a piece is valid until the next one.

        Closing the iterator ends the transfer. It blocks no longer than the source's stall time without a byte.

        Args:
            file: From `list_files`.
            begin: First byte.
            end: Behind the last byte; at most the file's size.

        Raises:
            SourceChangedError: The content is no longer that of the file's version.
            RangesNotSupportedError: It can be read from its start only.
            LoaderError: As for `list_files`. Also for a transfer that ends early or gives too much.
        """

    def close(self) -> None:
        """Give back connections. Reads that are under way may end with an error."""


# Of one fetch, unless it is told otherwise: the one place that says so.
DEFAULT_CONNECTIONS = 8


class SourceUnavailableError(TryAgainError):
    """The source is busy or away: 429, 5xx, a refused or reset connection, a stall.

    Attributes:
        retry_after_seconds: What the source asked for (Retry-After), or None.
    """

    reason = "SourceUnavailable"

    def __init__(self, message: str, *, reason: str | None = None, retry_after_seconds: float | None = None) -> None:
        super().__init__(message, reason=reason)
        self.retry_after_seconds = retry_after_seconds


class SourceChangedError(TryAgainError):
    """The content changed since it was listed; what was fetched of it is of no use. Listing anew may help."""

    reason = "SourceChanged"


class RangesNotSupportedError(WillNotWorkError):
    """The source gives whole files only. Not an end: `fetch` then reads the file in one piece from its start."""

    reason = "RangesNotSupported"


class SourceOptions(NamedTuple):
    """What a source may be told beside its URL.

    Attributes:
        revision: Branch, tag or commit; for object stores and folders the digest of a listing that must still hold; "".
        endpoint: Base URL of a mirror or of an S3-compatible store; "".
        region: Of an object store; "".
        path_style: Bucket in the path and not in the host name.
        anonymous: Send no credentials, even if some could be had.
        token_file: File with a token, read at each use (it may be rotated); None.
        credentials_dir: Folder with one file per credential, named as the environment variable would be; None.
        ca_file: PEM bundle for TLS, beside or in place of the system's as the file itself decides; None.
        stall_seconds: No byte for so long is an error that is tried again.
        num_connections: Upper bound of connections at the same time.
    """

    revision: str = ""
    endpoint: str = ""
    region: str = ""
    path_style: bool = False
    anonymous: bool = False
    token_file: str | None = None
    credentials_dir: str | None = None
    ca_file: str | None = None
    stall_seconds: float = 30.0
    num_connections: int = DEFAULT_CONNECTIONS


def digest_listing(files: tuple[RemoteFile, ...]) -> str:
    """Make a revision for a source that has none, from the names, sizes and versions of its files.

    Args:
        files: In any order.

    Returns:
        `sha256:` and 64 hex digits.
    """
    import hashlib  # noqa: PLC0415 - OpenSSL costs 10 ms
    import json  # noqa: PLC0415 - see above

    # The digest of one JSON text, of which there is never more than a line.
    digest = hashlib.sha256(b"[")
    for number, file in enumerate(sorted(files)):
        line = json.dumps([file.path, file.size_bytes, file.version or file.sha256])
        digest.update((f", {line}" if number else line).encode())
    digest.update(b"]")
    return f"sha256:{digest.hexdigest()}"


def pin_listing(files: tuple[RemoteFile, ...], asked: str, shown: str, what: str = "files") -> str:
    """Make the revision of a listing, which must be the one that was asked for.

    Args:
        files: See `digest_listing`.
        asked: The revision that must still hold, or "".
        shown: The source, for messages.
        what: What it holds, likewise.

    Returns:
        From `digest_listing`.

    Raises:
        WillNotWorkError: SourceChanged: it gives another one.
    """
    revision = digest_listing(files)
    if asked not in {"", revision}:
        message = f"{shown} has changed: its list gives {revision}, not {asked}; remove the pin, or put the {what} back"
        raise WillNotWorkError(message, reason="SourceChanged")
    return revision
