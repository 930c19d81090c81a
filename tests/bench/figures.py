"""What every benchmark of the loader writes: JSON with single figures, and tables made of that. Called by all of them."""

import json
import os
import platform
import subprocess
import time
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

MIB = 2**20
GIB = 2**30
_REPOSITORY = Path(__file__).parent.parent.parent


def describe_machine() -> dict[str, Any]:
    """What the figures were measured on."""
    memory = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal"))
    packages = {}
    for name in ("torch", "fastsafetensors", "safetensors"):
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            packages[name] = "missing"
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(int(memory.split()[1]) / 2**20, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_average_before": round(os.getloadavg()[0], 2),
        **packages,
    }


def describe_commit() -> str:
    """The commit that was measured, with a plus when something was changed since."""
    git = ["git", "-C", str(_REPOSITORY)]
    name = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False).stdout
    changed = subprocess.run([*git, "status", "--porcelain", "loader"], capture_output=True, text=True, check=False)
    return (name.strip() or "unknown") + ("+" if changed.stdout.strip() else "")


def start_result(benchmark: str, options: dict[str, Any]) -> dict[str, Any]:
    """The frame of a benchmark's JSON; the caller adds its figures."""
    return {
        "benchmark": benchmark,
        "date": time.strftime("%Y-%m-%d"),
        "commit": describe_commit(),
        "machine": describe_machine(),
        "options": options,
    }


def write_result(result: dict[str, Any], folder: Path) -> Path:
    """Write FOLDER/<benchmark>.json."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{result['benchmark']}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    return path


def describe_result(result: dict[str, Any]) -> str:
    """One sentence that stands above the tables."""
    machine, options = result["machine"], result["options"]
    chosen = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in options.items())
    return (
        f"Measured on {result['date']} at {result['commit']}: {machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"Linux {machine['kernel']}, load average before {machine['load_average_before']}; {chosen}."
    )


def make_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown: the first column is text, the others numbers."""
    lines = [f"| {' | '.join(head)} |", "|---" + "|--:" * (len(head) - 1) + "|"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(lines)


def spread(values: Sequence[float], digits: int = 2, unit: str = "") -> str:
    """The median, and behind it the least and the most."""
    if not values:
        return "-"
    middle, low, high = (f"{value:.{digits}f}" for value in (median(values), min(values), max(values)))
    return f"{middle}{unit} ({low}-{high})" if len(values) > 1 else f"{middle}{unit}"


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median of the rounds' ratios: both sides of a round met the same disturbances."""
    return median(our / their for our, their in zip(ours, theirs, strict=True))


def verdict(what: str, value: float, goal: float, *, at_most: bool = False, digits: int = 2) -> list[str]:
    """A row of a table of goals."""
    met = value <= goal if at_most else value >= goal
    return [what, f"{value:.{digits}f}", f"{'<=' if at_most else '>='} {goal:g}", "met" if met else "**missed**"]


GOALS_HEAD = ("goal", "measured", "wanted", "")


def say(text: str) -> None:
    """Progress, for whoever watches."""
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)
