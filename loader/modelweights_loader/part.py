"""Proves that what is mounted at a path is the part of a namespace, and no other one that a link led to.

Called by `cli` for all commands that are told their part: staging pods mount a folder of the node by `subPath`, where the kubelet
follows links that stay in the volume, and the volume is the root of all parts. Must not import torch.
"""

from __future__ import annotations

import os

from modelweights_loader.errors import WillNotWorkError
from modelweights_loader.file_systems import unescape


def check_part(place: str, part: str, proc: str = "/proc") -> None:
    """Compares what is mounted with what should be. A disk may be mounted anywhere above that.

    Args:
        place: Where it is mounted, which is also where it lies on the node.
        part: The last names of it, such as `namespace/name`.
        proc: Where procfs is mounted.

    Raises:
        WillNotWorkError: UnsafePath: something else is mounted, or nobody says what.
    """
    mounted = _find_mounted(os.path.realpath(place), proc)
    if mounted is None or not f"{mounted}/".endswith(f"/{part}/"):
        message = (
            f"{mounted or 'nothing'} is mounted at {place}, which should be {part}: a link lies in its place on this node; "
            "remove it there"
        )
        raise WillNotWorkError(message, reason="UnsafePath")


def _find_mounted(place: str, proc: str) -> str | None:
    """The folder's path in its file system; of several mounts at one place the last one counts."""
    found = None
    with open(os.path.join(proc, "self", "mountinfo"), encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            fields = line.split()
            if unescape(fields[4]) == place:
                found = unescape(fields[3])
    return found
