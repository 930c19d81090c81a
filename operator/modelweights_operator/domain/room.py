"""Room on the nodes' disks over all ModelWeights: what could go for a staging that found none, and namespaces' quotas.

Kept by the reconciler; no I/O. Each object tells what it has when it is looked at, so an operator that has just started knows
all after its first round. What pods use isn't known here: `cleanup` asks before anything goes.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from modelweights_operator.api.sources import Storage
from modelweights_operator.domain import failures, reports, retention, storage
from modelweights_operator.domain.host_folders import LocationError
from modelweights_operator.domain.sizes import human_bytes
from modelweights_operator.domain.snapshot import Snapshot, StagingJob

_LONG_AGO: Final = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True)
class Held:
    """A checkpoint of an object on a node's disk; `superseded_at` is None where it may not go for others."""

    node: str
    class_name: str
    digest: str
    size_bytes: int
    superseded_at: datetime | None = None


@dataclass(frozen=True)
class _Known:
    namespace: str
    held: tuple[Held, ...] = ()
    needs: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Per node and class, the bytes that a staging lacked there."""


class Rooms:
    """What all objects hold and need."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}

    def note(self, owner: str, snapshot: Snapshot) -> set[str]:
        """What an object holds and needs now.

        Returns:
            Other objects of which something is to go for it, that didn't know as yet.
        """
        before = {key: self.victims(key) for key in self._known if key != owner}
        self._known[owner] = _Known(snapshot.owner.namespace, tuple(_held(snapshot)), _needs(snapshot))
        return {key for key, victims in before.items() if self.victims(key) != victims}

    def forget(self, owner: str) -> None:
        """An object went."""
        self._known.pop(owner, None)

    def victims(self, owner: str) -> dict[str, frozenset[str]]:
        """Per node name, the checkpoints of an object that are to go for stagings that found no room there.

        Whichever was superseded first goes first, of whichever object, and no more than make the room.
        """
        chosen: dict[str, set[str]] = {}
        for (node, class_name), needed_bytes in self._all_needs().items():
            left = needed_bytes
            for key, held in sorted(
                self._evictable(node, class_name), key=lambda item: item[1].superseded_at or _LONG_AGO
            ):
                if left <= 0:
                    break
                left -= held.size_bytes
                if key == owner:
                    chosen.setdefault(node, set()).add(held.digest)
        return {node: frozenset(digests) for node, digests in chosen.items()}

    def _all_needs(self) -> dict[tuple[str, str], int]:
        """The largest of each place: fetches there are one after the other."""
        needs: dict[tuple[str, str], int] = {}
        for known in self._known.values():
            for place, size_bytes in known.needs.items():
                needs[place] = max(size_bytes, needs.get(place, 0))
        return needs

    def _evictable(self, node: str, class_name: str) -> Iterable[tuple[str, Held]]:
        for key, known in self._known.items():
            for held in known.held:
                if (held.node, held.class_name) == (node, class_name) and held.superseded_at is not None:
                    yield key, held

    def over_quota(self, snapshot: Snapshot) -> dict[str, str]:
        """Per node name, why the quota of the object's namespace lets it stage nothing there.

        What is to be staged counts with its size as soon as a node has proven it; before that, with nothing.
        """
        spec = snapshot.owner.spec
        if spec is None or not spec.is_fetched:
            return {}
        try:
            where = storage.find_class(spec, snapshot.policy)
        except LocationError:
            return {}
        quota = where.namespace_quota
        if not quota:
            return {}
        candidate = snapshot.owner.status.candidate or snapshot.owner.status.published
        found = {}
        for node in snapshot.nodes:
            there = list(self._of(snapshot.owner.namespace, node.name, where.name))
            is_there = candidate is not None and any(held.digest == candidate.manifest_digest for held in there)
            more = candidate.size_bytes if candidate is not None and not is_there else 0
            taken = sum(held.size_bytes for held in there)
            if taken + more > quota or (taken >= quota and not is_there):
                found[node.name] = (
                    f"files of namespace {snapshot.owner.namespace} take {human_bytes(taken)} there, and with "
                    f"{human_bytes(more)} more they pass namespaceQuota of storage class {where.name}, {human_bytes(quota)}: "
                    "delete a ModelWeights, or ask the administrator for more"
                )
        return found

    def _of(self, namespace: str, node: str, class_name: str) -> Iterable[Held]:
        for known in self._known.values():
            if known.namespace == namespace:
                yield from (held for held in known.held if (held.node, held.class_name) == (node, class_name))


def _held(snapshot: Snapshot) -> Iterable[Held]:
    owner = snapshot.owner
    status = owner.status
    sizes = {
        each.manifest_digest: each.size_bytes
        for each in (*status.previous, status.candidate, status.published)
        if each is not None
    }
    keeps = (owner.spec.storage if owner.spec and owner.spec.storage else Storage()).retention
    for node, entry in status.nodes.items():
        for digest in filter(None, (entry.manifest_digest, *entry.other_digests)):
            where = retention.find_class(owner, digest, snapshot.policy)
            if where is None:
                continue
            goes = keeps == "LeastRecentlyUsed" and digest not in retention.wanted(owner, entry)
            since = (retention.superseded_at(owner, entry, digest) or _LONG_AGO) if goes else None
            yield Held(node, where.name, digest, sizes.get(digest, 0), since)


def _needs(snapshot: Snapshot) -> dict[tuple[str, str], int]:
    spec = snapshot.owner.spec
    if spec is None or not spec.is_fetched:
        return {}
    try:
        where = storage.find_class(spec, snapshot.policy)
    except LocationError:
        return {}
    lacks = {job.node_name: _lacking(job) for job in snapshot.jobs if job.state == "Failed" and not job.deleting}
    return {(node, where.name): size_bytes for node, size_bytes in lacks.items() if size_bytes > 0}


def _lacking(job: StagingJob) -> int:
    """The bytes that its step `fetch` lacked, 0 where that isn't why it failed."""
    report = reports.parse(job.result or failures.failed_report(job))
    if report is None or (report.step, report.reason) != ("fetch", reports.NO_ROOM):
        return 0
    return report.needed_bytes + report.reserve_bytes - report.disk_free_bytes
