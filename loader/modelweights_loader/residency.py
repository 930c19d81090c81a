"""Measures how much of a checkpoint really is in the page cache, and says how it knows.

Called by `commands`, `publish` and `page_cache`. The chain, best first:

    cachestat(2) -> mincore(2), only where it tells the truth -> sampled preadv2(RWF_NOWAIT) -> unknown

mincore, and every tool that is built on it, says 100 % to a caller that neither owns the file nor may write it, so it
is not asked then. Measuring opens each file, and some FUSE file systems drop a file's pages at every open: what is found is
then 0 %, which is what the next reader finds too. Must not import torch.
"""

from __future__ import annotations

import errno
import math
import os
import sys
import time
from typing import TYPE_CHECKING, NamedTuple

from modelweights_loader.opening import open_found
from modelweights_loader.refusals import describe_cachestat_refusal, describe_other_user, describe_refusal

if TYPE_CHECKING:
    import ctypes
    from collections.abc import Callable

    from modelweights_loader.checkpoint import CheckpointFile

METHOD_CACHESTAT = "cachestat"
METHOD_MINCORE = "mincore"
METHOD_SAMPLE = "sample"
METHOD_UNKNOWN = "unknown"
METHODS = (METHOD_CACHESTAT, METHOD_MINCORE, METHOD_SAMPLE)

DEFAULT_SAMPLES = 1000
_MIN_SAMPLES_PER_FILE = 32
# The same number on every architecture of Linux but alpha.
_SYS_CACHESTAT = 451
# On overlayfs (image volumes!) cachestat asks the overlay's own mapping, which is always empty: measured 0 % on Linux
# 6.18 with everything resident. mincore follows the mapping to the real file.
_OVERLAY_MAGIC = 0x794C7630
_OVERLAY_REFUSAL = "it says 0 % on overlayfs whatever the truth is"
_ALWAYS_RESIDENT = "it says here that everything is resident, even what lies behind the end of the file"
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_MINCORE_WINDOW_BYTES = 2**30
# 95 % of a normal distribution lie within this many standard deviations.
_Z95 = 1.96


class FileResidency(NamedTuple):
    """Residency of one file; resident_bytes is None when unknown, error_bytes the half-width of the 95 % interval."""

    path: str
    size_bytes: int
    method: str
    resident_bytes: int | None
    error_bytes: int
    refusals: tuple[str, ...]


class Residency(NamedTuple):
    """Residency of all files together; percent and bytes are None when any file's is unknown, measured_at is RFC 3339."""

    files: tuple[FileResidency, ...]
    size_bytes: int
    resident_bytes: int | None
    error_percent: float
    method: str
    refusals: tuple[str, ...]
    measured_at: str = ""

    @property
    def percent(self) -> float | None:
        """Resident share of all bytes, 0 to 100, or None."""
        if self.resident_bytes is None:
            return None
        return 100.0 * self.resident_bytes / self.size_bytes if self.size_bytes else 100.0

    def figures(self) -> dict[str, object]:
        """The figures as the reports carry them."""
        percent = self.percent
        return {
            "residentBytes": self.resident_bytes,
            "residentPercent": None if percent is None else round(percent, 2),
            "residencyMethod": self.method,
            "residencyError": round(self.error_percent, 2),
            "residencyMeasuredAt": self.measured_at or None,
        }


class MethodRefusedError(Exception):
    """One way of measuring does not work here; the next one is tried."""


def measure(files: tuple[CheckpointFile, ...], methods: tuple[str, ...] = METHODS) -> Residency:
    """Measures the residency of files.

    Args:
        files: What to measure, from `find_checkpoint`.
        methods: Which ways to try, best first.

    Returns:
        Per file and in total, with the method and why better ones were refused. Never raises for a file that can't be
        measured: that one is `unknown`.
    """
    total = sum(file.size_bytes for file in files)
    measured = tuple(_measure_file(file, total, methods) for file in files)
    known = [item.resident_bytes for item in measured if item.resident_bytes is not None]
    # Independent errors of the files add up by their squares.
    error_bytes = math.sqrt(sum(item.error_bytes**2 for item in measured))
    used = [method for method in (*METHODS, METHOD_UNKNOWN) if any(item.method == method for item in measured)]
    return Residency(
        files=measured,
        size_bytes=total,
        resident_bytes=sum(known) if len(known) == len(measured) else None,
        error_percent=100.0 * error_bytes / total if total else 0.0,
        method="+".join(used) if used else METHOD_CACHESTAT,
        refusals=tuple(dict.fromkeys(reason for item in measured for reason in item.refusals)),
        measured_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    )


