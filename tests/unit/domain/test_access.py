"""Which other namespaces' pods may require a ModelWeights."""

from typing import Any

import pytest

from modelweights_operator.api.v1alpha1 import Access
from modelweights_operator.domain.access import NamespaceLabels, allows

LABELS = NamespaceLabels("web", {"tier": "gold", "team": "web"})


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": values}]}


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        (None, False),
        ({}, True),
        ({"matchLabels": {"tier": "gold"}}, True),
        ({"matchLabels": {"tier": "lead"}}, False),
        ({"matchLabels": {"tier": "gold", "closed": ""}}, False),
        (expression("tier", "In", "lead", "gold"), True),
        (expression("tier", "In", "lead"), False),
        (expression("closed", "In", "no"), False),
        (expression("tier", "NotIn", "lead"), True),
        (expression("tier", "NotIn", "gold"), False),
        (expression("closed", "NotIn", "yes"), True),
        (expression("team", "Exists"), True),
        (expression("closed", "Exists"), False),
        (expression("closed", "DoesNotExist"), True),
        (expression("team", "DoesNotExist"), False),
        ({"matchLabels": {"tier": "gold"}, **expression("team", "DoesNotExist")}, False),
    ],
)
def test_a_namespace_is_let_in_by_its_labels(selector: dict[str, Any] | None, *, expected: bool) -> None:
    access = Access.model_validate({"namespaceSelector": selector})
    assert allows(access, LABELS) is expected


def test_nobody_is_let_in_whose_labels_are_not_known() -> None:
    assert not allows(Access.model_validate({"namespaceSelector": {}}), None)


@pytest.mark.parametrize(
    ("operator", "values"), [("In", []), ("NotIn", []), ("Exists", ["a"]), ("DoesNotExist", ["a"])]
)
def test_values_that_do_not_fit_the_operator_are_refused(operator: str, values: list[str]) -> None:
    requirement = {"key": "a", "operator": operator, "values": values}
    with pytest.raises(ValueError, match="operators In and NotIn need values"):
        Access.model_validate({"namespaceSelector": {"matchExpressions": [requirement]}})
