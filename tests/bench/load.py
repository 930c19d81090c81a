"""What staging is worth: load times after it against cold, on fast and slow storage. Called by `__main__`."""

import argparse
import contextlib
import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from modelweights_loader.quantity import parse_bytes
from tests.bench.control_groups import throttle
from tests.bench.figures import GOALS_HEAD, MIB, make_table, ratio, say, spread, start_result, verdict
from tests.bench.page_cache import make_cold, resident_share
from tests.bench.processes import LOADER, PROGRAMS, PYTHON, BenchmarkError, measure
from tests.bench.scratch import make_scratch, make_set

STORAGES: Final = {"disk": 0, "slow-300": 300_000_000, "slow-100": 100_000_000}
_SAFETENSORS: Final = "safetensors"
_DEFAULTS: Final = "ParallelLoader, defaults"
_CACHED: Final = "ParallelLoader, FASTSAFETENSORS_ODIRECT=0"
_COPIED: Final = "ParallelLoader, defaults, each tensor copied once more"
# As `tune` loads: each way fills new memory once. By default the library copies each tensor once more, which in an engine
# happens within the GPU's memory; on a processor it would be timed as if it were part of the way from the disk.
_ONE_COPY: Final = {"borrowed_tensors": True, "accumulate_resident": False}
_ODIRECT_VARIABLE: Final = "FASTSAFETENSORS_ODIRECT"
# What else happens on the machine may take pages away in between.
_STAGE_TRIES: Final = 3
# Never slower than cold; a twentieth less is noise here.
_NOT_SLOWER: Final = 0.95
_QUEUE_VARIABLE: Final = "VLLM_FASTSAFETENSORS_QUEUE_SIZE"


