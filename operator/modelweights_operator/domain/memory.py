"""How much of a node's memory warm checkpoints may take, and who takes it. Called by the planner; `Residents` is kept by the reconciler.

The page cache of all ModelWeights on a node together stays within the administrator's budget: each staging and refresh is told
what is left of it. What others hold is known from their status.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from modelweights_operator.domain.conditions import list_some
from modelweights_operator.domain.sizes import human_bytes
from modelweights_operator.domain.snapshot import Node, Resident, Snapshot

_PERCENT: Final = 100

_Held = tuple[str, int]
"""Boot, and bytes."""


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
        self._held: dict[str, dict[str, _Held]] = {}
        self._on_node: dict[str, dict[str, _Held]] = {}

    def note(self, owner: str, body: Mapping[str, Any]) -> None:
        """A ModelWeights came or changed: as the API server gave it, since it may hold what nobody understands."""
        status = body.get("status") or {}
        mode = ((body.get("spec") or {}).get("prefetch") or {}).get("mode", "PageCache")
        sizes = [(status.get(kind) or {}).get("sizeBytes", 0) for kind in ("published", "candidate")]
        expected = next((size for size in sizes if size), 0) if mode == "PageCache" else 0
        self._set(
            owner,
            {
                name: (str(entry.get("bootID") or ""), _held(entry, expected))
                for name, entry in (status.get("nodes") or {}).items()
            },
        )

    def forget(self, owner: str) -> None:
        """A ModelWeights went."""
        self._set(owner, {})

    def _set(self, owner: str, held: dict[str, _Held]) -> None:
        before = self._held.pop(owner, {})
        if held:
            self._held[owner] = held
        for name in before.keys() - held.keys():
            del self._on_node[name][owner]
            if not self._on_node[name]:
                del self._on_node[name]
        for name, here in held.items():
            if before.get(name) != here:
                self._on_node.setdefault(name, {})[owner] = here

    def beside(self, owner: str, nodes: Mapping[str, Node]) -> Mapping[str, tuple[Resident, ...]]:
        """Per node name, what the others hold there, the most first.

        What was warm in another boot of the node is gone; one that is being staged has no boot yet and counts. Each node is
        looked at when it is asked for: a plan asks for the few nodes that get a Job, of all that there are.
        """
        return _Beside(self._on_node, owner, nodes)


class _Beside(Mapping[str, tuple[Resident, ...]]):
    """What is on each node but for one owner's."""

    def __init__(self, on_node: Mapping[str, Mapping[str, _Held]], owner: str, nodes: Mapping[str, Node]) -> None:
        self._on_node, self._owner, self._nodes = on_node, owner, nodes

    def __getitem__(self, name: str) -> tuple[Resident, ...]:
        node, here = self._nodes[name], self._on_node[name]
        found = [
            Resident(other, size_bytes)
            for other, (boot_id, size_bytes) in here.items()
            if other != self._owner and size_bytes and boot_id in ("", node.boot_id)
        ]
        if not found:
            raise KeyError(name)
        return tuple(sorted(found, key=lambda resident: (-resident.size_bytes, resident.owner)))

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._on_node if self.get(name))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _held(entry: Mapping[str, Any], expected: int) -> int:
    """What is resident; of a node that is being staged, what will be."""
    resident = entry.get("residentBytes") or 0
    return resident if resident or entry.get("state") not in ("Staging", "Ready") else expected
