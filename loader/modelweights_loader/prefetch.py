"""Reads a checkpoint into the page cache with a pool of threads, without copying a byte to this process.

Called by `commands`, and a library of its own. As vLLM's prefetch (each rank its stripe of the files in natural order,
threads and block size, progress every 10 %, total time, a file that fails is a warning), with these differences: blocks of
all files are shared out, so that one big file does not keep one thread; `sendfile` to /dev/null copies nothing; and it can
be cancelled within a second. Must not import torch.

    prefetch = start_prefetch + wait

    starting (probe) -> reading -> done
          |                |
          +----------------+--> cancelled, or stopped since the page cache is passed by
"""

from __future__ import annotations

import math
import os
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from modelweights_loader import page_cache
from modelweights_loader.block_reader import BlockReader, FailedFile, Range
from modelweights_loader.checkpoint import natural_key
from modelweights_loader.progress import Progress
from modelweights_loader.quantity import MIB, check_block_bytes, check_in_flight, check_stripe, check_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from modelweights_loader.checkpoint import CheckpointFile
    from modelweights_loader.file_systems import FileSystem
    from modelweights_loader.page_cache import CacheProbe

__all__ = [
    "FailedFile",
    "PrefetchHandle",
    "PrefetchResult",
    "Progress",
    "Range",
    "prefetch",
    "start_prefetch",
    "take_stripe",
]

DEFAULT_THREADS = 8
DEFAULT_BLOCK_BYTES = 16 * MIB
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_POLL_SECONDS = 0.1
# How long a cancelled prefetch waits for its threads: then it leaves those that hang in a dead file system behind.
_GRACE_SECONDS = 0.7
_PROGRESS_STEP_PERCENT = 10


class PrefetchResult(NamedTuple):
    """What was read.

    planned_bytes is less than the size of all files when only a part was to be read. ways are those that were used
    (`sendfile`, `preadv`), files the paths of this rank's stripe, probes one for each mount. stopped says that
    nothing more was read since the page cache is passed by.
    """

    read_bytes: int
    planned_bytes: int
    seconds: float
    failures: tuple[FailedFile, ...]
    ways: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    rank: int = 0
    world_size: int = 1
    probes: tuple[CacheProbe, ...] = ()
    stopped: bool = False
    cancelled: bool = False

    @property
    def bytes_per_second(self) -> float:
        """Mean rate."""
        return self.read_bytes / self.seconds if self.seconds > 0 else 0.0

    @property
    def file_systems(self) -> tuple[FileSystem, ...]:
        """What the files lie on, one for each mount."""
        return tuple(probe.file_system for probe in self.probes)

    @property
    def useless(self) -> CacheProbe | None:
        """The first mount that keeps nothing in the page cache."""
        return next((probe for probe in self.probes if probe.is_useless), None)


def take_stripe(files: Sequence[CheckpointFile], rank: int, world_size: int) -> tuple[CheckpointFile, ...]:
    """Takes what one rank of a group reads, as the engines do.

    Args:
        files: All of them, in any order.
        rank: From 0.
        world_size: Number of ranks.

    Returns:
        files[rank::world_size] in natural order (shard 2 before shard 10).

    Raises:
        ValueError: No such rank.
    """
    check_stripe(rank, world_size)
    return tuple(sorted(files, key=lambda file: natural_key(file.path))[rank::world_size])


