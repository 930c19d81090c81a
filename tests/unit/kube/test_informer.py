"""What an informer's store says, without a server: what was just created counts until the watch has told of it."""

import time
from typing import Any

import pytest

from modelweights_operator.kube import informer as informers
from modelweights_operator.kube.informer import Informer, Item


def body(name: str, value: str = "first") -> dict[str, Any]:
    return {"metadata": {"namespace": "ns", "name": name}, "value": value}


@pytest.fixture
def informer() -> Informer[str]:
    # No request is made: the connection isn't there.
    return Informer(None, "/jobs", {}, lambda found: Item("group", found["value"]), lambda _: None)  # type: ignore[arg-type]


async def test_an_object_that_was_just_created_counts(informer: Informer[str]) -> None:
    informer.expect(body("a"))
    assert informer.group("group") == ["first"]
    assert informer.group("other") == []


async def test_the_watch_has_the_last_word(informer: Informer[str]) -> None:
    informer.expect(body("a"))
    informer._put(("ns", "a"), Item("group", "second"))
    assert informer.group("group") == ["second"]
    informer._put(("ns", "a"), None)
    assert informer.group("group") == []


async def test_what_the_watch_told_already_is_not_expected(informer: Informer[str]) -> None:
    informer._put(("ns", "a"), Item("group", "second"))
    informer.expect(body("a"))
    assert informer.group("group") == ["second"]


async def test_what_the_watch_never_tells_of_is_forgotten(
    informer: Informer[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    informer.expect(body("a"))
    later = time.monotonic() + informers.EXPECT_SECONDS + 1
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert informer.group("group") == []


async def test_all_that_is_known_holds_what_was_just_created_once(informer: Informer[str]) -> None:
    informer._put(("ns", "a"), Item("group", "told"))
    informer._put(("ns", "b"), Item("other", "elsewhere"))
    informer.expect(body("a"))
    informer.expect(body("c", "created"))
    assert sorted(informer.known()) == ["created", "elsewhere", "told"]
    assert sorted(informer.values()) == ["elsewhere", "told"]


async def test_what_was_not_created_after_all_is_not_expected(informer: Informer[str]) -> None:
    informer.expect(body("a"))
    informer.unexpect("ns", "a")
    informer.unexpect("ns", "b")
    assert informer.group("group") == []


async def test_that_what_was_expected_is_there_is_no_news() -> None:
    told: list[str] = []
    informer: Informer[str] = Informer(
        None,  # type: ignore[arg-type]
        "/jobs",
        {},
        lambda found: Item("group", found["value"]),
        lambda item: told.append(item.value),
    )
    informer.expect(body("a"))
    informer._put(("ns", "a"), Item("group", "first"))
    assert told == []
    informer._put(("ns", "a"), Item("group", "second"))
    informer.expect(body("b"))
    informer._put(("ns", "b"), Item("group", "other"))
    assert told == ["second", "other"]
    assert informer.group("group") == ["second", "other"]


def versioned(value: str, version: int) -> dict[str, Any]:
    return {"metadata": {"namespace": "ns", "name": "a", "resourceVersion": str(version)}, "value": value}


async def test_what_was_written_is_known_before_the_watch_tells_of_it_and_of_what_was_before(
    informer: Informer[str],
) -> None:
    informer.learn(versioned("never there", 1))
    assert informer.group("group") == []
    informer._put(("ns", "a"), Item("group", "first"))
    informer.learn(versioned("written", 5))
    assert informer.group("group") == ["written"]
    assert informer._is_older(versioned("before", 4))
    assert not informer._is_older(versioned("written", 5))
    assert not informer._is_older(versioned("back", 4))
