"""Items shared out over threads: each once, and the first failure ends the others."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from modelweights_loader.threads import run_in_threads

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.mark.parametrize(("count", "num_threads"), [(0, 4), (1, 4), (3, 4), (100, 4), (100, 1)])
def test_each_item_falls_to_one_thread(count: int, num_threads: int) -> None:
    taken: list[tuple[int, str]] = []

    def work(own: Iterator[int]) -> None:
        taken.extend((item, threading.current_thread().name) for item in own)

    run_in_threads(work, range(count), num_threads, "share")
    assert sorted(item for item, _ in taken) == list(range(count))
    assert {name for _, name in taken} <= {f"share-{number}" for number in range(min(count, num_threads))}
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("share-")]


def test_a_failure_goes_up_and_ends_the_others() -> None:
    both_began = threading.Barrier(2)
    taken: list[int] = []

    def work(own: Iterator[int]) -> None:
        for item in own:
            taken.append(item)
            both_began.wait(30)
            if threading.current_thread().name == "fail-0":
                raise IndexError(item)
            for thread in threading.enumerate():
                if thread.name == "fail-0":
                    thread.join(30)

    with pytest.raises(IndexError):
        run_in_threads(work, range(1000), 2, "fail")
    assert sorted(taken) == [0, 1]
