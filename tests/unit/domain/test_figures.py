"""An object in numbers: as its status tells, and nothing of what can't be understood."""

from typing import Any

import pytest

from modelweights_operator.domain.figures import Figures, figures_of

NONE = {"Waiting": 0, "Staging": 0, "Ready": 0, "Failed": 0}


def body(nodes: dict[str, Any] | None = None, spec: dict[str, Any] | None = None, **status: Any) -> dict[str, Any]:
    return {"spec": spec or {}, "status": {"nodes": nodes or {}, **status}}


def test_what_a_status_tells() -> None:
    nodes = {
        "a": {"state": "Ready", "residentBytes": 1000},
        "b": {"state": "Ready", "residentBytes": 400},
        "c": {"state": "Staging", "residentBytes": 7},
        "d": {"state": "Failed"},
    }
    conditions = [{"type": "Available", "status": "True"}, {"type": "Ready", "status": "False"}]
    found = figures_of(body(nodes, {"suspend": True}, published={"sizeBytes": 1000}, conditions=conditions))
    assert found == Figures(
        {"Available": True, "Ready": False},
        {**NONE, "Ready": 2, "Staging": 1, "Failed": 1},
        1000,
        1400,
        0.4,
        suspended=True,
    )


@pytest.mark.parametrize(
    ("nodes", "spec", "size"),
    [
        ({}, {}, 1000),
        ({"a": {"state": "Staging", "residentBytes": 5}}, {}, 1000),
        ({"a": {"state": "Ready", "residentBytes": 5}}, {}, 0),
        ({"a": {"state": "Ready"}}, {"prefetch": {"mode": "None"}}, 1000),
    ],
)
def test_where_nothing_is_kept_in_memory_there_is_no_least(
    nodes: dict[str, Any], spec: dict[str, Any], size: int
) -> None:
    assert figures_of(body(nodes, spec, published={"sizeBytes": size})).least_resident is None


def test_pages_beyond_the_checkpoint_are_no_more_than_all_of_it() -> None:
    found = figures_of(body({"a": {"state": "Ready", "residentBytes": 1001}}, published={"sizeBytes": 1000}))
    assert found.least_resident == 1.0


@pytest.mark.parametrize(
    "broken",
    [{}, {"status": None}, {"status": {"nodes": None, "conditions": None}}, {"spec": 5, "status": {"nodes": {"a": 5}}}],
)
def test_what_nobody_understands_counts_as_not_there(broken: dict[str, Any]) -> None:
    assert figures_of(broken) == Figures(nodes=NONE)
