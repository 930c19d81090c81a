"""A folder as a source: a shared file system that is copied to a node's own disk. Called by `open_source`.

What is read counts as not used again, since only the copy is; it is not dropped, others may have it warm for themselves.
Must not import any library.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from modelweights_loader.checkpoint import default_root
from modelweights_loader.errors import WillNotWorkError, error_from_os
from modelweights_loader.opening import open_found, resolve
from modelweights_loader.sources.contract import (
    Listing,
    RemoteFile,
    SourceChangedError,
    SourceOptions,
    digest_listing,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

_PIECE_BYTES = 2**19
_MAX_DEPTH = 32
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class LocalSource:
    """Files of a folder. Links are followed, since a Hugging Face snapshot is made of them; folders that are links aren't.

    Not out of the folder, nor out of the cache that a snapshot belongs to: what else this process may read, such as its
    Secrets, is no part of a checkpoint.
    """

    def __init__(self, folder: str, options: SourceOptions) -> None:
        self._folder = folder
        self._options = options
        self._real = resolve(folder)
        self._boundary = default_root(self._real).rstrip("/") + "/"

    def list_files(self) -> Listing:
        """Lists all regular files.

        Returns:
            With a digest of names, sizes and times as revision.

        Raises:
            LoaderError: The folder can't be read, or no longer gives the revision that was asked for.
        """
        try:
            files = tuple(sorted(self._walk(open_found(self._real, is_folder=True), "", 0)))
        except OSError as error:
            raise error_from_os(error, self._folder, "list") from error
        revision = digest_listing(files)
        if self._options.revision not in {"", revision}:
            message = (
                f"{self._folder} no longer holds the revision {self._options.revision}, its files give {revision}; put "
                "them back, or ask for the new one"
            )
            raise SourceChangedError(message)
        return Listing(revision, files, f"{self._folder} at {revision[:19]}…")

    def _walk(self, folder: int, below: str, depth: int) -> Iterator[RemoteFile]:
        """Each folder is opened in the one before, so that none becomes a link on the way. Closes the descriptor."""
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    path = f"{below}/{entry.name}" if below else entry.name
                    if not entry.is_dir(follow_symlinks=False):
                        yield from self._describe(entry, path)
                    # Hidden folders (.git, .cache) are no part of a checkpoint, nor is what every new disk has.
                    elif not entry.name.startswith(".") and entry.name != "lost+found":
                        self._refuse_deep(path, depth + 1)
                        yield from self._walk(os.open(entry.name, _FOLDER, dir_fd=folder), path, depth + 1)
        except OSError as error:
            raise error_from_os(error, os.path.join(self._folder, below), "list") from error
        finally:
            os.close(folder)

    def _refuse_deep(self, below: str, depth: int) -> None:
        if depth > _MAX_DEPTH:
            message = (
                f"{self._folder}/{below} is nested deeper than {_MAX_DEPTH} folders; name the checkpoint's own folder"
            )
            raise WillNotWorkError(message, reason="UnsafePath")

    def _describe(self, entry: os.DirEntry[str], path: str) -> Iterator[RemoteFile]:
        try:
            status = entry.stat()
        except FileNotFoundError:
            # A link to nowhere is no file; a shard that is lacking for that is named later.
            return
        if not stat.S_ISREG(status.st_mode):
            return
        if entry.is_symlink():
            shown = os.path.join(self._folder, path)
            self._refuse_outside(resolve(shown), shown)
        yield RemoteFile(path, status.st_size, version=_version_of(status))

    def _refuse_outside(self, real: str, shown: str) -> None:
        if not real.startswith(self._boundary):
            message = f"{shown} is a link out of {self._boundary}; copy the file there, or remove the link"
            raise WillNotWorkError(message, reason="UnsafePath")

    def read_range(self, file: RemoteFile, begin: int, end: int) -> Iterator[memoryview]:
        """Reads a range into a buffer that is used again for the next piece.

        Args:
            file: From `list_files`.
            begin: First byte.
            end: Behind the last one.

        Yields:
            Pieces.

        Raises:
            SourceChangedError: It is no longer the file that was listed.
            LoaderError: It can't be read.
        """
        path = os.path.join(self._folder, file.path)
        buffer = memoryview(bytearray(min(_PIECE_BYTES, max(end - begin, 1))))
        try:
            real = resolve(path)
            self._refuse_outside(real, path)
            descriptor = open_found(real)
        except OSError as error:
            raise error_from_os(error, path, "open") from error
        try:
            self._check(descriptor, file, path)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_NOREUSE)
            position = begin
            while position < end:
                got = os.preadv(descriptor, [buffer[: min(_PIECE_BYTES, end - position)]], position)
                if not got:
                    message = f"{path} ends at byte {position}, it had {file.size_bytes} when it was listed"
                    raise SourceChangedError(message)
                yield buffer[:got]
                position += got
            self._check(descriptor, file, path)
        except OSError as error:
            raise error_from_os(error, path, "read") from error
        finally:
            os.close(descriptor)

    def _check(self, descriptor: int, file: RemoteFile, path: str) -> None:
        if _version_of(os.fstat(descriptor)) != file.version:
            message = f"{path} changed since it was listed; stop what writes there, then try again"
            raise SourceChangedError(message)

    def close(self) -> None:
        """Does nothing: each read closes its own file."""


def _version_of(status: os.stat_result) -> str:
    return f"{status.st_size}-{status.st_mtime_ns}"
