"""Who fetches what: hands out files, then ranges of the last ones, to the workers. Called by `workers` alone.

One stream per file while there are as many files as workers: that is the fewest requests, and each hash follows its own stream.
A worker that finds no more files takes ranges of one that is under way: its stream is cut at a part's boundary, and what is
behind goes out in parts, in ascending order. So what is written beyond the hashed front, and lost by a kill, is about a part for
each worker; more where the stream in front is slower than those behind it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from modelweights_loader.fetch.transfer import UNKNOWN_END, Claim, Transfer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from modelweights_loader.errors import LoaderError


class Schedule:
    """Shared by all workers."""

    def __init__(self, transfers: Iterable[Transfer], on_restart: Callable[[Transfer], None]) -> None:
        """Begins with everything to do.

        Args:
            transfers: In any order: the largest go first, so that the last minutes don't belong to one of them alone.
            on_restart: Told of a file that begins anew.
        """
        self._waiting = sorted(transfers, key=lambda one: one.file.size_bytes)
        self._on_restart = on_restart
        self._open: list[Transfer] = []
        self._running: dict[Transfer, Claim] = {}
        self._left = len(self._waiting)
        self._has_ranges = True
        self._moved = threading.Condition()
        # Who waits for the end is not woken by each file.
        self._is_over = threading.Event()
        self.stop = threading.Event()
        self.error: BaseException | None = None

    def fail(self, error: BaseException) -> None:
        """Ends it for all workers.

        Args:
            error: Why; the first one counts.
        """
        with self._moved:
            if self.error is None and not self.stop.is_set():
                self.error = error
            self.stop.set()
            self._is_over.set()
            self._moved.notify_all()

    def wait(self, timeout_seconds: float) -> bool:
        """Waits until all is over.

        Args:
            timeout_seconds: No longer than that.

        Returns:
            Whether there is nothing more to fetch, or it has failed.
        """
        return self._is_over.wait(timeout_seconds)

    def take(self) -> Transfer | Claim | None:
        """Takes the next thing to do. Blocks while others may leave something.

        Returns:
            A file to open and `begin`, a range to fetch, or None: there is nothing left.
        """
        with self._moved:
            while self._left and not self.stop.is_set():
                if self._waiting:
                    return self._waiting.pop()
                claim = self._take_part()
                if claim is not None:
                    return claim
                self._moved.wait()
        return None

    def begin(self, transfer: Transfer) -> Claim:
        """Claims all of a file that was opened.

        Args:
            transfer: From `take`.

        Returns:
            The range to fetch.
        """
        with self._moved:
            end = UNKNOWN_END if transfer.file.size_bytes < 0 else transfer.file.size_bytes
            claim = transfer.claim(end)
            transfer.num_active = 1
            self._open.append(transfer)
            self._running[transfer] = claim
            if self._can_split(transfer):
                self._moved.notify_all()
            return claim

    def _take_part(self) -> Claim | None:
        candidates = [one for one in self._open if self._can_split(one)]
        if not candidates:
            return None
        transfer = max(candidates, key=self._unclaimed)
        size, part = transfer.file.size_bytes, transfer.part_bytes
        if transfer.next_begin >= size:
            # The stream that goes to the end stops at a boundary that its worker can't have passed meanwhile.
            running = self._running[transfer]
            running.end = transfer.next_begin = self._find_cut(running, part)
        claim = transfer.claim(min((transfer.next_begin // part + 1) * part, size))
        transfer.num_active += 1
        self._running[transfer] = claim
        return claim

    @staticmethod
    def _find_cut(claim: Claim, part: int) -> int:
        return ((claim.position + part) // part + 1) * part

    def _unclaimed(self, transfer: Transfer) -> int:
        """Bytes that another worker could take."""
        size = transfer.file.size_bytes
        if transfer.next_begin < size:
            return size - transfer.next_begin
        running = self._running[transfer]
        return size - self._find_cut(running, transfer.part_bytes) if running.end == size else 0

    def _can_split(self, transfer: Transfer) -> bool:
        can = self._has_ranges and not transfer.is_whole and not transfer.must_restart and not transfer.is_done
        return can and self._unclaimed(transfer) > 0

    def release(self, claim: Claim) -> bool:
        """Gives back a range that is over, or cancelled.

        Args:
            claim: From `take` or `begin`.

        Returns:
            Whether the file is whole now; the caller checks it, and calls `done` or `restart`.

        Raises:
            OSError: The file of cancelled ranges can't be emptied.
        """
        transfer = claim.transfer
        with self._moved:
            transfer.num_active -= 1
            if transfer.must_restart:
                if transfer.num_active == 0:
                    self._restart(transfer)
                return False
            if transfer.is_done or not transfer.is_complete():
                return False
            transfer.is_done = True
            return True

    def done(self, transfer: Transfer) -> None:
        """Counts a whole file.

        Args:
            transfer: That was checked.
        """
        with self._moved:
            self._forget(transfer)
            self._left -= 1
            if self._left == 0:
                self._is_over.set()
                self._moved.notify_all()

    def restart(self, transfer: Transfer) -> None:
        """Has a whole file fetched again.

        Args:
            transfer: Whose hash was wrong.

        Raises:
            OSError: It can't be emptied.
        """
        with self._moved:
            self._restart(transfer)

    def start_over(self, claim: Claim, error: LoaderError, max_restarts: int, *, in_one_piece: bool) -> None:
        """Has a file fetched anew from its start, once all who work on it have noticed.

        Args:
            claim: Whose read failed.
            error: How.
            max_restarts: It begins anew no more often than that.
            in_one_piece: The source has no ranges: this file is not split, and none after it.

        Raises:
            LoaderError: The given one: that won't help.
        """
        with self._moved:
            if claim.is_cancelled:
                return
            if claim.transfer.restarts >= max_restarts or (in_one_piece and claim.position == 0):
                raise error
            if in_one_piece:
                self._has_ranges = False
                claim.transfer.is_whole = True
            claim.transfer.cancel()

    def _restart(self, transfer: Transfer) -> None:
        self._forget(transfer)
        transfer.is_done = False
        transfer.restart()
        self._on_restart(transfer)
        self._waiting.append(transfer)
        self._moved.notify_all()

    def _forget(self, transfer: Transfer) -> None:
        self._open.remove(transfer)
        self._running.pop(transfer, None)
