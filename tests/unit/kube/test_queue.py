"""The work queue: events coalesce, none is lost, one key never runs twice at once, and trouble is met with patience."""

# ruff: noqa: ASYNC110 - what is waited for is the end of tasks that the queue owns

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from modelweights_operator import errors
from modelweights_operator.kube import queue as queue_module
from modelweights_operator.kube.queue import WorkQueue

Work = Callable[[str], Awaitable[float | None]]


@asynccontextmanager
async def running(work: Work, concurrency: int = 16) -> AsyncIterator[WorkQueue[str]]:
    queue = WorkQueue(work, concurrency)
    try:
        yield queue
    finally:
        await queue.close()


async def settle(queue: WorkQueue[str]) -> None:
    """Let all tasks come to their end."""
    async with asyncio.timeout(5):
        while len(queue):
            await asyncio.sleep(0)


class Recorder:
    """Work that remembers its keys and gives prepared answers, then None."""

    def __init__(self, *answers: float | Exception | None) -> None:
        self.runs: list[str] = []
        self._answers = list(answers)

    async def __call__(self, key: str) -> float | None:
        self.runs.append(key)
        answer = self._answers.pop(0) if self._answers else None
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def delays(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits that the queue asked for; none is slept."""
    asked: list[float] = []
    really_sleep = asyncio.sleep

    async def sleep(seconds: float) -> None:
        asked.append(seconds)
        await really_sleep(0)

    async def sleep_until_set(_: asyncio.Event, seconds: float) -> None:
        await sleep(seconds)

    monkeypatch.setattr(queue_module, "asyncio", _Asyncio(sleep))
    monkeypatch.setattr(queue_module, "sleep_until_set", sleep_until_set)
    monkeypatch.setattr(random, "uniform", lambda least, _: least)
    return asked


class _Asyncio:
    """asyncio with another sleep, for the queue's module alone."""

    def __init__(self, sleep: Callable[[float], Awaitable[None]]) -> None:
        self.sleep = sleep

    def __getattr__(self, name: str) -> object:
        return getattr(asyncio, name)


async def test_wakes_before_the_work_starts_are_one_run() -> None:
    work = Recorder()
    async with running(work) as queue:
        for _ in range(100):
            queue.wake("a")
        await settle(queue)
    assert work.runs == ["a"]


async def test_wakes_in_mid_run_are_one_more_run() -> None:
    runs = 0
    started, go_on = asyncio.Event(), asyncio.Event()

    async def work(_: str) -> None:
        nonlocal runs
        runs += 1
        started.set()
        await go_on.wait()

    async with running(work) as queue:
        queue.wake("a")
        await started.wait()
        for _ in range(100):
            queue.wake("a")
        go_on.set()
        await settle(queue)
    assert runs == 2


async def test_a_wake_by_the_work_itself_is_not_lost() -> None:
    runs = 0

    async def work(key: str) -> None:
        nonlocal runs
        runs += 1
        if runs < 5:
            queue.wake(key)

    async with running(work) as queue:
        queue.wake("a")
        await settle(queue)
    assert runs == 5


async def test_no_wake_is_lost_whenever_it_comes() -> None:
    wanted, seen = 0, 0

    async def work(_: str) -> None:
        nonlocal seen
        await asyncio.sleep(0)
        seen = wanted
        await asyncio.sleep(0)

    async with running(work) as queue:
        for _ in range(500):
            wanted += 1
            queue.wake("a")
            for _ in range(wanted % 4):
                await asyncio.sleep(0)
        await settle(queue)
    assert seen == wanted


async def test_a_key_never_runs_twice_at_once_and_all_keys_share_the_places() -> None:
    at_work: list[str] = []
    most = 0

    async def work(key: str) -> None:
        nonlocal most
        assert key not in at_work
        at_work.append(key)
        most = max(most, len(at_work))
        await asyncio.sleep(0)
        at_work.remove(key)

    async with running(work, concurrency=3) as queue:
        for _ in range(20):
            for key in "abcdefgh":
                queue.wake(key)
            await asyncio.sleep(0)
        await settle(queue)
    assert most == 3


async def test_a_key_without_work_has_no_task() -> None:
    async with running(Recorder()) as queue:
        queue.wake("a")
        assert len(queue) == 1
        await settle(queue)
        assert len(queue) == 0


async def test_work_is_called_again_when_it_asked_to(delays: list[float]) -> None:
    work = Recorder(7.0)
    async with running(work) as queue:
        queue.wake("a")
        await settle(queue)
    assert (work.runs, delays) == (["a", "a"], [7.0])


async def test_a_wake_cuts_the_wait_short() -> None:
    work = Recorder(3600.0)
    async with running(work) as queue:
        queue.wake("a")
        async with asyncio.timeout(5):
            while not work.runs:
                await asyncio.sleep(0)
        queue.wake("a")
        await settle(queue)
    assert work.runs == ["a", "a"]


def refused(retry_after: float | None = None) -> errors.ApiError:
    return errors.ApiError("no", status=500, retry_after_seconds=retry_after)


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([refused(), refused(), refused()], [0.5, 1.0, 2.0]),
        ([refused()] * 9, [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]),
        ([refused(11.0)], [11.0]),
        ([errors.ConflictError("old", status=409)] * 3, [0.05, 0.1, 0.2]),
        ([RuntimeError("bug")], [0.5]),
        ([refused(), None], [0.5]),
        ([refused(), 7.0, refused()], [0.5, 7.0, 0.5]),
    ],
    ids=["doubles", "up to a minute", "as the server asks", "conflict", "a bug", "heals", "starts over"],
)
async def test_back_off(answers: list[float | Exception | None], expected: list[float], delays: list[float]) -> None:
    work = Recorder(*answers)
    async with running(work) as queue:
        queue.wake("a")
        await settle(queue)
    assert delays == expected


