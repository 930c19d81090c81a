"""Prefetch: bytes really arrive in the page cache, a failing file does not stop the others, a cancel ends it."""

from __future__ import annotations

import errno
import os
import threading
import time
from typing import TYPE_CHECKING

import pytest

from modelweights_loader import prefetch as module
from modelweights_loader.checkpoint import find_checkpoint
from modelweights_loader.prefetch import Progress, prefetch
from modelweights_loader.residency import measure
from tests.checkpoints.synthetic import make_synthetic
from tests.unit.loader.conftest import evict

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
@pytest.mark.parametrize("block_bytes", [4096 * 5, 2**20, 2**30])
def test_all_bytes_are_read_once_and_are_resident(cold: Checkpoint, num_threads: int, block_bytes: int) -> None:
    assert measure(cold.shards).resident_bytes == 0
    result = prefetch(cold.shards, num_threads=num_threads, block_bytes=block_bytes)
    assert (cold.size_bytes, ()) == (result.read_bytes, result.failures)
    assert measure(cold.shards).percent == 100.0


def test_a_file_system_without_sendfile_is_read_into_a_buffer(
    cold: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EINVAL, "no sendfile")

    monkeypatch.setattr(os, "sendfile", refuse)
    result = prefetch(cold.shards, num_threads=2, block_bytes=2**20)
    assert cold.size_bytes == result.read_bytes
    assert measure(cold.shards).percent == 100.0


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
