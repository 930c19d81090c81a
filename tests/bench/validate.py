"""`validate` beside bare ParallelLoader scripts on the same warm files, as whole processes. Called by `__main__`."""

import argparse
import contextlib
import json
import os
import tempfile
from pathlib import Path
from statistics import median
from typing import Any, Final

from modelweights_loader.load.contract import BOUNCE_BUFFER_KIB, MIN_BATCH_BYTES
from modelweights_loader.quantity import parse_bytes
from tests.bench.figures import GOALS_HEAD, MIB, make_table, ratio, say, spread, start_result, verdict
from tests.bench.page_cache import resident_share
from tests.bench.processes import LOADER, PROGRAMS, PYTHON, BenchmarkError, Cost, measure
from tests.bench.scratch import make_scratch, make_set

_SHARDS: Final = 4
"""Each as large as those of real models, since ParallelLoader's memory goes by the shard."""
_BUFFERED: Final = {"FASTSAFETENSORS_ODIRECT": "0"}
_HASH: Final = (
    "import hashlib, sys; from concurrent.futures import ThreadPoolExecutor as P;"
    "[*P(2).map(lambda path: hashlib.file_digest(open(path, 'rb'), 'sha256').hexdigest(), sys.argv[1:])]"
)
_NAMES: Final = {
    "loader": "`validate --mode Load` (it also hashes every file)",
    "bare same": "bare script, the same settings",
    "bare default": "bare script, defaults (past the page cache)",
    "bare buffered": "bare script, defaults and FASTSAFETENSORS_ODIRECT=0",
    "structure": "`validate --mode Structure`: headers and hashes",
    "hashes": "sha256 of every file, two threads",
    "torch": "`python -c 'import torch, fastsafetensors'`",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--size", type=parse_bytes, default=4 * 2**30, help="bytes of the checkpoint (default 4Gi)")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each side (default 5)")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """All sides take turns; before each run the files are warm, and that is checked."""
    result = start_result(
        "validate", {"size_mib": arguments.size // MIB, "shards": _SHARDS, "rounds": arguments.rounds}
    )
    with make_scratch(arguments.scratch, arguments.size) as scratch:
        shards = make_set(scratch / "set", arguments.size, shards=_SHARDS)
        # Reads the programs and libraries into memory, and tells which settings are to be compared with.
        said = _validate(shards, "Load")[1]
        result["settings"] = make_same_settings(said, shards)
        result["runs"] = {name: [] for name in _NAMES}
        for turn in range(arguments.rounds):
            for name in _NAMES:
                result["runs"][name].append(_measure(name, shards, result["settings"]))
            say(f"validate: round {turn + 1} of {arguments.rounds}")
    return result


def make_same_settings(said: dict[str, Any], shards: list[Path]) -> dict[str, Any]:
    """ParallelLoader's keywords as the loader's load process sets them, from its report and its contract's constants."""
    largest = max(shard.stat().st_size for shard in shards) // 16
    return {
        "queue_size": said["queueSize"],
        "bbuf_size_kb": BOUNCE_BUFFER_KIB,
        "max_threads": min(8, len(os.sched_getaffinity(0))),
        "max_batch_bytes": max(MIN_BATCH_BYTES, largest),
        "borrowed_tensors": True,
        "accumulate_resident": False,
    }


def _measure(name: str, shards: list[Path], settings: dict[str, Any]) -> dict[str, Any]:
    _make_warm(shards)
    load_seconds = None
    if name in {"loader", "structure"}:
        cost, said = _validate(shards, "Load" if name == "loader" else "Structure")
        load_seconds = said.get("loadSeconds")
    elif name in {"hashes", "torch"}:
        script = _HASH if name == "hashes" else "import torch, fastsafetensors"
        cost = measure([PYTHON, "-c", script, *map(str, shards)], sample=True)
    else:
        keywords = json.dumps(settings if name == "bare same" else {})
        program = [PYTHON, str(PROGRAMS / "bare_load.py"), "ParallelLoader", keywords, *map(str, shards)]
        environment = {} if name == "bare default" else _BUFFERED
        cost = measure(program, environment=environment, sample=True)
        load_seconds = json.loads(cost.output)["seconds"]
    return {
        "seconds": round(cost.seconds, 3),
        "load_seconds": load_seconds,
        "cpu_seconds": round(cost.cpu_seconds, 3),
        "anonymous_bytes": cost.anonymous_bytes,
        "max_rss_bytes": cost.max_rss_bytes,
    }


def _validate(shards: list[Path], mode: str) -> tuple[Cost, dict[str, Any]]:
    with tempfile.TemporaryDirectory() as results:
        folder = str(shards[0].parent)
        cost = measure([*LOADER, "validate", folder, "--mode", mode, "--results", results], sample=True)
        return cost, json.loads((Path(results) / "validate.json").read_text())


def _make_warm(shards: list[Path]) -> None:
    if resident_share(shards) < 0.999:
        measure([*LOADER, "prefetch", str(shards[0].parent)])
    share = resident_share(shards)
    if share < 0.99:
        raise BenchmarkError(f"only {100 * share:.1f} % is in the page cache after a prefetch: not enough free memory")


def make_tables(result: dict[str, Any]) -> dict[str, str]:
    """Name to Markdown."""
    runs: dict[str, list[dict[str, Any]]] = result["runs"]

    def column(name: str, figure: str, unit: float = 1) -> list[float]:
        with contextlib.suppress(TypeError):
            return [run[figure] / unit for run in runs[name]]
        return []

    head = ("warm files", "whole process, s", "load, s", "CPU s", "peak anonymous memory, MiB", "largest RSS, MiB")
    rows = [
        (
            words,
            spread(column(name, "seconds")),
            spread(column(name, "load_seconds")),
            spread(column(name, "cpu_seconds")),
            spread(column(name, "anonymous_bytes", MIB), 0),
            spread(column(name, "max_rss_bytes", MIB), 0),
        )
        for name, words in _NAMES.items()
    ]
    time_ratio = ratio(column("loader", "seconds"), column("bare same", "seconds"))
    default_ratio = ratio(column("loader", "seconds"), column("bare default", "seconds"))
    memory_ratio = ratio(column("loader", "anonymous_bytes"), column("bare default", "anonymous_bytes"))
    torch = median(column("torch", "anonymous_bytes"))
    beyond = [
        [anonymous - torch for anonymous in column(name, "anonymous_bytes")] for name in ("loader", "bare default")
    ]
    goals = [
        verdict("time over the bare script with the same settings", time_ratio, 1.1, at_most=True),
        verdict("time over the bare script with defaults", default_ratio, 1.1, at_most=True),
        verdict("peak anonymous memory over the bare script with defaults", memory_ratio, 0.3, at_most=True),
        verdict("the same beyond what importing torch takes", ratio(*beyond), 0.3, at_most=True),
    ]
    return {"validate main": make_table(head, rows), "validate goals": make_table(GOALS_HEAD, goals)}
