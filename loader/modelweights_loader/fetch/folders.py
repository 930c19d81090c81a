"""Folders by their descriptors: each step of a path is opened in the one before, and no link is followed.

Used by all of `fetch` for what lies below a home. Whoever can write there could plant a link; it is refused, not followed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import TYPE_CHECKING

from modelweights_loader.errors import LoaderError, NoRoomError, TryAgainError, WillNotWorkError, describe_os_error

if TYPE_CHECKING:
    from collections.abc import Iterator

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: a FIFO must not hang us.
_FILE = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


class Folder:
    """An open folder. Closing it leaves those that were opened in it."""

    def __init__(self, descriptor: int, shown: str) -> None:
        self.descriptor = descriptor
        self.shown = shown

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes it; once is enough."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def folder(self, path: str, *, make: bool = False) -> Folder:
        """Opens a folder in it.

        Args:
            path: One or more names.
            make: Makes what isn't there.

        Returns:
            The caller closes it.

        Raises:
            FileNotFoundError: It isn't there.
            LoaderError: It is a link or no folder, or can't be opened.
        """
        descriptor = os.dup(self.descriptor)
        done = self.shown
        try:
            for name in path.split("/"):
                done = f"{done}/{name}"
                below = _open_folder(descriptor, name, done, make=make)
                os.close(descriptor)
                descriptor = below
        except BaseException:
            os.close(descriptor)
            raise
        return Folder(descriptor, done)

    def has_folder(self, path: str) -> bool:
        """Says whether a folder is there, and no link."""
        try:
            self.folder(path).close()
        except FileNotFoundError:
            return False
        return True

    def has_subfolder(self, name: str) -> bool:
        """Says whether one entry is a folder."""
        status = self.status(name)
        return status is not None and stat.S_ISDIR(status.st_mode)

    @contextlib.contextmanager
    def holding(self, path: str, *, make: bool = False) -> Iterator[tuple[Folder, str]]:
        """Opens the folder in it that holds what a path names.

        Args:
            path: One or more names.
            make: Makes folders that aren't there.

        Yields:
            The folder, and the last name.

        Raises:
            FileNotFoundError: A folder isn't there.
            LoaderError: See `folder`.
        """
        place, name = split(path)
        if not place:
            yield self, name
            return
        with self.folder(place, make=make) as folder:
            yield folder, name

    def open(self, name: str, flags: int, mode: int = 0o644) -> int:
        """Opens a regular file in it.

        Args:
            name: Of the file.
            flags: As of open(2).
            mode: Of a new one.

        Returns:
            A descriptor.

        Raises:
            FileNotFoundError: It isn't there.
            LoaderError: It is a link or no regular file, or can't be opened.
        """
        shown = f"{self.shown}/{name}"
        with saying("open", shown):
            descriptor = os.open(name, flags | _FILE, mode, dir_fd=self.descriptor)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            refuse_planted(shown)
        return descriptor

    def create(self, name: str) -> int:
        """Makes a new regular file, open for reading and writing.

        Args:
            name: Of the file.

        Returns:
            A descriptor.

        Raises:
            FileExistsError: The name is taken.
            LoaderError: It can't be made.
        """
        try:
            return os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | _FILE, 0o644, dir_fd=self.descriptor)
        except FileExistsError:
            raise
        except OSError as error:
            raise error_of(error, "make", f"{self.shown}/{name}") from error

    def status(self, name: str) -> os.stat_result | None:
        """Looks at an entry without following it; None where there is none."""
        try:
            return os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def names(self) -> list[str]:
        """Lists its entries, sorted."""
        with saying("list", self.shown):
            return sorted(os.listdir(self.descriptor))

    def unlink(self, name: str) -> None:
        """Removes an entry that is no folder; one that isn't there is fine."""
        with contextlib.suppress(FileNotFoundError), saying("remove", f"{self.shown}/{name}"):
            os.unlink(name, dir_fd=self.descriptor)

    def remove_tree(self, name: str) -> None:
        """Removes an entry with all that is in it. Links are removed and not followed."""
        status = self.status(name)
        if status is None:
            return
        if not stat.S_ISDIR(status.st_mode):
            self.unlink(name)
            return
        with self.folder(name) as inner:
            for entry in inner.names():
                inner.remove_tree(entry)
        with saying("remove", f"{self.shown}/{name}"):
            os.rmdir(name, dir_fd=self.descriptor)

    def rename(self, name: str, to: Folder, new_name: str) -> None:
        """Renames an entry, over what is there."""
        with saying("rename", f"{self.shown}/{name}"):
            os.rename(name, new_name, src_dir_fd=self.descriptor, dst_dir_fd=to.descriptor)

    def link(self, name: str, to: Folder, new_name: str) -> None:
        """Makes a hard link.

        Raises:
            OSError: There can't be one, or the new name is taken.
        """
        os.link(name, new_name, src_dir_fd=self.descriptor, dst_dir_fd=to.descriptor, follow_symlinks=False)

    def sync(self) -> None:
        """Makes its entries last; file systems that can't sync a folder don't need to."""
        with contextlib.suppress(OSError):
            os.fsync(self.descriptor)

    def walk(self, below: str = "") -> Iterator[tuple[str, os.stat_result]]:
        """Lists all that is no folder, by path, without following links."""
        for name in self.names():
            path = f"{below}{name}"
            status = self.status(name)
            if status is None:
                continue
            if stat.S_ISDIR(status.st_mode):
                with self.folder(name) as inner:
                    yield from inner.walk(f"{path}/")
            else:
                yield path, status

    def write(self, name: str, content: bytes) -> None:
        """Writes a small file so that readers see the old or the new content, also after a crash."""
        temporary = f"{name}.part"
        self.unlink(temporary)
        descriptor = self.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        with saying("write", f"{self.shown}/{name}"), os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        self.rename(temporary, self, name)
        self.sync()

    def read(self, name: str, limit_bytes: int) -> bytes | None:
        """Reads a small file; None where there is none."""
        try:
            descriptor = self.open(name, os.O_RDONLY)
        except FileNotFoundError:
            return None
        with saying("read", f"{self.shown}/{name}"), os.fdopen(descriptor, "rb") as file:
            return file.read(limit_bytes)


