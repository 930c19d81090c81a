"""A storage that stops to answer: a signal ends the loader all the same, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.filesystems import show_sshfs
from tests.polling import wait_for
from tests.unit.loader.conftest import LOADER

if TYPE_CHECKING:
    from collections.abc import Iterator

DEADLINE_SECONDS = 10.0
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(LOADER), "PYTHONDONTWRITEBYTECODE": "1"}


def _find_server(mark: str) -> int:
    """The SFTP server behind this test's own mount: sshfs detaches it, but it has our environment."""
    for process in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{process}/comm").read_text().strip() != "sftp-server":
                continue
            if mark.encode() in Path(f"/proc/{process}/environ").read_bytes().split(b"\0"):
                return process
    raise AssertionError("no sftp-server of this test is there")


@contextlib.contextmanager
def _stopped(process: int) -> Iterator[None]:
    os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process, signal.SIGCONT)


class Mounted(NamedTuple):
    """A checkpoint on sshfs, and the process that answers for it."""

    model: Path
    server: int


@pytest.fixture
def mounted(disk: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mounted]:
    monkeypatch.setenv("MODELWEIGHTS_TEST_MOUNT", str(disk))
    source = disk / "source" / "model"
    source.mkdir(parents=True)
    with (source / "model.safetensors").open("wb") as file:
        # A hole, but sshfs carries each of its bytes: some ten seconds, which no test waits for.
        file.truncate(8 * 2**30)
    with show_sshfs(source.parent, disk / "mount", "kernel_cache"):
        yield Mounted(disk / "mount" / "model", _find_server(f"MODELWEIGHTS_TEST_MOUNT={disk}"))


def _start(*arguments: str | Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "modelweights_loader", *map(str, arguments)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT, cwd="/"
    )


def _end(process: subprocess.Popen[str], number: signal.Signals) -> tuple[int, str, float]:
    """The exit code, what it said, and how long it took to end."""
    started = time.monotonic()
    process.send_signal(number)
    try:
        _, said = process.communicate(timeout=DEADLINE_SECONDS)
    finally:
        process.kill()
    return process.returncode, said, time.monotonic() - started


def _is_waiting_for_storage(process: int) -> bool:
    """Whether one of its threads sleeps in a system call of FUSE or waits for a page."""
    for task in Path(f"/proc/{process}/task").iterdir():
        with contextlib.suppress(OSError):
            where = (task / "wchan").read_text()
            if "fuse" in where or "folio" in where or "request_wait" in where:
                return True
    return False


def test_sigterm_ends_a_read_that_hangs(mounted: Mounted, disk: Path) -> None:
    report = disk / "report.json"
    process = _start("prefetch", mounted.model, "--report", report, "--num-threads", "4")
    assert process.stderr is not None
    assert wait_for(lambda: len(os.listdir(f"/proc/{process.pid}/task")) == 6, DEADLINE_SECONDS)
    with _stopped(mounted.server):
        assert wait_for(lambda: _is_waiting_for_storage(process.pid), DEADLINE_SECONDS)
        code, said, seconds = _end(process, signal.SIGTERM)
    print(f"ended {seconds:.2f} s after SIGTERM")
    assert (code, json.loads(report.read_bytes())["reason"]) == (143, "Terminated"), said
    assert "Traceback" not in said


def test_where_the_kernel_lets_no_process_end_it_says_at_once_how_it_ends(mounted: Mounted, disk: Path) -> None:
    """Linux ends no process that waits for an answer about a name, not even by SIGKILL. The report doesn't wait."""
    report = disk / "report.json"
    with _stopped(mounted.server):
        process = _start("prefetch", mounted.model, "--report", report)
        assert wait_for(lambda: _is_waiting_for_storage(process.pid), DEADLINE_SECONDS)
        process.send_signal(signal.SIGTERM)
        assert wait_for(lambda: report.exists() and report.stat().st_size > 0, DEADLINE_SECONDS)
        assert json.loads(report.read_bytes())["reason"] == "Terminated"
    _, said = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 143, said


def test_the_time_of_wait_is_over_also_where_the_storage_hangs(mounted: Mounted, disk: Path) -> None:
    report = disk / "report.json"
    with _stopped(mounted.server):
        process = _start("wait", mounted.model, "--timeout-seconds", "1", "--report", report)
        assert wait_for(lambda: report.exists() and report.stat().st_size > 0, DEADLINE_SECONDS)
        said = json.loads(report.read_bytes())
    process.communicate(timeout=DEADLINE_SECONDS)
    assert (said["exitCode"], "not answered" in said["message"]) == (10, True)
