"""Tuning: which ways are timed, which one wins, what is said about it, and one real run on a small checkpoint."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from modelweights_loader.checkpoint import find_checkpoint
from modelweights_loader.cli import main
from modelweights_loader.residency import measure
from modelweights_loader.structure import read_structure
from modelweights_loader.tune import choose_sample
from modelweights_loader.tune_choice import (
    Candidate,
    Timing,
    advise,
    choose,
    estimate_repetitions,
    fit_in_time,
    format_table,
    list_candidates,
    list_finalists,
    refuse_for_memory,
)
from tests.checkpoints.writer import make_tensor
from tests.unit.loader.conftest import run_loader

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MIB = 2**20
SIZE = 1000 * MIB
RESIDENT_PERCENT = 95
CACHED = Candidate("fastsafetensors", 0, odirect=False)
CACHED_1 = Candidate("fastsafetensors", 1, odirect=False)
SERIAL = Candidate("fastsafetensors", -1, odirect=False)
DIRECT = Candidate("fastsafetensors", 0, odirect=True)
DIRECT_1 = Candidate("fastsafetensors", 1, odirect=True)
PLAIN = Candidate("safetensors")


def timed(candidate: Candidate, *seconds: float, refusal: str = "") -> Timing:
    """Three rounds of the same length when only one is given."""
    rounds = seconds * 3 if len(seconds) == 1 else seconds
    storage = SIZE if candidate.odirect else 0
    return Timing(candidate, rounds, SIZE, storage, 2**20, refusal=refusal)


@pytest.mark.parametrize(
    ("timings", "best"),
    [
        # The fastest wins, whichever it is.
        ([timed(DIRECT, 2.0), timed(CACHED, 1.0), timed(PLAIN, 3.0)], CACHED),
        ([timed(DIRECT, 1.0), timed(CACHED, 2.0), timed(PLAIN, 3.0)], DIRECT),
        ([timed(DIRECT, 2.0), timed(CACHED, 3.0), timed(PLAIN, 1.0)], PLAIN),
        # Equal: the page cache before storage, fastsafetensors before safetensors, less memory before more.
        ([timed(DIRECT, 1.0), timed(CACHED, 1.0)], CACHED),
        ([timed(CACHED, 1.0), timed(PLAIN, 0.97)], CACHED),
        ([timed(CACHED, 1.0), timed(CACHED_1, 0.97), timed(SERIAL, 1.01)], SERIAL),
        ([timed(DIRECT, 2.0), timed(DIRECT_1, 1.0), timed(CACHED, 1.075)], CACHED),
        ([timed(DIRECT, 2.0), timed(DIRECT_1, 1.0), timed(CACHED, 1.085)], DIRECT_1),
        # Not equal any more.
        ([timed(CACHED, 1.0), timed(PLAIN, 0.9)], PLAIN),
        # Never slower than the default, by however little.
        ([timed(DIRECT, 1.0), timed(CACHED, 1.01)], DIRECT),
        ([timed(DIRECT, 1.0), timed(DIRECT_1, 0.99), timed(CACHED, 1.01)], DIRECT),
        # The median decides, not the best or the worst round.
        ([timed(DIRECT, 1.0), timed(CACHED, 0.5, 1.2, 1.2)], DIRECT),
        ([timed(DIRECT, 1.0), timed(CACHED, 0.8, 0.8, 9.0)], CACHED),
        # Too few rounds, or a failure in one of them: not published.
        ([timed(DIRECT, 1.0), timed(CACHED, 0.5, 0.5)], DIRECT),
        ([timed(DIRECT, 1.0), timed(CACHED, 0.5, refusal="LoadSegfault: …")], DIRECT),
        # A default that lost so clearly that it was not repeated is no bound.
        ([timed(DIRECT, 9.0, 9.0), timed(CACHED, 1.0)], CACHED),
        # A default that won its few rounds is one.
        ([timed(DIRECT, 0.5, 0.5), timed(CACHED, 1.0)], None),
        ([timed(DIRECT, 1.0, 1.0), timed(CACHED, 1.0, 1.0)], None),
        ([], None),
    ],
)
def test_what_is_published(timings: list[Timing], best: Candidate | None) -> None:
    found = choose(timings, DIRECT).best
    assert best == (None if found is None else found.candidate)


def test_the_best_of_each_format_is_known_too() -> None:
    choice = choose([timed(DIRECT, 2.0), timed(CACHED, 1.5), timed(PLAIN, 1.0)], DIRECT)
    assert {"fastsafetensors": CACHED, "safetensors": PLAIN} == {
        name: timing.candidate for name, timing in choice.by_format.items()
    }


@pytest.mark.parametrize(
    ("formats", "queue_sizes", "direct", "listed"),
    [
        (("fastsafetensors", "safetensors"), (0,), True, [DIRECT, CACHED, PLAIN]),
        (("fastsafetensors", "safetensors"), (0,), False, [CACHED, DIRECT, PLAIN]),
        (("fastsafetensors",), (1, 0), True, [DIRECT, CACHED, DIRECT_1, CACHED_1]),
        (("safetensors",), (0, 1), True, [PLAIN]),
    ],
)
def test_the_default_is_timed_first(
    *, formats: tuple[str, ...], queue_sizes: tuple[int, ...], direct: bool, listed: list[Candidate]
) -> None:
    assert listed == list_candidates(formats, queue_sizes, default_is_direct=direct)


@pytest.mark.parametrize(
    ("candidate", "shards"),
    [(SERIAL, 1), (CACHED, 2), (CACHED_1, 3), (Candidate("fastsafetensors", 2), 4), (PLAIN, 0)],
)
def test_a_queue_is_timed_only_where_its_shards_fit(candidate: Candidate, shards: int) -> None:
    assert not refuse_for_memory(candidate, 10, 10 * shards)
    assert "memory" in refuse_for_memory(candidate, 10, 10 * shards - 1)


def test_only_the_best_few_go_on_after_the_first_round() -> None:
    first = [
        timed(DIRECT, 1.9),
        timed(CACHED, 1.0),
        timed(SERIAL, 1.1),
        timed(CACHED_1, 1.2),
        timed(DIRECT_1, 1.3),
        timed(PLAIN, 5.0),
        timed(Candidate("fastsafetensors", 2), 0.1, refusal="gave 1 tensor of 2"),
    ]
    assert [CACHED, SERIAL, CACHED_1, DIRECT, PLAIN] == list_finalists(first, DIRECT)


@pytest.mark.parametrize(
    ("default_seconds", "other_seconds", "finalists"),
    [
        (3.9, 1.9, [SERIAL, CACHED, DIRECT]),
        (3.9, 2.1, [SERIAL, DIRECT]),
        (4.1, 2.1, [SERIAL]),
    ],
)
def test_what_is_far_slower_is_not_repeated_and_the_default_only_when_that_is_clear(
    default_seconds: float, other_seconds: float, finalists: list[Candidate]
) -> None:
    first = [timed(DIRECT, default_seconds), timed(CACHED, other_seconds), timed(SERIAL, 1.0)]
    assert finalists == list_finalists(first, DIRECT)


@pytest.mark.parametrize(
    ("seconds_left", "kept"),
    [
        (100.0, [CACHED, SERIAL, PLAIN]),
        # Each of them twice more: 2 x (1 + 2 + 4).
        (14.0, [CACHED, SERIAL, PLAIN]),
        (13.9, [CACHED, SERIAL]),
        # One alone would be compared with nothing.
        (5.9, [CACHED, SERIAL]),
        (-5.0, [CACHED, SERIAL]),
    ],
)
def test_the_slowest_give_way_until_the_others_have_time_for_enough_rounds(
    seconds_left: float, kept: list[Candidate]
) -> None:
    whole_seconds = {CACHED: 1.0, SERIAL: 2.0, PLAIN: 4.0, DIRECT: 8.0}
    assert kept == fit_in_time([CACHED, SERIAL, PLAIN], whole_seconds, seconds_left)
    # With one turn behind them half of the time is enough.
    assert kept == fit_in_time([CACHED, SERIAL, PLAIN], whole_seconds, seconds_left / 2, turns=1)


def test_without_finalists_no_time_is_needed() -> None:
    assert (0.0, []) == (estimate_repetitions([], {}), fit_in_time([], {}, 1.0))


@pytest.mark.parametrize(
    ("timings", "default", "words"),
    [
        (
            [timed(DIRECT, 2.0), timed(CACHED, 1.0)],
            DIRECT,
            ["staging into memory gains it nothing (2.00 s, 500.0 MiB/s, all from storage)", "warm cache wins 2.0x"],
        ),
        (
            [timed(DIRECT, 1.0), timed(CACHED, 2.0), timed(PLAIN, 4.0)],
            DIRECT,
            ["storage wins 2.0x", "safetensors from the warm page cache: 4.00 s", "gains nothing on this node"],
        ),
        ([timed(DIRECT, 1.0), timed(CACHED, 0.98)], DIRECT, ["equal within what rounds differ"]),
        ([timed(CACHED, 1.0), timed(PLAIN, 2.0)], CACHED, ["published: fastsafetensors through the page cache"]),
        ([timed(DIRECT, 1.0, 1.0)], DIRECT, ["nothing was timed often enough"]),
    ],
)
def test_words(timings: list[Timing], default: Candidate, words: list[str]) -> None:
    text = "\n".join(advise(timings, choose(timings, default), default))
    assert [] == [word for word in words if word not in text], text


def test_a_direct_way_that_met_no_storage_is_not_said_to_read_from_it() -> None:
    on_tmpfs = timed(DIRECT, 1.0)._replace(storage_bytes=0)
    assert "storage" not in "\n".join(advise([on_tmpfs], choose([on_tmpfs], DIRECT), DIRECT))


def test_the_table_has_every_candidate_fastest_first() -> None:
    lines = format_table([timed(PLAIN, 2.0), Timing(DIRECT, refusal="no time was left for it"), timed(CACHED, 1.0)])
    assert ["way", "fastsafetensors", "safetensors", "fastsafetensors"] == [
        line.split()[0] for line in lines.splitlines()
    ]
    assert lines.endswith("no time was left for it")


def test_one_round_is_no_figure_to_compare_with() -> None:
    timings = [timed(DIRECT, 2.0), timed(DIRECT_1, 0.1, 0.1), timed(CACHED, 1.0)]
    assert "warm cache wins 2.0x" in "\n".join(advise(timings, choose(timings, DIRECT), DIRECT))
    assert format_table(timings).splitlines()[-1].startswith(str(DIRECT_1))


def test_a_sample_is_whole_shards_in_load_order_and_one_at_least(write: Callable[..., Path]) -> None:
    shards = {
        f"model-{number}.safetensors": [make_tensor(f"t{number}", "F32", (256,), number)] for number in (1, 2, 10)
    }
    checkpoint = find_checkpoint(str(write(shards)), None)
    structure = read_structure(checkpoint)
    size = checkpoint.shards[0].size_bytes
    taken = [len(choose_sample(checkpoint, structure, limit)) for limit in (1, size, 2 * size, 100 * size)]
    assert [1, 1, 2, 3] == taken
    assert choose_sample(checkpoint, structure, 2 * size)[1].path == "model-2.safetensors"


@pytest.mark.parametrize(
    "wrong",
    [
        ("--queue-sizes", "0,x"),
        ("--queue-sizes", "65"),
        ("--queue-sizes", ""),
        ("--load-formats", "auto"),
        ("--sample-bytes", "4 GB"),
        ("--max-seconds", "-1"),
    ],
)
def test_wrong_options_are_usage_errors(single: Path, wrong: tuple[str, str]) -> None:
    assert main(["tune", str(single), *wrong]) == 2


def test_without_time_nothing_is_published_and_nothing_fails(
    single: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", str(single), "--max-seconds", "0", "--results", str(tmp_path / "results")]) == 0
    result = json.loads((tmp_path / "results" / "tune.json").read_text(encoding="utf-8"))
    assert (result["reason"], result["engine"]) == ("NotTuned", None)
    assert "no time was left for it" in capsys.readouterr().out


def test_a_real_run_measures_chooses_and_leaves_the_pages(split: Path, disk: Path) -> None:
    """Three ways, at least three rounds each; the winner is what `flags` prints."""
    folder = disk / "checkpoint"
    split.rename(folder)
    ran = run_loader(
        "tune", folder, "--queue-sizes", "0", "--max-rounds", "3", "--max-seconds", "200", "--results", disk / "results"
    )
    assert ran.code == 0, ran.stderr
    result: dict[str, Any] = json.loads((disk / "results" / "tune.json").read_text(encoding="utf-8"))
    assert result["reason"] == "Tuned", ran.stdout
    rows = result["candidates"]
    ways = {(row["loadFormat"], row["odirect"]) for row in rows}
    assert ways == {("fastsafetensors", True), ("fastsafetensors", False), ("safetensors", False)}
    assert {None} == {row["refusal"] for row in rows}, rows
    engine = result["engine"]
    assert engine["tuned"] is True
    chosen = next(
        row for row in rows if (row["loadFormat"], row["odirect"]) == (engine["loadFormat"], engine["odirect"])
    )
    assert len(chosen["seconds"]) >= 3
    default = next(row for row in rows if row["odirect"])
    assert chosen["medianSeconds"] <= default["medianSeconds"]
    # All 24 tensors of 12 shards, three times and more, and the pages are where they were, but for what kernels take back.
    assert result["sampleShards"] == 12
    left = measure(find_checkpoint(str(folder), None).shards).percent
    assert left is not None
    assert min(result["residentPercentBefore"], result["residentPercent"], left) >= RESIDENT_PERCENT
    printed = json.loads(run_loader("flags", "--results", disk / "results", "--json").stdout)
    assert (printed["proven"], printed["engine"]) == (True, engine)
    assert ran.report["engine"] == engine


def test_the_command_line_and_flags_import_no_torch() -> None:
    program = (
        "import sys\n"
        "import modelweights_loader.tune, modelweights_loader.flags, modelweights_loader.commands.tune\n"
        "print('torch' in sys.modules)\n"
    )
    argv = [sys.executable, "-c", program]
    ended = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60, cwd="/")
    assert ended.stdout.strip() == "False"


@pytest.mark.parametrize("rounds", ["2", "21", "-3", "three", ""])
def test_rounds_have_bounds(single: Path, rounds: str) -> None:
    ran = run_loader("tune", single, f"--max-rounds={rounds}")
    assert ran.code == 2
    assert "a number of rounds from 3 to 20" in ran.stderr


def test_stage_tunes_what_was_shown_to_load(single: Path, tmp_path: Path) -> None:
    results = tmp_path / "results"
    ran = run_loader(
        "stage", single, "--tune", "--tune-max-rounds", "3", "--tune-load-formats", "safetensors", "--results", results
    )
    assert ran.code == 0, ran.stderr
    assert (results / "tune.json").exists()
    assert "tune: fastest here: safetensors" in ran.stdout
