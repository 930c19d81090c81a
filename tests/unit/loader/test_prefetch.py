"""Prefetch: bytes really arrive in the page cache, a failing file does not stop the others, a cancel ends it."""

from __future__ import annotations

import errno
import os
import resource
import threading
import time
from typing import TYPE_CHECKING

import pytest

from modelweights_loader import prefetch as module
from modelweights_loader.block_reader import BlockReader
from modelweights_loader.checkpoint import CheckpointFile, find_checkpoint
from modelweights_loader.prefetch import Progress, prefetch
from modelweights_loader.residency import measure
from tests.checkpoints.synthetic import make_synthetic
from tests.filesystems.loop import mount_image
from tests.unit.loader.conftest import evict, run_loader

if TYPE_CHECKING:
    from pathlib import Path

    from modelweights_loader.checkpoint import Checkpoint

SIZE = 16 * 2**20


@pytest.fixture
def cold(disk: Path) -> Checkpoint:
    folder = make_synthetic(disk / "model", SIZE, shards=4)
    evict(folder)
    return find_checkpoint(str(folder))


@pytest.mark.parametrize("num_threads", [1, 3, 64])
@pytest.mark.parametrize("block_bytes", [1000, 16_000_000, 2**20, 2**26])
def test_all_bytes_are_read_once_and_are_resident(cold: Checkpoint, num_threads: int, block_bytes: int) -> None:
    assert measure(cold.shards).resident_bytes == 0
    result = prefetch(cold.shards, num_threads=num_threads, block_bytes=block_bytes)
    assert (cold.size_bytes, ()) == (result.read_bytes, result.failures)
    assert measure(cold.shards).percent == 100.0


def test_a_file_without_sendfile_is_read_into_a_buffer_and_the_others_are_not(
    cold: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_sendfile, real_preadv = os.sendfile, os.preadv
    refused = os.stat(cold.shards[1].real_path).st_ino
    copied: set[int] = set()

    def refuse(out: int, source: int, offset: int, count: int) -> int:
        if os.fstat(source).st_ino == refused:
            raise OSError(errno.EINVAL, "no sendfile")
        return real_sendfile(out, source, offset, count)

    def preadv(source: int, buffers: list[memoryview], offset: int) -> int:
        copied.add(os.fstat(source).st_ino)
        return real_preadv(source, buffers, offset)

    monkeypatch.setattr(os, "sendfile", refuse)
    monkeypatch.setattr(os, "preadv", preadv)
    result = prefetch(cold.shards, num_threads=1, block_bytes=2**20)
    assert (cold.size_bytes, ("sendfile", "preadv")) == (result.read_bytes, result.ways)
    assert copied == {refused}
    assert measure(cold.shards).percent == 100.0


def test_a_failure_of_the_second_way_is_the_files_failure(cold: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EINVAL, "no")

    monkeypatch.setattr(os, "sendfile", refuse)
    monkeypatch.setattr(os, "preadv", refuse)
    result = prefetch(cold.shards[:1])
    assert [(failure.path, failure.cause) for failure in result.failures] == [(cold.shards[0].path, "EINVAL: no")]


@pytest.mark.parametrize("world_size", [1, 2, 3, 7])
def test_ranks_share_the_files_out_in_natural_order(cold: Checkpoint, world_size: int) -> None:
    shuffled = cold.shards[::-1]
    results = [prefetch(shuffled, rank=rank, world_size=world_size) for rank in range(world_size)]
    names = [shard.path for shard in cold.shards]
    assert [result.files for result in results] == [tuple(names[rank::world_size]) for rank in range(world_size)]
    assert sum(result.read_bytes for result in results) == cold.size_bytes
    assert [(result.rank, result.world_size) for result in results] == [
        (rank, world_size) for rank in range(world_size)
    ]


def test_one_rank_reads_its_own_files_only(cold: Checkpoint) -> None:
    prefetch(cold.shards, rank=1, world_size=2)
    assert [file.resident_bytes == file.size_bytes for file in measure(cold.shards).files] == [False, True, False, True]


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"num_threads": 0}, "0 threads is outside of 1 to 256"),
        ({"num_threads": 257}, "257 threads"),
        ({"block_bytes": 0}, "a block of 0 bytes is outside of 1 byte to 1Gi"),
        ({"block_bytes": 2**30 + 1}, "outside of 1 byte to 1Gi"),
        ({"num_threads": 5, "block_bytes": 2**30}, "more than 4Gi"),
        ({"rank": 1}, "rank 1 is outside of 0 to 0"),
        ({"rank": -1, "world_size": 2}, "rank -1"),
        ({"world_size": 0}, "world size of 0"),
        ({"world_size": 65537}, "1 to 65536"),
    ],
)
def test_numbers_out_of_bounds_are_value_errors(settings: dict[str, int], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        prefetch((), **settings)  # type: ignore[arg-type]


def test_nothing_to_read_is_done_at_once() -> None:
    result = prefetch(())
    assert (result.read_bytes, result.planned_bytes, result.ways, result.cancelled) == (0, 0, (), False)


def test_a_rank_on_the_command_line_says_what_it_read(cold: Checkpoint) -> None:
    ran = run_loader("prefetch", cold.path, "--rank", "2", "--world-size", "3", "--policy", "Required")
    told = {key: ran.report[key] for key in ("files", "rank", "worldSize", "readBytes", "residentPercent")}
    size = cold.shards[2].size_bytes
    assert told == {"files": 1, "rank": 2, "worldSize": 3, "readBytes": size, "residentPercent": 100.0}
    assert "(rank 2 of 3: 1 of 4 files)" in ran.stdout
    assert measure(cold.shards[:2]).percent == 0.0


def test_a_thousand_shards_need_few_descriptors(disk: Path) -> None:
    files = []
    for number in range(300):
        path = disk / f"{number}.safetensors"
        path.write_bytes(bytes(5000))
        files.append(CheckpointFile(path.name, str(path), 5000))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 40, limits[1]))
    try:
        result = prefetch(files, num_threads=8)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert (result.read_bytes, result.failures) == (300 * 5000, ())


