"""How much of a node's memory warm checkpoints may take. Called by the planner; what others take there, `residents` knows.

The page cache of all ModelWeights on a node together stays within the administrator's budget: each staging and refresh is told
what is left of it, and none begins while that can't be told.
"""

from dataclasses import dataclass
from typing import Final

from modelweights_operator.api import v1alpha1 as api
from modelweights_operator.domain.conditions import list_some
from modelweights_operator.domain.sizes import human_bytes
from modelweights_operator.domain.snapshot import Node, Snapshot

_PERCENT: Final = 100


@dataclass(frozen=True)
class Bound:
    """How many bytes one checkpoint may keep in the page cache of a node, and why not more."""

    size_bytes: int
    because: str


def bound(node: Node, snapshot: Snapshot) -> Bound | None:
    """What is left of the node's budget for this object; None where there is no budget, or the node says no capacity."""
    budget = snapshot.policy.memory_budget
    if not budget or (budget.endswith("%") and not node.memory_bytes):
        return None
    percent = budget.removesuffix("%")
    total = node.memory_bytes * int(percent) // _PERCENT if budget.endswith("%") else int(budget)
    beside = snapshot.resident.get(node.name, ())
    held = sum(each.size_bytes for each in beside)
    who = [f"{each.owner} holds {human_bytes(each.size_bytes)}" for each in beside if each.size_bytes]
    of = f" ({budget} of {human_bytes(node.memory_bytes)})" if budget.endswith("%") else ""
    others = f", of which {list_some(who)}" if who else ""
    return Bound(max(0, total - held), f"nodeMemory.budget is {human_bytes(total)}{of}{others}")


def waits_for(node: Node, spec: api.Spec, snapshot: Snapshot) -> str:
    """Why nothing of this object can begin on a node until it is known how much is left there; "" when it can."""
    if spec.prefetch.mode != "PageCache" or bound(node, snapshot) is None:
        return ""
    unknown = [each.owner for each in snapshot.resident.get(node.name, ()) if each.unknown]
    if not unknown:
        return ""
    return (
        f"waits until the size of {list_some(unknown)} is known, which is staged there for the first time: "
        "nodeMemory.budget is for all of them together"
    )
