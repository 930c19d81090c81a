"""What we print for engines, given to the engines' own argument parsers: taken, with the same meaning; wrong words not.

The parsers are those of the released wheels, see tests/engines. No engine runs.
"""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from modelweights_loader.flags import ENGINES, PARSED_BY, make_settings
from modelweights_operator.api.v1alpha1 import ProvenEngine
from modelweights_operator.domain import engine as operator_engine
from tests.engines.facts import read_facts
from tests.engines.packages import fetch
from tests.engines.parsers import ask
from tests.unit.domain.samples import make_spec

if TYPE_CHECKING:
    from pathlib import Path

    from modelweights_loader.flags import Invocation

MIB = 2**20


def case(*argv: str, config: str | None = None, **environment: str) -> dict[str, Any]:
    return {"argv": list(argv), "config": config, "environment": environment}


def results(load_format: str, queue_size: int = 0, *, ranks: int = 1) -> dict[str, Any]:
    engine = {"loadFormat": load_format, "queueSize": queue_size, "odirect": False, "nogds": True, "ranks": ranks}
    return {"exitCode": 0, "mode": "Load", "engine": engine}


class Printed(NamedTuple):
    """A way that `flags` prints, and the result of `prefetch` that it was made from."""

    way: Invocation
    prefetch: dict[str, int]


def list_printed(engine: str) -> list[Printed]:
    """All kinds of ways that `flags` prints for an engine."""
    validated: tuple[dict[str, Any], ...] = (
        {},
        results("fastsafetensors", -1),
        results("fastsafetensors", 64, ranks=2),
        results("safetensors"),
    )
    prefetched: tuple[dict[str, int], ...] = (
        {},
        {"numThreads": 256, "blockSize": 1024 * MIB},
        {"numThreads": 1, "blockSize": MIB},
    )
    return [
        Printed(way, prefetch)
        for proof in validated
        for prefetch in prefetched
        for way in make_settings(prefetch, proof, {}, (engine,)).invocations
    ]


def make_case(way: Invocation) -> dict[str, Any]:
    """With the variables that are the engine's own; the library's is looked at below."""
    own = {name: text for name, text in way.environment.items() if name.startswith(way.engine.upper())}
    return case(*way.flags, **own)


def list_config_files(engine: str) -> list[dict[str, Any]]:
    """The files that the operator puts into its ConfigMap."""
    proven = [
        ProvenEngine(load_format=name, queue_size=1, odirect=True, nogds=True, ranks=1, tuned=True, staging_digest="")
        for name in ("fastsafetensors", "safetensors")
    ]
    return [case(config=operator_engine.settings(make_spec(), entry)[f"{engine}-config.yaml"]) for entry in proven]


WRONG = {
    "vllm": [
        case("--load-format", "fastsafetensor"),
        case("--safetensors-load-strategy", "prefetched"),
        case("--safetensors-prefetch-num-threads", "0"),
        case("--safetensors-prefetch-block-size", "0"),
        case("--safetensors-prefetch-block-size", "16Mi"),
        case("--safetensors-prefetch-threads", "8"),
        case(config="load-fromat: fastsafetensors\n"),
        case(VLLM_FASTSAFETENSORS_QUEUE_SIZE="1Mi"),
        case(VLLM_FASTSAFETENSOR_QUEUE_SIZE="1"),
    ],
    "sglang": [
        case("--load-format", "fastsafetensor"),
        case("--model-loader-extra-config", "{enable_gds:false}"),
        case("--weight-loader-prefetch-num-threads", "8Mi"),
        case("--weight-loader-prefetched-checkpoints"),
        case(config="load-fromat: fastsafetensors\n"),
        case(SGLANG_PREFETCH_BLOCK_SIZE_MB="16Mi"),
        case(SGLANG_PREFETCH_BLOCK_SIZE="16"),
    ],
}
SUFFIXES = ("16M", "16m", "16777216")


class Said(NamedTuple):
    """What one engine said, by what it was asked for."""

    printed: list[tuple[Printed, dict[str, Any]]]
    config_files: list[dict[str, Any]]
    wrong: list[tuple[dict[str, Any], dict[str, Any]]]
    suffixes: list[dict[str, Any]]
    facts: dict[str, Any]


