"""Notes in the journal what was written, and brings it to the disk, in a thread of its own. Called by `workers`.

It takes all that has come meanwhile at once: however slow the disk is, there is one flush for each file and one for the journal.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, NamedTuple

from modelweights_loader.fetch.folders import saying
from modelweights_loader.fetch.journal import Finished, begin_entry, chunk_entry, done_entry, identify, part_entry
from modelweights_loader.fetch.write_back import sync_file_system

if TYPE_CHECKING:
    from collections.abc import Callable

    from modelweights_loader.fetch.journal import Chunk, Journal
    from modelweights_loader.fetch.transfer import Digests, Transfer

# Dirty pages beyond that make who writes wait: memory belongs to the pods that run here.
_MAX_PENDING_BYTES = 2**28
_MAX_PENDING_FILES = 256
# A smaller file is noted once it is on the disk, and not before: that costs more than to fetch it again.
_UNNOTED_BYTES = 2**18
_SYNC_ALL_FROM_FILES = 16
# Small files wait for each other, but no longer than that: each time costs a flush, and wakes a thread.
_GATHER_FILES = 128
_GATHER_SECONDS = 0.1


class _Order(NamedTuple):
    transfer: Transfer
    end: int
    whole: Digests | None
    # Of the transfer when this was ordered: what was fetched before it began anew is of no use.
    restarts: int


class Syncer:
    """Threads hand over by `note_part` and `note_whole`, which wait when too much is pending."""

    def __init__(
        self,
        journal: Journal,
        on_finished: Callable[[Transfer, Finished], None],
        on_error: Callable[[BaseException], None],
    ) -> None:
        """Starts the thread.

        Args:
            journal: Of this run.
            on_finished: Told of each file that is on the disk and in the journal; it is closed then.
            on_error: Told of what ended the thread.
        """
        self._journal = journal
        self._on_finished = on_finished
        self._on_error = on_error
        self._orders: list[_Order] = []
        self._pending_bytes = 0
        self._pending_files = 0
        self._begun: dict[Transfer, int] = {}
        self._is_urgent = False
        self._is_closing = False
        self._is_over = False
        self._noting = threading.Lock()
        self._moved = threading.Condition()
        self._thread = threading.Thread(target=self._run, daemon=True, name="syncer")
        self._thread.start()

    def note_part(self, transfer: Transfer, end: int, prefix: str) -> None:
        """Notes what is hashed, and has each part written to the disk.

        Args:
            transfer: Whose.
            end: Of what is hashed.
            prefix: The digest up to there.
        """
        self._note(transfer, part_entry(transfer.file.path, end, prefix))
        # Notes are for kills, which cost no page; a flush for each of them would cost throughput.
        if end % transfer.part_bytes == 0:
            self._put(_Order(transfer, end, None, transfer.restarts), transfer.part_bytes)

    def note_chunk(self, transfer: Transfer, chunk: Chunk) -> None:
        """Notes what lies behind that.

        Args:
            transfer: Whose.
            chunk: That was written.
        """
        self._note(transfer, chunk_entry(transfer.file.path, chunk))

    def note_whole(self, transfer: Transfer, digests: Digests) -> None:
        """Notes a whole file, and has it written to the disk.

        Args:
            transfer: Nobody writes to it any more.
            digests: Its hashes.
        """
        if transfer.frontier > _UNNOTED_BYTES:
            self._note(transfer, part_entry(transfer.file.path, transfer.frontier, digests.sha256))
        self._put(
            _Order(transfer, transfer.frontier, digests, transfer.restarts), transfer.frontier % transfer.part_bytes
        )

    def _put(self, order: _Order, size_bytes: int) -> None:
        with self._moved:
            self._orders.append(order)
            self._pending_bytes += size_bytes
            self._pending_files += order.whole is not None
            if order.end > _UNNOTED_BYTES or len(self._orders) >= _GATHER_FILES:
                self._is_urgent = True
            if self._is_urgent or len(self._orders) == 1:
                self._moved.notify_all()
            self._moved.wait_for(
                lambda: (
                    self._is_over
                    or (self._pending_bytes <= _MAX_PENDING_BYTES and self._pending_files <= _MAX_PENDING_FILES)
                )
            )

    def close(self, timeout_seconds: float | None = None) -> bool:
        """Ends the thread once nothing is pending.

        Args:
            timeout_seconds: Waits no longer; None as long as it takes.

        Returns:
            Whether it has ended.
        """
        with self._moved:
            self._is_closing = True
            self._moved.notify_all()
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while orders := self._take():
                self._sync(orders)
                with self._moved:
                    self._pending_bytes -= sum(_size_of(order) for order in orders)
                    self._pending_files -= sum(order.whole is not None for order in orders)
                    self._moved.notify_all()
        except Exception as error:  # noqa: BLE001 - carried over to the thread that waits
            self._on_error(error)
        finally:
            with self._moved:
                self._is_over = True
                self._moved.notify_all()

    def _take(self) -> list[_Order]:
        with self._moved:
            self._moved.wait_for(lambda: self._orders or self._is_closing)
            self._moved.wait_for(lambda: self._is_urgent or self._is_closing, _GATHER_SECONDS)
            orders, self._orders = self._orders, []
            self._is_urgent = False
            return orders

    def _sync(self, orders: list[_Order]) -> None:
        orders = [order for order in orders if order.restarts == order.transfer.restarts]
        whole = {order.transfer: order.whole for order in orders if order.whole is not None}
        for transfer in dict.fromkeys(order.transfer for order in orders):
            if transfer not in whole:
                with saying("write", transfer.file.path):
                    os.fdatasync(transfer.descriptor)
        for transfer in whole:
            with saying("write", transfer.file.path):
                os.fchmod(transfer.descriptor, 0o644)
        # A commit of the file system's journal for each of many small files takes longer than all else. What others have
        # written there is brought to the disk with them.
        is_synced = len(whole) >= _SYNC_ALL_FROM_FILES and sync_file_system(next(iter(whole)).descriptor)
        finished = {transfer: _finish(transfer, digests, is_synced=is_synced) for transfer, digests in whole.items()}
        with self._noting:
            done = [
                entry
                for transfer, last in finished.items()
                for entry in (*self._begin(transfer), done_entry(transfer.file.path, last))
            ]
            self._journal.append(done)
        self._journal.sync()
        for order in orders:
            _drop(order.transfer, order.end)
        for transfer, last in finished.items():
            transfer.close()
            self._on_finished(transfer, last)

    def _note(self, transfer: Transfer, entry: dict[str, object]) -> None:
        with self._noting:
            self._journal.append([*self._begin(transfer), entry])

    def _begin(self, transfer: Transfer) -> list[dict[str, object]]:
        """What comes before the first note of a file. What an earlier run left of it is in the journal already."""
        known = self._begun.get(transfer, 0 if transfer.is_resumed else -1)
        self._begun[transfer] = transfer.restarts
        return [] if known == transfer.restarts else [begin_entry(transfer.file.path, identify(transfer.file))]


def _size_of(order: _Order) -> int:
    transfer = order.transfer
    return transfer.part_bytes if order.whole is None else order.end % transfer.part_bytes


def _finish(transfer: Transfer, digests: Digests, *, is_synced: bool) -> Finished:
    with saying("write", transfer.file.path):
        if not is_synced:
            os.fsync(transfer.descriptor)
        status = os.fstat(transfer.descriptor)
    return Finished(status.st_size, digests.sha256, digests.git_blob, status.st_mtime_ns)


def _drop(transfer: Transfer, end: int) -> None:
    """Takes hashed pages that won't all fit out of the page cache, so that they push out nobody else's."""
    if not transfer.keeps_pages and end > transfer.dropped_bytes:
        os.posix_fadvise(
            transfer.descriptor, transfer.dropped_bytes, end - transfer.dropped_bytes, os.POSIX_FADV_DONTNEED
        )
        transfer.dropped_bytes = end
