"""SIGKILL at any moment: no process, no temporary file and no lock stays of `stage`, and the next one works."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.checkpoints.synthetic import make_synthetic
from tests.polling import wait_for
from tests.unit.loader.conftest import LOADER, run_loader

MARK = "MODELWEIGHTS_TEST_KILLED"
MOMENTS = 12
# From the start of Python to well into the load; the last ones find it done already on a quick machine.
LONGEST_SECONDS = 3.0


def _left_processes(mark: str) -> list[int]:
    """Processes that have our mark in their environment."""
    found = []
    for process in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with contextlib.suppress(OSError):
            if f"{MARK}={mark}".encode() in Path(f"/proc/{process}/environ").read_bytes().split(b"\0"):
                found.append(process)
    return found


def _kill_at_each_moment(disk: Path, ranks: int, moments: range) -> None:
    root, temporary, results = disk / "root", disk / "tmp", disk / "results"
    model = make_synthetic(root / "model", 2**23, shards=3)
    markers = root / ".modelweights"
    for folder in (markers, temporary):
        folder.mkdir()
    files = sorted(os.listdir(model))
    environment = {**os.environ, "PYTHONPATH": str(LOADER), "TMPDIR": str(temporary), MARK: str(disk)}
    marking = ("--marker-dir", str(markers), "--marker-root", str(root), "--results", str(results))
    stage = ("stage", str(model), *marking, "--world-size", str(ranks))
    for moment in moments:
        process = subprocess.Popen(
            [sys.executable, "-m", "modelweights_loader", *stage],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        # Not a wait for something: the moment itself is what is tried out.
        time.sleep(LONGEST_SECONDS * moment / MOMENTS)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert wait_for(lambda: not _left_processes(str(disk)), 20), _left_processes(str(disk))
        assert os.listdir(temporary) == []
        assert sorted(os.listdir(model)) == files
    ran = run_loader("stage", model, *marking)
    assert (ran.code, ran.report["marker"]) == (0, "Written"), ran
    assert os.listdir(markers) == ["model.json"]
    assert sorted(os.listdir(results)) == ["prefetch.json", "stage.json", "validate.json"]


def test_sigkill_at_any_moment_leaves_nothing(disk: Path) -> None:
    """Of one load process, and at the same time of a group of two, which have to find each other."""
    with ThreadPoolExecutor(2) as pool:
        for ranks in (1, 2):
            (disk / str(ranks)).mkdir()
        started = [
            pool.submit(_kill_at_each_moment, disk / str(ranks), ranks, range(ranks - 1, MOMENTS, 2))
            for ranks in (1, 2)
        ]
    for one in started:
        one.result()
