"""Finds which parts of files are not in the page cache, so that nothing is read that is there already.

Called by `commands.refresh`. Looks at whole files first, then at ever smaller pieces of those that are partly resident.
Must not import torch.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from modelweights_loader.block_reader import Range
from modelweights_loader.opening import open_found
from modelweights_loader.residency import METHOD_CACHESTAT, METHOD_MINCORE, MethodRefusedError, measure_range

if TYPE_CHECKING:
    from collections.abc import Iterator

    from modelweights_loader.checkpoint import CheckpointFile
    from modelweights_loader.residency import Residency

_EXACT = (METHOD_CACHESTAT, METHOD_MINCORE)
# A terabyte in 64 MiB pieces is 16,384 questions of microseconds each; within one, pieces of 1 MiB tell what is missing.
_WINDOW_BYTES = 2**26
_PIECE_BYTES = 2**20


def find_missing(files: tuple[CheckpointFile, ...], residency: Residency) -> dict[str, tuple[Range, ...]]:
    """Finds what is not resident.

    Args:
        files: What to look at.
        residency: Of these files, measured before.

    Returns:
        By the file's path, parts of whole MiB with something missing in them, in ascending order; files that are fully
        resident are left out. Of a file whose parts nobody may measure it is all of it: to read over what is there
        already costs no disk.
    """
    measured = {item.path: item for item in residency.files}
    missing: dict[str, tuple[Range, ...]] = {}
    for file in files:
        known = measured[file.path]
        # A sample that hit every time leaves a doubt of a few thousandths only.
        if file.size_bytes == 0 or known.resident_bytes == known.size_bytes:
            continue
        found = _find_in_file(file)
        if found:
            missing[file.path] = found
    return missing


def _find_in_file(file: CheckpointFile) -> tuple[Range, ...]:
    whole = (Range(0, file.size_bytes),)
    try:
        descriptor = open_found(file.real_path)
    except OSError:
        # Reading it says why.
        return whole
    try:
        return _join(_walk(descriptor, file.size_bytes))
    except (MethodRefusedError, OSError):
        return whole
    finally:
        os.close(descriptor)


def _walk(descriptor: int, size_bytes: int) -> Iterator[Range]:
    for offset in range(0, size_bytes, _WINDOW_BYTES):
        window = min(_WINDOW_BYTES, size_bytes - offset)
        resident_bytes = _measure(descriptor, offset, window)
        if resident_bytes == 0:
            yield Range(offset, window)
        elif resident_bytes < window:
            for piece in range(offset, offset + window, _PIECE_BYTES):
                length = min(_PIECE_BYTES, offset + window - piece)
                if _measure(descriptor, piece, length) < length:
                    yield Range(piece, length)


def _measure(descriptor: int, offset: int, length: int) -> int:
    refusal = MethodRefusedError()
    for method in _EXACT:
        try:
            return measure_range(descriptor, offset, length, method)
        except MethodRefusedError as refused:
            refusal = refused
    raise refusal


def _join(parts: Iterator[Range]) -> tuple[Range, ...]:
    """With neighbours as one, so that threads get whole runs of them."""
    joined: list[Range] = []
    for part in parts:
        if joined and joined[-1].offset + joined[-1].length == part.offset:
            joined[-1] = Range(joined[-1].offset, joined[-1].length + part.length)
        else:
            joined.append(part)
    return tuple(joined)
