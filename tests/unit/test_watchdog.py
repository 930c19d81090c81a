"""The watchdog of kopf's watch: only what stays undelivered for long counts against it."""

import pytest

from modelweights_operator import watchdog
from modelweights_operator.watchdog import Watchdog

KEY = ("team", "llama")


class Clock:
    """Stands in for the module `time`."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(watchdog, "time", clock)
    return clock


def test_what_was_delivered_is_no_trouble(clock: Clock) -> None:
    watchdog = Watchdog(180)
    watchdog.seen(KEY, "1")
    watchdog.listed({KEY: "1"})
    clock.now += 1000
    assert watchdog.verdict() == ""


@pytest.mark.parametrize(
    ("seen", "listed"),
    [({}, {KEY: "1"}), ({KEY: "1"}, {KEY: "2"}), ({KEY: "1"}, {})],
    ids=["never delivered", "an old version", "a deletion missed"],
)
def test_what_stays_undelivered_is_the_verdict(
    clock: Clock, seen: dict[tuple[str, str], str], listed: dict[tuple[str, str], str]
) -> None:
    watchdog = Watchdog(180)
    for key, version in seen.items():
        watchdog.seen(key, version)
    watchdog.listed(listed)
    clock.now += 100
    watchdog.listed(listed)
    assert watchdog.verdict() == ""
    clock.now += 81
    assert watchdog.verdict() == "the watch of ModelWeights missed team/llama for 181 s"


def test_a_late_delivery_clears_it(clock: Clock) -> None:
    watchdog = Watchdog(180)
    watchdog.listed({KEY: "1"})
    clock.now += 179
    watchdog.seen(KEY, "1")
    clock.now += 10
    assert watchdog.verdict() == ""


def test_a_watch_that_is_ahead_of_the_list_is_alive(clock: Clock) -> None:
    watchdog = Watchdog(180)
    watchdog.seen(KEY, "2")
    watchdog.listed({KEY: "1"})
    clock.now += 60
    watchdog.listed({KEY: "2"})
    clock.now += 1000
    assert watchdog.verdict() == ""


def test_a_deletion_that_was_delivered_is_forgotten(clock: Clock) -> None:
    watchdog = Watchdog(180)
    watchdog.seen(KEY, "1")
    watchdog.seen(KEY, "")
    watchdog.listed({})
    clock.now += 1000
    assert watchdog.verdict() == ""
