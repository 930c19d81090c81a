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
