"""Has the marker on a node say whether what it is about is warm. Called by `commands.refresh`.

Makes no marker: what was never proven, or in another boot, stays unmarked. Must not import torch.
"""

from __future__ import annotations

import contextlib
import os

from modelweights_loader import marker as markers
from modelweights_loader.checkpoint import resolve_below
from modelweights_loader.errors import describe_os_error
from modelweights_loader.opening import resolve

NO_MARKER = "NoMarker"

_SNAPSHOTS = "snapshots"


def mark_warmth(path: str, root: str, folder: str, *, digest: str | None, warm: bool) -> tuple[str, str]:
    """Changes the flag in the markers of a checkpoint, each whole or not at all.

    Args:
        path: The checkpoint as pods are told it; with a digest the folder that lies in a home.
        root: The markers' paths are relative to this.
        folder: The marker folder.
        digest: Only markers of this manifest digest are meant; None for any.
        warm: What they are to say.

    Returns:
        `Written`, `NotWritable`, or `NoMarker` where there is none of this boot; and why one can't be written, or "".

    Raises:
        LoaderError: The path leads out of the root.
    """
    boot_id, below = markers.read_boot_id(), resolve(root)
    found = NO_MARKER
    for place in _places(resolve_below(path, root), digest):
        relative_path = os.path.relpath(place, below)
        try:
            marker = markers.read_marker(folder, relative_path)
            if marker is None or marker.boot_id != boot_id or digest not in (None, marker.manifest_digest):
                continue
            if marker.warm != warm:
                markers.write_marker(folder, marker._replace(warm=warm))
        except (OSError, ValueError) as error:
            cause = describe_os_error(error) if isinstance(error, OSError) else str(error)
            return markers.NOT_WRITABLE, f"the marker of {relative_path} in {folder} not changed ({cause})"
        found = markers.WRITTEN
    return found, ""


def _places(path: str, digest: str | None) -> list[str]:
    """Where pods are told that it lies: in a Hugging Face cache several revisions may have the same files."""
    above = os.path.dirname(path)
    if digest is None or os.path.basename(above) != _SNAPSHOTS:
        return [path]
    with contextlib.suppress(OSError):
        return [os.path.join(above, name) for name in sorted(os.listdir(above))]
    return [path]
