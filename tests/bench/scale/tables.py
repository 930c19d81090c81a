"""Tables of the figures of `run`. Called by `tests.bench.render` and after a run."""

from typing import Any, Final

from tests.bench.figures import GOALS_HEAD, MIB, make_table, verdict

Json = dict[str, Any]

KIB: Final = 1024
_MANY: Final = 12


def make_tables(result: Json) -> dict[str, str]:
    """All tables, by name."""
    runs = result["runs"]
    tables = {
        "scale goals": _goals(runs[-1], result.get("status")),
        "scale growth": make_table(("", *(f"{run['nodes']} nodes" for run in runs)), _growth(runs)),
        "scale requests": make_table(
            ("requests for each pair", *(f"{run['nodes']} nodes" for run in runs)), _requests(runs)
        ),
    }
    if all("plain" in run for run in runs):
        tables["scale floor"] = make_table(("", *(f"{run['nodes']} nodes" for run in runs)), _floor(runs))
    return tables


def per_pair(run: Json, requests: dict[str, int]) -> float:
    """Requests for each staged pair, those for stagings that failed among them."""
    return sum(requests.values()) / int(run["pairs"])


def _goals(run: Json, status: Json | None) -> str:
    found = run["operator"]
    rows = [
        verdict("memory of the operator at its peak, MiB", found["peak_rss_bytes"] / MIB, 300, at_most=True, digits=0),
        verdict(
            "from a pod's end to the answer to the write of the status, 99th percentile, s",
            found["to_status_seconds"]["99"],
            1,
            at_most=True,
        ),
        verdict(
            "API requests for each staged pair", per_pair(run, found["staging"]["requests"]), 8, at_most=True, digits=1
        ),
        verdict("writes while nothing changes", found["idle"]["writes"], 0, at_most=True, digits=0),
        verdict("Jobs at a time", found["peak_jobs"], run["jobs_at_a_time"], at_most=True, digits=0),
    ]
    if status is not None:
        what = f"object on {status['nodes']} nodes with its managed fields, KiB"
        rows.append(verdict(what, status["object_bytes"] / KIB, 400, at_most=True, digits=0))
    return make_table(GOALS_HEAD, rows)


def _growth(runs: list[Json]) -> list[list[str]]:
    def row(name: str, digits: int, value: Any) -> list[str]:
        return [name, *(f"{value(run):.{digits}f}" for run in runs)]

    def staging(run: Json) -> Json:
        found: Json = run["operator"]["staging"]
        return found

    return [
        row("objects", 0, lambda run: run["objects"]),
        row("pairs", 0, lambda run: run["pairs"]),
        row("time until all are ready, s", 0, lambda run: staging(run)["seconds"]),
        row("pairs a second", 1, lambda run: run["pairs"] / staging(run)["seconds"]),
        row("CPU of the operator for each pair, ms", 1, lambda run: 1000 * staging(run)["cpu_seconds"] / run["pairs"]),
        row(
            "of one core, while staging, %", 0, lambda run: 100 * staging(run)["cpu_seconds"] / staging(run)["seconds"]
        ),
        row("peak memory, MiB", 0, lambda run: run["operator"]["peak_rss_bytes"] / MIB),
        row("API requests for each pair", 1, lambda run: per_pair(run, staging(run)["requests"])),
        row("to the status, median, s", 2, lambda run: run["operator"]["to_status_seconds"]["50"]),
        row("to the status, 99th percentile, s", 2, lambda run: run["operator"]["to_status_seconds"]["99"]),
        row("most Jobs at a time", 0, lambda run: run["operator"]["peak_jobs"]),
        row("when idle: of one core, %", 1, lambda run: 100 * _share(run["operator"]["idle"])),
        row("when idle: requests a minute", 0, lambda run: _a_minute(run["operator"]["idle"])),
        row("when idle: writes", 0, lambda run: run["operator"]["idle"]["writes"]),
        row("a node joins: time until it is ready, s", 0, lambda run: run["operator"]["join"]["seconds"]),
        row("a node joins: requests", 0, lambda run: sum(run["operator"]["join"]["requests"].values())),
        row("a node joins: CPU, s", 1, lambda run: run["operator"]["join"]["cpu_seconds"]),
    ]


def _share(phase: Json) -> float:
    share: float = phase["cpu_seconds"] / phase["seconds"]
    return share


def _a_minute(phase: Json) -> float:
    found: float = 60 * sum(phase["requests"].values()) / phase["seconds"]
    return found


def _requests(runs: list[Json]) -> list[list[str]]:
    counts = [run["operator"]["staging"]["requests"] for run in runs]
    kinds = sorted({kind for each in counts for kind in each}, key=lambda kind: -counts[-1].get(kind, 0))[:_MANY]
    return [
        [f"`{kind}`", *(f"{each.get(kind, 0) / run['pairs']:.2f}" for each, run in zip(counts, runs, strict=True))]
        for kind in kinds
    ]


def _floor(runs: list[Json]) -> list[list[str]]:
    def row(name: str, digits: int, value: Any) -> list[str]:
        return [name, *(f"{value(run):.{digits}f}" for run in runs)]

    return [
        row("script: time, s", 0, lambda run: run["plain"]["seconds"]),
        row("operator: time, s", 0, lambda run: run["operator"]["staging"]["seconds"]),
        row("script: CPU for each pair, ms", 1, lambda run: 1000 * run["plain"]["cpu_seconds"] / run["pairs"]),
        row(
            "operator: CPU for each pair, ms",
            1,
            lambda run: 1000 * run["operator"]["staging"]["cpu_seconds"] / run["pairs"],
        ),
        row("script: requests for each pair", 1, lambda run: per_pair(run, run["plain"]["requests"])),
        row("operator: requests for each pair", 1, lambda run: per_pair(run, run["operator"]["staging"]["requests"])),
        row("script: memory, MiB", 0, lambda run: run["plain"]["peak_rss_bytes"] / MIB),
        row("operator: memory, MiB", 0, lambda run: run["operator"]["peak_rss_bytes"] / MIB),
    ]
