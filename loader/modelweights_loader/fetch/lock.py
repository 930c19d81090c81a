"""One writer for each home: a lock that dies with its holder. Called by `fetching`.

`flock` belongs to the open file: SIGKILL, an eviction or a reboot frees it, and no number of a process has to be believed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from typing import TYPE_CHECKING

from modelweights_loader.errors import TryAgainError, WillNotWorkError, describe_os_error
from modelweights_loader.quantity import format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from modelweights_loader.fetch.folders import Folder

LOCK_NAME = "lock"
_POLL_SECONDS = 0.2
_SAY_SECONDS = 15.0


class HomeRemovedError(TryAgainError):
    """The home went while its lock was waited for."""


@contextlib.contextmanager
def hold_lock(folder: Folder, wait_seconds: float, say: Callable[[str], None]) -> Iterator[None]:
    """Holds the lock of a home.

    Args:
        folder: Its `.fetch`.
        wait_seconds: How long to wait for another holder.
        say: Told while it waits.

    Raises:
        TryAgainError: Locked: another one holds it for longer.
        HomeRemovedError: It was cleaned away meanwhile.
        WillNotWorkError: LocksNotSupported: two writers could not be told apart here.
    """
    try:
        descriptor = folder.open(LOCK_NAME, os.O_RDWR | os.O_CREAT)
    except FileNotFoundError as error:
        raise _cleaned(folder) from error
    try:
        _wait(descriptor, folder.shown, wait_seconds, say)
        # `clean --all` takes the lock away as the last thing: another one may hold the next one of this name.
        if os.fstat(descriptor).st_nlink == 0:
            raise _cleaned(folder)
        yield
    finally:
        os.close(descriptor)


def _cleaned(folder: Folder) -> HomeRemovedError:
    return HomeRemovedError(f"{folder.shown} was removed meanwhile; try again", reason="Locked")


def _wait(descriptor: int, shown: str, wait_seconds: float, say: Callable[[str], None]) -> None:
    began = time.monotonic()
    said = began - _SAY_SECONDS
    while not _try(descriptor, shown):
        now = time.monotonic()
        if now - began >= wait_seconds:
            message = (
                f"another fetch has held {shown}/{LOCK_NAME} for {format_seconds(now - began)}; wait for it, then try "
                "again: what it fetched is there then"
            )
            raise TryAgainError(message, reason="Locked")
        if now - said >= _SAY_SECONDS:
            said = now
            say(f"waiting for another fetch, which holds {shown}/{LOCK_NAME}, since {format_seconds(now - began)}")
        time.sleep(min(_POLL_SECONDS, max(0.0, began + wait_seconds - now)))


def _try(descriptor: int, shown: str) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in {errno.EAGAIN, errno.EACCES}:
            return False
        if error.errno in {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}:
            message = (
                f"{shown} lies on a file system without locks ({describe_os_error(error)}), where two writers would spoil "
                "each other's work; mount it with locks (NFS: not nolock), or take another one"
            )
            raise WillNotWorkError(message, reason="LocksNotSupported") from error
        raise
    return True
