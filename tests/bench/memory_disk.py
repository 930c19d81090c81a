"""Prefetch beside the others where the disk is as fast as memory, so that it bounds nobody. Called by `__main__`."""

import argparse
import time
from typing import Any

from modelweights_loader.quantity import parse_bytes
from tests.bench import prefetch_tables
from tests.bench.figures import MIB, say, start_result
from tests.bench.places import Place
from tests.bench.prefetch import MAIN_THREADS, measure_main
from tests.bench.readers import ensure_rivals
from tests.bench.scratch import make_scratch, make_set
from tests.filesystems import mount_memory_disk

_SPARE_BYTES = 256 * MIB


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--size", type=parse_bytes, default=2 * 2**30, help="bytes, of memory (default 2Gi)")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each side (default 5)")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """The prefetch's main point, on ext4 on a disk in memory."""
    ensure_rivals()
    result = start_result("memory-disk", {"size_mib": arguments.size // MIB, "rounds": arguments.rounds})
    say("memory-disk: ext4 on zram")
    with (
        make_scratch(arguments.scratch, 0) as scratch,
        mount_memory_disk(scratch / "mounted", arguments.size + _SPARE_BYTES) as disk,
    ):
        place = Place("ext4 on zram", tuple(make_set(disk / "set", arguments.size, shards=MAIN_THREADS)))
        result["main"] = measure_main(place, arguments.rounds, deadline=time.monotonic() + 600)
    return result


def make_tables(result: dict[str, Any]) -> dict[str, str]:
    """Name to Markdown."""
    return {
        "memory-disk main": prefetch_tables.make_main(result["main"]),
        "memory-disk goals": prefetch_tables.make_goals(result["main"]),
    }
