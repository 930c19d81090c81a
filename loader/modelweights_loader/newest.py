"""Which of the checkpoints in a home was staged last on this node, whatever its digest.

Called by `wait`, for pods that were made before anything was published and can't know it. Must not import torch.
"""

from __future__ import annotations

import json
import os
import re

from modelweights_loader.marker import (
    MAX_MARKER_BYTES,
    Marker,
    begin_of_markers,
    find_marker_folder,
    name_marker,
    read_marker,
)
from modelweights_loader.small_files import read_regular

_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)


def find_newest(folder: str, relative_home: str, boot_id: str) -> tuple[Marker | None, str]:
    """Looks through the markers of a home.

    Args:
        folder: The marker folder.
        relative_home: The home below its parent; the folders in it are named by digests.
        boot_id: The kernel's: what was staged in another boot doesn't count.

    Returns:
        The marker that was written last among those that count, or None and what is lacking.
    """
    begins = begin_of_markers(relative_home)
    try:
        names = sorted(name for name in os.listdir(folder) if name.startswith(begins))
    except OSError as error:
        return None, f"the markers in {folder} can't be read ({error})"
    found = [marker for marker in (_read(folder, name, relative_home) for name in names) if marker is not None]
    current = [marker for marker in found if marker.boot_id == boot_id]
    warm = [marker for marker in current if marker.warm]
    if warm:
        return max(warm, key=lambda marker: (marker.staged_at, marker.path)), ""
    if current:
        return None, f"too little of what is staged in {relative_home} is in the page cache; a refresh warms it again"
    if found:
        return None, f"what was staged in {relative_home} is from another boot, the page cache is gone"
    return None, f"no marker of a checkpoint in {relative_home} in {folder} yet"


def locate(home: str, marker: Marker) -> str:
    """Where a checkpoint lies.

    Args:
        home: The home as this pod sees it.
        marker: From `find_newest`.

    Returns:
        Its path, below the home as that was given.
    """
    found = find_marker_folder(home)
    return os.path.join(home, os.path.relpath(marker.path, found[1])) if found else home


def _read(folder: str, name: str, relative_home: str) -> Marker | None:
    """The marker in a file of that name, None where it is none of the home's, or what it is about isn't there."""
    try:
        path = json.loads(read_regular(os.path.join(folder, name), MAX_MARKER_BYTES)).get("path")
        if not isinstance(path, str) or name_marker(path) != name or not _is_in(relative_home, path):
            return None
        marker = read_marker(folder, path)
    except (OSError, ValueError, AttributeError, RecursionError):
        # One that was spoilt, or is being removed, tells nothing.
        return None
    return marker if os.path.isdir(os.path.join(os.path.dirname(folder), path)) else None


def _is_in(relative_home: str, path: str) -> bool:
    inside = path.removeprefix(f"{relative_home}/")
    return inside != path and os.path.normpath(path) == path and _DIGEST.fullmatch(inside.split("/")[0]) is not None
