"""Conditions follow kstatus in every row: the same numbered checks are made of all of them."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelweights_operator.api import v1alpha1 as api
from modelweights_operator.domain import conditions
from modelweights_operator.domain.clock import rfc3339
from modelweights_operator.domain.conditions import Assessment, Trouble
from tests.unit.domain.samples import DIGEST_A, NOW

GENERATION = 7


def check_kstatus(found: tuple[api.Condition, ...], generation: int) -> dict[str, api.Condition]:
    """The invariants that tools such as Argo CD and Flux rely on; returns the conditions by type."""
    by_type = {condition.type: condition for condition in found}
    # 1. Each type once, and none but the four.
    assert len(by_type) == len(found)
    assert by_type.keys() <= {"Available", "Ready", "Reconciling", "Stalled"}
    # 2. Available and Ready are always there.
    assert {"Available", "Ready"} <= by_type.keys()
    # 3. Reconciling and Stalled are there only while true.
    assert all(by_type[kind].status == "True" for kind in ("Reconciling", "Stalled") if kind in by_type)
    # 4. Never both, and neither beside Ready=True.
    abnormal = {"Reconciling", "Stalled"} & by_type.keys()
    assert len(abnormal) <= 1
    assert not abnormal or by_type["Ready"].status != "True"
    # 5. Each speaks of the present generation, has a reason and a time.
    for condition in found:
        assert condition.observed_generation == generation
        assert condition.reason
        assert condition.last_transition_time
    return by_type


STUCK = Trouble("node-a", "BadHeader", "a.safetensors: short header")
FULL = Assessment(desired=2, ready=2, holding=2, published=DIGEST_A)
PARTLY = Assessment(desired=2, ready=1, holding=1, published=DIGEST_A, moving=True)

ROWS = [
    ("all ready", FULL, {"Available": "NodesStaged", "Ready": "AllNodesReady"}),
    (
        "one node joins",
        PARTLY,
        {"Available": "NodesStaged", "Ready": "Staging", "Reconciling": "Staging"},
    ),
    (
        "first staging",
        Assessment(desired=2, moving=True),
        {"Available": "NotEnoughNodes", "Ready": "Staging", "Reconciling": "Staging"},
    ),
    (
        "one stuck, another moves",
        replace(PARTLY, troubles=(STUCK,)),
        {"Available": "NodesStaged", "Ready": "BadHeader", "Reconciling": "Staging"},
    ),
    (
        "one stuck, nothing moves",
        replace(PARTLY, troubles=(STUCK,), moving=False),
        {"Available": "NodesStaged", "Ready": "BadHeader", "Stalled": "BadHeader"},
    ),
    (
        "a trouble without a reason",
        Assessment(desired=1, troubles=(Trouble("node-a", "", ""),)),
        {"Available": "NotEnoughNodes", "Ready": "StagingFailed", "Stalled": "StagingFailed"},
    ),
    (
        "no nodes",
        Assessment(no_nodes_hint="label them"),
        {"Available": "NotEnoughNodes", "Ready": "NoNodes"},
    ),
    (
        "suspended half way",
        replace(PARTLY, moving=False, suspended=True),
        {"Available": "NodesStaged", "Ready": "Suspended"},
    ),
    (
        "suspended when all was ready",
        replace(FULL, suspended=True),
        {"Available": "NodesStaged", "Ready": "AllNodesReady"},
    ),
    (
        "invalid spec while nodes hold it",
        replace(FULL, problem=("InvalidSpec", "spec.source: missing")),
        {"Available": "NodesStaged", "Ready": "InvalidSpec", "Stalled": "InvalidSpec"},
    ),
    (
        "someone else's ConfigMap",
        replace(FULL, conflict="ConfigMap team/llama exists"),
        {"Available": "NodesStaged", "Ready": "ConfigMapConflict", "Stalled": "ConfigMapConflict"},
    ),
    (
        "fewer hold it than pods need",
        replace(FULL, min_available=3),
        {"Available": "NotEnoughNodes", "Ready": "AllNodesReady"},
    ),
    (
        "nodes hold it but none is published",
        replace(FULL, published=""),
        {"Available": "NotEnoughNodes", "Ready": "AllNodesReady"},
    ),
]


@pytest.mark.parametrize(("facts", "expected"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_conditions(facts: Assessment, expected: dict[str, str]) -> None:
    found = check_kstatus(conditions.evaluate(facts, (), generation=GENERATION, now=NOW), GENERATION)
    assert {kind: condition.reason for kind, condition in found.items()} == expected
    assert (found["Available"].status == "True") == (expected["Available"] == "NodesStaged")
    assert (found["Ready"].status == "True") == (expected["Ready"] == "AllNodesReady")


names_ = st.sampled_from(["node-a", "node-b", "node-c", "node-d", "node-e"])
troubles = st.lists(st.builds(Trouble, names_, st.text(max_size=5), st.text(max_size=5)), max_size=5).map(tuple)
assessments = st.builds(
    Assessment,
    problem=st.none() | st.just(("InvalidSpec", "x")),
    conflict=st.sampled_from(["", "taken"]),
    refused=st.sampled_from(["", "quota"]),
    desired=st.integers(0, 3),
    ready=st.integers(0, 3),
    holding=st.integers(0, 3),
    min_available=st.integers(1, 3),
    published=st.sampled_from(["", DIGEST_A]),
    moving=st.booleans(),
    troubles=troubles,
    waiting=troubles,
    no_nodes_hint=st.just("hint"),
    suspended=st.booleans(),
)


@given(assessments)
def test_the_invariants_hold_whatever_the_facts(facts: Assessment) -> None:
    found = check_kstatus(conditions.evaluate(facts, (), generation=GENERATION, now=NOW), GENERATION)
    assert (found["Available"].status == "True") <= (facts.holding >= facts.min_available and bool(facts.published))
    assert (found["Ready"].status == "True") <= (facts.desired > 0 and facts.ready == facts.desired)


def test_the_time_of_a_transition_stays_while_the_status_does() -> None:
    before = conditions.evaluate(PARTLY, (), generation=1, now=NOW)
    after = conditions.evaluate(
        replace(PARTLY, ready=2, moving=False), before, generation=2, now=NOW + timedelta(minutes=5)
    )
    times = {condition.type: condition.last_transition_time for condition in after}
    assert times == {"Available": rfc3339(NOW), "Ready": rfc3339(NOW + timedelta(minutes=5))}


def test_nothing_changed_means_equal_conditions() -> None:
    before = conditions.evaluate(PARTLY, (), generation=1, now=NOW)
    assert conditions.evaluate(PARTLY, before, generation=1, now=NOW + timedelta(hours=1)) == before


def ready_message(facts: Assessment) -> str:
    found = conditions.evaluate(facts, (), generation=1, now=NOW)
    return next(condition.message for condition in found if condition.type == "Ready")


def test_nodes_with_the_same_trouble_are_told_together() -> None:
    alike = tuple(Trouble(f"node-{letter}", "BadHeader", "a.st: short") for letter in "abcde")
    facts = Assessment(desired=5, troubles=alike)
    assert ready_message(facts) == "0 of 5 node(s) ready; node-a, node-b, node-c and 2 more: BadHeader: a.st: short"


def test_at_most_three_kinds_of_trouble_are_told() -> None:
    many = tuple(Trouble(f"node-{letter}", f"Reason{letter}", "") for letter in "abcd")
    message = ready_message(Assessment(desired=4, troubles=many))
    assert message == "0 of 4 node(s) ready; node-a: Reasona; node-b: Reasonb; node-c: Reasonc; and more"


def test_what_nodes_wait_for_is_told() -> None:
    facts = Assessment(desired=1, moving=True, waiting=(Trouble("node-a", "NodeCordoned", "the node is cordoned"),))
    assert ready_message(facts) == "0 of 1 node(s) ready; node-a: NodeCordoned: the node is cordoned"


def test_messages_are_bounded() -> None:
    many = tuple(Trouble("n" * 200, f"{index}", "m" * 3000) for index in range(3))
    assert len(ready_message(Assessment(desired=3, troubles=many))) == 4096
