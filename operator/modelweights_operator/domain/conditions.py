"""The conditions of a ModelWeights from what is known of its nodes. Called by `plan`; pure.

kstatus by the book: Available and Ready always, Reconciling and Stalled only while true and never both. `Assessment`
holds the facts; each function reads as the definition of its condition.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from modelweights_operator.api import v1alpha1 as api
from modelweights_operator.domain.clock import rfc3339

# Reasons.
NODES_STAGED: Final = "NodesStaged"
ALL_NODES_READY: Final = "AllNodesReady"
NO_NODES: Final = "NoNodes"
TOO_MANY_NODES: Final = "TooManyNodes"
NOT_ENOUGH_NODES: Final = "NotEnoughNodes"
STAGING: Final = "Staging"
STAGING_FAILED: Final = "StagingFailed"
CANARY_FAILED: Final = "CanaryFailed"
SUSPENDED: Final = "Suspended"
INVALID_SPEC: Final = "InvalidSpec"
CONFIG_MAP_CONFLICT: Final = "ConfigMapConflict"
WRITE_REFUSED: Final = "WriteRefused"

_NAMED: Final = 3


@dataclass(frozen=True)
class Trouble:
    """A node that doesn't get on, and why."""

    node: str
    reason: str
    message: str


@dataclass(frozen=True)
class Assessment:
    """What the conditions are made of.

    Attributes:
        problem: Reason and message of a fault of the object itself, which nothing but a change mends.
        conflict: Message when somebody else's object has our name.
        refused: Message when the API server refused the ConfigMap, a node label or a note on a Job.
        desired: Number of selected nodes.
        ready: Number of nodes that hold the wanted checkpoint as asked.
        holding: Number of nodes that hold the published checkpoint.
        min_available: How many of these make it available.
        published: Its digest, "" before the first.
        moving: Whether any node is being staged or waits for its turn.
        troubles: Nodes that are stuck or failed.
        canary: Message when nodes that were tried first found the checkpoint bad, and others aren't tried therefore.
        waiting: Nodes that wait, with why.
        no_nodes_hint: Why no node is selected.
        suspended: Whether the spec says so.
    """

    problem: tuple[str, str] | None = None
    conflict: str = ""
    refused: str = ""
    desired: int = 0
    ready: int = 0
    holding: int = 0
    min_available: int = 1
    published: str = ""
    moving: bool = False
    troubles: tuple[Trouble, ...] = ()
    canary: str = ""
    waiting: tuple[Trouble, ...] = ()
    no_nodes_hint: str = ""
    suspended: bool = False


def evaluate(
    facts: Assessment,
    former: Iterable[api.Condition],
    *,
    generation: int,
    now: datetime,
) -> tuple[api.Condition, ...]:
    """The conditions as they are to stand in the status; times of transition are kept where nothing changed."""
    before = {condition.type: condition for condition in former}
    ready = _ready(facts)
    stalled, reconciling = _progress(facts, ready)
    wanted = [(api.AVAILABLE, *_available(facts)), (api.READY, *ready)]
    if reconciling is not None:
        wanted.append((api.RECONCILING, True, *reconciling))
    if stalled is not None:
        wanted.append((api.STALLED, True, *stalled))
    return tuple(
        _condition(before.get(kind), kind, holds, reason, message, generation, now)
        for kind, holds, reason, message in wanted
    )


def _available(facts: Assessment) -> tuple[bool, str, str]:
    need = f"{facts.holding} of at least {facts.min_available} node(s) hold it proven"
    if facts.published and facts.holding >= facts.min_available:
        return True, NODES_STAGED, f"pods may start: {need}"
    return False, NOT_ENOUGH_NODES, f"pods wait: {need}"


def _ready(facts: Assessment) -> tuple[bool, str, str]:
    if facts.problem is not None:
        return False, *facts.problem
    if facts.desired == 0:
        return False, NO_NODES, facts.no_nodes_hint
    if facts.conflict:
        return False, CONFIG_MAP_CONFLICT, facts.conflict
    if facts.refused:
        return False, WRITE_REFUSED, f"what the operator has to write was refused: {facts.refused}"
    ratio = f"{facts.ready} of {facts.desired} node(s) ready"
    if facts.ready == facts.desired:
        return True, ALL_NODES_READY, ratio
    if facts.canary or facts.troubles:
        return False, *_trouble(facts, ratio)
    if facts.suspended:
        return False, SUSPENDED, f"{ratio}; spec.suspend is true, so nothing further is staged"
    detail = f"; {_named(facts.waiting)}" if facts.waiting else ""
    return False, STAGING, ratio + detail


def _trouble(facts: Assessment, ratio: str) -> tuple[str, str]:
    if facts.canary:
        return CANARY_FAILED, f"{ratio}; {facts.canary}"
    return facts.troubles[0].reason or STAGING_FAILED, f"{ratio}; {_named(facts.troubles)}"


def _progress(
    facts: Assessment,
    ready: tuple[bool, str, str],
) -> tuple[tuple[str, str] | None, tuple[str, str] | None]:
    """Stalled and Reconciling, at most one of them: whether something still moves decides."""
    is_ready, reason, message = ready
    if is_ready:
        return None, None
    if facts.problem is not None or facts.conflict or (facts.refused and facts.desired):
        return (reason, message), None
    if facts.moving:
        return None, (STAGING, message)
    if facts.troubles:
        return (reason, message), None
    if facts.suspended or facts.desired == 0:
        return None, None
    return None, (STAGING, message)


def _named(troubles: tuple[Trouble, ...]) -> str:
    """Nodes with the same trouble are named together, so that a fault of the checkpoint is told once."""
    alike: dict[tuple[str, str], list[str]] = {}
    for trouble in troubles:
        alike.setdefault((trouble.reason, trouble.message), []).append(trouble.node)
    clauses = [
        f"{list_some(nodes)}: {reason}" + (f": {message}" if message else "")
        for (reason, message), nodes in list(alike.items())[:_NAMED]
    ]
    return "; ".join(clauses) + ("; and more" if len(alike) > _NAMED else "")


def list_some(items: list[str]) -> str:
    """The first few names, and how many more there are."""
    more = len(items) - _NAMED
    return ", ".join(items[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _condition(
    before: api.Condition | None,
    kind: str,
    holds: bool,  # noqa: FBT001 - a condition's value
    reason: str,
    message: str,
    generation: int,
    now: datetime,
) -> api.Condition:
    status = "True" if holds else "False"
    unchanged = before is not None and before.status == status
    return api.Condition.model_validate(
        {
            "type": kind,
            "status": status,
            "reason": reason,
            "message": message[:4096],
            "observedGeneration": generation,
            "lastTransitionTime": before.last_transition_time if unchanged and before else rfc3339(now),
        }
    )
