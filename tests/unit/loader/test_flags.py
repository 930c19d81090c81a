"""Engine settings: from which results they are made, what they say of their proof, and what is left away."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from modelweights_loader.cli import main
from modelweights_loader.flags import format_settings, make_settings

GOOD = {"exitCode": 0, "mode": "Load"}
DIRECT = {"loadFormat": "fastsafetensors", "queueSize": 2, "odirect": True, "nogds": True, "ranks": 1, "tuned": True}
PLAIN = {"loadFormat": "safetensors", "queueSize": 0, "odirect": False, "nogds": True, "ranks": 1, "tuned": True}


def ways(settings: Any) -> list[tuple[str, str, str]]:
    return [(way.engine, way.load_format, way.load) for way in settings.invocations]


@pytest.mark.parametrize(
    ("validated", "tuned", "proven", "environment"),
    [
        ({}, {}, False, ("0", "0")),
        ({**GOOD, "queueSize": 3}, {}, True, ("0", "3")),
        ({**GOOD, "engine": {**DIRECT, "odirect": False}}, {}, True, ("0", "2")),
        ({**GOOD, "mode": "Full", "engine": DIRECT}, {}, True, ("1", "2")),
        ({**GOOD, "mode": "Structure"}, {}, False, ("0", "0")),
        ({**GOOD, "exitCode": 30, "engine": DIRECT}, {}, False, ("0", "0")),
        ({**GOOD, "queueSize": 3}, {"exitCode": 0, "engine": DIRECT}, True, ("1", "2")),
        ({**GOOD, "queueSize": 3}, {"exitCode": 10, "engine": DIRECT}, True, ("0", "3")),
        ({**GOOD, "queueSize": 3}, {"exitCode": 0, "engine": None}, True, ("0", "3")),
    ],
)
def test_what_was_measured_goes_before_what_was_validated_and_that_before_defaults(
    *, validated: dict[str, Any], tuned: dict[str, Any], proven: bool, environment: tuple[str, str]
) -> None:
    settings = make_settings({}, validated, tuned)
    found = (
        settings.environment["FASTSAFETENSORS_ODIRECT"],
        settings.environment["VLLM_FASTSAFETENSORS_QUEUE_SIZE"],
    )
    assert (proven, environment) == (settings.proven, found)
    assert proven is ("not proven" not in format_settings(settings))


def test_the_fastest_format_comes_first_and_the_other_one_with_its_own_settings() -> None:
    tuned = {"exitCode": 0, "engine": PLAIN, "byFormat": {"fastsafetensors": DIRECT, "safetensors": PLAIN}}
    settings = make_settings({}, {}, tuned)
    assert [
        ("vllm", "safetensors", "Proven"),
        ("sglang", "safetensors", "Proven"),
        ("vllm", "fastsafetensors", "Proven"),
        ("sglang", "fastsafetensors", "Proven"),
    ] == ways(settings)
    assert settings.invocations[0].flags == ("--load-format", "safetensors", "--safetensors-load-strategy", "lazy")
    assert settings.environment["FASTSAFETENSORS_ODIRECT"] == "1"


def test_a_load_with_one_library_proves_nothing_about_the_other() -> None:
    settings = make_settings({}, {**GOOD, "engine": {**DIRECT, "tuned": False}}, {}, ("vllm",))
    assert [("vllm", "fastsafetensors", "Proven"), ("vllm", "safetensors", "NotShown")] == ways(settings)
    assert "the load not shown here" in format_settings(settings)


@pytest.mark.parametrize(
    ("verdicts", "kept", "said"),
    [
        (("Accepts", "Accepts"), ["fastsafetensors", "safetensors"], ""),
        (("Refuses", "Accepts"), ["safetensors"], "ParallelLoader refuses this checkpoint (no C64)"),
        (("Accepts", "Refuses"), ["fastsafetensors"], "safetensors refuses this checkpoint (header too long)"),
        (("Accepts", "NotTried"), ["fastsafetensors", "safetensors"], ""),
        (("Refuses", "Refuses"), ["fastsafetensors", "safetensors"], "neither ParallelLoader nor safetensors"),
    ],
)
def test_only_settings_of_a_library_that_accepts_the_checkpoint_are_printed(
    verdicts: tuple[str, str], kept: list[str], said: str
) -> None:
    validated = {
        **GOOD,
        "verdicts": dict(zip(("parallelLoader", "safetensors"), verdicts, strict=True)),
        "refusals": {"parallelLoader": "no C64", "safetensors": "header too long"},
    }
    settings = make_settings({}, validated, {}, ("vllm",))
    assert kept == [way.load_format for way in settings.invocations]
    assert said in format_settings(settings)
    assert bool(said) is bool(settings.notes)


def test_sizes_and_threads_are_those_of_the_prefetch_as_plain_integers() -> None:
    settings = make_settings({"numThreads": 3, "blockSize": 5 * 2**20}, {}, {})
    by_engine = {way.engine: way for way in settings.invocations if way.load_format == "safetensors"}
    assert by_engine["vllm"].flags[-3:] == ("3", "--safetensors-prefetch-block-size", "5242880")
    assert by_engine["sglang"].flags[-1] == "3"
    assert by_engine["sglang"].environment == {"SGLANG_PREFETCH_BLOCK_SIZE_MB": "5"}


WRONG: list[Any] = ["x", "$(id)", [1], {}, True, 1.5, 1e400, -7, 10**30]


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_no_number_in_results_is_no_setting(wrong: Any) -> None:
    engine = {**DIRECT, "queueSize": wrong, "ranks": wrong, "loadFormat": wrong}
    got = make_settings({"numThreads": wrong, "blockSize": wrong}, {}, {"exitCode": 0, "engine": engine})
    good = make_settings({}, {}, {"exitCode": 0, "engine": {**DIRECT, "queueSize": 0}})
    assert format_settings(got) == format_settings(good)


def test_words_of_a_checkpoint_are_no_commands() -> None:
    """A library's refusal repeats what a header says, and the text is for a shell."""
    hostile = "bad\nexport EVIL=1\r\x1b[2J"
    validated = {**GOOD, "verdicts": {"parallelLoader": "Refuses"}, "refusals": {"parallelLoader": hostile}}
    said = format_settings(make_settings({}, validated, {"exitCode": 0, "advice": [hostile]}))
    assert said.count("EVIL") == 2
    assert not [line for line in said.splitlines() if "EVIL" in line and not line.startswith("# ")]
    assert "\x1b" not in said


