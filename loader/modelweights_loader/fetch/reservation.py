"""Takes the room on the disk for all that is to be fetched, before its first byte. Called by `fetching`.

Two fetches into different homes see nothing of each other but the disk: each takes all it needs, then looks whether what is to
stay free still is. If not, it gives back and tries again a little later, since the other one may have taken only to give back too.
So two never plan the same bytes. A file system that sets nothing aside (NFS before 4.2, most of FUSE) has no such promise.
"""

from __future__ import annotations

import os
import random
import time
from typing import TYPE_CHECKING

from modelweights_loader.errors import NoRoomError
from modelweights_loader.fetch.folders import saying
from modelweights_loader.fetch.plan import describe_lack, measure_disk
from modelweights_loader.fetch.write_back import allocate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from modelweights_loader.fetch.folders import Folder
    from modelweights_loader.fetch.transfer import Transfer
    from modelweights_loader.memory import Reserve

_ATTEMPTS = 4
_LONGEST_WAIT_SECONDS = 2.0
# Smaller files take their room when they are written; they are counted.
MIN_BYTES = 2**20


def reserve_room(
    files: Folder,
    transfers: Sequence[Transfer],
    reserve: Reserve,
    say: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Takes the room of all transfers.

    Args:
        files: The folder below which they go.
        transfers: None of them is open.
        reserve: What is to stay free.
        say: Told of another try.
        sleep: For tests.

    Raises:
        NoRoomError: There is less; nothing is taken then.
        LoaderError: A file can't be made.
    """
    needed = sum(_missing_bytes(transfer) for transfer in transfers)
    for attempt in range(_ATTEMPTS):
        if attempt:
            say("another fetch takes room on this disk at the same time; trying again")
            # No clock and no order: two that have met must not meet again.
            sleep(random.uniform(0.1, _LONGEST_WAIT_SECONDS))  # noqa: S311 - nothing secret
        try:
            _take(files, transfers)
            left = sum(_missing_bytes(transfer) for transfer in transfers if not transfer.is_reserved)
            disk = measure_disk(files.descriptor, reserve)
            if disk.free_bytes - disk.reserve_bytes >= left or not needed:
                return
        except NoRoomError:
            pass
        except BaseException:
            _give_back(files, transfers)
            raise
        _give_back(files, transfers)
    raise describe_lack(files.shown, needed, measure_disk(files.descriptor, reserve))


def _missing_bytes(transfer: Transfer) -> int:
    done = transfer.prefix[-1][0] if transfer.prefix else 0
    return max(0, transfer.file.size_bytes - done)


def _take(files: Folder, transfers: Sequence[Transfer]) -> None:
    for transfer in transfers:
        if transfer.file.size_bytes < MIN_BYTES:
            continue
        with files.holding(transfer.file.path, make=True) as (folder, name):
            shown = f"{folder.shown}/{name}"
            descriptor = transfer.open_file(folder, name)
            try:
                begin = transfer.prefix[-1][0] if transfer.prefix else 0
                with saying("write", shown):
                    transfer.is_reserved = allocate(descriptor, begin, transfer.file.size_bytes)
            finally:
                os.close(descriptor)


def _give_back(files: Folder, transfers: Sequence[Transfer]) -> None:
    for transfer in transfers:
        if transfer.file.size_bytes < MIN_BYTES:
            continue
        transfer.is_reserved = False
        try:
            with files.holding(transfer.file.path) as (folder, name):
                if not transfer.is_resumed:
                    folder.unlink(name)
                    continue
                descriptor = folder.open(name, os.O_RDWR)
                try:
                    # To the size that it has: what was set aside behind it goes.
                    os.ftruncate(descriptor, os.fstat(descriptor).st_size)
                finally:
                    os.close(descriptor)
        except FileNotFoundError:
            continue
