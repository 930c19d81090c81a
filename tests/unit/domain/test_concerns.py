"""Which nodes concern which objects: a plan sees those alone, and what happens to a node wakes nobody else."""

from dataclasses import replace
from typing import Any

import pytest

from modelweights_operator.api import v1alpha1 as api
from modelweights_operator.domain import names
from modelweights_operator.domain.concerns import Concerns, Key
from modelweights_operator.domain.snapshot import Node, Owner
from tests.unit.domain.samples import DIGEST_A, make_entry, make_node, make_owner, make_spec, make_status, make_taint

POOL_A, POOL_B = (
    make_spec(placement={"nodeSelector": {"pool": "a"}}),
    make_spec(placement={"nodeSelector": {"pool": "b"}}),
)
A, B = make_node("a", labels={"pool": "a"}, version=5), make_node("b", labels={"pool": "b"}, version=5)


def owner(name: str, spec: api.Spec | None, *named: str) -> Owner:
    status = make_status({node: make_entry() for node in named})
    return replace(make_owner(status=status), name=name, uid=f"uid-{name}", spec=spec)


ONE, TWO = owner("one", POOL_A), owner("two", POOL_B)


@pytest.fixture
def concerns() -> Concerns:
    """Two nodes, and two objects that select one of them each."""
    concerns = Concerns()
    for node in (A, B):
        concerns.put(node)
    assert [concerns.nodes_of(each) for each in (ONE, TWO)] == [(A,), (B,)]
    return concerns


def keys(*named: str) -> set[Key]:
    return {("team", name) for name in named}


def labelled(node: Node, *owners: str, **changes: Any) -> Node:
    labels = {key: value for name in owners for key, value in names.digest_labels(f"uid-{name}", [DIGEST_A]).items()}
    return replace(node, labels={**node.labels, **labels}, version=node.version + 1, **changes)


def test_an_object_sees_the_nodes_that_it_selects_taints_aside(concerns: Concerns) -> None:
    tainted = replace(A, taints=(make_taint("gone"),))
    assert concerns.put(tainted) == keys("one")
    assert concerns.nodes_of(ONE) == (tainted,)


def test_an_object_sees_the_nodes_that_its_status_names_and_that_carry_its_label(concerns: Concerns) -> None:
    assert concerns.nodes_of(owner("one", POOL_A, "b", "gone")) == (A, B)
    assert concerns.put(replace(B, ready=False)) == keys("one", "two")
    assert concerns.nodes_of(owner("one", POOL_A)) == (A,)
    there = labelled(B, "one", ready=False)
    assert concerns.put(there) == keys("one")
    assert concerns.nodes_of(ONE) == (A, there)


def test_another_placement_is_another_choice(concerns: Concerns) -> None:
    assert concerns.nodes_of(owner("one", POOL_B)) == (B,)
    assert concerns.put(replace(A, ready=False)) == set()


@pytest.mark.parametrize("change", [{"ready": False}, {"cordoned": True}, {"boot_id": "2"}, {"memory_bytes": 9}])
def test_what_happens_to_a_node_concerns_those_that_select_it(concerns: Concerns, change: dict[str, Any]) -> None:
    assert concerns.put(replace(A, **change)) == keys("one")


def test_a_node_that_comes_moves_or_goes_concerns_those_that_select_it_before_or_after(concerns: Concerns) -> None:
    joined = make_node("c", labels={"pool": "b"})
    assert concerns.put(joined) == keys("two")
    assert concerns.nodes_of(TWO) == (B, joined)
    moved = replace(A, labels={"pool": "b"})
    assert concerns.put(moved) == keys("one", "two")
    assert (concerns.nodes_of(ONE), concerns.nodes_of(TWO)) == ((), (moved, B, joined))
    assert concerns.drop("b") == keys("two")
    assert concerns.drop("b") == set()
    assert concerns.nodes_of(TWO) == (moved, joined)


def test_a_label_of_ours_concerns_its_object_alone(concerns: Concerns) -> None:
    assert concerns.put(labelled(A, "one", "two")) == keys("one", "two")
    assert concerns.put(replace(labelled(A, "one"), version=7)) == keys("two")
    assert concerns.put(replace(labelled(A, "one", "unknown"), version=8)) == set()


def test_what_changes_nothing_here_concerns_nobody(concerns: Concerns) -> None:
    assert concerns.put(replace(A, version=6)) == set()


def test_what_is_older_than_what_is_known_is_passed_over(concerns: Concerns) -> None:
    """The answer to a write of ours comes before the watch tells of what was before it."""
    newer = labelled(A, "one")
    assert concerns.put(newer) == keys("one")
    assert concerns.put(A) == set()
    assert concerns.nodes["a"] == newer
    again = replace(A, uid="another", version=1)
    assert concerns.put(again) == keys("one")
    assert concerns.nodes["a"] == again


def test_an_object_that_went_is_concerned_by_nothing(concerns: Concerns) -> None:
    concerns.forget(("team", "one"))
    concerns.forget(("team", "never"))
    assert concerns.put(labelled(A, "one", ready=False)) == set()


def test_an_object_that_cannot_be_read_selects_nothing_and_keeps_what_it_named(concerns: Concerns) -> None:
    assert concerns.nodes_of(owner("one", None, "b")) == (B,)
    assert concerns.put(replace(A, ready=False)) == set()


def test_an_object_of_the_same_name_with_another_uid_has_labels_of_its_own(concerns: Concerns) -> None:
    again = replace(ONE, uid="uid-new")
    assert concerns.nodes_of(again) == (A,)
    assert concerns.put(labelled(B, "new")) == keys("one")