@pytest.fixture(scope="module")
def said() -> dict[str, Said]:
    """Each engine is asked everything at once, both at a time. `make unit` has fetched their files already."""
    folder = fetch()

    def ask_all(engine: str) -> Said:
        printed, files, wrong = list_printed(engine), list_config_files(engine), WRONG[engine]
        suffixes = [case("--safetensors-prefetch-block-size", text) for text in SUFFIXES]
        interview = ask(engine, folder, [*(make_case(entry.way) for entry in printed), *files, *wrong, *suffixes])
        answers = iter(interview.answers)
        return Said(
            printed=[(entry, next(answers)) for entry in printed],
            config_files=[next(answers) for _ in files],
            wrong=[(given, next(answers)) for given in wrong],
            suffixes=list(answers),
            facts=interview.facts,
        )

    with ThreadPoolExecutor(len(ENGINES)) as pool:
        return dict(zip(ENGINES, pool.map(ask_all, ENGINES), strict=True))


def test_vllm_takes_what_is_printed_for_it_with_the_same_meaning(said: dict[str, Said]) -> None:
    for (way, prefetch), answer in said["vllm"].printed:
        assert answer["accepted"], (way.flags, answer["said"])
        values = answer["values"]
        if way.load_format == "fastsafetensors":
            assert values["loadFormat"] == "fastsafetensors"
            queue_size = int(way.environment["VLLM_FASTSAFETENSORS_QUEUE_SIZE"])
            assert values["VLLM_FASTSAFETENSORS_QUEUE_SIZE"] == queue_size
        elif way.load == "Proven":
            assert (values["loadFormat"], values["strategy"]) == ("safetensors", "lazy")
        else:
            assert values["strategy"] == "prefetch"
            assert values["numThreads"] == prefetch.get("numThreads", 8)
            assert values["blockSize"] == prefetch.get("blockSize", 16 * MIB)


def test_sglang_takes_what_is_printed_for_it_with_the_same_meaning(said: dict[str, Said]) -> None:
    for (way, prefetch), answer in said["sglang"].printed:
        assert answer["accepted"], (way.flags, answer["said"])
        values = answer["values"]
        if way.load_format == "fastsafetensors":
            assert (values["loadFormat"], values["extraConfig"]) == ("fastsafetensors", {"enable_gds": False})
            continue
        assert values["SGLANG_PREFETCH_BLOCK_SIZE_MB"] == prefetch.get("blockSize", 16 * MIB) // MIB
        if way.load == "Proven":
            assert (values["loadFormat"], values["prefetch"]) == ("safetensors", False)
        else:
            assert (values["prefetch"], values["numThreads"]) == (True, prefetch.get("numThreads", 8))


@pytest.mark.parametrize("engine", ENGINES)
def test_the_files_of_the_config_map_are_taken(said: dict[str, Said], engine: str) -> None:
    answers = said[engine].config_files
    assert [(True, "fastsafetensors"), (True, "safetensors")] == [
        (answer["accepted"], answer["values"].get("loadFormat")) for answer in answers
    ]
    if engine == "sglang":
        assert answers[0]["values"]["extraConfig"] == {"enable_gds": False}


@pytest.mark.parametrize("engine", ENGINES)
def test_wrong_words_are_refused(said: dict[str, Said], engine: str) -> None:
    assert [] == [given for given, answer in said[engine].wrong if answer["accepted"]]


def test_suffixes_mean_something_else_to_vllm_so_none_is_ever_printed(said: dict[str, Said]) -> None:
    sizes = [answer["values"]["blockSize"] for answer in said["vllm"].suffixes]
    assert [16 * MIB, 16 * 10**6, 16 * MIB] == sizes


@pytest.mark.parametrize("engine", ENGINES)
def test_the_committed_facts_are_those_of_the_parsers_that_flags_names(said: dict[str, Said], engine: str) -> None:
    assert read_facts()[engine] == said[engine].facts
    assert PARSED_BY[engine] == said[engine].facts["version"]


def test_the_library_takes_the_values_that_are_printed_for_its_variable(tmp_path: Path) -> None:
    """FASTSAFETENSORS_ODIRECT: "1" is direct, "0" is not, and without it the file system decides as `tune` assumes."""
    program = (
        "import os, sys\n"
        "from fastsafetensors import common\n"
        "from modelweights_loader.tune import READ_BUFFERED\n"
        "for text in ('1', '0'):\n"
        "    os.environ['FASTSAFETENSORS_ODIRECT'] = text\n"
        "    print(common.is_odirect_enabled(sys.argv[1]))\n"
        "print(READ_BUFFERED == common._NETWORK_FS | common._RAM_FS)\n"
    )
    argv = [sys.executable, "-c", program, str(tmp_path)]
    ended = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=120)
    assert ended.stdout.split() == ["True", "False", "True"], ended.stderr
