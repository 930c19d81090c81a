"""Nothing comes from the disk when it is in the page cache, and hardly a byte twice when not all of it fits there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.checkpoints.writer import Tensor, write_safetensors
from tests.unit.loader.conftest import LOADER, evict
from tests.unit.loader.memory_group import make_memory_group

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO

MIB = 2**20
DEADLINE_SECONDS = 240
# Validates, and says what this process itself had fetched from storage meanwhile: before it collects the load process,
# since the kernel adds what a child has read to its parent then.
SCRIPT = """
import json, sys
from modelweights_loader.checkpoint import find_checkpoint
from modelweights_loader.load.measure import read_storage_bytes
from modelweights_loader.load_process import LoadProcess
from modelweights_loader.validate import ValidateOptions, validate

class Counted(LoadProcess):
    def kill(self):
        figures["ownReadBytes"] = read_storage_bytes() - before
        super().kill()

checkpoint, figures = find_checkpoint(sys.argv[1]), {}
before = read_storage_bytes()
validated = validate(checkpoint, ValidateOptions(**json.loads(sys.argv[2])), Counted())
print(json.dumps({**validated, **figures}))
"""


def _write_set(folder: Path, shard_count: int) -> None:
    """Writes shards of 4 x 24 MiB of bytes that don't compress."""
    block = os.urandom(24 * MIB)

    def make(shard: int, number: int) -> Tensor:
        shift = 4096 * (shard + number)

        def write(file: IO[bytes]) -> None:
            file.write(block[shift:])
            file.write(block[:shift])

        return Tensor(f"{shard}.{number}", "U8", (len(block),), len(block), write)

    for shard in range(shard_count):
        write_safetensors(folder / f"model-{shard:03}.safetensors", [make(shard, number) for number in range(4)])


@pytest.fixture(scope="module")
def small_set() -> Iterator[Path]:
    """Fits into memory."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="one-pass-") as folder:
        _write_set(Path(folder), 2)
        yield Path(folder)


@pytest.fixture(scope="module")
def large_set() -> Iterator[Path]:
    """Does not fit into the group below."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="one-pass-") as folder:
        _write_set(Path(folder), 24)
        yield Path(folder)


def run_validate(folder: Path, group: Path | None = None, **options: Any) -> dict[str, Any]:
    command = [sys.executable, "-c", SCRIPT, str(folder), json.dumps(options)]
    if group is not None:
        command = ["sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', str(group), *command]
    ended = subprocess.run(
        command,
        check=True,
        stdout=subprocess.PIPE,
        timeout=DEADLINE_SECONDS,
        env={**os.environ, "PYTHONPATH": str(LOADER)},
    )
    figures: dict[str, Any] = json.loads(ended.stdout)
    return figures


@pytest.mark.parametrize("load_format", ["fastsafetensors", "safetensors"])
@pytest.mark.parametrize("mode", ["Load", "Full"])
def test_nothing_is_read_from_disk_when_the_page_cache_holds_it(small_set: Path, mode: str, load_format: str) -> None:
    for path in small_set.iterdir():
        path.read_bytes()
    figures = run_validate(small_set, mode=mode, load_format=load_format)
    # What libraries import late is read within the load: nothing to do with the checkpoint's size.
    assert figures["readBytes"] < 8 * MIB
    assert figures["ownReadBytes"] < 8 * MIB


@pytest.mark.parametrize("load_format", ["fastsafetensors", "safetensors"])
def test_a_set_larger_than_memory_is_read_from_disk_once(large_set: Path, load_format: str) -> None:
    """What libraries, batches and mapped files take leaves some 0.8 GiB of page cache; with much less, bytes come twice."""
    size_bytes = sum(path.stat().st_size for path in large_set.iterdir())
    limit_bytes = 1536 * MIB
    assert size_bytes > 1.4 * limit_bytes
    evict(large_set)
    with make_memory_group("one-pass", limit_bytes) as group:
        figures = run_validate(large_set, group.folder, load_format=load_format)
    # Twice it is where hasher and load go their own ways. What the kernel evicts between the two is not ours to say: 1.0 to
    # 1.25 was measured.
    assert size_bytes <= figures["readBytes"] + figures["ownReadBytes"] <= 1.4 * size_bytes
