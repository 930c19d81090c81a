"""Fetches what was planned, with one thread for each connection. Called by `fetching`."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from modelweights_loader.errors import LoaderError, TryAgainError
from modelweights_loader.fetch.bandwidth import TokenBucket
from modelweights_loader.fetch.folders import saying
from modelweights_loader.fetch.retry import DEFAULT_FIRST_WAIT_SECONDS, DEFAULT_MAX_ATTEMPTS, Backoff
from modelweights_loader.fetch.schedule import Schedule
from modelweights_loader.fetch.syncing import Syncer
from modelweights_loader.fetch.transfer import UNKNOWN_END, Claim, Transfer, find_mismatch
from modelweights_loader.fetch.write_back import start_write_back
from modelweights_loader.sources.contract import DEFAULT_CONNECTIONS, RangesNotSupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from modelweights_loader.fetch.folders import Folder
    from modelweights_loader.fetch.journal import Finished, Journal
    from modelweights_loader.sources.contract import Source

# Small pieces are gathered, or system calls and the interpreter's lock cost more than the bytes.
_GATHER_BYTES = 2**18
_WRITE_BYTES = 2**20
_WRITE_BACK_BYTES = 2**23
_TICK_SECONDS = 0.2
_STOP_SECONDS = 1.0
_FAIL_SECONDS = 10.0
_MAX_RESTARTS = 5
_MAX_DISTRUSTED = 1
# Of a file whose size nobody says: configuration that a server packs on the fly, never weights.
_MAX_UNKNOWN_BYTES = 2**28


class _TooManyBytesError(TryAgainError):
    """The source goes on where the file should end."""

    reason = "TooManyBytes"


class _DiskError(Exception):
    """What was received can't be kept: no repetition of the read mends that."""

    def __init__(self, error: LoaderError) -> None:
        super().__init__(error)
        self.error = error


class DownloadOptions(NamedTuple):
    """How to fetch.

    Attributes:
        num_connections: Threads, each with one read at a time.
        part_bytes: What other connections take of a file at a time, and what goes to the disk; at least 1 MiB.
        max_bytes_per_second: Of all connections together; 0 is no bound.
        max_attempts: Failures of a part without a byte in between that end it.
        first_wait_seconds: Longest wait after the first of them.
    """

    num_connections: int = DEFAULT_CONNECTIONS
    part_bytes: int = 2**25
    max_bytes_per_second: float = 0.0
    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    first_wait_seconds: float = DEFAULT_FIRST_WAIT_SECONDS


