"""Placement: the rules of the scheduler, so that a pinned staging pod is admitted on each selected node."""

# ruff: noqa: FBT001 - a column of a table

from typing import Any

import pytest

from modelweights_operator.api.v1alpha1 import Placement
from modelweights_operator.domain import placement
from modelweights_operator.domain.snapshot import Taint
from tests.unit.domain.samples import GPU_LABELS, make_node, make_taint


def read(**fields: Any) -> Placement:
    return Placement.model_validate(fields)


def with_terms(*terms: dict[str, Any], selector: dict[str, str] | None = None) -> Placement:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return read(nodeSelector=selector or {}, affinity={"nodeAffinity": required})


def expression(operator: str, *values: str, key: str = "size") -> dict[str, Any]:
    return {"key": key, "operator": operator, "values": list(values)}


@pytest.mark.parametrize(
    ("selector", "labels", "expected"),
    [
        ({}, {}, True),
        ({"a": "1"}, {"a": "1", "b": "2"}, True),
        ({"a": "1"}, {"a": "2"}, False),
        ({"a": "1"}, {}, False),
        ({"a": ""}, {}, False),
        ({"a": "1", "b": "2"}, {"a": "1"}, False),
    ],
)
def test_every_label_of_the_selector_is_needed(
    selector: dict[str, str], labels: dict[str, str], expected: bool
) -> None:
    assert placement.selects(read(nodeSelector=selector), make_node(labels=labels)) == expected


def test_gpu_nodes_are_the_default() -> None:
    assert placement.selects(read(), make_node(labels=GPU_LABELS))
    assert not placement.selects(read(), make_node(labels={}))


@pytest.mark.parametrize(
    ("requirement", "value", "expected"),
    [
        (expression("In", "4", "8"), "8", True),
        (expression("In", "4"), "8", False),
        (expression("In", "4"), None, False),
        (expression("NotIn", "4"), "8", True),
        (expression("NotIn", "4"), "4", False),
        (expression("NotIn", "4"), None, True),
        (expression("Exists"), "", True),
        (expression("Exists"), None, False),
        (expression("DoesNotExist"), None, True),
        (expression("DoesNotExist"), "", False),
        (expression("Gt", "4"), "5", True),
        (expression("Gt", "4"), "4", False),
        (expression("Lt", "4"), "-3", True),
        (expression("Lt", "4"), "4", False),
        (expression("Gt", "4"), "many", False),
        (expression("Gt", "x"), "5", False),
        (expression("Gt"), "5", False),
        (expression("Lt", "4"), None, False),
    ],
)
def test_affinity_operators(requirement: dict[str, Any], value: str | None, expected: bool) -> None:
    node = make_node(labels={} if value is None else {"size": value})
    assert placement.selects(with_terms({"matchExpressions": [requirement]}), node) == expected


@pytest.mark.parametrize(
    ("terms", "expected"),
    [
        ([{"matchFields": [expression("In", "node-a", key="metadata.name")]}], True),
        ([{"matchFields": [expression("NotIn", "node-a", key="metadata.name")]}], False),
        ([{"matchFields": [expression("In", "node-a", key="metadata.uid")]}], False),
        ([{}], False),
        ([{}, {"matchExpressions": [expression("Exists")]}], True),
        ([{"matchExpressions": [expression("Exists"), expression("In", "9")]}], False),
        ([{"matchExpressions": [expression("In", "9")]}, {"matchExpressions": [expression("In", "8")]}], True),
        (
            [
                {
                    "matchExpressions": [expression("Exists")],
                    "matchFields": [expression("In", "node-b", key="metadata.name")],
                }
            ],
            False,
        ),
    ],
)
def test_terms_are_joined_by_or_and_their_requirements_by_and(terms: list[dict[str, Any]], expected: bool) -> None:
    assert placement.selects(with_terms(*terms), make_node(labels={"size": "8"})) == expected


