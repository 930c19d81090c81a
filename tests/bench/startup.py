"""Import and start-up time of each command on a tiny checkpoint, and whether torch was imported. Called by `__main__`."""

import argparse
from pathlib import Path
from statistics import median
from typing import Any, Final

from tests.bench.figures import GOALS_HEAD, make_table, say, spread, start_result, verdict
from tests.bench.processes import LOADER, PYTHON, measure
from tests.bench.scratch import make_scratch, make_set

BARE: Final = "python -c pass"
_GOAL_MS: Final = 150


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=20, help="runs of each command (default 20)")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """All commands take turns."""
    result = start_result("startup", {"rounds": arguments.rounds})
    with make_scratch(arguments.scratch, 2**20) as scratch:
        make_set(scratch / "set", 2**20, shards=2)
        commands = _make_commands(scratch)
        result["torch"] = [name for name, command in commands.items() if _imports_torch(command)]
        result["runs"] = {name: [] for name in (BARE, *commands)}
        for _ in range(arguments.rounds):
            for name, command in {BARE: ["-c", "pass"], **commands}.items():
                cost = measure([PYTHON, *command])
                figures = {"ms": round(1000 * cost.seconds, 1), "cpu_ms": round(1000 * cost.cpu_seconds, 1)}
                result["runs"][name].append({**figures, "max_rss_bytes": cost.max_rss_bytes})
    say("startup: done")
    return result


def _make_commands(scratch: Path) -> dict[str, list[str]]:
    folder, results = str(scratch / "set"), str(scratch / "results")
    # Files that `wait` and `flags` read.
    (scratch / ".modelweights").mkdir()
    staged = [
        "stage",
        folder,
        "--mode",
        "Structure",
        "--results",
        results,
        "--marker-dir",
        str(scratch / ".modelweights"),
    ]
    measure([*LOADER, *staged])
    module = list(LOADER[1:])
    return {
        "--help": [*module, "--help"],
        "prefetch": [*module, "prefetch", folder],
        "residency": [*module, "residency", folder],
        "wait": [*module, "wait", folder, "--timeout-seconds", "60"],
        "validate --mode Structure": [*module, "validate", folder, "--mode", "Structure"],
        "flags": [*module, "flags", "--results", results],
    }


def _imports_torch(command: list[str]) -> bool:
    imported = measure([PYTHON, "-X", "importtime", *command]).errors
    return any(line.rpartition("|")[2].strip().split(".")[0] == "torch" for line in imported.splitlines())


def make_tables(result: dict[str, Any]) -> dict[str, str]:
    """Name to Markdown."""
    runs = result["runs"]

    def column(name: str, figure: str, unit: float = 1) -> list[float]:
        return [run[figure] / unit for run in runs[name]]

    bare = median(column(BARE, "ms"))
    rows = [
        (
            f"`{name}`",
            spread(column(name, "ms"), 0),
            f"{median(column(name, 'ms')) - bare:.0f}",
            spread(column(name, "cpu_ms"), 0),
            f"{median(column(name, 'max_rss_bytes', 2**20)):.0f}",
            "yes" if name in result["torch"] else "no",
        )
        for name in runs
    ]
    head = ("command", "ms", "over bare Python, ms", "CPU ms", "peak RSS, MiB", "imports torch")
    goals = [
        verdict(f"`{name}`, ms", median(column(name, "ms")), _GOAL_MS, at_most=True, digits=0)
        for name in ("prefetch", "residency", "wait")
    ]
    return {"startup main": make_table(head, rows), "startup goals": make_table(GOALS_HEAD, goals)}
