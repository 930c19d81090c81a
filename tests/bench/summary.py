"""Medians of the runs as a table for people and as JSON for programs. Called by `__main__`."""

from statistics import median
from typing import Any, Final

from tests.bench.staging import KINDS, STEPS, Run

GOAL_SECONDS: Final = 1.5


def overhead_seconds(runs: list[Run], end: str = "job complete") -> list[float]:
    """Per round, how much longer the staging took than the empty Job plus the loader's own times.

    Args:
        runs: All runs.
        end: The milestone with which the empty Job counts as done.
    """
    staged = [run for run in runs if run.kind == "staging"]
    empty = [run for run in runs if run.kind == "empty"]
    return [
        round(stage.total_seconds - idle.at_seconds[end] - sum(stage.loader_seconds.values()), 3)
        for stage, idle in zip(staged, empty, strict=True)
    ]


def summarise(runs: list[Run]) -> dict[str, Any]:
    """Medians, with each run beside them."""
    by_kind = {kind: [run for run in runs if run.kind == kind] for kind in KINDS}
    overhead = overhead_seconds(runs)
    strict = overhead_seconds(runs, end=f"{STEPS[-1]} finished")
    return {
        "rounds": len(by_kind["empty"]),
        "goal_seconds": GOAL_SECONDS,
        "overhead_seconds": {"median": round(median(overhead), 3), "each": overhead},
        # Ready doesn't wait for the end of pod and Job; this figure leaves it out on both sides.
        "overhead_over_containers_seconds": {"median": round(median(strict), 3), "each": strict},
        "loader_seconds": {step: _median(by_kind["staging"], step) for step in STEPS},
        "kinds": {kind: _summarise_kind(found) for kind, found in by_kind.items()},
    }


def _summarise_kind(runs: list[Run]) -> dict[str, Any]:
    gaps = [_gaps(run) for run in runs]
    # Of the run with the most milestones, since one may come after the end in some runs.
    names = max(gaps, key=len)
    return {
        "total_seconds": {
            "median": round(median(run.total_seconds for run in runs), 3),
            "each": [run.total_seconds for run in runs],
        },
        "gap_seconds": {name: round(median(gap[name] for gap in gaps if name in gap), 3) for name in names},
        "runs": [run.at_seconds for run in runs],
    }


def _median(runs: list[Run], step: str) -> float:
    return round(median(run.loader_seconds[step] for run in runs), 3)


def _gaps(run: Run) -> dict[str, float]:
    """The time from each milestone to the next; an event that overtook another on its way gives a negative one."""
    before, gaps = 0.0, {}
    for name, at in run.at_seconds.items():
        gaps[name], before = round(at - before, 3), at
    return gaps


def format_table(summary: dict[str, Any]) -> str:
    """A table in Markdown: each gap for each kind of run, then the sum."""
    kinds = summary["kinds"]
    lines = ["| until | " + " | ".join(KINDS) + " |", "|---|" + "--:|" * len(KINDS)]
    for name in dict.fromkeys((*kinds["empty"]["gap_seconds"], *kinds["staging"]["gap_seconds"])):
        cells = [kinds[kind]["gap_seconds"].get(name) for kind in KINDS]
        lines.append(f"| {name} | " + " | ".join("" if cell is None else f"{cell:.2f}" for cell in cells) + " |")
    totals = [kinds[kind]["total_seconds"] for kind in KINDS]
    lines.append("| **all, median** | " + " | ".join(f"**{total['median']:.2f}**" for total in totals) + " |")
    spans = [f"{min(total['each']):.2f} to {max(total['each']):.2f}" for total in totals]
    lines.append("| all, least to most | " + " | ".join(spans) + " |")
    return "\n".join(lines)


def format_verdict(summary: dict[str, Any]) -> str:
    """What it comes to, in a few lines."""
    loader = summary["loader_seconds"]
    overhead, strict = summary["overhead_seconds"], summary["overhead_over_containers_seconds"]
    steps = ", ".join(f"{step} {seconds:.2f}" for step, seconds in loader.items())
    met = "met" if overhead["median"] <= summary["goal_seconds"] else "missed"
    return "\n".join(
        (
            f"the loader's own times (s): {steps}; together {sum(loader.values()):.2f}",
            f"over the empty Job plus these (s): {_spread(overhead)}",
            f"the same, until the empty Job's last container is finished (s): {_spread(strict)}",
            f"goal {summary['goal_seconds']:g} s: {met}",
        )
    )


def _spread(figure: dict[str, Any]) -> str:
    return f"median {figure['median']:.2f}, each " + ", ".join(f"{seconds:.2f}" for seconds in figure["each"])
