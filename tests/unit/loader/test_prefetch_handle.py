"""Prefetch in the background: a handle to ask, to wait on and to cancel, from any thread, that leaves nothing behind."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, NoReturn

import pytest

from modelweights_loader.checkpoint import find_checkpoint
from modelweights_loader.prefetch import Progress, start_prefetch
from modelweights_loader.residency import measure
from tests.checkpoints.synthetic import make_synthetic
from tests.polling import wait_for
from tests.unit.loader.conftest import evict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from modelweights_loader.checkpoint import Checkpoint
    from modelweights_loader.prefetch import PrefetchHandle

DEADLINE_SECONDS = 10.0


@pytest.fixture
def cold(disk: Path) -> Checkpoint:
    folder = make_synthetic(disk / "model", 2**24, shards=4)
    evict(folder)
    return find_checkpoint(str(folder))


class Gate(threading.Event):
    """Reads wait until it is set; `reached` once one of them waits."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = threading.Event()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """Reads wait until it is set, and then go on in small steps: a storage as slow as the test likes."""
    opened = Gate()
    real_sendfile = os.sendfile

    def slow(out: int, source: int, offset: int, count: int) -> int:
        opened.reached.set()
        opened.wait(DEADLINE_SECONDS)
        return real_sendfile(out, source, offset, min(count, 2**16))

    monkeypatch.setattr(os, "sendfile", slow)
    yield opened
    opened.set()


def _own_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("prefetch")]


def _open_shards(checkpoint: Checkpoint) -> list[str]:
    wanted = {shard.real_path for shard in checkpoint.shards}
    links = []
    for number in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{number}"))
        except FileNotFoundError:
            continue
    return [link for link in links if link in wanted]


def test_it_returns_at_once_and_the_result_is_waited_for(cold: Checkpoint, gate: Gate) -> None:
    handle = start_prefetch(cold.shards)
    assert (handle.done, handle.progress) == (False, Progress(0, cold.size_bytes, 0.0, None))
    with pytest.raises(TimeoutError, match=r"not done after 0\.2 s"):
        handle.wait(timeout=0.2)
    gate.set()
    result = handle.wait(timeout=DEADLINE_SECONDS)
    assert (result.read_bytes, result.cancelled, handle.done) == (cold.size_bytes, False, True)
    assert measure(cold.shards).percent == 100.0
    # And once more, as often as one likes.
    assert handle.wait(0) == handle.wait() == result
    assert handle.progress.seconds_left == 0
    assert handle.progress.bytes_per_second > 0


def test_a_cancel_ends_the_threads_and_closes_the_files(cold: Checkpoint, gate: Gate) -> None:
    handle = start_prefetch(cold.shards, num_threads=4, block_bytes=2**20)
    assert wait_for(lambda: len(_open_shards(cold)) > 0, DEADLINE_SECONDS)
    threading.Timer(0.1, gate.set).start()
    handle.cancel()
    result = handle.wait(timeout=DEADLINE_SECONDS)
    assert wait_for(lambda: handle.done and not _own_threads(), DEADLINE_SECONDS)
    assert _open_shards(cold) == []
    assert result.cancelled
    assert result.read_bytes < cold.size_bytes
    handle.cancel()


def test_a_read_that_hangs_does_not_hold_who_cancels(cold: Checkpoint, gate: Gate) -> None:
    handle = start_prefetch(cold.shards)
    assert gate.reached.wait(DEADLINE_SECONDS)
    started = time.monotonic()
    handle.cancel()
    result = handle.wait()
    assert time.monotonic() - started < DEADLINE_SECONDS / 2  # a hang lasts DEADLINE_SECONDS here
    assert (result.cancelled, result.read_bytes, handle.done) == (True, 0, False)
    gate.set()
    assert wait_for(lambda: handle.done and not _own_threads() and not _open_shards(cold), DEADLINE_SECONDS)


def test_many_threads_may_ask_wait_and_cancel(cold: Checkpoint, gate: Gate) -> None:
    handle = start_prefetch(cold.shards, num_threads=8, block_bytes=2**16)
    gate.set()
    asked: list[Progress] = []
    failed: list[BaseException] = []

    def guard(ask: Callable[[], object]) -> None:
        try:
            ask()
        except BaseException as error:  # noqa: BLE001 - shown below
            failed.append(error)

    def ask() -> None:
        while not handle.done:
            asked.append(handle.progress)

    threads = [threading.Thread(target=guard, args=(work,)) for work in [ask, handle.wait, ask, handle.wait] * 3]
    threads += [threading.Thread(target=guard, args=(handle.cancel,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_SECONDS)
    assert failed == []
    assert not any(thread.is_alive() for thread in threads)
    assert all(0 <= progress.done_bytes <= progress.total_bytes for progress in asked)
    assert wait_for(lambda: not _own_threads(), DEADLINE_SECONDS)


def test_progress_is_told_in_the_background(cold: Checkpoint) -> None:
    said: list[Progress] = []
    start_prefetch(cold.shards, on_progress=said.append).wait(DEADLINE_SECONDS)
    assert said[-1].done_bytes == cold.size_bytes
    assert len(said) <= 10


def test_an_error_of_the_listener_ends_it_and_comes_out(cold: Checkpoint) -> None:
    def listen(_: Progress) -> NoReturn:
        raise ZeroDivisionError

    handle = start_prefetch(cold.shards, on_progress=listen)
    with pytest.raises(ZeroDivisionError):
        handle.wait(DEADLINE_SECONDS)
    assert wait_for(lambda: not _own_threads(), DEADLINE_SECONDS)


def test_threads_that_can_not_be_had_are_an_error_and_no_hang(
    cold: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_start = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name == "prefetch-2":
            raise RuntimeError("can't start new thread")
        real_start(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(RuntimeError, match="new thread"):
        start_prefetch(cold.shards, num_threads=4, block_bytes=2**20).wait(DEADLINE_SECONDS)
    assert wait_for(lambda: not _own_threads() and not _open_shards(cold), DEADLINE_SECONDS)


def test_memory_that_runs_out_in_a_thread_is_an_error_and_no_silence(
    cold: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*_: object) -> NoReturn:
        raise MemoryError

    monkeypatch.setattr(os, "sendfile", read)
    with pytest.raises(MemoryError):
        start_prefetch(cold.shards, num_threads=2).wait(DEADLINE_SECONDS)
    assert wait_for(lambda: not _own_threads() and not _open_shards(cold), DEADLINE_SECONDS)


def test_a_cancel_after_the_end_changes_nothing(cold: Checkpoint) -> None:
    os.unlink(cold.shards[0].real_path)
    handle = start_prefetch(cold.shards)
    before = handle.wait(DEADLINE_SECONDS)
    handle.cancel()
    assert handle.wait(DEADLINE_SECONDS) == before
    assert (len(before.failures), before.cancelled) == (1, False)


def test_waiting_where_it_would_never_end_is_an_error(cold: Checkpoint, gate: Gate) -> None:
    """In its own listener; and in a forked process, which has none of the threads."""
    handles: list[PrefetchHandle] = []
    ready = threading.Event()

    def listen(_: Progress) -> None:
        ready.wait(DEADLINE_SECONDS)
        handles[0].wait()

    handles.append(start_prefetch(cold.shards, on_progress=listen))
    ready.set()
    process = handles[0]._process
    handles[0]._process = -1
    with pytest.raises(RuntimeError, match="forked"):
        handles[0].wait(DEADLINE_SECONDS)
    handles[0]._process = process
    gate.set()
    with pytest.raises(RuntimeError, match="on_progress"):
        handles[0].wait(DEADLINE_SECONDS)
