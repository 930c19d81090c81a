"""The folder that benchmarks write to, and the checkpoints that they read. Called by the benchmarks of the loader."""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.bench.processes import BenchmarkError
from tests.checkpoints.synthetic import make_synthetic

_SPARE_BYTES = 2 * 2**30


@contextlib.contextmanager
def make_scratch(parent: Path, needed_bytes: int) -> Iterator[Path]:
    """A folder on a real disk, removed afterwards.

    Raises:
        BenchmarkError: The disk hasn't that much room, and 2 GiB to spare.
    """
    parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(parent).free
    if free < needed_bytes + _SPARE_BYTES:
        raise BenchmarkError(
            f"{parent} has {free / 2**30:.1f} GiB free, {needed_bytes / 2**30:.1f} and 2 to spare are needed"
        )
    with tempfile.TemporaryDirectory(prefix="modelweights-bench-", dir=parent) as folder:
        yield Path(folder)


def make_set(folder: Path, size_bytes: int, shards: int = 8) -> list[Path]:
    """Write a checkpoint of real bytes; return its shards in load order."""
    make_synthetic(folder, size_bytes, shards=shards, tensors_per_shard=16)
    return list_shards(folder)


def list_shards(folder: Path) -> list[Path]:
    """The shards of a checkpoint that `make_set` wrote. Their numbers are padded."""
    return sorted(folder.glob("*.safetensors"))
