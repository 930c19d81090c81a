"""Blocks until the marker on this node says that a model is staged.

Called by `commands` for init containers of inference pods. No access to the API server, and no torch: it starts in
milliseconds and polls one small file.
"""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING

from modelweights_loader.errors import TryAgainError, WillNotWorkError
from modelweights_loader.interruptible import call
from modelweights_loader.marker import MARKER_FOLDER, Marker, find_marker_folder, read_boot_id, read_marker
from modelweights_loader.newest import find_newest

if TYPE_CHECKING:
    from collections.abc import Callable

_POLL_SECONDS = 0.5
_REPEAT_SECONDS = 60.0


def wait(  # noqa: PLR0913 - three of them are for tests
    path: str,
    *,
    digest: str | None,
    timeout_seconds: float,
    say: Callable[[str], None],
    newest: bool = False,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
    boot_id: str | None = None,
) -> Marker:
    """Waits for the marker.

    Args:
        path: The model as this pod sees it.
        digest: Only this manifest digest will do. None takes any.
        timeout_seconds: Give up after that; 0 waits for ever.
        say: Gets one line whenever what is waited for changes, and one a minute.
        newest: The path is a home: any checkpoint in it will do, the one that was staged last.
        sleep: For tests.
        clock: For tests.
        boot_id: For tests; default: the kernel's.

    Returns:
        The marker.

    Raises:
        WillNotWorkError: There is no marker folder on the way up from the path.
        TryAgainError: The time is over.
    """
    found = call(lambda: find_marker_folder(path), timeout_seconds)
    if found is None:
        message = (
            f"no folder {MARKER_FOLDER} in {path} or above; mount the root of the storage (the folder that holds "
            f"{MARKER_FOLDER}), not only the model"
        )
        raise WillNotWorkError(message, reason="NoMarkerFolder")
    folder, relative_path = found
    wanted_boot_id = boot_id or read_boot_id()
    look = find_newest if newest else functools.partial(_look, digest)
    started = clock()
    said, said_at = "", started
    while True:
        # A little longer than is left, so that what it lacks is said where the storage answers.
        patience = timeout_seconds - (clock() - started) + _POLL_SECONDS if timeout_seconds else 0.0
        try:
            marker, lacks = call(lambda: look(folder, relative_path, wanted_boot_id), patience)
        except TryAgainError as error:
            message = f"{path} was not staged within {timeout_seconds:g} s: {error}"
            raise TryAgainError(message, reason="NotStaged") from error
        if marker is not None:
            return marker
        now = clock()
        if timeout_seconds and now - started >= timeout_seconds:
            message = f"{path} was not staged within {timeout_seconds:g} s: {lacks}"
            raise TryAgainError(message, reason="NotStaged")
        if lacks != said or now - said_at >= _REPEAT_SECONDS:
            say(f"waiting: {lacks}")
            said, said_at = lacks, now
        left = timeout_seconds - (now - started) if timeout_seconds else _POLL_SECONDS
        sleep(min(_POLL_SECONDS, left))


def _look(digest: str | None, folder: str, relative_path: str, boot_id: str) -> tuple[Marker | None, str]:
    """The marker if it will do, else what it lacks."""
    try:
        marker = read_marker(folder, relative_path)
    except (OSError, ValueError) as error:
        return None, f"the marker of {relative_path} in {folder} can't be read ({error})"
    if marker is None:
        return None, f"no marker of {relative_path} in {folder} yet"
    if marker.boot_id != boot_id:
        return None, f"the marker of {relative_path} is from another boot ({marker.boot_id}), the page cache is gone"
    if digest is not None and marker.manifest_digest != digest:
        return None, f"the marker of {relative_path} says {marker.manifest_digest}, not {digest}"
    if not marker.warm:
        return None, f"too little of {relative_path} is in the page cache, its marker says; a refresh warms it again"
    return marker, ""
