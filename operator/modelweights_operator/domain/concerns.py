"""Which nodes concern which ModelWeights, so that a plan looks at these alone and a node wakes few. Kept by the reconciler; no I/O.

A node concerns an object that selects it by labels and name, taints aside; whose status speaks of it; or of which it carries
a label. With 1,000 objects in 500 nodes these are some ten of each other.
"""

from dataclasses import dataclass, replace

from modelweights_operator.api.v1alpha1 import Placement
from modelweights_operator.domain import names, placement
from modelweights_operator.domain.snapshot import Node, Owner

Key = tuple[str, str]


@dataclass(frozen=True)
class _Model:
    """What is known of an object: where it wants to be, on which nodes it is, and its labels' owner."""

    label_owner: str
    placement: Placement | None
    selected: frozenset[str]
    named: frozenset[str]


class Concerns:
    """All nodes, and what each object has to do with them."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self._models: dict[Key, _Model] = {}
        self._by_label: dict[str, Key] = {}
        self._labelled: dict[str, set[str]] = {}

    def nodes_of(self, owner: Owner) -> tuple[Node, ...]:
        """The nodes that concern an object as it is now, which is remembered."""
        key, label_owner = (owner.namespace, owner.name), names.node_label_owner(owner.uid)
        before = self._models.get(key)
        wanted = owner.spec.placement if owner.spec is not None else None
        if before is not None and before.placement == wanted:
            selected = before.selected
        else:
            selected = frozenset(name for name, node in self.nodes.items() if _selects(wanted, node))
        named = frozenset(owner.status.nodes)
        self._models[key] = _Model(label_owner, wanted, selected, named)
        self._by_label[label_owner] = key
        found = selected | named | self._labelled.get(label_owner, set())
        return tuple(node for name in sorted(found) if (node := self.nodes.get(name)) is not None)

    def count(self, key: Key) -> int:
        """How many nodes an object selects, or speaks of in its status."""
        model = self._models.get(key)
        return max(len(model.selected), len(model.named)) if model is not None else 0

    def forget(self, key: Key) -> None:
        """An object went."""
        model = self._models.pop(key, None)
        if model is not None and self._by_label.get(model.label_owner) == key:
            del self._by_label[model.label_owner]

    def put(self, node: Node) -> set[Key]:
        """A node came or changed: the objects that this concerns.

        What is older than what is known is passed over: answers to own writes come before the watch tells of them.
        """
        former = self.nodes.get(node.name)
        if former is not None and former.uid == node.uid and node.version < former.version:
            return set()
        self.nodes[node.name] = node
        if former == node:
            return set()
        changed = self._relabel(node.name, former, node)
        if former is not None and _same(former, node):
            # Our labels change with every staged node: that concerns the objects whose labels they are, not all of them.
            return changed
        return changed | self._select(node.name, node)

    def drop(self, name: str) -> set[Key]:
        """A node went: the objects that this concerns."""
        former = self.nodes.pop(name, None)
        if former is None:
            return set()
        return self._relabel(name, former, None) | self._select(name, None)

    def _relabel(self, name: str, former: Node | None, node: Node | None) -> set[Key]:
        before = former.staged if former is not None else {}
        after = node.staged if node is not None else {}
        changed = {owner for owner in before.keys() | after.keys() if before.get(owner) != after.get(owner)}
        for owner in changed:
            if owner in after:
                self._labelled.setdefault(owner, set()).add(name)
            else:
                self._labelled[owner].discard(name)
                if not self._labelled[owner]:
                    del self._labelled[owner]
        return {self._by_label[owner] for owner in changed if owner in self._by_label}

    def _select(self, name: str, node: Node | None) -> set[Key]:
        found = set()
        for key, model in self._models.items():
            was, now = name in model.selected, node is not None and _selects(model.placement, node)
            if was != now:
                selected = model.selected | {name} if now else model.selected - {name}
                self._models[key] = _Model(model.label_owner, model.placement, selected, model.named)
            if was or now or name in model.named:
                found.add(key)
        return found


def _selects(wanted: Placement | None, node: Node) -> bool:
    return wanted is not None and placement.selects(wanted, node)


def _same(former: Node, node: Node) -> bool:
    """Whether nothing but our labels changed."""
    return replace(former, labels=former.others_labels) == replace(node, labels=node.others_labels)
