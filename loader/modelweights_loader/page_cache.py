"""Finds out, before gigabytes are read for nothing, whether what is read stays in the page cache.

Called by `prefetch`. Reads the start of one file of each mount and asks the kernel what is left of it: once through the
descriptor that read it, and once through a second open, since some FUSE file systems drop a file's pages whenever it is
opened. Must not import torch.

    read the start --> resident? --no--> Bypassed
                           | yes
                      open again --> resident? --no--> DroppedAtOpen
                                         | yes
                                       Kept
    nobody may know, at any step: Unknown
"""

from __future__ import annotations

import errno
import mmap
import os
from typing import TYPE_CHECKING, NamedTuple

from modelweights_loader.file_systems import FileSystem, detect_open
from modelweights_loader.opening import open_found
from modelweights_loader.residency import METHOD_CACHESTAT, METHOD_MINCORE, MethodRefusedError, measure_range

if TYPE_CHECKING:
    from modelweights_loader.checkpoint import CheckpointFile

KEPT = "Kept"
BYPASSED = "Bypassed"
DROPPED_AT_OPEN = "DroppedAtOpen"
UNKNOWN = "Unknown"

_PROBE_BYTES = 2**20
# A page or two may be reclaimed between the read and the look; a file system that passes the cache by keeps none.
_KEPT_SHARE = 0.5


class CacheProbe(NamedTuple):
    """What became of the pages of a file system: one of the constants above; bytes that were read to find out."""

    kept: str
    file_system: FileSystem
    read_bytes: int

    @property
    def is_useless(self) -> bool:
        """Whether reading warms nothing there."""
        return self.kept in {BYPASSED, DROPPED_AT_OPEN}

    def __str__(self) -> str:
        """What it means, for people."""
        cause = {
            BYPASSED: f"{self.file_system} passes the page cache by",
            DROPPED_AT_OPEN: f"{self.file_system} drops a file's pages from the page cache whenever it is opened",
            KEPT: f"{self.file_system} keeps what is read in the page cache",
            UNKNOWN: f"nobody may know here whether {self.file_system} keeps what is read in the page cache",
        }[self.kept]
        return f"{cause}, so staging into memory is useless there" if self.is_useless else cause


def probe(file: CheckpointFile) -> CacheProbe:
    """Reads the start of a file and looks what is left of it in the page cache. Blocks for one read.

    Args:
        file: Not empty.

    Returns:
        What was found.

    Raises:
        OSError: The file can't be read.
    """
    wanted = min(_PROBE_BYTES, file.size_bytes)
    first = _open(file)
    try:
        file_system = detect_open(first)
        read_bytes = len(os.pread(first, wanted, 0))
        kept = _look(first, read_bytes)
        if kept == KEPT:
            second = _open(file)
            try:
                kept = DROPPED_AT_OPEN if _look(second, read_bytes) == BYPASSED else KEPT
            finally:
                os.close(second)
    finally:
        os.close(first)
    return CacheProbe(kept, file_system, read_bytes)


def _open(file: CheckpointFile) -> int:
    return open_found(file.real_path)


def _look(descriptor: int, length: int) -> str:
    """KEPT or BYPASSED, UNKNOWN where nobody may know."""
    if length == 0:
        return UNKNOWN
    if _refuses_shared_mapping(descriptor):
        return BYPASSED
    for method in (METHOD_CACHESTAT, METHOD_MINCORE):
        try:
            resident_bytes = measure_range(descriptor, 0, length, method)
        except MethodRefusedError:
            continue
        return KEPT if resident_bytes >= _KEPT_SHARE * length else BYPASSED
    return UNKNOWN


def _refuses_shared_mapping(descriptor: int) -> bool:
    """FUSE with direct I/O says ENODEV to a shared mapping: a sign that also those see who may not measure."""
    try:
        mmap.mmap(descriptor, 1, mmap.MAP_SHARED, mmap.PROT_READ).close()
    except OSError as error:
        return error.errno == errno.ENODEV
    except ValueError:
        # It has become empty meanwhile.
        return False
    return False