def test_a_group_that_was_proven_is_published_as_a_group() -> None:
    validated = {**GOOD, "engine": {**DIRECT, "ranks": 4}}
    assert make_settings({}, validated, {}, ("vllm",)).invocations[0].flags[-2:] == ("--tensor-parallel-size", "4")


def test_words_of_the_measurement_are_printed() -> None:
    tuned = {"exitCode": 0, "engine": DIRECT, "advice": ["storage wins 1.2x"]}
    assert "# storage wins 1.2x\n" in format_settings(make_settings({}, {}, tuned))


def test_the_command_reads_results_and_prints_for_one_engine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tune.json").write_text(json.dumps({"exitCode": 0, "engine": PLAIN}), encoding="utf-8")
    assert main(["flags", "--results", str(tmp_path), "--engine", "sglang", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert {"sglang"} == {way["engine"] for way in printed["invocations"]}
    assert printed["proven"] is True
    assert printed["engine"] == PLAIN
    assert printed["invocations"][0]["parserVersion"] == "0.5.23"


def test_the_documented_output_is_what_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[3] / "docs" / "engines.md").read_text(encoding="utf-8")
    documented = text.partition("<!-- flags: validated -->\n```sh\n")[2].partition("```\n")[0]
    engine = {**DIRECT, "queueSize": 0, "odirect": False, "tuned": False}
    (tmp_path / "validate.json").write_text(json.dumps({**GOOD, "engine": engine}), encoding="utf-8")
    assert main(["flags", "--results", str(tmp_path)]) == 0
    assert documented == capsys.readouterr().out
