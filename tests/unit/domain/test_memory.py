"""The budget of a node's memory: what others hold there is taken from it."""

from dataclasses import replace
from typing import Any

import pytest

from modelweights_operator.domain import memory
from modelweights_operator.domain.memory import Residents
from modelweights_operator.domain.snapshot import Resident
from tests.unit.domain.plans import A, B
from tests.unit.domain.samples import POLICY, make_snapshot

GIB = 2**30
NODE = replace(A, memory_bytes=100 * GIB)
NODES = {"node-a": NODE, "node-b": B}


def bound(budget: str, *beside: Resident, memory_bytes: int = 100 * GIB) -> memory.Bound | None:
    snapshot = replace(make_snapshot(), policy=replace(POLICY, memory_budget=budget), resident={"node-a": beside})
    return memory.bound(replace(A, memory_bytes=memory_bytes), snapshot)


@pytest.mark.parametrize(
    ("budget", "expected"), [("80%", 80 * GIB), ("100%", 100 * GIB), (str(10 * GIB), 10 * GIB), ("1%", GIB)]
)
def test_percent_of_the_capacity_or_bytes(budget: str, expected: int) -> None:
    found = bound(budget)
    assert found is not None
    assert found.size_bytes == expected


def test_without_a_budget_or_a_capacity_there_is_no_bound() -> None:
    assert bound("") is None
    assert bound("80%", memory_bytes=0) is None
    assert bound(str(GIB), memory_bytes=0) is not None


def test_what_others_hold_is_taken_away_and_they_are_named() -> None:
    found = bound("80%", Resident("team/big", 30 * GIB), Resident("team/small", 20 * GIB))
    assert found is not None
    assert found.size_bytes == 30 * GIB
    assert found.because == (
        "nodeMemory.budget is 80Gi (80% of 100Gi), of which team/big holds 30Gi, team/small holds 20Gi"
    )


def test_there_is_never_less_than_nothing() -> None:
    found = bound("10%", Resident("team/big", 30 * GIB))
    assert found is not None
    assert found.size_bytes == 0


def body(entry: dict[str, Any], **changes: Any) -> dict[str, Any]:
    status = {"nodes": {"node-a": {"bootID": A.boot_id, **entry}}, "published": {"sizeBytes": 7}}
    return {"spec": {}, "status": status, **changes}


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"state": "Ready", "residentBytes": 5}, 5),
        ({"state": "Failed", "reason": "ResidencyLost", "residentBytes": 3}, 3),
        ({"state": "Ready"}, 7),
        ({"state": "Staging"}, 7),
        ({"state": "Staging", "bootID": ""}, 7),
        ({"state": "Failed"}, 0),
        ({"state": "Waiting"}, 0),
        ({"state": "Ready", "residentBytes": 5, "bootID": "another"}, 0),
    ],
)
def test_what_a_status_says_of_a_node(entry: dict[str, Any], expected: int) -> None:
    residents = Residents()
    residents.note("team/other", body(entry))
    found = residents.beside("team/llama", NODES).get("node-a", ())
    assert sum(each.size_bytes for each in found) == expected


def test_a_checkpoint_that_is_not_read_takes_nothing() -> None:
    residents = Residents()
    residents.note("team/other", body({"state": "Staging"}, spec={"prefetch": {"mode": "None"}}))
    assert residents.beside("team/llama", NODES) == {}


def test_an_object_is_not_beside_itself_and_one_that_went_is_forgotten() -> None:
    residents = Residents()
    residents.note("team/llama", body({"state": "Ready", "residentBytes": 5}))
    assert residents.beside("team/llama", NODES) == {}
    assert residents.beside("team/other", NODES) == {"node-a": (Resident("team/llama", 5),)}
    residents.forget("team/llama")
    assert residents.beside("team/other", NODES) == {}


def test_an_object_that_has_no_status_yet_and_a_node_that_is_gone_hold_nothing() -> None:
    residents = Residents()
    residents.note("team/new", {"spec": {}})
    residents.note("team/other", body({"state": "Ready", "residentBytes": 5}))
    assert residents.beside("team/llama", {"node-b": B}) == {}
