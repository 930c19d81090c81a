"""The command `refresh`: what has cooled is warm again, nothing else is read, and files that aren't what they were are named."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from modelweights_loader import cli
from modelweights_loader.block_reader import Range
from modelweights_loader.checkpoint import find_checkpoint
from modelweights_loader.marker import MARKER_FOLDER
from modelweights_loader.missing import find_missing
from modelweights_loader.prefetch import prefetch
from modelweights_loader.residency import METHOD_SAMPLE, measure
from tests.checkpoints.synthetic import make_synthetic
from tests.unit.loader.conftest import evict, run_as_staging_user, run_loader
from tests.unit.loader.memory_group import make_memory_group

if TYPE_CHECKING:
    from collections.abc import Callable

    from modelweights_loader.checkpoint import Checkpoint

MIB = 2**20
SIZE = 32 * MIB
FIRST = "model-00001-of-00004.safetensors"
UNKNOWN_DIGEST = "sha256:" + "0" * 64


@pytest.fixture
def model(disk: Path) -> Path:
    folder = make_synthetic(disk / "model", SIZE, shards=4)
    evict(folder)
    return folder


def _find(model: Path) -> Checkpoint:
    return find_checkpoint(str(model))


def _resident_bytes(model: Path) -> int:
    return measure(_find(model).shards).resident_bytes or 0


def _evict_range(path: Path, offset: int, length: int) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, offset, length, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def _from_disk() -> int:
    """What this process has had read from disks, in bytes."""
    lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes:"))


def _cut_first(model: Path) -> None:
    os.truncate(model / FIRST, MIB)


def test_a_cold_checkpoint_is_warm_afterwards(model: Path) -> None:
    size_bytes = _find(model).size_bytes
    ran = run_loader("refresh", model)
    assert (ran.code, ran.report["reason"]) == (0, "Refreshed")
    assert (ran.report["residentBytesBefore"], ran.report["residentPercentBefore"]) == (0, 0)
    assert (ran.report["residentBytes"], ran.report["residentPercent"]) == (size_bytes, 100)
    assert ran.report["fileCount"] == len(_find(model).files)
    assert _resident_bytes(model) == size_bytes


def test_of_a_warm_one_nothing_is_read(model: Path) -> None:
    prefetch(_find(model).shards)
    ran = run_loader("refresh", model)
    assert (ran.code, ran.report["readBytes"], ran.report["residentPercentBefore"]) == (0, 0, 100)
    assert "nothing was read" in ran.stdout


def test_of_a_partly_warm_one_only_what_is_missing_comes_from_disk(model: Path) -> None:
    assert cli.main(["refresh", str(model)]) == 0
    _evict_range(model / FIRST, 2 * MIB, 4 * MIB)
    missing_bytes = _find(model).size_bytes - _resident_bytes(model)
    # Pages that are mapped together with others may stay.
    assert 3 * MIB <= missing_bytes <= 4 * MIB
    before = _from_disk()
    assert cli.main(["refresh", str(model)]) == 0
    assert missing_bytes <= _from_disk() - before <= missing_bytes + MIB
    assert _resident_bytes(model) == _find(model).size_bytes


def test_missing_parts_are_found_to_the_mebibyte_and_neighbours_joined(model: Path) -> None:
    shards = _find(model).shards
    prefetch(shards)
    _evict_range(model / FIRST, 2 * MIB, 2 * MIB)
    _evict_range(model / FIRST, 6 * MIB, MIB)
    evict_one = shards[2].path
    _evict_range(model / evict_one, 0, shards[2].size_bytes)
    found = find_missing(shards, measure(shards))
    assert found == {
        FIRST: (Range(2 * MIB, 2 * MIB), Range(6 * MIB, MIB)),
        evict_one: (Range(0, shards[2].size_bytes),),
    }


def test_where_nobody_may_measure_parts_a_file_that_is_not_warm_is_missing_as_a_whole(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = _find(model).shards
    prefetch(shards[1:])
    residency = measure(shards, (METHOD_SAMPLE,))
    monkeypatch.setattr("modelweights_loader.missing._EXACT", ())
    assert find_missing(shards, residency) == {FIRST: (Range(0, shards[0].size_bytes),)}


def test_another_user_who_may_only_read_refreshes_too(model: Path) -> None:
    ran = run_as_staging_user("refresh", model)
    assert (ran.code, ran.report["reason"]) == (0, "Refreshed")
    assert _resident_bytes(model) == _find(model).size_bytes


def test_nothing_is_written_beside_the_checkpoint(model: Path) -> None:
    before = sorted(model.parent.rglob("*"))
    assert run_loader("refresh", model, "--pages", "Cold").code == 0
    assert sorted(model.parent.rglob("*")) == before
    assert not (model.parent / MARKER_FOLDER).exists()


def test_pages_cold_leaves_them_warm_and_out_of_the_working_set(model: Path) -> None:
    size_bytes = _find(model).size_bytes
    with make_memory_group("refresh") as group:
        normal = group.run_loader("refresh", model)
        used = group.working_set_bytes
        cold = group.run_loader("refresh", model, "--pages", "Cold")
        left = group.working_set_bytes
    assert (normal.code, cold.code) == (0, 0)
    assert cold.report["cooledBytes"] == size_bytes
    assert left < size_bytes / 8 < used
    assert _resident_bytes(model) == size_bytes


# --- bounds -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["refresh", "prefetch"])
def test_no_more_is_kept_than_is_allowed_and_it_is_said_why(model: Path, command: str) -> None:
    why = ("--max-resident-because", "node budget 20 Mi, team/other holds 4 Mi")
    ran = run_loader(command, model, "--max-resident", "16Mi", *why)
    assert (ran.code, ran.report["readBytes"]) == (0, 16 * MIB)
    assert ran.report["reason"] in ("RefreshedPartly", "PrefetchedPartly")
    assert "16.0 MiB of 32.0 MiB fit" in ran.report["message"]
    assert "team/other holds 4 Mi" in ran.report["message"]
    # Readahead may bring in a little more.
    assert 16 * MIB <= _resident_bytes(model) <= 18 * MIB


def test_what_is_there_already_counts(model: Path) -> None:
    prefetch(_find(model).shards[:2])
    ran = run_loader("refresh", model, "--max-resident", "16Mi")
    assert (ran.code, ran.report["readBytes"]) == (0, 0)


@pytest.mark.parametrize(("command", "reason"), [("refresh", "NotResident"), ("prefetch", "NoMemory")])
def test_a_bound_below_what_the_policy_requires_is_no_room(model: Path, command: str, reason: str) -> None:
    bound = ("--max-resident", "8Mi", "--max-resident-because", "team/other holds the rest")
    ran = run_loader(command, model, *bound, "--policy", "Required")
    assert (ran.code, ran.report["reason"]) == (40, reason)
    assert "team/other holds the rest" in ran.stderr


# --- files that are not what they were --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda model: (model / FIRST).unlink(), "MissingShard"),
        (_cut_first, "Truncated"),
        (lambda model: (model / FIRST).write_bytes(b""), "HeaderTooSmall"),
    ],
    ids=["missing", "cut off", "empty"],
)
def test_a_shard_that_is_not_what_it_was_is_named(model: Path, damage: Callable[[Path], None], reason: str) -> None:
    damage(model)
    ran = run_loader("refresh", model)
    assert (ran.code, ran.report["reason"]) == (30, reason)
    assert FIRST in ran.report["message"]


def test_a_folder_that_is_gone_is_named(model: Path) -> None:
    shutil.rmtree(model)
    ran = run_loader("refresh", model)
    assert (ran.code, ran.report["reason"]) == (20, "NotFound")
    assert str(model) in ran.report["message"]


@pytest.mark.parametrize("option", ["--expect-size", "--expect-files"])
def test_other_sizes_or_counts_than_were_staged_are_a_bad_checkpoint(model: Path, option: str) -> None:
    ran = run_loader("refresh", model, option, "1")
    assert (ran.code, ran.report["reason"]) == (30, "FileChanged")
    assert _resident_bytes(model) <= MIB


def test_the_sizes_that_were_staged_are_fine(model: Path) -> None:
    found = _find(model)
    expected = ("--expect-size", str(found.size_bytes), "--expect-files", str(len(found.files)))
    assert run_loader("refresh", model, *expected).code == 0


# --- what fetch published ---------------------------------------------------------------------------------------------


@pytest.fixture
def home(disk: Path, model: Path) -> Path:
    fetched = run_loader("fetch", disk / "home", "--source", f"file://{model}")
    assert fetched.code == 0
    return disk / "home"


def _digest(home: Path) -> str:
    return "sha256:" + next(entry.name for entry in home.iterdir() if len(entry.name) == len("0" * 64))


def test_of_a_home_the_checkpoint_with_the_digest_is_refreshed(home: Path) -> None:
    digest = _digest(home)
    folder = home / digest.removeprefix("sha256:")
    evict(folder)
    ran = run_loader("refresh", home, "--digest", digest, "--root", home)
    assert (ran.code, ran.report["residentPercentBefore"], ran.report["residentPercent"]) == (0, 0, 100)
    assert _resident_bytes(folder) == _find(folder).size_bytes


def test_a_digest_that_is_not_there_is_named(home: Path) -> None:
    ran = run_loader("refresh", home, "--digest", UNKNOWN_DIGEST)
    assert (ran.code, ran.report["reason"]) == (20, "NotFetched")
    assert UNKNOWN_DIGEST in ran.report["message"]


def test_a_home_that_is_not_there_is_named(disk: Path) -> None:
    ran = run_loader("refresh", disk / "nowhere", "--digest", UNKNOWN_DIGEST)
    assert (ran.code, ran.report["reason"]) == (20, "NotFetched")


@pytest.mark.parametrize("name", [FIRST, "config.json"])
def test_a_fetched_file_that_is_gone_is_named(home: Path, name: str) -> None:
    digest = _digest(home)
    (home / digest.removeprefix("sha256:") / name).unlink()
    ran = run_loader("refresh", home, "--digest", digest)
    assert (ran.code, ran.report["reason"]) == (20, "NotFound")
    assert name in ran.report["message"]


@pytest.mark.parametrize("name", [FIRST, "config.json"])
def test_a_fetched_file_of_another_size_is_named(home: Path, name: str) -> None:
    digest = _digest(home)
    path = home / digest.removeprefix("sha256:") / name
    path.write_bytes(path.read_bytes() + b"\n")
    ran = run_loader("refresh", home, "--digest", digest)
    assert (ran.code, ran.report["reason"]) == (30, "FileChanged")
    assert name in ran.report["message"]
