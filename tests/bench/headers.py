"""How long the headers of many shards take. Called by `__main__`."""

import argparse
import json
from pathlib import Path
from typing import Any, Final

from tests.bench.figures import GOALS_HEAD, make_table, say, spread, start_result, verdict
from tests.bench.page_cache import make_cold
from tests.bench.processes import PROGRAMS, PYTHON, measure
from tests.bench.scratch import make_scratch
from tests.checkpoints.split import name_shard

SHARDS: Final = 1000
TENSORS: Final = (12, 100)
"""Tensors of a shard: as in models of dense layers, and as in models of many experts."""
_TENSOR_BYTES: Final = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=5, help="runs of each kind (default 5)")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Cold and warm, in processes of their own; find_checkpoint with its index is part of the time."""
    result = start_result("headers", {"shards": SHARDS, "rounds": arguments.rounds})
    result["rows"] = []
    with make_scratch(arguments.scratch, 2**30) as scratch:
        for tensors in TENSORS:
            folder = scratch / str(tensors)
            files = _make_shards(folder, tensors)
            row: dict[str, Any] = {"tensors": tensors, "cold": [], "warm": []}
            for _ in range(arguments.rounds):
                make_cold(files)
                for state in ("cold", "warm"):
                    seconds, count = measure([PYTHON, str(PROGRAMS / "read_headers.py"), str(folder)]).output.split()
                    row[state].append(float(seconds))
                    row["tensor_count"] = int(count)
            result["rows"].append(row)
            say(f"headers: {SHARDS} shards of {tensors} tensors")
    return result


def _make_shards(folder: Path, tensors: int) -> list[Path]:
    """Shards with headers as real ones and hardly any data, since only headers are read."""
    folder.mkdir()
    files, weight_map = [], {}
    for shard in range(SHARDS):
        file = folder / name_shard(shard + 1, SHARDS, "padded")
        header = {}
        for index in range(tensors):
            name = f"model.layers.{shard}.mlp.experts.{index}.down_proj.weight"
            offsets = [index * _TENSOR_BYTES, (index + 1) * _TENSOR_BYTES]
            header[name] = {"dtype": "BF16", "shape": [_TENSOR_BYTES // 2], "data_offsets": offsets}
            weight_map[name] = file.name
        text = json.dumps(header).encode()
        with file.open("wb") as opened:
            opened.write(len(text).to_bytes(8, "little") + text + bytes(tensors * _TENSOR_BYTES))
        files.append(file)
    listing = folder / "model.safetensors.index.json"
    listing.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (folder / "config.json").write_text("{}")
    return [*files, listing]


def make_tables(result: dict[str, Any]) -> dict[str, str]:
    """Name to Markdown."""
    shards = result["options"]["shards"]
    rows = [
        (
            f"{shards} shards of {row['tensors']} tensors",
            str(row["tensor_count"]),
            spread(row["cold"]),
            spread(row["warm"]),
        )
        for row in result["rows"]
    ]
    goals = [
        verdict(f"slowest, {row['tensors']} tensors a shard, s", max(row["cold"] + row["warm"]), 1, at_most=True)
        for row in result["rows"]
    ]
    table = make_table(("headers and index", "tensors", "cold, s", "warm, s"), rows)
    return {"headers main": table, "headers goals": make_table(GOALS_HEAD, goals)}
