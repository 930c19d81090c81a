"""Holds a staged checkpoint with a shared lock, so that `clean` leaves it: for native sidecars of inference pods.

Called by `commands.wait`. No access to the API server, and no torch.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import time
from typing import TYPE_CHECKING

from modelweights_loader.errors import TryAgainError, WillNotWorkError, describe_os_error, error_from_os
from modelweights_loader.interruptible import call
from modelweights_loader.marker import find_marker_folder
from modelweights_loader.wait import wait

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from modelweights_loader.marker import Marker

_DIGEST = re.compile(r"[0-9a-f]{64}")
_POLL_SECONDS = 0.2
_GONE = {errno.ENOENT, errno.ENOTDIR, errno.ESTALE}


@contextlib.contextmanager
def wait_and_hold(
    path: str, *, digest: str | None, timeout_seconds: float, say: Callable[[str], None]
) -> Iterator[Marker]:
    """Waits for the marker and holds what it is about.

    Args:
        path: The model as this pod sees it.
        digest: Only this manifest digest will do. None takes any.
        timeout_seconds: Give up waiting after that; 0 waits for ever.
        say: See `wait`.

    Yields:
        The marker.

    Raises:
        WillNotWorkError: See `wait`; or LocksNotSupported.
        TryAgainError: The time is over.
    """
    started = time.monotonic()
    while True:
        left = max(timeout_seconds - (time.monotonic() - started), _POLL_SECONDS) if timeout_seconds else 0.0
        wait(path, digest=digest, timeout_seconds=left, say=say)
        descriptor = call(lambda: _try(find_held_folder(path)), left)
        if descriptor is None:
            if timeout_seconds and time.monotonic() - started >= timeout_seconds:
                message = f"{path} could not be held within {timeout_seconds:g} s: it is being removed"
                raise TryAgainError(message, reason="NotStaged")
            say("waiting: it is being removed")
            time.sleep(_POLL_SECONDS)
            continue
        try:
            # Once more: what went between the two looks went with its marker.
            marker = wait(path, digest=digest, timeout_seconds=left, say=say)
            if _is_held(path, descriptor, left):
                yield marker
                return
        finally:
            os.close(descriptor)


def find_held_folder(path: str) -> str:
    """Finds the folder whose lock counts.

    Args:
        path: The model as this pod sees it.

    Returns:
        Of a fetched one the folder that is named by its digest; else the model's own.
    """
    real = os.path.realpath(path)
    found = find_marker_folder(real)
    top = os.path.dirname(found[0]) if found is not None else real
    folder = real
    while folder not in (top, os.path.dirname(folder)):
        if _DIGEST.fullmatch(os.path.basename(folder)):
            return folder
        folder = os.path.dirname(folder)
    return real


def _try(folder: str) -> int | None:
    """The descriptor by which it is held; None while `clean` has it, or where it is gone."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in _GONE:
            return None
        raise error_from_os(error, folder, "open") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError as error:
        os.close(descriptor)
        message = f"{folder} can't be locked ({describe_os_error(error)}); wait without --hold there"
        raise WillNotWorkError(message, reason="LocksNotSupported") from error
    return descriptor


def _is_held(path: str, descriptor: int, timeout_seconds: float) -> bool:
    """Whether what is locked is what the path still leads to."""

    def compare() -> bool:
        try:
            return os.path.samestat(os.stat(find_held_folder(path)), os.fstat(descriptor))
        except OSError:
            return False

    return call(compare, timeout_seconds)
