"""When a node loses the taint that keeps pods off until it is staged. Called by `kube.startup_taints`; pure.

    tainted --ready for every ModelWeights that selects it--> free
       |  +--none selects it, for a minute------------------> free (its labels may come a little after the node)
       +-----those that it isn't ready for got stuck there ten minutes ago, or were suspended--> free, and they say so

The clock of a ModelWeights on a node begins when it first gets stuck there and runs on while it tries again. One whose plan
can't be carried out, as when a webhook refuses its status, says nothing: for ten minutes that holds all nodes, then it counts as halted
since then.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from modelweights_operator.api.v1alpha1 import Placement
from modelweights_operator.domain import placement
from modelweights_operator.domain.plan import Plan
from modelweights_operator.domain.snapshot import Node, Owner

STUCK_SECONDS: Final = 600.0
UNSELECTED_SECONDS: Final = 60.0

_FIRST_LOOK_SECONDS: Final = 2.0
"""One that no plan told of yet is planned soon."""
_MAX_LOOK_SECONDS: Final = 60.0

_NOBODY: Final = ""


@dataclass(frozen=True)
class Selector:
    """What the taint depends on of a ModelWeights.

    Attributes:
        uid: Its UID.
        namespace: Its namespace.
        name: Its name.
        generation: Of the spec that this speaks of.
        placement: Which nodes it selects; None when the spec can't be read.
        ready: Nodes that hold it as asked, with the boot under which they do.
        stuck: Nodes on which nothing moves until someone acts.
        halted: Whether nothing moves anywhere: it is suspended, or has a fault of its own.
    """

    uid: str
    namespace: str
    name: str
    generation: int
    placement: Placement | None
    ready: Mapping[str, str] = field(default_factory=dict)
    stuck: frozenset[str] = frozenset()
    halted: bool = False

    def selects(self, node: Node) -> bool:
        """Whether it is to be staged on the node."""
        if self.placement is None or not placement.selects(self.placement, node):
            return False
        return placement.untolerated(self.placement, node) is None


def selector_of(owner: Owner, plan: Plan) -> Selector:
    """What a plan that was carried out says of its ModelWeights."""
    ready = {name: entry.boot_id for name, entry in plan.status.nodes.items() if entry.state == "Ready"}
    return Selector(
        uid=owner.uid,
        namespace=owner.namespace,
        name=owner.name,
        generation=owner.generation,
        placement=owner.spec.placement if owner.spec is not None else None,
        ready=ready,
        stuck=plan.stuck,
        halted=plan.halted,
    )


Since = Mapping[str, datetime]
"""Since when, by UID."""


def since(before: Since, present: Iterable[str], now: datetime) -> dict[str, datetime]:
    """Since when all that is there has been there.

    Args:
        before: As the last call gave it.
        present: UIDs of what is there.
        now: The time.
    """
    return {uid: before.get(uid, now) for uid in present}


def overdue(unplanned: Since, now: datetime) -> frozenset[str]:
    """The ModelWeights that have been without a plan of their spec for so long that they count as halted."""
    return frozenset(uid for uid, began in unplanned.items() if (now - began).total_seconds() >= STUCK_SECONDS)


def look_again_seconds(unplanned: Since, now: datetime) -> float | None:
    """When to look again whether they have a plan: soon at first, then more and more seldom; None where there is none."""
    if not unplanned:
        return None
    youngest = min((now - began).total_seconds() for began in unplanned.values())
    return min(max(youngest / 4, _FIRST_LOOK_SECONDS), _MAX_LOOK_SECONDS)


def with_halted(
    clocks: "Clocks", halted: Iterable["Selector"], unplanned: Since, nodes: Iterable[Node], tainted: Since
) -> "Clocks":
    """The clocks with those of ModelWeights that count as halted since they have no plan: they began when that began.

    Args:
        clocks: As `decide` left them.
        halted: The overdue ones.
        unplanned: Since when they have no plan.
        nodes: All nodes.
        tainted: Since when nodes have the taint.
    """
    there = [node for node in nodes if node.uid in tainted]
    began = {
        (node.uid, model.uid): max(unplanned[model.uid], tainted[node.uid])
        for model in halted
        for node in there
        if model.selects(node)
    }
    return {**began, **clocks}


Clocks = Mapping[tuple[str, str], datetime]
"""Since when, by UID of the node and of the ModelWeights, "" for none."""


@dataclass(frozen=True)
class Outcome:
    """Nodes that lose the taint, each with those that were waited for too long; the clocks; when to look again."""

    free: Mapping[str, tuple[Selector, ...]]
    clocks: Clocks
    again_after_seconds: float | None


def is_tainted(node: Node) -> bool:
    """Whether the node has the taint, with whatever effect."""
    return any(taint.key == placement.STARTUP_TAINT for taint in node.taints)


def decide(nodes: Iterable[Node], models: Iterable[Selector], clocks: Clocks, now: datetime) -> Outcome:
    """Decide about all nodes.

    Args:
        nodes: All nodes.
        models: Every ModelWeights there is: one that is missing here would hold nothing.
        clocks: As the last call left them.
        now: The time.
    """
    models = list(models)
    free: dict[str, tuple[Selector, ...]] = {}
    running: dict[tuple[str, str], datetime] = {}
    waits: list[float] = []
    for node in filter(is_tainted, nodes):
        began = _clocks(node, models, clocks, now)
        left = {uid: _left_seconds(uid, since, now) for (_, uid), since in began.items()}
        open_ended = [model for model in _waited_for(node, models) if model.uid not in left]
        over = not open_ended and all(seconds <= 0 for seconds in left.values())
        if over and (node.ready or any(model.selects(node) for model in models)):
            free[node.name] = tuple(model for model in models if model.uid in left)
        running |= began
        waits += [seconds for seconds in left.values() if seconds > 0]
    return Outcome(free, running, min(waits, default=None))


def _waited_for(node: Node, models: Iterable[Selector]) -> list[Selector]:
    return [model for model in models if model.selects(node) and model.ready.get(node.name) != node.boot_id]


def _clocks(node: Node, models: list[Selector], clocks: Clocks, now: datetime) -> dict[tuple[str, str], datetime]:
    """The node's clocks that run now. A node that isn't ready yet has no labels to go by."""
    keys = [
        (node.uid, model.uid)
        for model in _waited_for(node, models)
        if model.halted or node.name in model.stuck or (node.uid, model.uid) in clocks
    ]
    if node.ready and not any(model.selects(node) for model in models):
        keys.append((node.uid, _NOBODY))
    return {key: clocks.get(key, now) for key in keys}


def _left_seconds(uid: str, since: datetime, now: datetime) -> float:
    limit = UNSELECTED_SECONDS if uid == _NOBODY else STUCK_SECONDS
    return limit - (now - since).total_seconds()
