"""How firmly staged pages stay when others need memory, cooled and not, and on which list the kernel has them.

Called by `__main__`. Loader and pressure share one memory group with a limit, since the kernel takes pages from the group
that has too much; the pages are charged to whoever read them first.
"""

import argparse
import contextlib
import itertools
import subprocess
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any, Final

from modelweights_loader.quantity import parse_bytes
from tests.bench.control_groups import limit_memory
from tests.bench.figures import MIB, make_table, say, spread, start_result
from tests.bench.page_cache import make_cold, resident_share
from tests.bench.processes import LOADER, PROGRAMS, PYTHON, BenchmarkError, measure
from tests.bench.scratch import make_scratch, make_set
from tests.control_groups import read_memory_stat

STATES: Final = ("normal", "cold")
READ_STEPS: Final = (0.25, 0.5, 1.0, 2.0, 4.0)
ALLOCATE_STEPS: Final = (0.25, 0.5, 0.6, 0.7, 0.8)
"""What is read or allocated in all, as a share of the group's limit. Allocating it all would get somebody killed."""
_LISTS: Final = ("active_file", "inactive_file", "cache", "rss")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--limit", type=parse_bytes, default=4 * 2**30, help="the group's memory (default 4Gi)")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each kind (default 5)")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Half of the limit is staged; then others read, or allocate, step by step."""
    limit = arguments.limit
    result = start_result(
        "cold-pages", {"limit_mib": limit // MIB, "staged_mib": limit // 2 // MIB, "rounds": arguments.rounds}
    )
    result["runs"] = []
    with make_scratch(arguments.scratch, limit // 2 + int(limit * READ_STEPS[-1])) as scratch:
        shards = make_set(scratch / "set", limit // 2)
        other = scratch / "other"
        _write(other, int(limit * READ_STEPS[-1]))
        for turn in range(arguments.rounds):
            for kind, state in itertools.product(("read", "allocate"), STATES):
                result["runs"].append(_run_once(shards, other, limit, kind, state))
            say(f"cold-pages: round {turn + 1} of {arguments.rounds}")
    return result


def _write(path: Path, size_bytes: int) -> None:
    block = bytes(range(256)) * (MIB // 256)
    with path.open("wb") as file:
        for _ in range(0, size_bytes, MIB):
            file.write(block)


def _run_once(shards: list[Path], other: Path, limit: int, kind: str, state: str) -> dict[str, Any]:
    make_cold([*shards, other])
    folder = str(shards[0].parent)
    with limit_memory(limit) as group:
        lists = {"before": _read_lists(group)}
        measure([*LOADER, "prefetch", folder], groups=(group,))
        lists["prefetched"] = _read_lists(group)
        if state == "cold":
            measure([*LOADER, "report", folder, "--cool"], groups=(group,))
            lists["cooled"] = _read_lists(group)
        staged = 100 * resident_share(shards)
        steps = READ_STEPS if kind == "read" else ALLOCATE_STEPS
        residency = []
        with _start_pressure(group) as press:
            done = 0
            for step in steps:
                wanted = int(limit * step)
                press(f"read {other} {done} {wanted - done}" if kind == "read" else f"allocate {wanted - done}")
                done = wanted
                residency.append([step, round(100 * resident_share(shards), 1)])
    return {
        "pressure": kind,
        "state": state,
        "staged_percent": round(staged, 1),
        "residency": residency,
        "lists": lists,
    }


def _read_lists(group: Path) -> dict[str, int]:
    counters = read_memory_stat(group)
    return {name: counters[name] for name in _LISTS}


class _Press:
    """A process in the group that uses memory up on command."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def __call__(self, command: str) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(command + "\n")
            self._process.stdin.flush()
        if self._process.stdout.readline() != "done\n":
            raise BenchmarkError(f"the process that presses ended at `{command}`, exit code {self._process.wait(10)}")


@contextlib.contextmanager
def _start_pressure(group: Path) -> Iterator[_Press]:
    # The shell joins the group before the program is started, so that all of its memory counts there.
    join = f'echo 0 > {group}/cgroup.procs && exec "$@"'
    argv = ["sh", "-c", join, "sh", PYTHON, str(PROGRAMS / "pressure.py")]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield _Press(process)
    finally:
        process.kill()
        process.communicate()


def make_tables(result: dict[str, Any]) -> dict[str, str]:
    """Name to Markdown."""
    runs = result["runs"]
    tables = {"cold-pages lists": _make_lists(runs)}
    for kind, verb in (("read", "read once by others"), ("allocate", "allocated by others")):
        steps = READ_STEPS if kind == "read" else ALLOCATE_STEPS
        head = (f"{verb}, share of the limit", "none", *(f"{step:g}" for step in steps))
        rows = []
        for state in STATES:
            found = [entry for entry in runs if (entry["pressure"], entry["state"]) == (kind, state)]
            columns = zip(*([share for _, share in entry["residency"]] for entry in found), strict=True)
            staged = spread([entry["staged_percent"] for entry in found], 0)
            rows.append((f"{state}: still resident, %", staged, *(spread(column, 0) for column in columns)))
        tables[f"cold-pages {kind}"] = make_table(head, rows)
    return tables


def _make_lists(runs: list[dict[str, Any]]) -> str:
    rows = []
    for moment in ("before", "prefetched", "cooled"):
        found = [entry["lists"][moment] for entry in runs if moment in entry["lists"]]
        rows.append((moment, *(f"{median(lists[name] for lists in found) / MIB:.0f}" for name in _LISTS)))
    return make_table(("MiB", *(name.replace("_", " ") for name in _LISTS)), rows)
