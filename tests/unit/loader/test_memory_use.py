"""What the loader itself needs: far below threads x block, whatever the size of the files."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests import filesystems
from tests.unit.loader.conftest import LOADER

if TYPE_CHECKING:
    from pathlib import Path

MIB = 2**20
# Threads x block is 128 MiB; the interpreter alone takes some 10.
LIMIT_BYTES = 64 * MIB
SIZE = 512 * MIB
# The peak is the kernel's for the program alone: what wait4 gives holds the test's own memory from before the exec.
MEASURED = """
import errno, os, sys
from modelweights_loader.cli import main
if sys.argv[1] == "without sendfile":
    def refuse(*_):
        raise OSError(errno.EINVAL, "no sendfile")
    os.sendfile = refuse
code = main(sys.argv[2:])
with open("/proc/self/status") as file:
    peak = next(line.split()[1] for line in file if line.startswith("VmHWM:"))
print("peak", peak)
raise SystemExit(code)
"""


@pytest.fixture
def model(disk: Path) -> Path:
    """One shard, all of it a hole: its zeros fill the page cache like any other bytes."""
    folder = disk / "source" / "model"
    folder.mkdir(parents=True)
    with (folder / "model.safetensors").open("wb") as file:
        file.truncate(SIZE)
    return folder


def _peak_bytes(*arguments: str | Path, way: str = "sendfile") -> int:
    """Peak of the resident memory of a command that succeeds; mapped files count."""
    environment = {**os.environ, "PYTHONPATH": str(LOADER), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", MEASURED, way, *map(str, arguments)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120)
    peak = int(ended.stdout.split()[-1]) * 1024
    print(f"{arguments[0]} {way}: {peak / MIB:.1f} MiB")
    return peak


def test_prefetch_and_cooling_need_little(model: Path) -> None:
    sizes = ("--num-threads", "8", "--block-size", "16Mi")
    assert _peak_bytes("prefetch", model, "--policy", "Required", *sizes) < LIMIT_BYTES
    assert _peak_bytes("report", model, "--policy", "Required", "--pages", "Cold") < LIMIT_BYTES


def test_the_copying_way_is_bounded_too(model: Path) -> None:
    sizes = ("--num-threads", "8", "--block-size", "16Mi", "--policy", "Required")
    assert _peak_bytes("prefetch", model, *sizes, way="without sendfile") < LIMIT_BYTES


def test_measuring_by_mincore_maps_files_and_takes_none_of_them(model: Path, disk: Path) -> None:
    with filesystems.mount_overlay(model.parent, disk / "mount", disk / "scratch") as folder:
        (folder / "model" / "model.safetensors").read_bytes()
        assert _peak_bytes("residency", folder / "model") < LIMIT_BYTES
