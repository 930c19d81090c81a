"""Which nodes a ModelWeights selects. Called by the planner; pure.

The rules are those of the scheduler (node selector, required node affinity, taints), so that a staging pod pinned to a
selected node is always admitted there.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from modelweights_operator.api.v1alpha1 import (
    LabelSelectorRequirement,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    Placement,
    Toleration,
)
from modelweights_operator.domain.snapshot import Node, Taint

DEFAULT_TOLERATIONS: Final = (Toleration(key="nvidia.com/gpu", operator="Exists"),)

# Taints that Kubernetes itself puts on a node in trouble and takes off again: such a node stays selected and waits.
_TRANSIENT_PREFIXES: Final = (
    "node.kubernetes.io/",
    "node.cloudprovider.kubernetes.io/",
    "ToBeDeletedByClusterAutoscaler",
)
STARTUP_TAINT: Final = "modelweights.io/unstaged"


def tolerations(placement: Placement) -> tuple[Toleration, ...]:
    """The tolerations of staging pods: the resource's and the default ones."""
    return (*placement.tolerations, *DEFAULT_TOLERATIONS, Toleration(key=STARTUP_TAINT, operator="Exists"))


def selects(placement: Placement, node: Node) -> bool:
    """Whether the node's labels and name match; taints aside."""
    if any(node.labels.get(key) != value for key, value in placement.node_selector.items()):
        return False
    affinity = placement.affinity and placement.affinity.node_affinity
    required = affinity and affinity.required_during_scheduling_ignored_during_execution
    return not required or any(_term_matches(term, node) for term in required.node_selector_terms)


def untolerated(placement: Placement, node: Node) -> Taint | None:
    """The first lasting taint of the node that staging doesn't tolerate, or None."""
    if not node.taints:
        return None
    allowed = tolerations(placement)
    for taint in node.taints:
        if taint.effect == "PreferNoSchedule" or taint.key.startswith(_TRANSIENT_PREFIXES):
            continue
        if not any(_tolerates(toleration, taint) for toleration in allowed):
            return taint
    return None


def least_available(placement: Placement, nodes: int) -> int:
    """How many of so many nodes `minAvailableNodes` asks for: at least one."""
    least = placement.min_available_nodes
    if isinstance(least, int):
        return least
    return max(1, math.ceil(int(least.removesuffix("%")) * nodes / 100))


def counted_nodes(placement: Placement, *, desired: int, holding: int, former: int | None) -> int | None:
    """Of how many nodes a percentage is taken from now on; None where a number is asked for.

    A node that joins holds nothing yet: it would make unavailable what is there. So while enough of those that counted so
    far hold it, the others count only once as many hold it as all of them ask for. Who goes counts no longer at once.

    Args:
        placement: What is asked for.
        desired: Number of selected nodes.
        holding: How many hold the published checkpoint.
        former: What counted so far, None when that isn't known.
    """
    if isinstance(placement.min_available_nodes, int):
        return None
    fewer = min(desired, former) if former is not None else desired
    enough, enough_of_all = (least_available(placement, nodes) for nodes in (fewer, desired))
    return fewer if enough <= holding < enough_of_all else desired


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.operator == "Exists":
        return toleration.key in ("", taint.key)
    return toleration.key == taint.key and toleration.value == taint.value


def _term_matches(term: NodeSelectorTerm, node: Node) -> bool:
    if not term.match_expressions and not term.match_fields:
        return False
    fields = {"metadata.name": node.name}
    return _all_match(term.match_expressions, node.labels.get) and _all_match(term.match_fields, fields.get)


def _all_match(requirements: Iterable[NodeSelectorRequirement], get: "_Getter") -> bool:
    return all(matches(requirement, get(requirement.key)) for requirement in requirements)


def matches(requirement: NodeSelectorRequirement | LabelSelectorRequirement, actual: str | None) -> bool:
    """Whether a label, None where there is none, is as a requirement has it: a node's as the scheduler sees it, or another object's."""
    match requirement.operator:
        case "In":
            return actual is not None and actual in requirement.values
        case "NotIn":
            return actual is None or actual not in requirement.values
        case "Exists":
            return actual is not None
        case "DoesNotExist":
            return actual is None
        case "Gt" | "Lt":
            return _compares(requirement.operator, requirement.values, actual)


def _compares(operator: str, values: Sequence[str], actual: str | None) -> bool:
    """Integers as the scheduler compares them; anything else doesn't match."""
    try:
        number, bound = int(actual or ""), int(values[0])
    except (ValueError, IndexError):
        return False
    return number > bound if operator == "Gt" else number < bound


class _Getter(Protocol):
    def __call__(self, key: str, /) -> str | None: ...