class Counts:
    """What has come so far; several threads add to it.

    Attributes:
        done_bytes: Of what is to be there in the end.
        fetched_bytes: That came from the source, also those that were of no use.
        proven_bytes: Of an earlier run that were read and found good.
        retries: Attempts that failed.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.done_bytes = 0
        self.fetched_bytes = 0
        self.proven_bytes = 0
        self.retries = 0

    def add_fetched(self, count_bytes: int) -> None:
        """Counts bytes that came."""
        with self._lock:
            self.fetched_bytes += count_bytes

    def add_written(self, transfer: Transfer, count_bytes: int) -> None:
        """Counts bytes that are in the file."""
        with self._lock:
            self.done_bytes += count_bytes
            transfer.counted_bytes += count_bytes

    def add_proven(self, transfer: Transfer, count_bytes: int) -> None:
        """Counts bytes that an earlier run left."""
        with self._lock:
            self.proven_bytes += count_bytes
        self.add_written(transfer, count_bytes)

    def add_retry(self) -> None:
        """Counts an attempt that failed."""
        with self._lock:
            self.retries += 1

    def forget(self, transfer: Transfer) -> None:
        """Takes back what was counted of a file that begins anew."""
        with self._lock:
            self.done_bytes -= transfer.counted_bytes
            transfer.counted_bytes = 0


class Download:
    """One run over the files that are to be fetched."""

    def __init__(self, source: Source, described: str, files: Folder, options: DownloadOptions, counts: Counts) -> None:
        """Prepares it.

        Args:
            source: Where from; closed when the run ends early.
            described: The source in words.
            files: The folder below which files are written.
            options: How.
            counts: Told of progress.
        """
        self._source = source
        self._described = described
        self._files = files
        self._options = options
        self._counts = counts
        self._bucket = TokenBucket(options.max_bytes_per_second)
        self.finished: dict[str, Finished] = {}

    def run(self, transfers: Sequence[Transfer], journal: Journal, on_tick: Callable[[], None]) -> None:
        """Fetches all. Blocks; a signal's exception goes through it within a second or two.

        Args:
            transfers: What to fetch.
            journal: Of this run.
            on_tick: Called several times a second, by this thread.

        Raises:
            LoaderError: The first error that no repetition mended.
        """
        schedule = Schedule(transfers, self._counts.forget)
        self._schedule = schedule
        self._syncer = Syncer(journal, self._note_finished, schedule.fail)
        # More ranges than this can't be had of small files.
        most = sum(1 + max(0, transfer.file.size_bytes) // transfer.part_bytes for transfer in transfers)
        threads = [
            threading.Thread(target=self._work, daemon=True, name=f"fetch-{number}")
            for number in range(min(self._options.num_connections, most))
        ]
        is_whole, patience = False, _STOP_SECONDS
        try:
            for thread in threads:
                thread.start()
            while not schedule.wait(_TICK_SECONDS):
                on_tick()
            patience = _FAIL_SECONDS
            # All bytes are there, or what is whole counts also after an error; the disk may take its time.
            while schedule.error is None and not self._syncer.close(_TICK_SECONDS):
                on_tick()
            is_whole = schedule.error is None
        finally:
            if not is_whole:
                schedule.fail(TryAgainError("fetch was ended"))
                self._source.close()
            self._end(threads, transfers, patience)
        if schedule.error is not None:
            raise schedule.error

    def _end(self, threads: Sequence[threading.Thread], transfers: Sequence[Transfer], patience: float) -> None:
        """Waits for the threads. One that hangs in the source keeps its file open and writes nothing more."""
        deadline = time.monotonic() + _STOP_SECONDS
        for thread in threads:
            if thread.ident is not None:
                thread.join(max(0.0, deadline - time.monotonic()))
        if self._syncer.close(patience) and not any(thread.is_alive() for thread in threads):
            for transfer in transfers:
                transfer.close()

    def _note_finished(self, transfer: Transfer, finished: Finished) -> None:
        self.finished[transfer.file.path] = finished

    def _work(self) -> None:
        try:
            worker = _Worker(self._source, self._schedule, self._options, self._counts, self._bucket)
            while (taken := self._schedule.take()) is not None:
                if isinstance(taken, Transfer):
                    taken.open(self._files, functools.partial(self._counts.add_proven, taken))
                    taken = self._schedule.begin(taken)
                worker.fetch(taken, self._syncer)
                if self._schedule.stop.is_set():
                    return
                if self._schedule.release(taken):
                    self._check(taken.transfer)
        except _DiskError as carried:
            self._schedule.fail(carried.error)
        except Exception as error:  # noqa: BLE001 - carried over to the thread that waits
            self._schedule.fail(error)

    def _check(self, transfer: Transfer) -> None:
        """Compares hashes of a whole file; wrong bytes are fetched again once."""
        digests = transfer.digests()
        error = find_mismatch(transfer.file, digests, self._described)
        if error is None:
            self._syncer.note_whole(transfer, digests)
            self._schedule.done(transfer)
        elif transfer.restarts >= _MAX_DISTRUSTED:
            raise error
        else:
            self._counts.add_retry()
            self._schedule.restart(transfer)


class _Worker:
    """One thread's buffer, and how it gets a range whatever the source does meanwhile."""

    def __init__(
        self, source: Source, schedule: Schedule, options: DownloadOptions, counts: Counts, bucket: TokenBucket
    ) -> None:
        self._source = source
        self._schedule = schedule
        self._options = options
        self._counts = counts
        self._bucket = bucket
        self._buffer = memoryview(bytearray(_GATHER_BYTES))
        self._filled = 0
        self._flushed = 0

    def fetch(self, claim: Claim, syncer: Syncer) -> None:
        """Fetches a claim to its end, which may be moved down meanwhile; or until all is stopped.

        Raises:
            LoaderError: No repetition mends it.
        """
        options = self._options
        backoff = Backoff(options.max_attempts, options.first_wait_seconds)
        self._filled, self._flushed = 0, claim.position
        while self._is_wanted(claim) and claim.position < claim.end:
            try:
                if not self._take_left(claim, syncer):
                    self._stream(claim, syncer, backoff)
            except RangesNotSupportedError as error:
                self._counts.add_retry()
                self._schedule.start_over(claim, error, _MAX_RESTARTS, in_one_piece=True)
            except _TooManyBytesError as error:
                # What came before can't be believed either.
                self._counts.add_retry()
                self._schedule.start_over(claim, error, _MAX_DISTRUSTED, in_one_piece=False)
            except LoaderError as error:
                wait = None if self._schedule.stop.is_set() else backoff.next_wait(error)
                if wait is None:
                    raise
                self._counts.add_retry()
                self._schedule.stop.wait(wait)
        if self._is_wanted(claim):
            _note(syncer, claim.transfer, claim.transfer.finish(claim))

    def _is_wanted(self, claim: Claim) -> bool:
        return not claim.is_cancelled and not self._schedule.stop.is_set()

    def _take_left(self, claim: Claim, syncer: Syncer) -> bool:
        """Goes on behind what an earlier run has left here; False where that is nothing."""
        begin = claim.position
        with _KEEPING, saying("read", claim.transfer.file.path):
            ends = claim.transfer.take_left(claim)
        if ends is None:
            return False
        self._flushed = claim.position
        self._counts.add_proven(claim.transfer, claim.position - begin)
        with _KEEPING:
            _note(syncer, claim.transfer, ends)
        return True

    def _stream(self, claim: Claim, syncer: Syncer, backoff: Backoff) -> None:
        """One read of the source, up to the claim's end or to what an earlier run has left."""
        file = claim.transfer.file
        end = min(claim.end, claim.transfer.next_left(claim.position))
        with _closing(self._source.read_range(file, claim.position, end)) as pieces:
            try:
                for piece in pieces:
                    if not self._is_wanted(claim):
                        return
                    if piece:
                        backoff.note_progress()
                        self._take(claim, memoryview(piece), end, syncer)
                    if claim.position + self._filled >= claim.end < end:
                        # Another worker has taken the rest.
                        break
            finally:
                self._flush(claim, syncer)
        if end == UNKNOWN_END:
            claim.end = claim.transfer.next_begin = claim.position
        elif claim.position < min(claim.end, end):
            message = f"{file.path} ended at byte {claim.position} of {end}; try again"
            raise TryAgainError(message, reason="EndedEarly")

    def _take(self, claim: Claim, piece: memoryview, end: int, syncer: Syncer) -> None:
        received = len(piece)
        file = claim.transfer.file
        if claim.position + self._filled + received > (end if end != UNKNOWN_END else _MAX_UNKNOWN_BYTES):
            message = f"{file.path} goes on behind byte {claim.position + self._filled}, where it should end; the source or a proxy is wrong"
            raise _TooManyBytesError(message)
        self._counts.add_fetched(received)
        if self._filled or received < _GATHER_BYTES:
            while piece:
                head = piece[: _GATHER_BYTES - self._filled]
                self._buffer[self._filled : self._filled + len(head)] = head
                self._filled += len(head)
                piece = piece[len(head) :]
                if self._filled == _GATHER_BYTES:
                    self._flush(claim, syncer)
        else:
            for begin in range(0, received, _WRITE_BYTES):
                self._write(claim, piece[begin : begin + _WRITE_BYTES], syncer)
        wait = self._bucket.take(received)
        if wait:
            self._schedule.stop.wait(wait)

    def _flush(self, claim: Claim, syncer: Syncer) -> None:
        filled, self._filled = self._filled, 0
        self._write(claim, self._buffer[:filled], syncer)

    def _write(self, claim: Claim, piece: memoryview, syncer: Syncer) -> None:
        piece = piece[: max(0, claim.end - claim.position)]
        if not piece or not self._is_wanted(claim):
            return
        with _KEEPING, saying("write", claim.transfer.file.path):
            ends = claim.transfer.write(claim, piece)
        chunks = claim.transfer.sum_up(claim, piece)
        self._counts.add_written(claim.transfer, len(piece))
        if claim.position - self._flushed >= _WRITE_BACK_BYTES:
            start_write_back(claim.transfer.descriptor, self._flushed, claim.position - self._flushed)
            self._flushed = claim.position
        with _KEEPING:
            _note(syncer, claim.transfer, ends)
            for chunk in chunks:
                syncer.note_chunk(claim.transfer, chunk)


def _note(syncer: Syncer, transfer: Transfer, ends: list[tuple[int, str]]) -> None:
    for end, digest in ends:
        if end != transfer.file.size_bytes:
            syncer.note_part(transfer, end, digest)


class _Keeping:
    """Tells errors of this machine from those of the source, which are tried again."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, LoaderError):
            raise _DiskError(error) from error


_KEEPING = _Keeping()


@contextlib.contextmanager
def _closing(pieces: Iterator[bytes | memoryview]) -> Iterator[Iterator[bytes | memoryview]]:
    """Ends the transfer also where it is left early; not every iterator is a generator."""
    try:
        yield pieces
    finally:
        close = getattr(pieces, "close", None)
        if close is not None:
            close()
