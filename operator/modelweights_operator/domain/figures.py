"""A ModelWeights in numbers, as its status tells: what the gauges of `metrics` show. Kept by the reconciler; no I/O."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

STATES = ("Waiting", "Staging", "Ready", "Failed")


@dataclass(frozen=True)
class Figures:
    """One object.

    Attributes:
        conditions: Per type, whether it holds; those that aren't there are missing.
        nodes: Per state, how many nodes are in it.
        size_bytes: Of the published checkpoint, 0 before there is one.
        resident_bytes: In the page caches of all nodes that are ready, together, as last measured.
        least_resident: What the ready node with the least of it has, as a part of the checkpoint from 0 to 1; None where there is
            no such node, or nothing is kept there.
        suspended: Whether it is told to stage nothing.
    """

    conditions: Mapping[str, bool] = field(default_factory=dict)
    nodes: Mapping[str, int] = field(default_factory=dict)
    size_bytes: int = 0
    resident_bytes: int = 0
    least_resident: float | None = None
    suspended: bool = False


def figures_of(body: Mapping[str, Any]) -> Figures:
    """An object as the API server gave it: what nobody understands counts as not there."""
    spec, status = _map(body.get("spec")), _map(body.get("status"))
    entries = [_map(entry) for entry in _map(status.get("nodes")).values()]
    size_bytes = _number(_map(status.get("published")).get("sizeBytes"))
    resident = [_number(entry.get("residentBytes")) for entry in entries if entry.get("state") == "Ready"]
    warm = _map(spec.get("prefetch")).get("mode", "PageCache") == "PageCache"
    states = Counter(str(entry.get("state")) for entry in entries)
    return Figures(
        conditions={
            str(each.get("type")): each.get("status") == "True" for each in map(_map, status.get("conditions") or ())
        },
        nodes={state: states[state] for state in STATES},
        size_bytes=size_bytes,
        resident_bytes=sum(resident),
        least_resident=min(min(resident) / size_bytes, 1.0) if warm and resident and size_bytes else None,
        suspended=spec.get("suspend") is True,
    )


def _map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0
