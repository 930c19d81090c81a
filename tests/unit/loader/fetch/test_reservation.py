"""Two fetches into different homes on one disk: who takes the room has it, and none of them eats what is to stay free."""

from __future__ import annotations

import contextlib
import os
import threading
import zlib
from typing import TYPE_CHECKING

import pytest

from modelweights_loader.errors import LoaderError, NoRoomError
from modelweights_loader.fetch.fetching import FetchOptions, fetch
from modelweights_loader.fetch.folders import open_home
from modelweights_loader.fetch.journal import Chunk
from modelweights_loader.fetch.reservation import reserve_room
from modelweights_loader.fetch.transfer import Transfer
from modelweights_loader.memory import Reserve
from modelweights_loader.sources.contract import RemoteFile
from tests.filesystems.loop import mount_image
from tests.polling import wait_for
from tests.unit.loader.fetch.conftest import MIB, QUICK
from tests.unit.loader.fetch.scripted_source import ScriptedSource, make_checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KEPT = Reserve(size_bytes=4 * MIB)


@pytest.fixture
def small_disk(disk: Path) -> Iterator[Path]:
    with mount_image("ext4", disk / "image", disk / "mounted", 64 * MIB) as mounted:
        yield mounted


def run(home: Path, source: ScriptedSource) -> None:
    fetch(str(home), source, FetchOptions(url="hf://org/tiny", download=QUICK, reserve=KEPT))


def free_bytes(folder: Path) -> int:
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def test_room_is_taken_before_the_first_byte(small_disk: Path) -> None:
    """Each fits alone, both together don't: the second one is told so while the first has fetched nothing yet."""
    size = free_bytes(small_disk) * 3 // 5
    may_go_on = threading.Event()
    asked = threading.Event()

    def wait(file: RemoteFile, _begin: int, _end: int, pieces: Iterator[bytes]) -> Iterator[bytes]:
        if file.path.endswith(".safetensors"):
            asked.set()
            may_go_on.wait(60)
        return pieces

    contents = make_checkpoint((size,))
    first = threading.Thread(target=run, args=(small_disk / "one", ScriptedSource(contents, fault=wait)))
    first.start()
    try:
        assert asked.wait(30)
        second = ScriptedSource(contents)
        with pytest.raises(NoRoomError) as caught:
            run(small_disk / "two", second)
        assert caught.value.figures["neededBytes"] >= size  # type: ignore[operator]
        assert caught.value.figures["diskTotalBytes"] > size  # type: ignore[operator]
        assert [path for path, _, _ in second.reads if path.endswith(".safetensors")] == []
    finally:
        may_go_on.set()
        first.join(60)
    assert list((small_disk / "one").glob("*/config.json"))
    assert free_bytes(small_disk) >= KEPT.size_bytes


def test_of_two_at_once_no_more_than_one_gets_the_room(small_disk: Path) -> None:
    size = free_bytes(small_disk) * 3 // 5
    contents = make_checkpoint((size,))
    together = threading.Barrier(2)
    ended: list[str] = []

    class Together(ScriptedSource):
        """Lists when the other one does, so that both look at the same free room."""

        def read_range(self, file: RemoteFile, begin: int, end: int) -> Iterator[bytes]:
            if file.path.endswith(".index.json") and not together.broken:
                together.wait(30)
            return super().read_range(file, begin, end)

    def attempt(name: str) -> None:
        try:
            run(small_disk / name, Together(contents))
            ended.append("done")
        except LoaderError as error:
            ended.append(error.reason)

    threads = [threading.Thread(target=attempt, args=(name,)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(ended) in (["NoRoom", "done"], ["NoRoom", "NoRoom"])
    assert free_bytes(small_disk) >= KEPT.size_bytes


def test_what_was_taken_in_vain_is_given_back(small_disk: Path) -> None:
    """Killed between taking and fetching, the next run counts it as its own; refused, nothing of it stays."""
    before = free_bytes(small_disk)
    with pytest.raises(NoRoomError):
        run(small_disk / "one", ScriptedSource(make_checkpoint((before,))))
    assert wait_for(lambda: free_bytes(small_disk) > before - MIB, 10)


@pytest.mark.parametrize("room", [4 * MIB, 2**50])
def test_what_another_connection_had_brought_stays(small_disk: Path, room: int) -> None:
    """Also where nothing at the file's front is proven yet, and where there turns out to be no room."""
    brought = os.urandom(4 * MIB)
    chunk = Chunk(4 * MIB, 8 * MIB, zlib.crc32(brought))
    transfer = Transfer(RemoteFile("big", 16 * MIB), 32 * MIB, (), (chunk,))
    with open_home(str(small_disk), make=False) as files:
        (small_disk / "big").write_bytes(bytes(chunk.begin) + brought)
        with contextlib.suppress(NoRoomError):
            reserve_room(files, [transfer], Reserve(size_bytes=room), lambda _: None, lambda _: None)
    assert transfer.is_reserved == (room == 4 * MIB)
    assert (small_disk / "big").read_bytes()[chunk.begin :] == brought
