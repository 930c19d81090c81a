"""Who is next where the administrator's caps let few fetch at a time. Kept by the reconciler; no I/O.

An object takes what its own end has freed at once, since that wakes it; the others look every ten seconds only. So a large
one would keep all others waiting to its end. Whoever had its last place longest ago goes first, each object one place.

Lost with the operator, and nothing is to be mended then: nobody is ahead of anybody.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from modelweights_operator.domain.snapshot import Fetch

FORGOTTEN_AFTER: Final = timedelta(seconds=30)
"""Who waits says so every ten seconds; one that stopped, as it was suspended or deleted, keeps nobody waiting for longer."""


@dataclass(frozen=True)
class _Waiting:
    waits: tuple[Fetch, ...]
    turn: int
    said_at: datetime


class Turns:
    """Remembers who waits for which node and host, and since whose last place."""

    def __init__(self) -> None:
        self._last_place: dict[str, int] = {}
        self._waiting: dict[str, _Waiting] = {}
        self._count = 0

    def ahead(self, owner: str, now: datetime) -> tuple[Fetch, ...]:
        """What others wait for that go before this object."""
        own = self._turn(owner)
        return tuple(
            fetch
            for other, waiting in self._waiting.items()
            if other != owner and waiting.turn < own and now - waiting.said_at < FORGOTTEN_AFTER
            for fetch in waiting.waits
        )

    def note(self, owner: str, waits: Iterable[Fetch], *, served: bool, now: datetime) -> None:
        """What an object waits for now, and whether it was just given a place."""
        waits = tuple(waits)
        if served:
            self._last_place[owner] = self._next()
            self._waiting.pop(owner, None)
        if waits:
            self._waiting[owner] = _Waiting(waits, self._turn(owner), now)
        else:
            self._waiting.pop(owner, None)

    def forget(self, owner: str) -> None:
        """An object went."""
        self._last_place.pop(owner, None)
        self._waiting.pop(owner, None)

    def _turn(self, owner: str) -> int:
        """The lower, the sooner: since its last place, else since it came."""
        if owner not in self._last_place:
            self._last_place[owner] = self._next()
        return self._last_place[owner]

    def _next(self) -> int:
        self._count += 1
        return self._count
