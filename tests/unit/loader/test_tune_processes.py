"""Tuning starts a new process for each load, one at a time, and leaves none behind when it is told to end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from modelweights_loader import tune as tuning
from modelweights_loader.checkpoint import find_checkpoint
from modelweights_loader.load_process import LoadProcess
from tests.polling import wait_for
from tests.unit.loader.conftest import LOADER


def _is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def _list_children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]
    return []


def test_each_load_has_a_new_process_and_only_one_is_there(single: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pids: list[int] = []
    others: list[int] = []

    class Watched(LoadProcess):
        """The real one; notes who is still there when it starts."""

        def __init__(self) -> None:
            others.extend(filter(_is_there, pids))
            super().__init__()
            pids.append(self.process.pid)

    monkeypatch.setattr(tuning, "LoadProcess", Watched)
    options = tuning.TuneOptions(max_seconds=200, max_rounds=3, load_formats=("safetensors",))
    result = tuning.tune(find_checkpoint(str(single), None), options)
    rounds = [len(timing.seconds) for timing in result.timings]
    assert min(rounds) >= 1, rounds
    assert max(rounds) >= 3, rounds
    assert len(pids) == len(set(pids)) == sum(rounds)
    assert ([], []) == (others, [pid for pid in pids if _is_there(pid)])


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_no_load_process_stays_when_it_is_ended(
    single: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    argv = [sys.executable, "-m", "modelweights_loader", "tune", str(single), "--results", str(tmp_path / "results")]
    environment = {**os.environ, "PYTHONPATH": str(LOADER)}
    process = subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        # Its first load is done: there are rounds to come.
        assert "(round 1)" in process.stderr.readline()
        assert wait_for(lambda: bool(_list_children(process.pid)), 20)
        children = _list_children(process.pid)
        process.send_signal(number)
        said = process.communicate(timeout=20)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == code, said
    assert wait_for(lambda: not any(map(_is_there, children)), 20), children
