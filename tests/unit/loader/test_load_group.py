"""Groups of real load processes: each rank gets every tensor, one that dies ends all, and no port is open to others."""

from __future__ import annotations

import os
import re
import signal
import time
from typing import TYPE_CHECKING

import pytest

from modelweights_loader import load_process
from modelweights_loader.checkpoint import find_checkpoint
from modelweights_loader.errors import LoaderError
from modelweights_loader.load.contract import LoadRequest
from modelweights_loader.load_process import LoadProcess, load_together
from modelweights_loader.structure import read_structure
from modelweights_loader.validate import compare_with_headers
from tests.polling import wait_for
from tests.unit.loader.conftest import run_loader
from tests.unit.loader.test_load_process import _wait_until_gone

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DEADLINE_SECONDS = 120


@pytest.fixture
def processes() -> Iterator[list[LoadProcess]]:
    """Two ranks that have not been asked anything yet."""
    started = [LoadProcess(), LoadProcess()]
    yield started
    for process in started:
        process.kill()


def _requests(folder: Path, store: Path, pace_bytes: int = 0) -> list[LoadRequest]:
    checkpoint = find_checkpoint(str(folder))
    headers = read_structure(checkpoint).headers.values()
    dtypes = sorted({tensor.dtype for header in headers for tensor in header.tensors.values()})
    files = [shard.real_path for shard in checkpoint.shards]
    return [
        LoadRequest(files, dtypes, rank=rank, world_size=2, store=str(store), pace_bytes=pace_bytes) for rank in (0, 1)
    ]


def test_every_rank_gets_every_tensor(split: Path, tmp_path: Path, processes: list[LoadProcess]) -> None:
    results = load_together(processes, _requests(split, tmp_path / "store"), DEADLINE_SECONDS)
    for result in results:
        compare_with_headers("m", read_structure(find_checkpoint(str(split))).headers, result.tensors)
        assert (result.ranks, result.nogds) == (2, True)


def _list_listening(pid: int) -> set[str]:
    """Addresses on which a process listens, as /proc writes them."""
    sockets = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            found = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(f"/proc/{pid}/fd/{name}"))
        except FileNotFoundError:
            continue
        if found:
            sockets.add(found[1])
    listening = set()
    for table in ("tcp", "tcp6"):
        with open(f"/proc/{pid}/net/{table}", encoding="ascii") as file:
            rows = [line.split() for line in file.readlines()[1:]]
        # 0A is LISTEN.
        listening |= {row[1].rpartition(":")[0] for row in rows if row[3] == "0A" and row[9] in sockets}
    return listening


def test_ranks_talk_on_the_loopback_interface_only(split: Path, tmp_path: Path, processes: list[LoadProcess]) -> None:
    """Looked at in the middle of a load, when the group has been formed."""
    seen: set[str] = set()

    def look(_rank: int, _done_bytes: int, _deadline: float) -> None:
        for process in processes:
            seen.update(_list_listening(process.process.pid))

    load_together(processes, _requests(split, tmp_path / "store", pace_bytes=1), DEADLINE_SECONDS, keep_pace=look)
    # 127.0.0.1, in the byte order of the table.
    assert seen == {"0100007F"}


@pytest.mark.parametrize("when", ["imports", "loads"])
def test_a_rank_that_is_killed_ends_the_other_and_is_named(
    split: Path, tmp_path: Path, processes: list[LoadProcess], when: str
) -> None:
    victim = processes[1].process.pid
    if when == "imports":
        os.kill(victim, signal.SIGKILL)

    def kill(rank: int, _done_bytes: int, _deadline: float) -> None:
        if rank == 1:
            os.kill(victim, signal.SIGKILL)

    with pytest.raises(LoaderError) as caught:
        load_together(processes, _requests(split, tmp_path / "store", pace_bytes=1), DEADLINE_SECONDS, keep_pace=kill)
    assert caught.value.reason == "LoadKilled"
    assert "rank 1" in caught.value.message
    _wait_until_gone(*(process.process.pid for process in processes))


class Clock:
    """The time, of which the test can let pass any amount."""

    passed_seconds = 0.0

    def monotonic(self) -> float:
        """As the real one, and later by what has passed."""
        return time.monotonic() + self.passed_seconds


def test_a_rank_that_hangs_is_named_when_the_time_is_over(
    split: Path, tmp_path: Path, processes: list[LoadProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(load_process, "time", clock)

    def stop(rank: int, _done_bytes: int, _deadline: float) -> None:
        if rank == 0 and not clock.passed_seconds:
            os.kill(processes[0].process.pid, signal.SIGSTOP)
            assert wait_for(lambda: processes[0].describe_state() == "stopped")
            clock.passed_seconds = DEADLINE_SECONDS

    with pytest.raises(LoaderError) as caught:
        load_together(processes, _requests(split, tmp_path / "store", pace_bytes=1), DEADLINE_SECONDS, keep_pace=stop)
    assert clock.passed_seconds, caught.value.message
    assert caught.value.reason == "LoadTimeout"
    assert "rank 0: stopped" in caught.value.message
    _wait_until_gone(*(process.process.pid for process in processes))


def test_the_command_starts_a_group_and_says_so(split: Path) -> None:
    ran = run_loader("validate", split, "--world-size", "3", "--mode", "Full")
    assert (0, "Validated") == (ran.code, ran.report.get("reason")), ran.stderr
    assert (3, True) == (ran.report["engine"]["ranks"], ran.report["engine"]["nogds"])
    assert ran.report["comparedBytes"] == 3 * ran.report["loadedBytes"]


def test_with_safetensors_every_rank_loads_for_itself(split: Path) -> None:
    ran = run_loader("validate", split, "--world-size", "2", "--load-format", "safetensors")
    assert (0, "Validated") == (ran.code, ran.report.get("reason")), ran.stderr
    assert ("safetensors", 2) == (ran.report["engine"]["loadFormat"], ran.report["engine"]["ranks"])