def open_home(path: str, *, make: bool) -> Folder:
    """Opens the home itself; links that lead to it are the administrator's.

    Args:
        path: Of the home.
        make: Makes it where it isn't there.

    Returns:
        The caller closes it.

    Raises:
        FileNotFoundError: It isn't there, and isn't to be made.
        LoaderError: It can't be opened or made.
    """
    with saying("open", path):
        if make:
            _make_home(path)
        elif os.path.islink(path) and not os.path.exists(path):
            raise _planted(path)
        return Folder(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), os.path.abspath(path))


def _make_home(path: str) -> None:
    try:
        os.makedirs(path, exist_ok=True)
    except FileExistsError as error:
        raise _planted(path) from error
    except FileNotFoundError as error:
        # As below /proc.
        raise WillNotWorkError(f"no folder can be made in the place of {path}", reason="NotWritable") from error


def split(path: str) -> tuple[str, str]:
    """Splits a path into its folder ("" for none) and its name."""
    folder, _, name = path.rpartition("/")
    return folder, name


class saying:  # noqa: N801 - reads as a verb; a generator would take a hundredth of what a small file costs, each time
    """Makes an error with an exit code of what the system says, but for a file that isn't there.

    Raises:
        LoaderError: In the place of any other OSError.
    """

    __slots__ = ("_doing", "_shown")

    def __init__(self, doing: str, shown: str) -> None:
        """Names what is done.

        Args:
            doing: The verb.
            shown: What it is done to.
        """
        self._doing, self._shown = doing, shown

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
            raise error_of(error, self._doing, self._shown) from error


def error_of(error: OSError, doing: str, shown: str) -> LoaderError:
    """Says what an OSError below a home means.

    Args:
        error: Of the system.
        doing: The verb.
        shown: What it was done to.

    Returns:
        The error to raise.
    """
    said = f"cannot {doing} {shown} ({describe_os_error(error)})"
    if error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
        return NoRoomError(f"{said}; free disk space, then what was fetched is gone on with")
    if error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
        who = f"uid {os.geteuid()}, gid {os.getegid()}"
        return WillNotWorkError(f"{said}; let {who} write below the home", reason="NotWritable")
    if error.errno in {errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENXIO}:
        return _planted(shown)
    if error.errno in {errno.ENAMETOOLONG, errno.EINVAL}:
        return WillNotWorkError(f"{said}; this file system has no such names", reason="UnsafePath")
    return TryAgainError(f"{said}; check the storage, then try again", reason="WriteFailed")


def refuse_planted(shown: str) -> None:
    """Ends it at a link, a device or the like.

    Args:
        shown: Where it lies.

    Raises:
        WillNotWorkError: Always.
    """
    raise _planted(shown)


def _planted(shown: str) -> WillNotWorkError:
    message = f"{shown} is not what fetch made there (a link, device or other kind of file); remove it"
    return WillNotWorkError(message, reason="UnsafePath")


def _open_folder(descriptor: int, name: str, shown: str, *, make: bool) -> int:
    with saying("open", shown):
        try:
            return os.open(name, _FOLDER, dir_fd=descriptor)
        except FileNotFoundError:
            if not make:
                raise
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, dir_fd=descriptor)
        return os.open(name, _FOLDER, dir_fd=descriptor)
