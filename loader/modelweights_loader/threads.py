"""Works on many things at a time, in threads that the process doesn't wait for when it is told to end.

Those of an executor from the standard library it would wait for. Called by `fetch.adoption` and `sources.objectstore_https`.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

_Item = TypeVar("_Item")


def run_in_threads(
    work: Callable[[Iterator[_Item]], None], items: Collection[_Item], num_threads: int, name: str
) -> None:
    """Shares items out over threads. Blocks until all are done, or one failed and the others are done with theirs.

    Args:
        work: Called once in each thread, with the items that fall to it.
        items: What to work on, in order.
        num_threads: At most so many at a time.
        name: Of the threads, with a number.

    Raises:
        Exception: What `work` raised first.
    """
    waiting, errors = deque(items), list[Exception]()

    def take() -> Iterator[_Item]:
        while not errors:
            try:
                item = waiting.popleft()
            except IndexError:
                return
            yield item

    def run() -> None:
        try:
            work(take())
        except Exception as error:  # noqa: BLE001 - carried over to the thread that waits
            errors.append(error)

    count = min(num_threads, len(items))
    threads = [threading.Thread(target=run, daemon=True, name=f"{name}-{number}") for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