def _measure_file(file: CheckpointFile, total_bytes: int, methods: tuple[str, ...]) -> FileResidency:
    refusals: list[str] = []
    if file.size_bytes == 0:
        return FileResidency(file.path, 0, methods[0], 0, 0, ())
    try:
        descriptor = open_found(file.real_path)
    except OSError as error:
        refusal = f"open: {describe_refusal(error.errno)}"
        return FileResidency(file.path, file.size_bytes, METHOD_UNKNOWN, None, 0, (refusal,))
    try:
        # It may have shrunk, and a large page may reach behind its new end. Nothing there is of any use.
        present = min(file.size_bytes, os.fstat(descriptor).st_size)
        if present == 0:
            return FileResidency(file.path, file.size_bytes, methods[0], 0, 0, ())
        samples = max(_MIN_SAMPLES_PER_FILE, DEFAULT_SAMPLES * file.size_bytes // max(total_bytes, 1))
        ways: dict[str, Callable[[], tuple[int, int]]] = {
            METHOD_CACHESTAT: lambda: (count_cached_bytes(descriptor, 0, present), 0),
            METHOD_MINCORE: lambda: (_mincore(descriptor, 0, present), 0),
            METHOD_SAMPLE: lambda: _sample(descriptor, 0, present, samples),
        }
        for method in methods:
            try:
                resident, error_bytes = ways[method]()
            except MethodRefusedError as refused:
                refusals.append(f"{method}: {refused}")
                continue
            resident = min(resident, present)
            return FileResidency(file.path, file.size_bytes, method, resident, error_bytes, tuple(refusals))
    except OSError as error:
        # As of a network file system that has lost it.
        refusals.append(describe_refusal(error.errno))
    finally:
        os.close(descriptor)
    return FileResidency(file.path, file.size_bytes, METHOD_UNKNOWN, None, 0, tuple(refusals))


def measure_range(descriptor: int, offset: int, length: int, method: str) -> int:
    """Counts the bytes of a range that are in the page cache.

    Args:
        descriptor: An open file.
        offset: Start of the range in bytes, a multiple of the page size.
        length: Length of the range in bytes, not 0.
        method: cachestat, mincore, or sample, which looks at a few pages only.

    Returns:
        Bytes, at most the length.

    Raises:
        MethodRefusedError: It can't be told in this way.
    """
    if method == METHOD_SAMPLE:
        return _sample(descriptor, offset, length, _MIN_SAMPLES_PER_FILE)[0]
    count = count_cached_bytes if method == METHOD_CACHESTAT else _mincore
    return min(count(descriptor, offset, length), length)


def count_cached_bytes(descriptor: int, offset: int, length: int) -> int:
    """Counts the bytes of a range that are in the page cache, by cachestat(2).

    Args:
        descriptor: An open file.
        offset: Start of the range in bytes.
        length: Length of the range in bytes, not 0.

    Returns:
        Whole pages, in bytes: may be more than the length.

    Raises:
        MethodRefusedError: The kernel, seccomp or the file's owner forbids it.
    """
    import ctypes  # noqa: PLC0415 - 10 ms that `wait` need not pay

    if not sys.platform.startswith("linux"):
        raise MethodRefusedError(describe_refusal(errno.ENOSYS))
    libc = ctypes.CDLL(None, use_errno=True)
    if _read_file_system(libc, descriptor) == _OVERLAY_MAGIC:
        raise MethodRefusedError(_OVERLAY_REFUSAL)
    cached, number = _cachestat(libc, descriptor, offset, length)
    if number:
        own = number == errno.EPERM and _is_refused_for_own(libc)
        raise MethodRefusedError(describe_cachestat_refusal(number, refused_for_own=own))
    return cached


def _cachestat(libc: ctypes.CDLL, descriptor: int, offset: int, length: int) -> tuple[int, int]:
    """The cached bytes and 0, or 0 and an errno."""
    import ctypes  # noqa: PLC0415 - see count_cached_bytes

    # struct cachestat_range {__u64 off, len;} and struct cachestat {__u64 nr_cache, nr_dirty, nr_writeback,
    # nr_evicted, nr_recently_evicted;} of include/uapi/linux/mman.h.
    span = (ctypes.c_uint64 * 2)(offset, length)
    counts = (ctypes.c_uint64 * 5)()
    # Every argument as long: variadic syscall() reads registers, a 32-bit int would leave its upper half undefined.
    libc.syscall.restype = ctypes.c_long
    result = libc.syscall(
        ctypes.c_long(_SYS_CACHESTAT),
        ctypes.c_long(descriptor),
        ctypes.byref(span),
        ctypes.byref(counts),
        ctypes.c_long(0),
    )
    return (int(counts[0]) * _PAGE_BYTES, 0) if result == 0 else (0, ctypes.get_errno())


def _is_refused_for_own(libc: ctypes.CDLL) -> bool:
    """Whether cachestat says EPERM even for memory that this process has just made: then no owner is to blame."""
    try:
        own = os.memfd_create("modelweights-loader", os.MFD_CLOEXEC)
    except OSError:
        return False
    try:
        return _cachestat(libc, own, 0, 1)[1] == errno.EPERM
    finally:
        os.close(own)


def _read_file_system(libc: ctypes.CDLL, descriptor: int) -> int:
    """The magic number of the file's file system (f_type, the first field of struct statfs), 0 if nobody says."""
    import ctypes  # noqa: PLC0415 - see count_cached_bytes

    # Larger than struct statfs on any architecture.
    status = (ctypes.c_long * 64)()
    return int(status[0]) if libc.fstatfs(ctypes.c_int(descriptor), ctypes.byref(status)) == 0 else 0


def _mincore(descriptor: int, start: int, size_bytes: int) -> int:
    """Resident bytes of a range by mincore(2); refused where the kernel would say 100 % whatever the truth is."""
    import ctypes  # noqa: PLC0415 - see count_cached_bytes

    owner = os.fstat(descriptor).st_uid == os.geteuid()
    if not owner and not os.access(f"/proc/self/fd/{descriptor}", os.W_OK, effective_ids=True):
        raise MethodRefusedError(describe_other_user())
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    # Nothing can be resident that far behind the end, not even by the largest page. Where it is said to be, everything is:
    # in a user namespace, where other owners look like this one; in gVisor; below a read-only layer of an overlay.
    behind = (os.fstat(descriptor).st_size // _MINCORE_WINDOW_BYTES + 2) * _MINCORE_WINDOW_BYTES
    if _count_pages(libc, descriptor, behind, _PAGE_BYTES):
        raise MethodRefusedError(_ALWAYS_RESIDENT)
    pages = 0
    for offset in range(0, size_bytes, _MINCORE_WINDOW_BYTES):
        length = min(_MINCORE_WINDOW_BYTES, size_bytes - offset)
        pages += _count_pages(libc, descriptor, start + offset, length)
    return pages * _PAGE_BYTES


def _count_pages(libc: ctypes.CDLL, descriptor: int, offset: int, length: int) -> int:
    """Pages of a range that mincore(2) says are resident."""
    import ctypes  # noqa: PLC0415 - see count_cached_bytes

    # PROT_READ is 1, MAP_SHARED is 1.
    address = libc.mmap(None, length, 1, 1, descriptor, offset)
    if address in (None, ctypes.c_void_p(-1).value):
        raise MethodRefusedError(describe_refusal(ctypes.get_errno()))
    try:
        vector = (ctypes.c_ubyte * ((length + _PAGE_BYTES - 1) // _PAGE_BYTES))()
        if libc.mincore(address, length, ctypes.byref(vector)) != 0:
            raise MethodRefusedError(describe_refusal(ctypes.get_errno()))
    finally:
        libc.munmap(address, length)
    # Only the lowest bit of each byte is defined.
    return sum(bytes(vector).count(value) for value in range(1, 256, 2)) if any(vector) else 0


def _sample(descriptor: int, start: int, size_bytes: int, samples: int) -> tuple[int, int]:
    """Resident bytes and the half-width of their 95 % interval, by reading random pages without waiting for the disk.

    One random page per stratum of equal length: never worse than plain sampling, and better for files whose first part
    is resident.
    """
    import random  # noqa: PLC0415 - 5 ms that the better methods need not pay

    nowait = getattr(os, "RWF_NOWAIT", None)
    if nowait is None:
        raise MethodRefusedError(describe_refusal(errno.ENOSYS))
    pages = (size_bytes + _PAGE_BYTES - 1) // _PAGE_BYTES
    count = min(samples, pages)
    # Without this each miss would start readahead and change what is measured.
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    buffer = bytearray(1)
    hits = 0
    for stratum in range(count):
        first, last = stratum * pages // count, (stratum + 1) * pages // count
        page = random.randrange(first, last)  # noqa: S311 - statistics, no secret
        try:
            hits += os.preadv(descriptor, [buffer], start + page * _PAGE_BYTES, nowait)
        except BlockingIOError:
            continue
        except OSError as error:
            raise MethodRefusedError(describe_refusal(error.errno)) from error
    if count == pages:
        return hits * _PAGE_BYTES, 0
    return round(size_bytes * hits / count), round(size_bytes * _half_width(hits, count))


def _half_width(hits: int, count: int) -> float:
    """Half-width of the 95 % interval of a share, after Wilson (1927): not zero when all or no samples hit."""
    share = hits / count
    spread = math.sqrt(share * (1 - share) / count + _Z95**2 / (4 * count**2))
    return _Z95 * spread / (1 + _Z95**2 / count)
