"""Moves resident pages to the kernel's inactive list: still warm, but cold in the kernel's eyes.

Called by `publish` as the very last step, since every later read activates the pages again. Without it the kubelet
counts a warm checkpoint as used memory (active file pages) and may evict pods for it. Must not import torch.
"""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING, NamedTuple

from modelweights_loader.errors import describe_os_error
from modelweights_loader.opening import open_found
from modelweights_loader.residency import METHOD_CACHESTAT, METHODS, MethodRefusedError, measure_range

if TYPE_CHECKING:
    from collections.abc import Iterator

    from modelweights_loader.checkpoint import CheckpointFile

# Python's mmap module has neither: asm-generic/mman-common.h, Linux 5.4 and 5.14.
_MADV_COLD = 20
_MADV_POPULATE_READ = 22
# Mapped pages count as this process's memory while they are mapped: it stays far below 64 MiB.
_WINDOW_BYTES = 2**24
# Where nothing is resident, no smaller pieces are looked at: a sparse file may have more of them than anybody waits for.
_REGION_BYTES = 2**30
# Where a file is only partly resident, pieces of this size are cooled: populating the rest would read it from disk.
_PIECE_BYTES = 2**22


class Cooling(NamedTuple):
    """How many bytes were cooled, and why others were not (one line per distinct cause)."""

    cooled_bytes: int
    refusals: tuple[str, ...]


def cool(files: tuple[CheckpointFile, ...], *, all_read: bool = False) -> Cooling:
    """Cools the resident pages of files.

    Args:
        files: What to cool.
        all_read: They were read in full before. Without it nothing is cooled where nobody may know what is resident: that
            would read the rest from disk, also what memory has no room for.

    Returns:
        What was done. A kernel that refuses is no error: the pages stay warm, only less cheap for the kubelet.
    """
    cooled = 0
    refusals: dict[str, None] = {}
    for file in files:
        try:
            cooled += _cool_file(file, all_read=all_read)
        except OSError as error:
            refusals[f"MADV_COLD: {describe_os_error(error)}"] = None
        except MethodRefusedError as refused:
            refusals[f"unknown residency: {refused}"] = None
        except ValueError:
            refusals[f"{file.path} has shrunk"] = None
    return Cooling(cooled, tuple(refusals))


def _cool_file(file: CheckpointFile, *, all_read: bool) -> int:
    cooled = 0
    descriptor = open_found(file.real_path)
    try:
        for offset, length in _list_resident(descriptor, file.size_bytes, all_read=all_read):
            with mmap.mmap(descriptor, length, mmap.MAP_SHARED, mmap.PROT_READ, offset=offset) as view:
                # MADV_COLD walks page tables, so the pages have to be mapped first; that is cheap for resident ones.
                view.madvise(_MADV_POPULATE_READ)
                view.madvise(_MADV_COLD)
            cooled += length
    finally:
        os.close(descriptor)
    return cooled


def _list_resident(descriptor: int, size_bytes: int, *, all_read: bool) -> Iterator[tuple[int, int]]:
    """Yields ranges that are fully resident, as far as anybody may know."""
    for region in range(0, size_bytes, _REGION_BYTES):
        region_end = min(region + _REGION_BYTES, size_bytes)
        if _is_surely_absent(descriptor, region, region_end - region):
            continue
        for offset, length in _split(region, region_end, _WINDOW_BYTES):
            if _is_resident(descriptor, offset, length, all_read=all_read):
                yield offset, length
                continue
            for piece, piece_length in _split(offset, offset + length, _PIECE_BYTES):
                if _is_resident(descriptor, piece, piece_length, all_read=all_read):
                    yield piece, piece_length


def _split(start: int, end: int, step: int) -> Iterator[tuple[int, int]]:
    return ((offset, min(step, end - offset)) for offset in range(start, end, step))


def _is_surely_absent(descriptor: int, offset: int, length: int) -> bool:
    try:
        return measure_range(descriptor, offset, length, METHOD_CACHESTAT) == 0
    except MethodRefusedError:
        return False


def _is_resident(descriptor: int, offset: int, length: int, *, all_read: bool) -> bool:
    refusal = MethodRefusedError()
    for method in METHODS:
        try:
            return measure_range(descriptor, offset, length, method) >= length
        except MethodRefusedError as refused:
            refusal = refused
    if all_read:
        return True
    raise refusal