def prefetch(  # noqa: PLR0913 - the settings of the engines' own prefetch, each by its name
    files: Sequence[CheckpointFile],
    *,
    num_threads: int = DEFAULT_THREADS,
    block_bytes: int = DEFAULT_BLOCK_BYTES,
    rank: int = 0,
    world_size: int = 1,
    limit_bytes: int | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    cancelled: threading.Event | None = None,
    stop_when_useless: bool = False,
    ranges: Mapping[str, Sequence[Range]] | None = None,
) -> PrefetchResult:
    """Reads files into the page cache, in natural order. Blocks until done.

    Args:
        files: What to read.
        num_threads: Number of threads, 1 to 256.
        block_bytes: What a thread takes at a time, 1 byte to 1 GiB, read in whole pages: 10,000 bytes are read as 12,288.
            Of small blocks it takes several neighbours, up to 16 MiB together, where there is enough for all threads.
            No memory is needed for it: `sendfile` copies nothing, and the other way's buffer is 1 MiB at most per thread.
        rank: Of this process, from 0: only files[rank::world_size] are read.
        world_size: Number of processes that share the files, 1 to 65536.
        limit_bytes: Read no more than this many bytes, the first ones in natural order. None reads all.
        on_progress: Called from this thread at most once per 10 %, and once at the end.
        cancelled: When set, reading ends within a second.
        stop_when_useless: Read nothing where a first look shows that the page cache is passed by.
        ranges: By the file's path, the parts to read, in ascending order. None reads all of the files.

    Returns:
        What was read, with the files that failed; other files are read in spite of those.

    Raises:
        ValueError: A number is out of its bounds.
    """
    handle = start_prefetch(
        files,
        num_threads=num_threads,
        block_bytes=block_bytes,
        rank=rank,
        world_size=world_size,
        limit_bytes=limit_bytes,
        cancelled=cancelled,
        stop_when_useless=stop_when_useless,
        ranges=ranges,
    )
    try:
        if on_progress is not None:
            _follow(handle, on_progress)
        return handle.wait()
    except BaseException:
        # Ctrl-C and SIGTERM arrive as exceptions here; no thread may go on reading behind the caller's back.
        handle.cancel()
        raise


