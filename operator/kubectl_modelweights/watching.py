"""`status --watch`: draws anew whenever something changes, until Ctrl-C. Called by `cli`.

kubectl --changes--> a thread --> the objects by name --> drawn by the main thread, at most some times a second
"""

import contextlib
import queue
import signal
import threading
from collections.abc import Callable
from typing import TextIO

from kubectl_modelweights import table
from kubectl_modelweights.client import RESOURCE, Client, Json, Watch
from kubectl_modelweights.errors import CommandError
from kubectl_modelweights.table import Answer

_PAUSE_SECONDS = 0.2
_GONE = "DELETED"
_BEGINS = "BEGINS"
"""Our own: all objects come anew."""


class _Feed:
    """Changes that a thread reads; the watch is begun again when the API server ends it, as it does every some minutes."""

    def __init__(self, client: Client, words: tuple[str, ...]) -> None:
        self._client, self._words = client, words
        self._changes: queue.Queue[tuple[str, Json] | CommandError] = queue.Queue()
        self._ended = threading.Event()
        self._watch: Watch | None = None
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def wait(self) -> list[tuple[str, Json]]:
        """Blocks until something changed; all that changed.

        Raises:
            CommandError: It can't be watched.
        """
        found = [self._changes.get()]
        self._ended.wait(_PAUSE_SECONDS)
        with contextlib.suppress(queue.Empty):
            while True:
                found.append(self._changes.get_nowait())
        for each in found:
            if isinstance(each, CommandError):
                raise each
        return [each for each in found if not isinstance(each, CommandError)]

    def close(self) -> None:
        """End it at once."""
        with self._lock:
            self._ended.set()
            if self._watch is not None:
                self._watch.close()

    def _read(self) -> None:
        try:
            while self._begin():
                self._changes.put((_BEGINS, {}))
                assert self._watch is not None  # noqa: S101 - begun
                for change in self._watch:
                    self._changes.put(change)
                self._ended.wait(1)
        except CommandError as error:
            if not self._ended.is_set():
                self._changes.put(error)

    def _begin(self) -> bool:
        with self._lock:
            if self._ended.is_set():
                return False
            self._watch = self._client.watch(*self._words)
            return True


def watch(
    client: Client, words: tuple[str, ...], first: list[Json], answer: Callable[[list[Json]], Answer], stream: TextIO
) -> None:
    """Draw until Ctrl-C, which comes as KeyboardInterrupt; the terminal is as before then.

    Args:
        client: The cluster.
        words: What of ModelWeights is watched: a selector, or that it is all namespaces.
        first: The objects as they are now.
        answer: Makes the answer of the objects.
        stream: Where to.
    """
    # A terminal that is closed, or a polite kill, ends it as Ctrl-C does: no kubectl stays behind.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    feed = _Feed(client, (RESOURCE, *words))
    objects: dict[str, Json] = {}
    try:
        with _drawing(stream) as draw:
            shown = answer(first)
            draw(shown)
            while True:
                for kind, body in feed.wait():
                    _note(objects, kind, body)
                # The watch begins with what is there already: that is no news.
                if objects and (answered := answer(list(objects.values()))) != shown:
                    shown = answered
                    draw(shown)
    finally:
        feed.close()


def _note(objects: dict[str, Json], kind: str, body: Json) -> None:
    if kind == _BEGINS:
        objects.clear()
    if "uid" not in body.get("metadata", {}):
        return
    uid = body["metadata"]["uid"]
    if kind == _GONE:
        objects.pop(uid, None)
    else:
        objects[uid] = body


@contextlib.contextmanager
def _drawing(stream: TextIO):  # type: ignore[no-untyped-def]  # noqa: ANN202 - a context of a function that draws
    if not table.draws(stream):

        def draw_plain(answer: Answer) -> None:
            print(table.plain(answer.blocks), end="\n\n", file=stream, flush=True)

        yield draw_plain
        return
    from rich.live import Live  # noqa: PLC0415 - takes its time

    with Live(console=table.console(stream), auto_refresh=False, vertical_overflow="ellipsis") as live:

        def draw(answer: Answer) -> None:
            live.update(table.renderable(answer.blocks, live.console.width), refresh=True)

        yield draw
