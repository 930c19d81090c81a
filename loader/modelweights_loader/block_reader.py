"""The threads of a prefetch: they share out the blocks of all files and read each into the page cache.

Called by `prefetch` alone. A file is opened by the first thread that needs it and closed by the last one that is done with
it, so that a thousand shards need no thousand descriptors. Must not import torch.
"""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from modelweights_loader.errors import describe_os_error
from modelweights_loader.opening import open_found
from modelweights_loader.reading import PIECE_BYTES, WAYS, WayRefusedError, make_ways
from modelweights_loader.residency import MethodRefusedError, count_cached_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from modelweights_loader.checkpoint import CheckpointFile
    from modelweights_loader.reading import Way


# Small blocks that lie next to each other are one thread's, up to this much: where neighbours belong to different threads,
# the readahead of each runs into the next one's blocks (3 GiB cold on ext4, 32 threads x 1 MiB: 0.8 GiB/s, in runs 1.4).
_RUN_BYTES = 16 * 2**20
# Shares for each thread in a set that is too small for whole runs.
_SHARES = 4
# Half a second at most, for reads of a storage that fails anyway.
_FORGET_TRIES = 25
_FORGET_SECONDS = 0.02


class FailedFile(NamedTuple):
    """A file that could not be read to its end, and why, in words; error is None when it had shrunk."""

    path: str
    cause: str
    error: OSError | None


class Range(NamedTuple):
    """A part of a file, in bytes; it begins at a page."""

    offset: int
    length: int


class _Block(NamedTuple):
    file_index: int
    offset: int
    length: int


