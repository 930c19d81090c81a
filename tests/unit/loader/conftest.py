"""Small checkpoints and ways to run the loader, shared by the loader's unit tests."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from tests.checkpoints.split import make_split
from tests.checkpoints.writer import Tensor, make_tensor, write_safetensors, write_sharded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LOADER = Path(__file__).resolve().parents[3] / "loader"
STAGING_UID = 65532


class Ran(NamedTuple):
    """How a command ended."""

    code: int
    stdout: str
    stderr: str
    report: dict[str, Any]


@pytest.fixture
def disk() -> Iterator[Path]:
    """A folder on a real disk that every user may enter: /tmp may be memory, and pytest's folders are private."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="loader-test-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture
def single(tmp_path: Path) -> Path:
    """A checkpoint of one file with 24 tensors of several dtypes."""
    folder = tmp_path / "single"
    folder.mkdir()
    tensors = [
        make_tensor(f"layer.{number}.weight", dtype, (number + 1, 16), number)
        for number, dtype in enumerate(["BF16", "F16", "F32", "F64", "I64", "U8"] * 4)
    ]
    write_safetensors(folder / "model.safetensors", tensors, {"format": "pt"})
    (folder / "config.json").write_text("{}", encoding="utf-8")
    return folder


@pytest.fixture
def split(single: Path, tmp_path: Path) -> Path:
    """The same tensors in 12 shards with an index."""
    return make_split(single, tmp_path / "split")


@pytest.fixture
def write(tmp_path: Path) -> Callable[[dict[str, list[Tensor]]], Path]:
    """Writes shards with an index."""

    def write_shards(shards: dict[str, list[Tensor]]) -> Path:
        folder = tmp_path / "written"
        write_sharded(folder, shards)
        return folder

    return write_shards


def evict(folder: Path) -> None:
    """Takes every file of a folder out of the page cache."""
    for path in folder.iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def run_loader(*arguments: str | Path, python: str = sys.executable, uid: int | None = None) -> Ran:
    """Runs the loader in a process of its own and reads its report."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        Path(folder).chmod(0o777)
        report = Path(folder) / "report.json"
        command = [python, "-m", "modelweights_loader", *map(str, arguments), "--report", str(report)]
        ended = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            cwd="/",
            env={**os.environ, "PYTHONPATH": str(LOADER), "PYTHONDONTWRITEBYTECODE": "1"},
            user=uid,
            group=uid,
            extra_groups=None if uid is None else [],
        )
        content = json.loads(report.read_bytes()) if report.exists() else {}
    return Ran(ended.returncode, ended.stdout, ended.stderr, content)


def run_as_staging_user(*arguments: str | Path) -> Ran:
    """Runs the loader as the staging pods do: an ordinary user with no right to anything."""
    candidates = [sys.executable, shutil.which("python3", path="/usr/bin:/usr/local/bin") or ""]
    for python in filter(None, candidates):
        try:
            subprocess.run([python, "-c", ""], check=True, user=STAGING_UID, group=STAGING_UID, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            continue
        return run_loader(*arguments, python=python, uid=STAGING_UID)
    pytest.fail(f"none of {candidates} runs as another user")
