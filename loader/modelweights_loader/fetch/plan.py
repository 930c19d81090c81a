"""What would be fetched, what is there already, and whether it fits on the disk. Called by `fetching`. Writes nothing."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, NamedTuple

from modelweights_loader.errors import NoRoomError
from modelweights_loader.fetch.journal import Chunk, Finished, Record, identify, read_journal
from modelweights_loader.fetch.published import (
    FETCH_FOLDER,
    FILES_FOLDER,
    KEY,
    Places,
    Reusable,
    is_same,
    tokens_of,
)
from modelweights_loader.quantity import format_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from modelweights_loader.fetch.folders import Folder
    from modelweights_loader.memory import Reserve
    from modelweights_loader.sources.contract import RemoteFile

HAVE = "have"
RESUME = "resume"
FETCH = "fetch"


class PlannedFile(NamedTuple):
    """One file.

    Attributes:
        file: As listed.
        state: `have`: whole on this node; `resume`: begun by an earlier run; `fetch`: nothing of it.
        have_bytes: Of it that needn't be fetched, as far as the journal says.
        finished: What it is, if it is whole.
        link: Where it lies below the home, if not in its place.
        prefix: Ends and digests of what an earlier run left.
        chunks: What it left behind them.
    """

    file: RemoteFile
    state: str
    have_bytes: int
    finished: Finished | None = None
    link: str = ""
    prefix: tuple[tuple[int, str], ...] = ()
    chunks: tuple[Chunk, ...] = ()


class Plan(NamedTuple):
    """All files, and the bytes that must be found on the disk: less what unfinished files and leftovers take already."""

    files: tuple[PlannedFile, ...]
    needed_bytes: int

    @property
    def size_bytes(self) -> int:
        """Of all files, as far as their sizes are known."""
        return sum(max(0, one.file.size_bytes) for one in self.files)

    @property
    def have_bytes(self) -> int:
        """What needn't be fetched."""
        return sum(one.have_bytes for one in self.files)


def make_plan(
    home: Folder | None, key: str, wanted: Sequence[RemoteFile], reusable: Mapping[tuple[object, ...], Reusable]
) -> Plan:
    """Compares what is wanted with what is there.

    Args:
        home: None where it isn't there yet.
        key: Of this source, revision, filters and layout.
        wanted: Files, with names that were checked.
        reusable: From `find_reusable`.

    Returns:
        The plan.
    """
    if home is None:
        return Plan(
            tuple(PlannedFile(file, FETCH, 0) for file in wanted), sum(max(0, one.size_bytes) for one in wanted)
        )
    records = _read_records(home, key)
    files = f"{FETCH_FOLDER}/{key}/{FILES_FOLDER}"
    with Places(home) as places:
        planned = tuple(_plan(file, files, places, records.get(file.path), reusable) for file in wanted)
    leftovers = _count_leftovers(home, key, {one.link or f"{files}/{one.file.path}" for one in planned if one.finished})
    needed = sum(max(0, one.file.size_bytes) for one in planned if one.state != HAVE)
    return Plan(planned, max(0, needed - leftovers))


def _read_records(home: Folder, key: str) -> dict[str, Record]:
    try:
        with home.folder(f"{FETCH_FOLDER}/{key}") as folder:
            return read_journal(folder)
    except FileNotFoundError:
        return {}


def _plan(
    file: RemoteFile,
    files: str,
    places: Places,
    record: Record | None,
    reusable: Mapping[tuple[object, ...], Reusable],
) -> PlannedFile:
    status = places.status(f"{files}/{file.path}")
    if record is not None and status is not None and record.identity == identify(file):
        if record.finished is not None and is_same(status, record.finished):
            return PlannedFile(file, HAVE, status.st_size, record.finished)
        can_resume = stat.S_ISREG(status.st_mode) and status.st_nlink == 1
        prefix = tuple(part for part in record.parts if part[0] <= status.st_size)
        chunks = tuple(chunk for chunk in record.chunks if chunk.end <= status.st_size)
        if (prefix or chunks) and can_resume:
            have_bytes = (prefix[-1][0] if prefix else 0) + sum(chunk.end - chunk.begin for chunk in chunks)
            return PlannedFile(file, RESUME, have_bytes, prefix=prefix, chunks=chunks)
    for token in tokens_of(file):
        if token in reusable:
            found = reusable[token]
            return PlannedFile(file, HAVE, found.finished.size_bytes, found.finished, link=found.place)
    return PlannedFile(file, FETCH, 0)


