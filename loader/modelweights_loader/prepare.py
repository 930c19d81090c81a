"""Prepares a root on a node: folders that the loader may write into, and engines may read.

Called by `commands.prepare`, as root, from the chart's DaemonSet. Each folder is opened in the one before, and owner and mode are
given to what was opened: a link that somebody planted is refused, also one that takes a folder's place in between.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from modelweights_loader.fetch.folders import Folder, open_home, saying
from modelweights_loader.marker import MARKER_FOLDER

if TYPE_CHECKING:
    from collections.abc import Sequence

LOADER_GROUP = 65532
MODE = 0o2775
"""New entries get the group; every user may read."""


def prepare(root: str, folders: Sequence[str], *, group: int = LOADER_GROUP) -> tuple[str, ...]:
    """Makes a root, the markers' folder and others in it what staging needs.

    Args:
        root: Is there already.
        folders: Names of folders in it, such as namespaces.
        group: That may write.

    Returns:
        What was made or changed, by path.

    Raises:
        LoaderError: A link or a file is in the place of a folder, or this user may not.
    """
    changed = []
    with contextlib.ExitStack() as opened:
        top = opened.enter_context(open_home(root, make=False))
        # The root first: staging waits for the folder in it, and what the kubelet makes there gets the root's group.
        changed += _own(top, group)
        for name in (MARKER_FOLDER, *folders):
            is_new = top.status(name) is None
            changed += _own(opened.enter_context(top.folder(name, make=True)), group, is_new=is_new)
    return tuple(changed)


def _own(folder: Folder, group: int, *, is_new: bool = False) -> list[str]:
    status = os.fstat(folder.descriptor)
    is_right = (status.st_uid, status.st_gid, status.st_mode & 0o7777) == (os.geteuid(), group, MODE)
    if not is_right:
        with saying("own", folder.shown):
            os.fchown(folder.descriptor, os.geteuid(), group)
            # After that, since a change of the owner takes the bit that gives the group on.
            os.fchmod(folder.descriptor, MODE)
    return [] if is_right and not is_new else [folder.shown]
