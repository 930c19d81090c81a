"""What a cycle brought: stagings that ended, well or badly, as the status before and after tells. Called by the reconciler for the metrics."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from modelweights_operator.api.v1alpha1 import NodeStatus
from modelweights_operator.domain.snapshot import Node

_NODE_CLASS_LABELS: Final = ("node.kubernetes.io/instance-type", "nvidia.com/gpu.product")


@dataclass(frozen=True)
class Outcome:
    """A staging that ended on a node.

    Attributes:
        node_class: What kind of machine it is, "" where nothing tells.
        succeeded: Whether the node holds the checkpoint as asked since.
        reason: Why not, in one word; "" where it succeeded.
        fetched_bytes: Bytes that came over the network; those of an earlier attempt that were there aren't among them.
        fetch_seconds: For how long it fetched.
        prefetched_bytes: Bytes that were in the page cache at its end.
        prefetch_bytes_per_second: At which rate they were read, 0 where they weren't.
        load_seconds: How long ParallelLoader took, 0 where it wasn't asked to load.
    """

    node_class: str
    succeeded: bool
    reason: str = ""
    fetched_bytes: int = 0
    fetch_seconds: float = 0.0
    prefetched_bytes: int = 0
    prefetch_bytes_per_second: float = 0.0
    load_seconds: float = 0.0


def node_class(node: Node | None) -> str:
    """The instance type, as clouds label it, else the GPU's product: a handful of values in a cluster."""
    labels = node.labels if node is not None else {}
    return next((labels[key] for key in _NODE_CLASS_LABELS if labels.get(key)), "")


def ended(
    before: Mapping[str, NodeStatus], after: Mapping[str, NodeStatus], nodes: Mapping[str, Node]
) -> tuple[Outcome, ...]:
    """Stagings that ended between two statuses.

    Args:
        before: Per node name, what the status said.
        after: What it says now that it is written. A status that isn't gets no outcome, and so none is counted twice.
        nodes: The nodes by name.
    """
    found = []
    for name, entry in after.items():
        former = before.get(name)
        if former is entry:
            continue
        kind = node_class(nodes.get(name))
        if entry.state == "Ready" and (former is None or former.state != "Ready"):
            found.append(_good(kind, entry))
        elif entry.state == "Failed" and (
            former is None or former.state != "Failed" or former.attempts != entry.attempts
        ):
            found.append(Outcome(kind, succeeded=False, reason=entry.reason))
    return tuple(found)


def _good(kind: str, entry: NodeStatus) -> Outcome:
    rate = entry.prefetch_bytes_per_second
    return Outcome(
        kind,
        succeeded=True,
        fetched_bytes=entry.fetched_bytes,
        fetch_seconds=entry.fetch_seconds,
        prefetched_bytes=entry.resident_bytes if rate else 0,
        prefetch_bytes_per_second=rate,
        load_seconds=entry.load_seconds,
    )
