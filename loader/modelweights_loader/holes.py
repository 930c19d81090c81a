"""Finds holes in a sparse file: ranges that nobody ever wrote, which read as zeros.

Called by `safetensors_header` for every shard. A download that sets the size first and dies leaves them; no loader
minds. Only file systems are believed on which a hole can be little else: ZFS makes holes of zeros that were written, a
network or FUSE file system's server or an overlay's lower layer may be one, and no copy mends that. Must not import
torch.
"""

from __future__ import annotations

import errno
import os
from typing import NamedTuple

# Copies made with `cp --sparse=always` or `rsync --sparse` turn each run of zeros into a hole; short runs (biases,
# padding of small tensors) are common in good files, and downloads leave out more than that.
MIN_HOLE_BYTES = 65_536
_BELIEVED = {"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "tmpfs"}
_NO_ANSWER = {errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS}


class Hole(NamedTuple):
    """From begin up to end, in bytes from the start of the file."""

    begin: int
    end: int


def find_hole(descriptor: int, begin: int, end: int) -> Hole | None:
    """Finds the first large hole.

    Args:
        descriptor: A regular file; its position is changed.
        begin: Where to begin, in bytes.
        end: Where to end, in bytes.

    Returns:
        The hole, or None: there is none of MIN_HOLE_BYTES or more, or the file system can't tell.

    Raises:
        OSError: The storage failed.
    """
    position = begin
    while position < end:
        try:
            hole = os.lseek(descriptor, position, os.SEEK_HOLE)
            # The end of the file counts as a hole, so that files without one take this way out after one call.
            if hole >= end:
                return None
            position = _seek_data(descriptor, hole, end)
        except OSError as error:
            if error.errno in _NO_ANSWER:
                return None
            raise
        if position - hole >= MIN_HOLE_BYTES:
            return Hole(hole, position) if _holes_are_believed(descriptor) else None
    return None


def _seek_data(descriptor: int, position: int, end: int) -> int:
    try:
        return min(os.lseek(descriptor, position, os.SEEK_DATA), end)
    except OSError as error:
        if error.errno == errno.ENXIO:
            # Nothing but the hole up to the end.
            return end
        raise


def _holes_are_believed(descriptor: int) -> bool:
    from modelweights_loader.file_systems import detect_open  # noqa: PLC0415 - only where there is a hole

    return detect_open(descriptor).type in _BELIEVED