class Way(NamedTuple):
    """A way to load: which library, ParallelLoader's keywords, environment."""

    name: str
    kind: str
    keywords: dict[str, Any]
    environment: dict[str, str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--size", type=parse_bytes, default=4 * 2**30, help="bytes of the checkpoint (default 4Gi)")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each side (default 5)")
    parser.add_argument("--minutes", type=float, default=30, help="no further rounds after that (default 30)")
    parser.add_argument("--storages", default=",".join(STORAGES), help=f"default {','.join(STORAGES)}")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """For each storage, rounds of: each way cold, then each way after staging."""
    options = {"size_mib": arguments.size // MIB, "rounds": arguments.rounds}
    result = start_result("load", options)
    result["storages"] = {}
    deadline = time.monotonic() + 60 * arguments.minutes
    names = arguments.storages.split(",")
    with make_scratch(arguments.scratch, arguments.size) as scratch:
        shards = make_set(scratch / "set", arguments.size)
        for index, name in enumerate(names):
            left = max(0.0, deadline - time.monotonic())
            say(f"load: {name}, at most {left / (len(names) - index):.0f} s")
            with _slow_down(scratch, STORAGES[name]) as groups:
                share = time.monotonic() + left / (len(names) - index)
                measured = _measure_storage(shards, groups, arguments.rounds, share, scratch / f"results-{name}")
                result["storages"][name] = measured
    return result


@contextlib.contextmanager
def _slow_down(scratch: Path, bytes_per_second: int) -> Iterator[tuple[Path, ...]]:
    if not bytes_per_second:
        yield ()
        return
    with throttle(scratch, bytes_per_second) as group:
        yield (group,)


def _measure_storage(
    shards: list[Path], groups: tuple[Path, ...], rounds: int, deadline: float, results: Path
) -> dict[str, Any]:
    said = _ask_for_flags(shards, groups, results)
    ways, published = _make_ways(said, slow=bool(groups))
    runs: dict[str, dict[str, list[dict[str, Any]]]] = {way.name: {"cold": [], "staged": []} for way in ways}
    for turn in range(rounds):
        if turn and time.monotonic() > deadline:
            say(f"  out of time after {turn} rounds")
            break
        for way in ways:
            make_cold(shards)
            runs[way.name]["cold"].append(_load(way, shards, groups))
        for way in ways:
            _stage(shards)
            runs[way.name]["staged"].append(_load(way, shards, groups))
        last = (
            f"{name} {found['cold'][-1]['seconds']:.1f}/{found['staged'][-1]['seconds']:.1f}"
            for name, found in runs.items()
        )
        say(f"  round {turn + 1}, s cold/staged: {', '.join(last)}")
    return {"published": published, "flags": said, "runs": runs}


def _make_ways(said: dict[str, Any], *, slow: bool) -> tuple[list[Way], str]:
    """What is measured, and the name of the way that `flags` published."""
    cached = {_ODIRECT_VARIABLE: "0"}
    ways = [
        Way(_SAFETENSORS, "safetensors", {}, {}),
        Way(_DEFAULTS, "ParallelLoader", _ONE_COPY, {}),
        Way(_CACHED, "ParallelLoader", _ONE_COPY, cached),
    ]
    if not slow:
        ways.append(Way(_COPIED, "ParallelLoader", {}, {}))
        ways.append(Way(f"{_CACHED}, 1 MiB buffers", "ParallelLoader", {**_ONE_COPY, "bbuf_size_kb": 1024}, cached))
    queue_size = int(said["environment"].get(_QUEUE_VARIABLE, "0"))
    odirect = said["environment"].get(_ODIRECT_VARIABLE) != "0"
    if said.get("engine", {}).get("loadFormat") == "safetensors":
        return ways, _SAFETENSORS
    if queue_size == 0:
        return ways, _DEFAULTS if odirect else _CACHED
    name = f"{_DEFAULTS if odirect else _CACHED}, queue size {queue_size}"
    return [
        *ways,
        Way(name, "ParallelLoader", {**_ONE_COPY, "queue_size": queue_size}, {} if odirect else cached),
    ], name


def _ask_for_flags(shards: list[Path], groups: tuple[Path, ...], results: Path) -> dict[str, Any]:
    """The settings that `flags` prints, after `tune` has measured this storage where the loader has that command."""
    results.mkdir()
    folder = str(shards[0].parent)
    tuned = subprocess.run([*LOADER, "tune", "--help"], capture_output=True, check=False).returncode == 0
    if tuned:
        _stage(shards)
        measure([*LOADER, "tune", folder, "--results", str(results)], groups=groups)
    said = json.loads(measure([*LOADER, "flags", folder, "--results", str(results), "--json"]).output)
    return {"environment": said["environment"], "engine": said.get("engine", {}), "tuned": tuned}


def _stage(shards: list[Path]) -> None:
    """From the disk as it is: how long staging takes is no part of this."""
    share = 0.0
    for _ in range(_STAGE_TRIES):
        measure([*LOADER, "prefetch", str(shards[0].parent)])
        share = resident_share(shards)
        if share >= 0.99:
            return
        say(f"  {100 * share:.1f} % resident after a prefetch: once more")
    raise BenchmarkError(f"only {100 * share:.1f} % is in the page cache after staging: not enough free memory")


def _load(way: Way, shards: list[Path], groups: tuple[Path, ...]) -> dict[str, Any]:
    program = [PYTHON, str(PROGRAMS / "bare_load.py"), way.kind, json.dumps(way.keywords), *map(str, shards)]
    cost = measure(program, environment=way.environment, groups=groups)
    said = json.loads(cost.output)
    return {
        "seconds": round(said["seconds"], 3),
        "disk_bytes": said["disk_bytes"],
        "process_seconds": round(cost.seconds, 3),
        "cpu_seconds": round(cost.cpu_seconds, 3),
    }


def make_tables(result: dict[str, Any]) -> dict[str, str]:
    """Name to Markdown."""
    size = result["options"]["size_mib"] * MIB
    tables, goals = {}, []
    for storage, measured in result["storages"].items():
        tables[f"load {storage}"] = _make_table(measured, size)
        goals += _judge(storage, measured)
    return {**tables, "load goals": make_table(GOALS_HEAD, goals)}


def _seconds(runs: dict[str, Any], way: str, state: str) -> list[float]:
    return [run["seconds"] for run in runs[way][state]]


def _make_table(measured: dict[str, Any], size_bytes: int) -> str:
    head = ("load", "cold, s", "cold, GB/s", "after staging, s", "times faster", "read from disk after staging, MiB")
    rows = []
    for way, found in measured["runs"].items():
        cold, staged = _seconds(measured["runs"], way, "cold"), _seconds(measured["runs"], way, "staged")
        disk = [run["disk_bytes"] / MIB for run in found["staged"]]
        rate = f"{size_bytes / median(cold) / 1e9:.2f}"
        rows.append((way, spread(cold), rate, spread(staged), f"{ratio(cold, staged):.2f}", spread(disk, 0)))
    said = measured["flags"]
    environment = " ".join(f"{name}={value}" for name, value in said["environment"].items())
    how = "after `tune` on this storage" if said["tuned"] else "its defaults, not measured by a `tune`"
    return f"{make_table(head, rows)}\n\n`flags` publishes ({how}): {measured['published']}; `{environment}`."


def _judge(storage: str, measured: dict[str, Any]) -> list[list[str]]:
    runs = measured["runs"]
    staged = _seconds(runs, measured["published"], "staged")
    own = ratio(_seconds(runs, measured["published"], "cold"), staged)
    against_defaults = ratio(_seconds(runs, _DEFAULTS, "cold"), staged)
    plain = ratio(_seconds(runs, _SAFETENSORS, "cold"), _seconds(runs, _SAFETENSORS, "staged"))
    rows = [
        verdict(f"{storage}: as published, staged against cold", own, _NOT_SLOWER),
        verdict(
            f"{storage}: as published and staged against ParallelLoader's defaults, cold", against_defaults, _NOT_SLOWER
        ),
        verdict(f"{storage}: safetensors, times faster", plain, 3 if STORAGES[storage] else 2),
    ]
    if STORAGES[storage]:
        cached = ratio(_seconds(runs, _DEFAULTS, "cold"), _seconds(runs, _CACHED, "staged"))
        rows.append(verdict(f"{storage}: ParallelLoader through the page cache against defaults, cold", cached, 3))
    return rows
