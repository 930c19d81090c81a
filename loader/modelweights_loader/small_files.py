"""Reads and writes the small files beside a checkpoint: reports, results, markers. Never hangs on what is no file.

Called by `report` and `marker`. Must not import torch, nor anything slow: `wait` pays for it.
"""

from __future__ import annotations

import fcntl
import os
import stat
import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

_SUFFIX = ".part"
_MAX_SHOWN = 40
_TRIES = 5


class _NoNameError(Exception):
    """A file without a name could not be given one."""


def read_regular(path: str, limit_bytes: int = -1) -> bytes:
    """Reads a file, but no FIFO and no device, which might never end.

    Args:
        path: The file; links are followed.
        limit_bytes: Read no more than that; -1 reads all.

    Returns:
        Its content.

    Raises:
        OSError: It can't be read.
        ValueError: It is no regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            msg = f"{path} is no regular file"
            raise ValueError(msg)
        return file.read(limit_bytes)


def write_in_place(path: str, content: bytes) -> None:
    """Writes a file in place, with one write: a bind-mounted file can't be renamed over.

    /dev/null, terminals, pipes and FIFOs that somebody reads will do; what would block is an error.

    Args:
        path: The file, made when it isn't there.
        content: What it is to hold.

    Raises:
        OSError: It can't be written, or only by waiting.
    """
    # Without O_NONBLOCK a FIFO that nobody reads holds the process for ever. No O_TRUNC: a block device must stay whole.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY, 0o644)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISREG(mode):
            os.ftruncate(descriptor, 0)
        elif stat.S_ISBLK(mode):
            import errno  # noqa: PLC0415 - only on the way to an error

            raise OSError(errno.ENOTSUP, "it is a block device")
        _write_all(descriptor, content, mode)
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, content: bytes, mode: int) -> None:
    """A limit of the file's size takes a part first, and refuses the next write."""
    try:
        while content:
            content = content[os.write(descriptor, content) :]
    except OSError:
        # Nothing is better than half of it.
        if stat.S_ISREG(mode):
            os.ftruncate(descriptor, 0)
        raise


def write_atomically(path: str, content: bytes, mode: int = 0o644) -> None:
    """Writes a file so that readers see the old or the new content, also after a crash.

    Killed at any moment it leaves at most a file `.<name>.<token>.part`, which the next write of the same file removes:
    a writer that lives holds a lock on its own. A process number would not do, since other pods have the same ones.

    Args:
        path: The file.
        content: What it is to hold.
        mode: Its permissions.

    Raises:
        OSError: Nothing was changed, and no temporary file stays.
    """
    folder, name = os.path.split(path)
    folder = folder or "."
    prefix = f".{name[:_MAX_SHOWN]}."
    _remove_leftovers(folder, prefix)
    create: Callable[[str, str], _NewFile] = _create_unnamed
    for attempt in range(_TRIES):
        token = f"{os.getpid():x}{time.monotonic_ns():x}"
        temporary = os.path.join(folder, f"{prefix}{token}{_SUFFIX}")
        try:
            _write_once(create(folder, temporary), folder, temporary, path, content, mode)
        except _NoNameError:
            create = _create_named
        except FileNotFoundError:
            # Another writer took it for a leftover before it was locked, which only happens without O_TMPFILE.
            if attempt + 1 == _TRIES or not os.path.isdir(folder):
                raise
        else:
            return


class _NewFile(NamedTuple):
    descriptor: int
    is_named: bool


def _write_once(new: _NewFile, folder: str, temporary: str, path: str, content: bytes, mode: int) -> None:
    is_named = new.is_named
    with os.fdopen(new.descriptor, "wb") as file:
        try:
            _try_lock(new.descriptor)
            file.write(content)
            file.flush()
            os.fchmod(new.descriptor, mode)
            os.fsync(new.descriptor)
            if not is_named:
                _name(new.descriptor, folder, temporary)
                is_named = True
            os.replace(temporary, path)
        except BaseException:
            if is_named:
                _unlink(temporary)
            raise


def _create_unnamed(folder: str, temporary: str) -> _NewFile:
    """A file without a name, where the file system has them: it leaves nothing when its process is killed."""
    try:
        return _NewFile(os.open(folder, os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, 0o600), is_named=False)
    except OSError:
        # Unknown to NFS and to some FUSE file systems, each with an errno of its own; a real cause shows again here.
        return _create_named(folder, temporary)


def _create_named(_folder: str, temporary: str) -> _NewFile:
    return _NewFile(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), is_named=True)


def _name(descriptor: int, folder: str, temporary: str) -> None:
    """linkat(2) with AT_SYMLINK_FOLLOW; Python uses it in place of link(2), which follows nothing, given a dir_fd."""
    place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.link(f"/proc/self/fd/{descriptor}", os.path.basename(temporary), dst_dir_fd=place, follow_symlinks=True)
    except OSError as error:
        # No /proc here, or a file system that has no links.
        raise _NoNameError from error
    finally:
        os.close(place)


def _remove_leftovers(folder: str, prefix: str) -> None:
    """Removes what killed writers left. What can't be looked at stays; the write itself will say what is wrong."""
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        if name.startswith(prefix) and name.endswith(_SUFFIX):
            _remove_if_dead(os.path.join(folder, name))


def _remove_if_dead(path: str) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        if stat.S_ISREG(os.fstat(descriptor).st_mode) and _try_lock(descriptor):
            _unlink(path)
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        # Somebody holds it, or this file system has no locks.
        return False
    return True


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        return