class _OpenFile:
    """A file while it is read: which way it takes, and how many threads are reading it now."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.way = 0
        self.readers = 0
        self.is_last_block_out = False


class BlockReader:
    """The threads' shared work. Each thread writes only its own slot of the counters, so counting takes no lock."""

    def __init__(
        self,
        files: tuple[CheckpointFile, ...],
        block_bytes: int,
        limit_bytes: int | None,
        cancelled: threading.Event,
        ranges: Mapping[str, Sequence[Range]] | None = None,
    ) -> None:
        """Plans the work; opens nothing yet.

        Args:
            files: What to read, in this order.
            block_bytes: What a thread takes at a time, in whole pages.
            limit_bytes: Read no more than that; None reads all.
            cancelled: Ends the threads after the piece that they are at.
            ranges: By the file's path, the parts to read, in ascending order; None reads whole files.
        """
        self.cancelled = cancelled
        self.finished = threading.Event()
        self.error: BaseException | None = None
        self._files = files
        self._block_bytes = block_bytes
        self._ranges = [
            tuple(ranges.get(file.path, ())) if ranges is not None else (Range(0, file.size_bytes),) for file in files
        ]
        total = sum(part.length for parts in self._ranges for part in parts)
        self.planned_bytes = total if limit_bytes is None else max(0, min(total, limit_bytes))
        # Rounded up per part: only bounds the number of threads that are worth starting.
        self.block_count = sum(-(-part.length // block_bytes) for parts in self._ranges for part in parts)
        self._blocks: Iterator[_Block] = iter(())
        self._lock = threading.Lock()
        self._open_files: dict[int, _OpenFile] = {}
        self._failures: dict[int, FailedFile] = {}
        self._ways_used: set[int] = set()
        self._counters: list[int] = []
        self._running = 0
        self._sink = -1

    def start(self, num_threads: int) -> None:
        """Starts the threads and returns. The last one of them sets `finished`, and closes everything.

        Args:
            num_threads: At most; fewer when there are fewer blocks.

        Raises:
            OSError: Not even /dev/null can be opened.
            RuntimeError: Not one thread can be had.
        """
        count = max(1, min(num_threads, self.block_count))
        self._blocks = self._cut(self._choose_run_bytes(count))
        self._counters = [0] * count
        self._running = count
        self._sink = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        for slot in range(count):
            # Daemons: a thread that hangs in a dead network file system must not keep the process.
            thread = threading.Thread(target=self._run, args=(slot,), daemon=True, name=f"prefetch-{slot}")
            try:
                thread.start()
            except RuntimeError:
                self.cancelled.set()
                self._leave(count - slot)
                raise

    @property
    def read_bytes(self) -> int:
        """Bytes so far."""
        return sum(self._counters)

    @property
    def failures(self) -> tuple[FailedFile, ...]:
        """Files that failed so far, in load order. Takes no lock: a thread that hangs in open() may hold it."""
        failures = dict(self._failures)
        return tuple(failures[index] for index in sorted(failures))

    @property
    def ways(self) -> tuple[str, ...]:
        """Names of the ways that were used so far, best first."""
        return tuple(WAYS[index].name for index in sorted(set(self._ways_used)))

    def _choose_run_bytes(self, num_threads: int) -> int:
        """What a thread takes at a time: a block, or several small ones."""
        share = self.planned_bytes // (num_threads * _SHARES)
        return max(1, min(_RUN_BYTES, share) // self._block_bytes) * self._block_bytes

    def _cut(self, run_bytes: int) -> Iterator[_Block]:
        left = self.planned_bytes
        for index, parts in enumerate(self._ranges):
            for start, part_length in parts:
                end = start + part_length
                for offset in range(start, end, run_bytes):
                    length = min(run_bytes, end - offset, left)
                    if length <= 0:
                        return
                    left -= length
                    yield _Block(index, offset, length)

    def _run(self, slot: int) -> None:
        """One thread: takes blocks until there are none."""
        try:
            ways = make_ways(self._sink, self._block_bytes)
            while not self.cancelled.is_set():
                with self._lock:
                    block = next(self._blocks, None)
                    if block is None:
                        break
                    file = self._enter(block)
                if file is None:
                    continue
                try:
                    self._read(slot, block, file, ways)
                except OSError as error:
                    self._fail(block.file_index, describe_os_error(error), error)
                finally:
                    self._exit(block.file_index, file)
        except BaseException as error:  # noqa: BLE001 - the thread's edge: it comes out of wait()
            # Out of memory, for one: what this thread left unread would be missed by nobody.
            self.error = error
            self.cancelled.set()
        finally:
            self._leave(1)

    def _leave(self, count: int) -> None:
        """The last thread out turns off the light: nobody else may close what a read may still use."""
        with self._lock:
            self._running -= count
            if self._running:
                return
            for file in self._open_files.values():
                os.close(file.descriptor)
            self._open_files.clear()
            os.close(self._sink)
        self.finished.set()

    def _enter(self, block: _Block) -> _OpenFile | None:
        """The block's file, opened when it is the first one; None when it has failed. Called with the lock held."""
        index = block.file_index
        if index in self._failures:
            return None
        if index not in self._open_files:
            try:
                self._open_files[index] = _OpenFile(open_found(self._files[index].real_path))
            except OSError as error:
                self._failures[index] = FailedFile(self._files[index].path, describe_os_error(error), error)
                return None
        file = self._open_files[index]
        file.readers += 1
        last = self._ranges[index][-1]
        file.is_last_block_out |= block.offset + block.length >= last.offset + last.length
        return file

    def _exit(self, index: int, file: _OpenFile) -> None:
        with self._lock:
            file.readers -= 1
            is_done = file.readers == 0 and (file.is_last_block_out or index in self._failures)
            if is_done:
                del self._open_files[index]
        if is_done:
            # Nobody else has it any more, and others need not wait for this.
            if index in self._failures:
                _forget(file.descriptor)
            os.close(file.descriptor)

    def _fail(self, index: int, cause: str, error: OSError | None) -> None:
        with self._lock:
            self._failures.setdefault(index, FailedFile(self._files[index].path, cause, error))

    def _read(self, slot: int, block: _Block, file: _OpenFile, ways: tuple[Way, ...]) -> None:
        """Reads one block, in pieces, in the way that the file takes."""
        done = 0
        while done < block.length and not self.cancelled.is_set():
            chosen = file.way
            try:
                got = ways[chosen].read(
                    file.descriptor, block.offset + done, min(PIECE_BYTES, block.length - done, self._block_bytes)
                )
            except WayRefusedError:
                if chosen + 1 == len(ways):
                    raise
                # Other threads may have found the same out meanwhile.
                file.way = max(file.way, chosen + 1)
                continue
            if got == 0:
                self._fail(block.file_index, f"it ends at byte {block.offset + done}: it has shrunk", None)
                break
            self._ways_used.add(chosen)
            done += got
            self._counters[slot] += got


def _forget(descriptor: int) -> None:
    """Takes a failed file out of the page cache: a read that fails leaves pages without content, which cachestat counts.

    What the kernel reads ahead may still be under way, and such pages stay: so it looks, and tries again for a while.
    """
    for _ in range(_FORGET_TRIES):
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            if count_cached_bytes(descriptor, 0, max(1, os.fstat(descriptor).st_size)) == 0:
                return
        except (OSError, MethodRefusedError):
            # What refuses the advice has no such pages; where nobody may count, nobody is told of them either.
            return
        time.sleep(_FORGET_SECONDS)
