"""The budget of a node's memory: what others hold there is taken from it."""

from dataclasses import replace

import pytest

from modelweights_operator.domain import memory
from modelweights_operator.domain.admission import QUEUED_AGAIN_SECONDS
from modelweights_operator.domain.plan import make_plan
from modelweights_operator.domain.snapshot import Resident
from tests.unit.domain.plans import A, B
from tests.unit.domain.samples import NOW, POLICY, make_owner, make_snapshot, make_spec

GIB = 2**30
NODE = replace(A, memory_bytes=100 * GIB)


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


def refusal(*beside: Resident, budget: str = "80%", **prefetch: str) -> str:
    spec = make_spec(prefetch=prefetch)
    snapshot = replace(
        make_snapshot(make_owner(spec)), policy=replace(POLICY, memory_budget=budget), resident={"node-a": beside}
    )
    return memory.waits_for(NODE, spec, snapshot)


def test_nothing_begins_beside_one_of_unknown_size() -> None:
    unknown = Resident("team/new", 0, unknown=True)
    assert "size of team/new is known" in refusal(Resident("team/big", GIB), unknown)
    assert refusal(Resident("team/big", GIB)) == ""
    assert refusal(unknown, budget="") == ""
    assert refusal(unknown, mode="None") == ""


def test_a_node_with_one_of_unknown_size_is_passed_over_and_says_why() -> None:
    """Another node is tried first then: the canary takes it, and not all objects the first one by name."""
    given = make_snapshot(make_owner(make_spec(placement={"canaryNodes": 1})), nodes=(NODE, B))
    unknown = {"node-a": (Resident("team/new", 0, unknown=True),)}
    plan = make_plan(replace(given, policy=replace(POLICY, memory_budget="80%"), resident=unknown), NOW)
    assert plan.begins == ("node-b",)
    assert "nodeMemory.budget" in plan.status.nodes["node-a"].message
    assert plan.again_after_seconds == QUEUED_AGAIN_SECONDS