def start_prefetch(  # noqa: PLR0913 - as above
    files: Sequence[CheckpointFile],
    *,
    num_threads: int = DEFAULT_THREADS,
    block_bytes: int = DEFAULT_BLOCK_BYTES,
    rank: int = 0,
    world_size: int = 1,
    limit_bytes: int | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    cancelled: threading.Event | None = None,
    stop_when_useless: bool = False,
    ranges: Mapping[str, Sequence[Range]] | None = None,
) -> PrefetchHandle:
    """Starts to read files into the page cache and returns at once.

    The threads are daemons: they end with the process at the latest.

    Args:
        files: See `prefetch`.
        num_threads: See there.
        block_bytes: See there.
        rank: See there.
        world_size: See there.
        limit_bytes: See there.
        on_progress: As there, but called from a thread of its own; an exception cancels, and comes out of `wait`.
        cancelled: See there.
        stop_when_useless: See there.
        ranges: See there.

    Returns:
        A handle to ask, to wait on and to cancel.

    Raises:
        ValueError: A number is out of its bounds.
    """
    check_threads(num_threads)
    check_block_bytes(block_bytes)
    check_in_flight(num_threads, block_bytes)
    stripe = take_stripe(files, rank, world_size)
    pages = -(-block_bytes // _PAGE_BYTES)
    reader = BlockReader(stripe, pages * _PAGE_BYTES, limit_bytes, cancelled or threading.Event(), ranges)
    handle = PrefetchHandle(reader, stripe, rank, world_size)
    handle._begin(  # noqa: SLF001 - the handle's only maker
        num_threads=num_threads, stop_when_useless=stop_when_useless, on_progress=on_progress
    )
    return handle


class PrefetchHandle:
    """A prefetch that runs. Made by `start_prefetch`; every method may be called from any thread, more than once."""

    def __init__(self, reader: BlockReader, stripe: tuple[CheckpointFile, ...], rank: int, world_size: int) -> None:
        self._reader = reader
        self._stripe = stripe
        self._rank = rank
        self._world_size = world_size
        self._started = time.monotonic()
        self._ended: float | None = None
        self._probes: tuple[CacheProbe, ...] = ()
        self._stopped = False
        self._error: BaseException | None = None
        self._cancelled_in_time: bool | None = None
        self._ready = threading.Event()
        self._process = os.getpid()
        self._follower: threading.Thread | None = None

    def _begin(
        self, *, num_threads: int, stop_when_useless: bool, on_progress: Callable[[Progress], None] | None
    ) -> None:
        settings = {
            "num_threads": num_threads,
            "stop_when_useless": stop_when_useless,
            "on_progress": on_progress,
        }
        self._follower = threading.Thread(target=self._run, kwargs=settings, daemon=True, name="prefetch")
        self._follower.start()

    def _run(
        self, *, num_threads: int, stop_when_useless: bool, on_progress: Callable[[Progress], None] | None
    ) -> None:
        """Probes, starts the threads, follows them. In a thread of its own, since even the first open may hang."""
        try:
            self._probes = _probe_mounts(self._stripe, self._reader.cancelled)
            useless = [probe for probe in self._probes if probe.is_useless]
            # One mount that keeps what is read is worth reading all of them.
            self._stopped = stop_when_useless and bool(useless) and len(useless) == len(self._probes)
            if self._stopped or self._reader.cancelled.is_set():
                self._reader.finished.set()
            else:
                self._reader.start(num_threads)
            if on_progress is not None:
                _follow(self, on_progress)
            self._reader.finished.wait()
            self._error = self._reader.error
        except BaseException as error:  # noqa: BLE001 - the thread's edge: it comes out of wait()
            self._error = error
            self._reader.cancelled.set()
        finally:
            self._ended = time.monotonic()
            # A cancel that comes later changes nothing any more.
            self._cancelled_in_time = self._reader.cancelled.is_set()
            self._ready.set()

    @property
    def done(self) -> bool:
        """Whether all threads have ended and all files are closed."""
        return self._ready.is_set()

    @property
    def progress(self) -> Progress:
        """How far it is. Never blocks."""
        done, total = self._read_bytes, self._reader.planned_bytes
        seconds = max((self._ended or time.monotonic()) - self._started, 1e-9)
        rate = done / seconds
        left = (total - done) / rate if rate else None
        return Progress(done, total, rate, left)

    @property
    def _was_cancelled(self) -> bool:
        in_time = self._cancelled_in_time
        return self._reader.cancelled.is_set() if in_time is None else in_time

    @property
    def _read_bytes(self) -> int:
        return sum(probe.read_bytes for probe in self._probes) if self._stopped else self._reader.read_bytes

    def cancel(self) -> None:
        """Ends it: each thread after the piece that it reads. Returns within a second.

        A thread that hangs in a file system that doesn't answer stays until the kernel lets it go; it reads nothing more.
        """
        self._reader.cancelled.set()
        self._ready.wait(_GRACE_SECONDS)

    def wait(self, timeout: float | None = None) -> PrefetchResult:
        """Waits for the end.

        Args:
            timeout: In seconds; None waits as long as it takes.

        Returns:
            What was read; of one that was cancelled, what was read until then.

        Raises:
            TimeoutError: It is still reading. Wait again, or cancel.
            RuntimeError: It would wait for ever: called from `on_progress`, or in a forked process, which has no threads.
        """
        if not self.done and (os.getpid() != self._process or threading.current_thread() is self._follower):
            message = "a prefetch can't be waited for in a forked process, nor in its own on_progress"
            raise RuntimeError(message)
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while not self._ready.wait(min(_POLL_SECONDS, max(0.0, deadline - time.monotonic()))):
            if self._reader.cancelled.is_set():
                self._ready.wait(_GRACE_SECONDS)
                break
            if time.monotonic() >= deadline:
                message = f"the prefetch is not done after {timeout} s"
                raise TimeoutError(message)
        if self._error is not None:
            raise self._error
        progress = self.progress
        return PrefetchResult(
            read_bytes=progress.done_bytes,
            planned_bytes=self._reader.planned_bytes,
            seconds=(self._ended or time.monotonic()) - self._started,
            failures=self._reader.failures,
            ways=self._reader.ways,
            files=tuple(file.path for file in self._stripe),
            rank=self._rank,
            world_size=self._world_size,
            probes=self._probes,
            stopped=self._stopped,
            cancelled=self._was_cancelled and progress.done_bytes < self._reader.planned_bytes,
        )


def _probe_mounts(files: tuple[CheckpointFile, ...], cancelled: threading.Event) -> tuple[CacheProbe, ...]:
    """Looks at one file of each device. A file that can't be read is left to the threads, which say so."""
    probes: dict[int, CacheProbe] = {}
    for file in files:
        if cancelled.is_set():
            break
        try:
            device = os.stat(file.real_path).st_dev
            if file.size_bytes and device not in probes:
                probes[device] = page_cache.probe(file)
        except OSError:
            continue
    return tuple(probes.values())


def _follow(handle: PrefetchHandle, on_progress: Callable[[Progress], None]) -> None:
    """Says how far it is, until it is done or cancelled."""
    reader = handle._reader  # noqa: SLF001 - this module's own
    said_step = 0
    finished = False
    while not finished and not reader.cancelled.is_set():
        finished = reader.finished.wait(_POLL_SECONDS) or handle.done
        progress = handle.progress
        share = 100 * progress.done_bytes // max(progress.total_bytes, 1)
        step = 100 if finished else share // _PROGRESS_STEP_PERCENT * _PROGRESS_STEP_PERCENT
        if step > said_step and not handle._stopped:  # noqa: SLF001 - this module's own
            said_step = step
            on_progress(progress)
