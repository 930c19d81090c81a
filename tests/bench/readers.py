"""The prefetch that is measured, and what it is compared with. Called by `prefetch`."""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tests.bench.places import Place
from tests.bench.processes import LOADER, PROGRAMS, PYTHON, BenchmarkError, Cost, measure
from tests.debian import Tool, ensure

RIVAL_TOOLS: Final = (Tool("fio", "fio"), Tool("vmtouch", "vmtouch"))
Reader = Callable[[Place, int, int], dict[str, Any]]
"""Reads a place with that many threads and bytes to a block; returns figures."""


def _figures(cost: Cost, read_bytes: int, read_seconds: float) -> dict[str, Any]:
    return {
        "seconds": round(cost.seconds, 4),
        "read_seconds": round(read_seconds, 4),
        "bytes": read_bytes,
        "cpu_seconds": round(cost.cpu_seconds, 4),
        "machine_cpu_seconds": round(cost.machine_cpu_seconds, 4),
        "max_rss_bytes": cost.max_rss_bytes,
    }


def run_loader(place: Place, threads: int, block_bytes: int) -> tuple[Cost, dict[str, Any]]:
    """Run `modelweights-loader prefetch`; return what it cost and what it reports."""
    with tempfile.TemporaryDirectory() as results:
        settings = ["--num-threads", str(threads), "--block-size", str(block_bytes), "--results", results]
        cost = measure([*LOADER, "prefetch", str(place.folder), *settings], groups=place.groups)
        return cost, json.loads((Path(results) / "prefetch.json").read_text())


def read_as_loader(place: Place, threads: int, block_bytes: int) -> dict[str, Any]:
    """`modelweights-loader prefetch`.

    Raises:
        BenchmarkError: It didn't read everything, as where that would be useless.
    """
    cost, said = run_loader(place, threads, block_bytes)
    if said["readBytes"] != place.size_bytes:
        raise BenchmarkError(f"prefetch read {said['readBytes']} of {place.size_bytes} bytes: {cost.errors}")
    return _figures(cost, said["readBytes"], said["readSeconds"])


def read_as_engine(place: Place, threads: int, block_bytes: int) -> dict[str, Any]:
    """An engine's algorithm, in a process without the engine."""
    program = [PYTHON, str(PROGRAMS / "engine_prefetch.py"), str(threads), str(block_bytes)]
    cost = measure([*program, *map(str, place.shards)], groups=place.groups)
    return _figures(cost, place.size_bytes, float(cost.output))


def read_as_fio(place: Place, threads: int, block_bytes: int) -> dict[str, Any]:
    """Sequential reads past the page cache, one job for each file: what the storage gives."""
    if threads != len(place.shards):
        raise BenchmarkError(
            f"fio is given one job for each shard: {threads} threads don't fit {len(place.shards)} shards"
        )
    jobs = [word for shard in place.shards for word in (f"--name={shard.stem}", f"--filename={shard}")]
    shared = ["--readonly", "--rw=read", "--direct=1", "--ioengine=psync", f"--bs={block_bytes}", "--thread"]
    cost = measure(["fio", "--output-format=json", *_before_each_name(jobs, shared)], groups=place.groups)
    reads = [job["read"] for job in json.loads(cost.output[cost.output.index("{") :])["jobs"]]
    read_bytes = sum(int(read["io_bytes"]) for read in reads)
    return _figures(cost, read_bytes, max(read["runtime"] for read in reads) / 1000)


def _before_each_name(jobs: list[str], shared: list[str]) -> list[str]:
    """Options ahead of the first --name are for all jobs."""
    return [*shared, *jobs]


def read_as_vmtouch(place: Place, _threads: int, _block_bytes: int) -> dict[str, Any]:
    """Maps each file and touches each page."""
    cost = measure(["vmtouch", "-q", "-t", *map(str, place.shards)], groups=place.groups)
    return _figures(cost, place.size_bytes, cost.seconds)


def read_as_cat(place: Place, _threads: int, _block_bytes: int) -> dict[str, Any]:
    """What people type."""
    cost = measure(["sh", "-c", 'cat "$@" >/dev/null', "sh", *map(str, place.shards)], groups=place.groups)
    return _figures(cost, place.size_bytes, cost.seconds)


def start_interpreter(place: Place, _threads: int, _block_bytes: int) -> dict[str, Any]:
    """Python that does nothing: what of the loader's figures is the interpreter's."""
    cost = measure([PYTHON, "-c", "pass"], groups=place.groups)
    return _figures(cost, 0, cost.seconds)


READERS: Final[dict[str, Reader]] = {
    "loader": read_as_loader,
    "engine": read_as_engine,
    "fio": read_as_fio,
    "vmtouch": read_as_vmtouch,
    "cat": read_as_cat,
    "interpreter": start_interpreter,
}


def ensure_rivals() -> None:
    """Install what the main point is compared with."""
    ensure(RIVAL_TOOLS)
