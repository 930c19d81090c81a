"""How much of a node's memory warm checkpoints may take, and who takes it. Called by the planner; `Residents` is kept by the reconciler.

The page cache of all ModelWeights on a node together stays within the administrator's budget: each staging and refresh is told
what is left of it. What others hold is known from their status.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from modelweights_operator.domain.conditions import list_some
from modelweights_operator.domain.sizes import human_bytes
from modelweights_operator.domain.snapshot import Node, Resident, Snapshot

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
    who = [f"{each.owner} holds {human_bytes(each.size_bytes)}" for each in beside]
    of = f" ({budget} of {human_bytes(node.memory_bytes)})" if budget.endswith("%") else ""
    others = f", of which {list_some(who)}" if who else ""
    return Bound(max(0, total - held), f"nodeMemory.budget is {human_bytes(total)}{of}{others}")


class Residents:
    """Remembers what each ModelWeights holds in the page cache of which node, as its status says."""

    def __init__(self) -> None:
        self._held: dict[str, dict[str, tuple[str, int]]] = {}

    def note(self, owner: str, body: Mapping[str, Any]) -> None:
        """A ModelWeights came or changed: as the API server gave it, since it may hold what nobody understands."""
        status = body.get("status") or {}
        mode = ((body.get("spec") or {}).get("prefetch") or {}).get("mode", "PageCache")
        sizes = [(status.get(kind) or {}).get("sizeBytes", 0) for kind in ("published", "candidate")]
        expected = next((size for size in sizes if size), 0) if mode == "PageCache" else 0
        self._held[owner] = {
            name: (str(entry.get("bootID") or ""), _held(entry, expected))
            for name, entry in (status.get("nodes") or {}).items()
        }

    def forget(self, owner: str) -> None:
        """A ModelWeights went."""
        self._held.pop(owner, None)

    def beside(self, owner: str, nodes: Mapping[str, Node]) -> dict[str, tuple[Resident, ...]]:
        """Per node name, what the others hold there, the most first.

        What was warm in another boot of the node is gone; one that is being staged has no boot yet and counts.
        """
        found: dict[str, list[Resident]] = {}
        for other, held in self._held.items():
            for name, (boot_id, size_bytes) in held.items() if other != owner else ():
                node = nodes.get(name)
                if node is not None and size_bytes and boot_id in ("", node.boot_id):
                    found.setdefault(name, []).append(Resident(other, size_bytes))
        return {
            name: tuple(sorted(each, key=lambda resident: (-resident.size_bytes, resident.owner)))
            for name, each in found.items()
        }


def _held(entry: Mapping[str, Any], expected: int) -> int:
    """What is resident; of a node that is being staged, what will be."""
    resident = entry.get("residentBytes") or 0
    return resident if resident or entry.get("state") not in ("Staging", "Ready") else expected
