"""Who takes how much of which node's memory by its page cache. Kept by the reconciler, asked by `memory`; no I/O.

What objects hold is known from their status. Of one that no node has proven yet the size comes from the log or the report of a
step of its first staging. Lost with the operator, and known again from the same places.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from modelweights_operator.domain import failures, reports, steps
from modelweights_operator.domain.clock import parse_time
from modelweights_operator.domain.snapshot import Node, Resident, StagingJob

UNKNOWN_FOR: Final = timedelta(minutes=5)
"""No longer than that one of unknown size keeps others from its node: its pod may never start."""
_BEGUN_FOR: Final = timedelta(minutes=1)
"""Within that time its status tells of a staging that begins."""


class _Held(NamedTuple):
    """What an object keeps on a node: since when its size isn't known, where it isn't."""

    boot_id: str
    size_bytes: int
    unknown_since: datetime | None = None


class _Begun(NamedTuple):
    """A staging that has just begun, and of which no status tells yet."""

    size_bytes: int
    at: datetime


def size_told(jobs: Iterable[StagingJob]) -> int:
    """The size that stagings under way tell of their checkpoint, in their log or the report of an ended step; 0 for none."""
    return max((_told(job) for job in jobs), default=0)


def _told(job: StagingJob) -> int:
    found = (reports.parse(failures.step_report(job, step)) for step in (steps.FETCH, steps.PREFETCH))
    return max((each.size_bytes for each in found if each is not None), default=0) or job.total_bytes


class Residents:
    """Remembers what each ModelWeights holds in the page cache of which node, as its status says."""

    def __init__(self) -> None:
        self._held: dict[str, dict[str, _Held]] = {}
        self._on_node: dict[str, dict[str, _Held]] = {}
        self._begun: dict[str, dict[str, _Begun]] = {}
        self._size: dict[str, int] = {}
        self._asked: dict[str, set[str]] = {}

    def note(self, owner: str, body: Mapping[str, Any]) -> None:
        """A ModelWeights came or changed: as the API server gave it, since it may hold what nobody understands."""
        status = body.get("status") or {}
        mode = ((body.get("spec") or {}).get("prefetch") or {}).get("mode", "PageCache")
        sizes = [(status.get(kind) or {}).get("sizeBytes", 0) for kind in ("published", "candidate")]
        proven = next((size for size in sizes if size), 0)
        if proven:
            self._size[owner] = proven
        entries = status.get("nodes") or {} if mode == "PageCache" else {}
        held = {name: _held(entry, self._size.get(owner, 0)) for name, entry in entries.items()}
        if "deletionTimestamp" in (body.get("metadata") or {}):
            # Its stagings end, and what they would have read nobody waits for.
            held = {name: each._replace(unknown_since=None) for name, each in held.items()}
        self._set(owner, held)
        for name, entry in entries.items():
            begun = self._begun.get(name, {}).get(owner)
            if begun is not None and _is_told(entry, begun.at):
                del self._begun[name][owner]

    def learn(self, owner: str, size_bytes: int) -> set[str]:
        """A staging under way told its size.

        Returns:
            The others that were told that it is unknown: they may wait for it.
        """
        if not size_bytes or self._size.get(owner):
            return set()
        self._size[owner] = size_bytes
        known = {
            name: held._replace(size_bytes=size_bytes, unknown_since=None) if held.unknown_since else held
            for name, held in self._held.get(owner, {}).items()
        }
        self._set(owner, known)
        return self._asked.pop(owner, set())

    def begin(self, owner: str, nodes: Iterable[str], now: datetime) -> None:
        """Stagings of an object begin on nodes, before their Jobs are made: two plans never take the same bytes."""
        for name in nodes:
            there = self._begun.get(name, {})
            fresh = {other: begun for other, begun in there.items() if now - begun.at < _BEGUN_FOR}
            self._begun[name] = {**fresh, owner: _Begun(self._size.get(owner, 0), now)}

    def forget(self, owner: str) -> None:
        """A ModelWeights went."""
        self._set(owner, {})
        self._size.pop(owner, None)
        self._asked.pop(owner, None)
        for name in [name for name, there in self._begun.items() if owner in there]:
            del self._begun[name][owner]

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

    def beside(self, owner: str, nodes: Mapping[str, Node], now: datetime) -> Mapping[str, tuple[Resident, ...]]:
        """Per node name, what the others hold there, the most first.

        What was warm in another boot of the node is gone; one that is being staged has no boot yet and counts. Each node is
        looked at when it is asked for: a plan asks for the few nodes that get a Job, of all that there are.
        """
        return _Beside(self._on_node, self._begun, self._asked, owner, nodes, now)


@dataclass(frozen=True)
class _Beside(Mapping[str, tuple[Resident, ...]]):
    """What is on each node but for one owner's. `asked` takes down who was told of an unknown one."""

    on_node: Mapping[str, Mapping[str, _Held]]
    begun: Mapping[str, Mapping[str, _Begun]]
    asked: dict[str, set[str]]
    owner: str
    nodes: Mapping[str, Node]
    now: datetime

    def __getitem__(self, name: str) -> tuple[Resident, ...]:
        here, begun, boot_id = self.on_node.get(name, {}), self.begun.get(name, {}), self.nodes[name].boot_id
        others = (here.keys() | begun.keys()) - {self.owner}
        found = [self._resident(other, here.get(other), begun.get(other), boot_id) for other in others]
        residents = [each for each in found if each is not None]
        if not residents:
            raise KeyError(name)
        for each in residents:
            if each.unknown:
                self.asked.setdefault(each.owner, set()).add(self.owner)
        return tuple(sorted(residents, key=lambda resident: (-resident.size_bytes, resident.owner)))

    def _resident(self, other: str, held: _Held | None, begun: _Begun | None, boot_id: str) -> Resident | None:
        if held is not None and held.boot_id in ("", boot_id):
            if held.size_bytes:
                return Resident(other, held.size_bytes)
            if held.unknown_since is not None:
                return Resident(other, 0, unknown=True) if self.now - held.unknown_since < UNKNOWN_FOR else None
        if begun is not None and self.now - begun.at < _BEGUN_FOR:
            return Resident(other, begun.size_bytes, unknown=not begun.size_bytes)
        return None

    def __iter__(self) -> Iterator[str]:
        return (name for name in self.on_node.keys() | self.begun.keys() if self.get(name))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _is_told(entry: Mapping[str, Any], begun_at: datetime) -> bool:
    """Whether the status tells of a staging that began then: that says from then on what the node has, also of one that failed."""
    since = parse_time(str(entry.get("lastTransitionTime") or ""))
    # Written in whole seconds: in that second it may have waited still.
    return entry.get("state") != "Waiting" and since is not None and since >= begun_at.replace(microsecond=0)


def _held(entry: Mapping[str, Any], expected: int) -> _Held:
    """What is resident; of a node that is being staged, what will be."""
    boot_id, resident = str(entry.get("bootID") or ""), entry.get("residentBytes") or 0
    if resident or entry.get("state") not in ("Staging", "Ready"):
        return _Held(boot_id, resident)
    if expected or entry.get("state") == "Ready":
        return _Held(boot_id, expected)
    return _Held(boot_id, 0, parse_time(str(entry.get("lastTransitionTime") or "")))
