"""Tables of the prefetch's figures. Called by `render`."""

from statistics import median
from typing import Any, Final

from tests.bench.figures import GOALS_HEAD, MIB, make_table, ratio, spread, verdict
from tests.bench.prefetch import BLOCKS_MIB, THREADS

_NAMES: Final = {
    "loader": "`modelweights-loader prefetch`",
    "engine": "the engine's algorithm",
    "fio": "fio, direct, one job a file",
    "vmtouch": "`vmtouch -t`",
    "cat": "`cat >/dev/null`",
    "interpreter": "`python -c pass`",
}


def make_tables(result: dict[str, Any]) -> dict[str, str]:
    """Name to Markdown."""
    tables = {
        "prefetch main": make_main(result["main"]),
        "prefetch goals": make_goals(result["main"]),
        "prefetch kept": _kept(result["kept"]),
    }
    for name, measured in result["matrix"].items():
        tables[f"prefetch {name}"] = _matrix(measured)
    return tables


def _rates(runs: list[dict[str, Any]], seconds: str = "read_seconds") -> list[float]:
    """GB/s of each run."""
    return [run["bytes"] / run[seconds] / 1e9 for run in runs if run["bytes"]]


def _column(runs: list[dict[str, Any]], name: str, unit: float = 1) -> list[float]:
    return [run[name] / unit for run in runs]


def make_main(main: dict[str, list[dict[str, Any]]]) -> str:
    """All readers side by side."""
    head = (
        "8 threads x 16 MiB",
        "reading, GB/s",
        "whole process, GB/s",
        "CPU s",
        "CPU s, whole machine",
        "peak RSS, MiB",
    )
    rows = [
        (
            _NAMES[name],
            spread(_rates(runs)),
            spread(_rates(runs, "seconds")),
            spread(_column(runs, "cpu_seconds")),
            spread(_column(runs, "machine_cpu_seconds")),
            spread(_column(runs, "max_rss_bytes", MIB), 0),
        )
        for name, runs in main.items()
    ]
    return make_table(head, rows)


def make_goals(main: dict[str, list[dict[str, Any]]]) -> str:
    """What was wanted and what was measured."""
    ours, engine, fio = main["loader"], main["engine"], main["fio"]
    memory = max(_column(ours, "max_rss_bytes", MIB))
    cpu = ratio(_column(ours, "cpu_seconds"), _column(engine, "cpu_seconds"))
    rows = [
        verdict("rate over the engine's", ratio(_rates(ours), _rates(engine)), 2),
        verdict("CPU seconds over the engine's", cpu, 0.1, at_most=True),
        verdict("rate over fio's", ratio(_rates(ours), _rates(fio)), 0.9),
        verdict("most memory, MiB", memory, 64, at_most=True, digits=0),
    ]
    return make_table(GOALS_HEAD, rows)


def _matrix(measured: dict[str, Any]) -> str:
    """Rates side by side: ours, then the engine's."""
    cells = {(cell["threads"], cell["block_mib"]): cell for cell in measured["cells"]}
    rounds = min(len(cell["loader"]) for cell in measured["cells"])
    head = [
        f"GB/s, loader / engine ({measured['size_mib']} MiB, {rounds} rounds)",
        *(f"{block} MiB" for block in BLOCKS_MIB),
    ]
    rows = [[f"{threads} threads", *(_cell(cells[threads, block]) for block in BLOCKS_MIB)] for threads in THREADS]
    best = max(cells.values(), key=lambda cell: median(_rates(cell["loader"])))
    note = (
        f"Fastest: {best['threads']} threads x {best['block_mib']} MiB with {spread(_rates(best['loader']))} GB/s. "
        f"CPU seconds at 8 x 16: loader {spread(_column(cells[8, 16]['loader'], 'cpu_seconds'))}, "
        f"engine {spread(_column(cells[8, 16]['engine'], 'cpu_seconds'))}."
    )
    return f"{make_table(head, rows)}\n\n{note}"


def _cell(cell: dict[str, Any]) -> str:
    return f"{median(_rates(cell['loader'])):.2f} / {median(_rates(cell['engine'])):.2f}"


def _kept(rows: list[dict[str, Any]]) -> str:
    head = (
        "resident, %",
        "after the read, while it is open",
        "after a new open",
        "files below",
        "what `prefetch` reports",
    )
    cells = []
    for row in rows:
        below = "" if row["below_percent"] is None else f"{row['below_percent']:.0f}"
        said = "unknown" if row["said_percent"] is None else f"{row['said_percent']:.0f} by {row['method']}"
        said += ", with a warning" if row["warned"] else ""
        cells.append((row["name"], f"{row['open_percent']:.0f}", f"{row['reopened_percent']:.0f}", below, said))
    return make_table(head, cells)
