"""Reads a checkpoint into the page cache with a pool of threads, without copying a byte to this process.

Called by `commands`. As vLLM's prefetch (files in natural order, threads and block size, progress every 10 %, total time, a
file that fails is a warning), with three differences: blocks of all files are shared out, so that one big file
does not keep one thread; `sendfile` to /dev/null copies nothing; and it can be cancelled within a second.
Must not import torch.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from modelweights_loader.errors import describe_os_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from modelweights_loader.checkpoint import CheckpointFile

# One system call reads at most this much, so that a cancel is seen within a second even at 10 MB/s.
_PIECE_BYTES = 4 * 2**20
_POLL_SECONDS = 0.1
_PROGRESS_STEP_PERCENT = 10
# sendfile is refused by some file systems (FUSE with direct I/O) and by kernels without it.
_NO_SENDFILE = {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EXDEV}


class Progress(NamedTuple):
    """How far a prefetch is: bytes, bytes per second so far, seconds left at that rate (None before the first byte)."""

    done_bytes: int
    total_bytes: int
    bytes_per_second: float
    seconds_left: float | None


class FailedFile(NamedTuple):
    """A file that could not be read to its end, and why, in words; error is None when it had shrunk."""

    path: str
    cause: str
    error: OSError | None


class PrefetchResult(NamedTuple):
    """What was read. planned_bytes is less than the size of all files when only a part was to be read."""

    read_bytes: int
    planned_bytes: int
    seconds: float
    failures: tuple[FailedFile, ...]

    @property
    def bytes_per_second(self) -> float:
        """Mean rate."""
        return self.read_bytes / self.seconds if self.seconds > 0 else 0.0


class _Block(NamedTuple):
    file_index: int
    offset: int
    length: int


def prefetch(
    files: tuple[CheckpointFile, ...],
    *,
    num_threads: int,
    block_bytes: int,
    limit_bytes: int | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    cancelled: threading.Event | None = None,
) -> PrefetchResult:
    """Reads files into the page cache, in order. Blocks until done.

    Args:
        files: What to read, in load order.
        num_threads: Number of threads, from `quantity.check_threads`.
        block_bytes: What a thread takes at a time, in bytes, from `quantity.check_block_bytes`.
        limit_bytes: Read no more than this many bytes, the first ones in load order. None reads all.
        on_progress: Called from this thread at most once per 10 %, and once at the end.
        cancelled: When set, reading ends within a second.

    Returns:
        What was read, with the files that failed; other files are read in spite of those.
    """
    reader = _Reader(files, block_bytes, limit_bytes, cancelled or threading.Event())
    started = time.monotonic()
    # Daemons: a thread that hangs in a dead network file system must not keep the process.
    count = max(1, min(num_threads, reader.block_count))
    threads = [threading.Thread(target=reader.run, args=(slot,), daemon=True) for slot in range(count)]
    reader.start(count)
    for thread in threads:
        thread.start()
    try:
        _follow(reader, started, on_progress)
    except BaseException:
        # Ctrl-C and SIGTERM arrive as exceptions here; no thread may go on reading behind the caller's back.
        reader.cancelled.set()
        raise
    if not reader.cancelled.is_set():
        for thread in threads:
            thread.join()
        reader.close()
    return PrefetchResult(reader.read_bytes, reader.planned_bytes, time.monotonic() - started, reader.failures)


def _follow(reader: _Reader, started: float, on_progress: Callable[[Progress], None] | None) -> None:
    """Waits for the end and says how far it is."""
    said_step = 0
    finished = False
    while not finished and not reader.cancelled.is_set():
        finished = reader.finished.wait(_POLL_SECONDS)
        if on_progress is None:
            continue
        done, total = reader.read_bytes, reader.planned_bytes
        step = 100 if finished else 100 * done // max(total, 1) // _PROGRESS_STEP_PERCENT * _PROGRESS_STEP_PERCENT
        if step > said_step:
            said_step = step
            seconds = max(time.monotonic() - started, 1e-9)
            rate = done / seconds
            on_progress(Progress(done, total, rate, (total - done) / rate if rate else None))


class _Reader:
    """The threads' shared work. Each thread writes only its own slot of the counters, so counting takes no lock."""

    def __init__(
        self, files: tuple[CheckpointFile, ...], block_bytes: int, limit_bytes: int | None, cancelled: threading.Event
    ) -> None:
        self.cancelled = cancelled
        self.finished = threading.Event()
        self._files = files
        self._block_bytes = block_bytes
        total = sum(file.size_bytes for file in files)
        self.planned_bytes = total if limit_bytes is None else max(0, min(total, limit_bytes))
        # Rounded up per file: only bounds the number of threads that are worth starting.
        self.block_count = sum(-(-file.size_bytes // block_bytes) for file in files)
        self._blocks = self._cut()
        self._lock = threading.Lock()
        self._descriptors: dict[int, int] = {}
        self._failures: dict[int, FailedFile] = {}
        self._counters: list[int] = []
        self._running = 0
        self._sink = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)

    def start(self, count: int) -> None:
        self._counters = [0] * count
        self._running = count

    @property
    def read_bytes(self) -> int:
        return sum(self._counters)

    @property
    def failures(self) -> tuple[FailedFile, ...]:
        return tuple(self._failures[index] for index in sorted(self._failures))

    def close(self) -> None:
        for descriptor in (*self._descriptors.values(), self._sink):
            os.close(descriptor)
        self._descriptors.clear()

    def _cut(self) -> Iterator[_Block]:
        left = self.planned_bytes
        for index, file in enumerate(self._files):
            for offset in range(0, file.size_bytes, self._block_bytes):
                length = min(self._block_bytes, file.size_bytes - offset, left)
                if length <= 0:
                    return
                left -= length
                yield _Block(index, offset, length)

    def run(self, slot: int) -> None:
        """One thread: takes blocks until there are none."""
        buffer: memoryview | None = None
        try:
            while not self.cancelled.is_set():
                with self._lock:
                    block = next(self._blocks, None)
                    if block is None:
                        break
                    descriptor = self._open(block.file_index)
                if descriptor is None:
                    continue
                try:
                    buffer = self._read(slot, block, descriptor, buffer)
                except OSError as error:
                    self._fail(block.file_index, describe_os_error(error), error)
        finally:
            with self._lock:
                self._running -= 1
                if self._running == 0:
                    self.finished.set()

    def _open(self, index: int) -> int | None:
        """The file's descriptor, opened by the first thread that needs it; None when it has failed."""
        if index in self._failures:
            return None
        if index not in self._descriptors:
            try:
                flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
                self._descriptors[index] = os.open(self._files[index].real_path, flags)
            except OSError as error:
                self._failures[index] = FailedFile(self._files[index].path, describe_os_error(error), error)
                return None
        return self._descriptors[index]

    def _fail(self, index: int, cause: str, error: OSError | None) -> None:
        with self._lock:
            self._failures.setdefault(index, FailedFile(self._files[index].path, cause, error))

    def _read(self, slot: int, block: _Block, descriptor: int, buffer: memoryview | None) -> memoryview | None:
        """Reads one block; returns the buffer of the copying way once sendfile was refused."""
        done = 0
        while done < block.length and not self.cancelled.is_set():
            wanted = min(_PIECE_BYTES, block.length - done)
            if buffer is None:
                try:
                    got = os.sendfile(self._sink, descriptor, block.offset + done, wanted)
                except OSError as error:
                    if error.errno not in _NO_SENDFILE:
                        raise
                    buffer = memoryview(bytearray(_PIECE_BYTES))
                    continue
            else:
                got = os.preadv(descriptor, [buffer[:wanted]], block.offset + done)
            if got == 0:
                self._fail(block.file_index, f"it ends at byte {block.offset + done}: it has shrunk", None)
                break
            done += got
            self._counters[slot] += got
        return buffer
