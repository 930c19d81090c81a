"""Hashing: the digest's meaning, and what can go wrong under it."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from modelweights_loader.checkpoint import find_checkpoint
from modelweights_loader.errors import TryAgainError, WillNotWorkError
from modelweights_loader.manifest import ManifestHasher, Pace
from modelweights_loader.progress import Progress
from tests.checkpoints.writer import make_tensor, write_safetensors

if TYPE_CHECKING:
    from pathlib import Path

DEADLINE_SECONDS = 30


def test_the_digest_depends_on_every_byte_and_name_and_nothing_else(split: Path) -> None:
    def digest() -> str:
        return ManifestHasher(find_checkpoint(str(split))).digest()

    first = digest()
    assert first == digest() == ManifestHasher(find_checkpoint(str(split)), num_threads=1).digest()
    (split / "README.md").write_text("changed", encoding="utf-8")
    assert first == digest()
    (split / "config.json").write_text('{"a": 1}', encoding="utf-8")
    assert first != digest()
    assert first.startswith("sha256:")
    assert len(first) == 71


def test_a_file_that_changes_or_vanishes_is_no_digest(single: Path) -> None:
    checkpoint = find_checkpoint(str(single))
    write_safetensors(single / "model.safetensors", [make_tensor("a", "F32", (1,))])
    with pytest.raises(TryAgainError):
        ManifestHasher(checkpoint).digest()
    (single / "model.safetensors").unlink()
    with pytest.raises(WillNotWorkError):
        ManifestHasher(checkpoint).digest()


def _write_large(folder: Path) -> None:
    """Four shards of 1 MiB of tensors each, four pieces of the hasher."""
    for number in range(4):
        write_safetensors(folder / f"model-{number}.safetensors", [make_tensor(f"{number}", "U8", (2**20,), number)])


@pytest.mark.parametrize("ranks", [1, 2])
def test_with_a_pace_it_waits_for_the_load_and_gives_the_same_digest(tmp_path: Path, ranks: int) -> None:
    _write_large(tmp_path)
    checkpoint = find_checkpoint(str(tmp_path))
    offsets = {shard.path: shard.size_bytes - 2**20 for shard in checkpoint.shards}
    lanes = [checkpoint.shards[rank::ranks] for rank in range(ranks)]
    hasher = ManifestHasher(checkpoint, pace=Pace(lanes, offsets, 2**19))
    deadline = time.monotonic() + DEADLINE_SECONDS
    for step in range(1, 2 * 4 // ranks + 1):
        for rank in range(ranks):
            # Returns when the hasher has caught up; it is not further ahead than the distance and one piece.
            hasher.keep_pace(rank, step * 2**19, deadline)
            assert step * 2**19 <= hasher._lanes[rank].hashed_bytes <= (step + 1) * 2**19 + 2**18
    assert hasher.digest(deadline) == ManifestHasher(checkpoint).digest()
    assert time.monotonic() < deadline


@pytest.mark.parametrize("threads", [1, 3])
def test_each_tenth_is_told_in_order(tmp_path: Path, threads: int) -> None:
    _write_large(tmp_path)
    (tmp_path / "tokenizer.json").write_bytes(b"{}" * 2**18)
    checkpoint, told = find_checkpoint(str(tmp_path)), list[Progress]()
    ManifestHasher(checkpoint, threads, on_progress=told.append).digest()
    # No piece is larger than a tenth.
    assert list(range(1, 11)) == [10 * one.done_bytes // one.total_bytes for one in told]
    assert {sum(file.size_bytes for file in checkpoint.files)} == {one.total_bytes for one in told}
    assert 0 == told[-1].seconds_left


def test_a_load_that_stops_early_does_not_hold_the_hasher(tmp_path: Path) -> None:
    _write_large(tmp_path)
    checkpoint = find_checkpoint(str(tmp_path))
    hasher = ManifestHasher(checkpoint, pace=Pace([checkpoint.shards], {}, 1))
    hasher.cancel()
    for thread in hasher._threads:
        thread.join(DEADLINE_SECONDS)
        assert not thread.is_alive()


def test_hashing_that_takes_too_long_is_said(tmp_path: Path) -> None:
    _write_large(tmp_path)
    checkpoint = find_checkpoint(str(tmp_path))
    hasher = ManifestHasher(checkpoint)
    # A thread that hangs in dead storage, as the hasher sees it.
    hang = threading.Event()
    hasher._threads = [threading.Thread(target=hang.wait, daemon=True)]
    hasher._threads[0].start()
    try:
        with pytest.raises(TryAgainError) as caught:
            hasher.digest(time.monotonic())
    finally:
        hang.set()
    assert caught.value.reason == "HashTimeout"
