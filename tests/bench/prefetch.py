"""Prefetch beside the engine's algorithm, fio, vmtouch and cat. Called by `__main__`; tables by `prefetch_tables`.

Every run starts cold, and that is checked. All sides take turns within each round.
"""

import argparse
import contextlib
import itertools
import os
import time
from pathlib import Path
from typing import Any, Final

from modelweights_loader.quantity import parse_bytes
from tests import filesystems
from tests.bench.figures import MIB, say, start_result
from tests.bench.page_cache import count_resident, resident_share
from tests.bench.places import PLACES, SHOWN, Place, open_place, show
from tests.bench.readers import READERS, ensure_rivals, run_loader
from tests.bench.scratch import make_scratch, make_set

THREADS: Final = (1, 4, 8, 16, 32)
BLOCKS_MIB: Final = (1, 4, 16, 64)
MAIN_THREADS: Final = 8
MAIN_BLOCK_MIB: Final = 16
_KEPT_BYTES: Final = 64 * MIB
_MIN_ROUNDS: Final = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--size", type=parse_bytes, default=3 * 2**30, help="bytes of the main point (default 3Gi)")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each side (default 5)")
    parser.add_argument("--minutes", type=float, default=20, help="no further rounds after that (default 20)")
    parser.add_argument(
        "--file-systems", default=",".join(PLACES), help=f"tables to make, or none (default {','.join(PLACES)})"
    )


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure the main point, then a table for each file system, then what stays in the page cache where."""
    names = [name for name in arguments.file_systems.split(",") if name and name != "none"]
    ensure_rivals()
    filesystems.ensure_tools()
    options = {"size_mib": arguments.size // MIB, "rounds": arguments.rounds}
    result = start_result("prefetch", options)
    deadline = time.monotonic() + 60 * arguments.minutes
    with make_scratch(arguments.scratch, arguments.size + arguments.size // 2) as scratch:
        say("prefetch: main point")
        place = Place("ext4", tuple(make_set(scratch / "main", arguments.size, shards=MAIN_THREADS)))
        result["main"] = measure_main(place, arguments.rounds, deadline)
        for shard in place.shards:
            shard.unlink()
        result["matrix"] = {}
        for index, name in enumerate(names):
            left = max(0.0, deadline - time.monotonic())
            say(f"prefetch: {name}, at most {left / (len(names) - index):.0f} s")
            share = time.monotonic() + left / (len(names) - index)
            with open_place(name, scratch, arguments.size) as place:
                result["matrix"][name] = _measure_matrix(place, arguments.rounds, share)
        result["kept"] = _measure_kept(scratch)
    return result


def measure_main(place: Place, rounds: int, deadline: float) -> dict[str, list[dict[str, Any]]]:
    """Let all readers take turns with what is asked of all; their figures."""
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in READERS}
    for turn in range(rounds):
        if turn >= _MIN_ROUNDS and time.monotonic() > deadline:
            break
        for name, read in READERS.items():
            place.make_cold()
            runs[name].append(read(place, MAIN_THREADS, MAIN_BLOCK_MIB * MIB))
        say(f"  round {turn + 1}: " + ", ".join(f"{name} {runs[name][-1]['read_seconds']:.2f} s" for name in READERS))
    return runs


def _measure_matrix(place: Place, rounds: int, deadline: float) -> dict[str, Any]:
    cells: list[dict[str, Any]] = [
        {"threads": threads, "block_mib": block, "loader": [], "engine": []}
        for threads, block in itertools.product(THREADS, BLOCKS_MIB)
    ]
    for turn in range(rounds):
        if turn >= _MIN_ROUNDS and time.monotonic() > deadline:
            say(f"  out of time after {turn} rounds")
            break
        for cell in cells:
            for side in ("loader", "engine"):
                place.make_cold()
                cell[side].append(READERS[side](place, cell["threads"], cell["block_mib"] * MIB))
    return {"size_mib": place.size_bytes // MIB, "cells": cells}


def _measure_kept(scratch: Path) -> list[dict[str, Any]]:
    """How much of what was read is still there, for those who have the files open and for those who open them later."""
    source = tuple(make_set(scratch / "kept", _KEPT_BYTES, shards=2))
    rows = [{"name": "ext4", **_measure_kept_at(Place("ext4", source))}]
    for number, name in enumerate(SHOWN):
        with show(name, source, scratch / f"kept-{number}") as place:
            rows.append({"name": name, **_measure_kept_at(place)})
    return rows


def _measure_kept_at(place: Place) -> dict[str, Any]:
    place.make_cold()
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(shard.open("rb", buffering=0)).fileno() for shard in place.shards]
        # The loader opens files once more to measure them, which is a new open already; this reads and nothing else.
        READERS["engine"](place, MAIN_THREADS, MAIN_BLOCK_MIB * MIB)
        kept = sum(map(count_resident, opened)) / sum(os.fstat(number).st_size for number in opened)
    reopened = resident_share(place.shards)
    if place.name == "overlay":
        # Its own files never hold pages; those of the files below are what is read.
        kept = reopened = resident_share(place.backing)
    cost, said = run_loader(place, MAIN_THREADS, MAIN_BLOCK_MIB * MIB)
    return {
        "open_percent": round(100 * min(1.0, kept), 1),
        "reopened_percent": round(100 * reopened, 1),
        "below_percent": round(100 * resident_share(place.backing), 1) if place.backing else None,
        "said_percent": said.get("residentPercent"),
        "method": said.get("residencyMethod"),
        "warned": "warning" in cost.errors,
    }