def test_selector_and_affinity_must_both_hold() -> None:
    both = with_terms({"matchExpressions": [expression("Exists")]}, selector={"a": "1"})
    assert not placement.selects(both, make_node(labels={"size": "8"}))
    assert not placement.selects(both, make_node(labels={"a": "1"}))
    assert placement.selects(both, make_node(labels={"a": "1", "size": "8"}))


TAINT = make_taint("team", "red")


@pytest.mark.parametrize(
    ("toleration", "expected"),
    [
        ({"key": "team", "value": "red"}, None),
        ({"key": "team", "value": "blue"}, TAINT),
        ({"key": "team", "operator": "Exists"}, None),
        ({"key": "other", "operator": "Exists"}, TAINT),
        ({"operator": "Exists"}, None),
        ({"operator": "Exists", "effect": "NoExecute"}, TAINT),
        ({"key": "team", "operator": "Exists", "effect": "NoSchedule"}, None),
    ],
)
def test_a_lasting_taint_must_be_tolerated(toleration: dict[str, str], expected: Taint | None) -> None:
    assert placement.untolerated(read(tolerations=[toleration]), make_node(taints=(TAINT,))) == expected


@pytest.mark.parametrize(
    "taint",
    [
        make_taint("nvidia.com/gpu", "present"),
        make_taint("modelweights.io/unstaged"),
        make_taint("soft", effect="PreferNoSchedule"),
        make_taint("node.kubernetes.io/not-ready", effect="NoExecute"),
        make_taint("node.kubernetes.io/unschedulable"),
        make_taint("node.cloudprovider.kubernetes.io/uninitialized", "true"),
        make_taint("ToBeDeletedByClusterAutoscaler", "1700000000"),
    ],
)
def test_gpu_taints_and_those_that_kubernetes_takes_off_again_do_not_deselect(taint: Taint) -> None:
    assert placement.untolerated(read(), make_node(taints=(taint,))) is None


def test_the_first_lasting_taint_is_named() -> None:
    taints = (make_taint("nvidia.com/gpu"), TAINT, make_taint("other"))
    assert placement.untolerated(read(), make_node(taints=taints)) == TAINT


@pytest.mark.parametrize(
    ("asked", "nodes", "expected"),
    [(1, 0, 1), (3, 500, 3), (3, 2, 3), ("80%", 10, 8), ("80%", 9, 8), ("1%", 1, 1), ("1%", 0, 1), ("100%", 7, 7), ("7%", 100, 7)],
)  # fmt: skip
def test_a_percentage_is_rounded_up_and_never_none(asked: int | str, nodes: int, expected: int) -> None:
    assert placement.least_available(read(minAvailableNodes=asked), nodes) == expected


@pytest.mark.parametrize(
    ("desired", "holding", "former", "expected"),
    [
        (10, 0, None, 10),
        (10, 8, None, 10),
        # Ten more join while eight hold it: these don't count yet, also when one of the ten goes.
        (20, 8, 10, 10),
        (19, 8, 10, 10),
        (20, 15, 10, 10),
        (20, 16, 10, 20),
        # Nodes go: at once.
        (6, 5, 10, 6),
        # It isn't available any more: then all count.
        (20, 7, 10, 20),
        # From nothing.
        (0, 0, 4, 0),
        (4, 0, 0, 4),
    ],
)
def test_nodes_that_join_count_for_a_percentage_once_enough_hold_it(
    desired: int, holding: int, former: int | None, expected: int
) -> None:
    found = placement.counted_nodes(read(minAvailableNodes="80%"), desired=desired, holding=holding, former=former)
    assert found == expected


def test_a_number_counts_no_nodes() -> None:
    assert placement.counted_nodes(read(minAvailableNodes=2), desired=5, holding=1, former=3) is None


@pytest.mark.parametrize("least", [0, 2001, "0%", "101%", "8.5%"])
def test_what_is_neither_a_number_of_nodes_nor_a_percentage_is_refused(least: int | str) -> None:
    with pytest.raises(ValueError, match="minAvailableNodes"):
        read(minAvailableNodes=least)
