"""Notices that files were changed, replaced or led elsewhere while they were proven: each pass would have seen others.

Called by `validate`, and by `publish` for what changed after it. Must not import torch.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from modelweights_loader.errors import TryAgainError

if TYPE_CHECKING:
    from modelweights_loader.checkpoint import Checkpoint, CheckpointFile


class Unchanged:
    """How the files were when it was made.

    By size and both times. Not by inode number: FUSE file systems give a file a new one when the kernel has forgotten it.
    The time of the last status change goes forward when a file is renamed over another, and can't be set back as `cp -p`
    and `rsync -t` do with the other one.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Looks at all files.

        Args:
            checkpoint: From `find_checkpoint`.
        """
        self._checkpoint = checkpoint
        self._before = {file.path: self._look(file) for file in checkpoint.files}

    @property
    def newest_ns(self) -> int:
        """When a file last changed before that: see `find_newest_ns`."""
        return max((time for _, *times in self._before.values() for time in times), default=0)

    def find_change(self) -> TryAgainError | None:
        """Looks once more.

        Returns:
            The error to raise when a file is not what it was, or None.
        """
        for file in self._checkpoint.files:
            before, now = self._before[file.path], self._look(file)
            if now != before or now[0] != file.size_bytes:
                message = (
                    f"{self._checkpoint.path}/{file.path} changed while it was validated; stop what writes there, then "
                    "try again"
                )
                return TryAgainError(message, reason="FileChanged")
        return None

    def _look(self, file: CheckpointFile) -> tuple[int, int, int]:
        """Size and times; nothing of it for what is gone, or is a link to another place by now."""
        path = os.path.join(self._checkpoint.path, file.path)
        try:
            status = os.stat(file.real_path)
            is_there = os.path.realpath(path) == file.real_path
        except OSError:
            return (-1, 0, 0)
        if not is_there:
            return (-1, 0, 0)
        return (status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def find_newest_ns(checkpoint: Checkpoint) -> int:
    """Finds when any of the files last changed.

    Args:
        checkpoint: From `find_checkpoint`.

    Returns:
        The latest of all times of modification and status change, in nanoseconds since 1970.
    """
    return Unchanged(checkpoint).newest_ns