def test_a_limit_reads_the_first_files_in_load_order(cold: Checkpoint) -> None:
    limit = cold.shards[0].size_bytes + 4096
    result = prefetch(cold.shards, num_threads=2, block_bytes=2**16, limit_bytes=limit)
    assert limit == result.read_bytes
    resident = [file.resident_bytes or 0 for file in measure(cold.shards).files]
    assert resident[0] == cold.shards[0].size_bytes
    # The second one gets what is left, and what the kernel reads ahead.
    assert resident[2:] == [0, 0]


def test_a_failing_file_leaves_the_others_read(cold: Checkpoint) -> None:
    os.unlink(cold.shards[1].real_path)
    with open(cold.shards[2].real_path, "r+b") as file:
        file.truncate(2**20)
    result = prefetch(cold.shards, num_threads=4, block_bytes=2**18)
    failed = {failure.path: failure.cause for failure in result.failures}
    assert {cold.shards[1].path, cold.shards[2].path} == set(failed)
    assert failed[cold.shards[1].path].startswith("ENOENT")
    assert "shrunk" in failed[cold.shards[2].path]
    assert result.read_bytes == cold.shards[0].size_bytes + cold.shards[3].size_bytes + 2**20


def test_progress_comes_at_most_every_tenth_and_ends_at_all(cold: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_POLL_SECONDS", 0.0)
    said: list[Progress] = []
    prefetch(cold.shards, num_threads=1, block_bytes=2**16, on_progress=said.append)
    assert 1 <= len(said) <= 10
    assert [item.done_bytes for item in said] == sorted(item.done_bytes for item in said)
    assert said[-1].done_bytes == said[-1].total_bytes == cold.size_bytes
    assert said[-1].seconds_left == 0


def test_a_cancel_ends_within_a_second(cold: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    cancelled = threading.Event()
    real_sendfile = os.sendfile

    def slow(out: int, source: int, offset: int, count: int) -> int:
        # As slow as a piece of a block may be: the cancel comes while this one is read.
        cancelled.set()
        return real_sendfile(out, source, offset, min(count, 4096))

    monkeypatch.setattr(os, "sendfile", slow)
    started = time.monotonic()
    result = prefetch(cold.shards, num_threads=2, block_bytes=2**20, cancelled=cancelled)
    assert time.monotonic() - started < 10  # a hang, not a slow machine
    assert result.read_bytes < cold.size_bytes
    assert result.cancelled


def test_small_blocks_are_taken_in_runs_where_there_is_enough_for_all(cold: Checkpoint) -> None:
    def taken(num_threads: int, block_bytes: int, limit_bytes: int | None = None) -> set[int]:
        reader = BlockReader(cold.shards, block_bytes, limit_bytes, threading.Event())
        return {block.length for block in reader._cut(reader._choose_run_bytes(num_threads))}

    assert max(taken(1, 2**16)) == 2**22  # a quarter of everything
    assert max(taken(2, 2**16)) == 2**21
    assert max(taken(16, 2**20)) == 2**20  # too little for runs: single blocks
    assert max(taken(1, 2**22, 2**20)) == 2**20


def test_pages_whose_read_failed_are_not_resident(disk: Path) -> None:
    """The kernel keeps them, without content, and cachestat counts them."""
    image = disk / "image"
    with mount_image("ext4", image, disk / "mounted") as mounted:
        folder = make_synthetic(mounted / "model", 2 * SIZE, shards=2)
        checkpoint = find_checkpoint(str(folder))
        evict(folder)
        whole = image.stat().st_size
        os.truncate(image, 2**20)
        try:
            result = prefetch(checkpoint.shards)
            residency = measure(checkpoint.shards)
        finally:
            os.truncate(image, whole)
    assert [failure.cause for failure in result.failures] == ["EIO: Input/output error"] * 2
    assert (residency.resident_bytes, residency.method) == (0, "cachestat")