def _count_leftovers(home: Folder, key: str, kept: set[str]) -> int:
    """Bytes on the disk that unfinished files of this run take already, or that go before it begins."""
    total = 0
    if not home.has_folder(FETCH_FOLDER):
        return total
    with home.folder(FETCH_FOLDER) as fetch:
        for name in fetch.names():
            if not KEY.fullmatch(name):
                continue
            with fetch.folder(name) as folder:
                for path, status in folder.walk():
                    in_files = path.startswith(f"{FILES_FOLDER}/")
                    if (
                        status.st_nlink == 1
                        and f"{FETCH_FOLDER}/{name}/{path}" not in kept
                        and (name != key or in_files)
                    ):
                        total += status.st_blocks * 512
    return total


def check_room(folder: str, plan: Plan, reserve: Reserve) -> None:
    """Refuses to begin what would fill the disk.

    Args:
        folder: The home, or the nearest folder above it that is there.
        plan: What is to come.
        reserve: What is to stay free: a share of the whole disk, or a number of bytes.

    Raises:
        NoRoomError: There is less.
    """
    disk = measure_disk(folder, reserve)
    if plan.needed_bytes and disk.free_bytes - disk.reserve_bytes < plan.needed_bytes:
        raise describe_lack(folder, plan.needed_bytes, disk)
    status = os.statvfs(folder)
    new_files = sum(one.state == FETCH for one in plan.files)
    # File systems that make inodes as they need them say 0 of all.
    if status.f_files and status.f_favail < new_files:
        message = f"{new_files} files are to be made, but the disk of {folder} has inodes for {status.f_favail}; remove files, or take another disk"
        raise NoRoomError(message, reason="NoRoom", figures={"neededFiles": new_files, "freeFiles": status.f_favail})


class Disk(NamedTuple):
    """Bytes of a file system: free for users that aren't root, in all, and of it what is to stay free."""

    free_bytes: int
    total_bytes: int
    reserve_bytes: int = 0

    def figures(self) -> dict[str, object]:
        """For reports."""
        return {"diskFreeBytes": self.free_bytes, "diskTotalBytes": self.total_bytes}


def measure_disk(folder: str | int, reserve: Reserve) -> Disk:
    """Asks a file system for its room.

    Args:
        folder: On it, by its path or descriptor.
        reserve: What is to stay free: a share of all, or a number of bytes.

    Returns:
        The figures.
    """
    status = os.statvfs(folder)
    total = status.f_blocks * status.f_frsize
    return Disk(status.f_bavail * status.f_frsize, total, int(total * reserve.percent / 100) + reserve.size_bytes)


def describe_lack(folder: str, needed_bytes: int, disk: Disk) -> NoRoomError:
    """Says that there is too little room.

    Args:
        folder: On the disk.
        needed_bytes: That are to come.
        disk: What it has.

    Returns:
        The error to raise.
    """
    message = (
        f"{format_bytes(needed_bytes)} ({needed_bytes} bytes) are to be fetched, but the disk of {folder} "
        f"has {format_bytes(disk.free_bytes)} free and {format_bytes(disk.reserve_bytes)} are to stay so; free disk space, "
        "take another disk, or lower --disk-reserve"
    )
    figures = {"neededBytes": needed_bytes, "reserveBytes": disk.reserve_bytes, **disk.figures()}
    return NoRoomError(message, reason="NoRoom", figures=figures)


def find_existing_parent(path: str) -> str:
    """Finds the nearest folder that is there.

    Args:
        path: Of a home that needn't be there yet.

    Returns:
        It, or one above it.
    """
    path = os.path.abspath(path)
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return path