async def test_wakes_do_not_cut_a_back_off_short() -> None:
    work = Recorder(refused(3600.0))
    async with running(work) as queue:
        queue.wake("a")
        for _ in range(50):
            queue.wake("a")
            await asyncio.sleep(0)
        assert work.runs == ["a"]
        for task in queue._tasks:
            task.cancel()


async def test_one_keys_fault_leaves_the_others_alone() -> None:
    done = []

    async def work(key: str) -> None:
        if key == "bad":
            raise RuntimeError(key)
        done.append(key)

    async with running(work) as queue:
        for key in ("bad", "a", "b"):
            queue.wake(key)
        async with asyncio.timeout(5):
            while len(queue) > 1:
                await asyncio.sleep(0)
        for task in queue._tasks:
            task.cancel()
    assert done == ["a", "b"]


async def test_finish_lets_what_is_at_hand_end_and_takes_nothing_new() -> None:
    started, go_on, finished = asyncio.Event(), asyncio.Event(), []

    async def work(key: str) -> float | None:
        started.set()
        await go_on.wait()
        finished.append(key)
        return 3600.0

    queue = WorkQueue(work)
    queue.wake("a")
    await started.wait()
    finishing = asyncio.ensure_future(queue.finish(60))
    await asyncio.sleep(0)
    queue.wake("b")
    go_on.set()
    await asyncio.wait_for(finishing, 5)
    assert (finished, len(queue)) == (["a"], 0)


async def test_finish_begins_none_of_those_that_wait_for_a_place() -> None:
    begun, go_on = [], asyncio.Event()

    async def work(key: str) -> None:
        begun.append(key)
        await go_on.wait()

    queue = WorkQueue(work, concurrency=1)
    for key in ("a", "b", "c"):
        queue.wake(key)
    while not begun:
        await asyncio.sleep(0)
    finishing = asyncio.ensure_future(queue.finish(60))
    await asyncio.sleep(0)
    go_on.set()
    await asyncio.wait_for(finishing, 5)
    assert (begun, len(queue)) == (["a"], 0)


async def test_finish_waits_for_no_back_off() -> None:
    work = Recorder(refused(3600.0))
    queue = WorkQueue(work)
    queue.wake("a")
    while not work.runs:
        await asyncio.sleep(0)
    await asyncio.wait_for(queue.finish(60), 5)
    assert (work.runs, len(queue)) == (["a"], 0)


async def test_close_ends_what_does_not_end_by_itself() -> None:
    started = asyncio.Event()

    async def work(_: str) -> None:
        started.set()
        await asyncio.Event().wait()

    queue = WorkQueue(work)
    queue.wake("a")
    await started.wait()
    await asyncio.wait_for(queue.close(), 5)
    assert not queue._tasks


async def test_a_write_that_was_not_sent_is_tried_again_without_a_word(
    delays: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    work = Recorder(errors.NotLeadingError(), errors.NotLeadingError())
    async with running(work) as queue:
        queue.wake("a")
        await settle(queue)
    assert (delays, caplog.records) == ([0.5, 1.0], [])


async def test_close_ends_those_that_wait_for_their_next_time() -> None:
    work = Recorder(3600.0)
    queue = WorkQueue(work)
    queue.wake("a")
    while not work.runs:
        await asyncio.sleep(0)
    await asyncio.wait_for(queue.close(), 1)
    assert len(queue) == 0
