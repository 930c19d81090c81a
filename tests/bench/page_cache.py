"""Makes files cold, and counts what of them is in the page cache: independently of the loader that is measured."""

import ctypes
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tests.bench.processes import BenchmarkError

MAX_COLD_SHARE: Final = 0.01
_SYS_CACHESTAT: Final = 451
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_TRIES: Final = 5
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def count_resident(descriptor: int) -> int:
    """Bytes of an open file that are in the page cache, by cachestat(2): Linux 6.5 or newer, and the file's owner."""
    # struct cachestat_range {off, len}, where a length of 0 is to the end; struct cachestat has five counters.
    span, counts = (ctypes.c_uint64 * 2)(0, 0), (ctypes.c_uint64 * 5)()
    arguments = (ctypes.c_long(descriptor), ctypes.byref(span), ctypes.byref(counts), ctypes.c_long(0))
    if _LIBC.syscall(ctypes.c_long(_SYS_CACHESTAT), *arguments) != 0:
        raise BenchmarkError(f"cachestat(2): {os.strerror(ctypes.get_errno())}; the benchmarks need Linux 6.5 or newer")
    return counts[0] * _PAGE_BYTES


def resident_share(files: Iterable[Path]) -> float:
    """Share of all files' bytes in the page cache, from 0 to 1."""
    resident = total = 0
    for file in files:
        with file.open("rb", buffering=0) as opened:
            resident += count_resident(opened.fileno())
            total += os.fstat(opened.fileno()).st_size
    return min(1.0, resident / total) if total else 1.0


def make_cold(files: Iterable[Path]) -> None:
    """Drop files from the page cache.

    Raises:
        BenchmarkError: More than 1 % stayed.
    """
    listed = list(files)
    share = 1.0
    for _ in range(_TRIES):
        for file in listed:
            with file.open("rb", buffering=0) as opened:
                # Dirty pages can't be dropped.
                os.fsync(opened.fileno())
                os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        share = resident_share(listed)
        if share <= MAX_COLD_SHARE:
            return
    raise BenchmarkError(f"{100 * share:.1f} % of {listed[0].parent} stayed in the page cache after DONTNEED")
