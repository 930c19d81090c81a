"""Room on the nodes' disks over all ModelWeights: what could go for a staging that found none, and namespaces' quotas.

Kept by the reconciler; no I/O. Each object tells what it has when it is looked at, so an operator that has just started knows
all after its first round. What may go and what pods use, the cleaner finds out and tells here:

    lacking --the oldest that make the room--> asked about --all may go--> they go
                        ^                          |
                        +----one has to stay-------+--too little may go--> none goes, and the staging's status says so

What had gone before the operator started isn't known. So a staging that found no room before is tried once more at once, which
takes the seconds of asking the disk, and nothing goes for it before that says what it lacks now.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from modelweights_operator.api.sources import Storage
from modelweights_operator.domain import failures, reports, retention, storage
from modelweights_operator.domain.on_disk import OnDisk
from modelweights_operator.domain.sizes import human_bytes
from modelweights_operator.domain.snapshot import Snapshot, StagingJob

_LONG_AGO: Final = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True)
class Held:
    """A checkpoint of an object on a node's disk; `superseded_at` is None where it may not go for others.

    `size_bytes` is 0 where it isn't known, as of leftovers.
    """

    node: str
    class_name: str
    digest: str
    size_bytes: int
    superseded_at: datetime | None = None


Place = tuple[str, str]
"""Name of a node, and of a storage class."""


@dataclass(frozen=True)
class Need:
    """The bytes that a staging lacked, and the Job that said so: each says it once, whatever has gone since."""

    job: str
    size_bytes: int


Digests = Mapping[str, frozenset[str]]
"""Checkpoints, by their objects or by names of nodes."""


@dataclass(frozen=True)
class _Choice:
    """What goes for those that lack room, what is to be asked about, and what would be missing still if all went."""

    goes: Digests = field(default_factory=dict)
    asked: Digests = field(default_factory=dict)
    missing_bytes: int = 0

    def concerns(self, owner: str) -> tuple[frozenset[str], frozenset[str]]:
        """What of an object."""
        return self.goes.get(owner, frozenset()), self.asked.get(owner, frozenset())


@dataclass
class _There:
    """One place: what objects hold there and lack there, and what has gone for those that lack it now.

    `stays` says of those that were asked about whether they have to stay.
    """

    held: dict[str, tuple[Held, ...]] = field(default_factory=dict)
    needs: dict[str, Need] = field(default_factory=dict)
    freed_bytes: int = 0
    stays: dict[tuple[str, str], bool] = field(default_factory=dict)
    choice: _Choice = field(default_factory=_Choice)

    @property
    def lacking_bytes(self) -> int:
        """What still has to go. The largest need counts: fetches in one place are one after the other."""
        return max((need.size_bytes for need in self.needs.values()), default=0) - self.freed_bytes

    @property
    def has_room(self) -> bool:
        """Whether enough has gone for all that lacked it."""
        return bool(self.needs) and self.lacking_bytes <= 0


class Rooms:
    """What all objects hold and need. By places, so that a note costs as much as has changed, however many objects there are.

    Args:
        started_at: Since when it is known what goes.
    """

    def __init__(self, started_at: datetime = _LONG_AGO) -> None:
        self._started_at = started_at
        self._places: dict[Place, _There] = {}
        self._of_owner: dict[str, tuple[str, dict[Place, tuple[Held, ...]], dict[Place, Need]]] = {}
        self._needing: set[Place] = set()
        self._made_at: dict[str, dict[str, datetime]] = {}
        self._uids: dict[str, str] = {}
        self._on_disk = OnDisk()

    def note(self, owner: str, snapshot: Snapshot) -> set[str]:
        """What an object holds and needs now.

        Returns:
            Other objects that are to know: something of theirs is to go for it, or enough has gone for them.
        """
        self._uids[owner] = snapshot.owner.uid
        self._on_disk.note(owner, snapshot)
        held: dict[Place, tuple[Held, ...]] = {}
        for each in _held(snapshot):
            place = (each.node, each.class_name)
            held[place] = (*held.get(place, ()), each)
        if owner not in self._of_owner:
            self._made_at[owner] = dict.fromkeys(_failed_before(snapshot, self._started_at), self._started_at)
        return self._set(owner, snapshot.owner.namespace, held, _needs(snapshot, self._started_at)) - {owner}

    def forget(self, owner: str) -> None:
        """An object went."""
        self._set(owner, "", {}, {})
        self._of_owner.pop(owner, None)
        self._made_at.pop(owner, None)
        self._uids.pop(owner, None)
        self._on_disk.forget(owner)

    def _set(
        self, owner: str, namespace: str, held: dict[Place, tuple[Held, ...]], needs: dict[Place, Need]
    ) -> set[str]:
        _, held_before, needs_before = self._of_owner.get(owner, ("", {}, {}))
        self._of_owner[owner] = (namespace, held, needs)
        told: set[str] = set()
        for place in held_before.keys() | held.keys() | needs_before.keys() | needs.keys():
            now, before = (held.get(place, ()), needs.get(place)), (held_before.get(place, ()), needs_before.get(place))
            if now != before:
                told |= self._change(place, owner, *now)
        return told

    def _change(self, place: Place, owner: str, held: tuple[Held, ...], need: Need | None) -> set[str]:
        """Note what an object holds and needs in one place; the objects of which something else is to go there now."""
        there = self._places.setdefault(place, _There())
        if there.needs.get(owner) != need:
            # Whoever tried since, or no longer wants to, knows what is free by now.
            there.freed_bytes = 0
        elif there.needs:
            left = {each.digest for each in held}
            gone = [each for each in there.held.get(owner, ()) if each.digest not in left]
            # What one of unknown size freed is seen when the staging is tried again.
            there.freed_bytes += sum(each.size_bytes or max(there.lacking_bytes, 0) for each in gone)
        _put(there.held, owner, held)
        _put(there.needs, owner, need)
        there.stays = {
            (other, digest): stays
            for (other, digest), stays in there.stays.items()
            if there.needs and (other != owner or any(each.digest == digest for each in held))
        }
        (self._needing.add if there.needs else self._needing.discard)(place)
        if not there.held and not there.needs:
            del self._places[place]
        told = _choose_anew(there)
        return told | set(there.needs) if there.has_room else told

    def made_room(self, owner: str, now: datetime) -> dict[str, datetime]:
        """Per node name, when so much had gone for an object's staging that failures up to then wait no longer.

        It is remembered: the failed Job is deleted first, and the status alone tells of the failure until there is another.
        """
        made = self._made_at.setdefault(owner, {})
        for place in self._needing:
            there = self._places[place]
            if owner in there.needs and there.has_room:
                made[place[0]] = now
        return dict(made)

    def looked(self, owner: str, stays: Mapping[tuple[str, str], bool]) -> set[str]:
        """Note what was found of an object's checkpoints that were asked about.

        Args:
            owner: The object.
            stays: By name of the node and digest, whether it has to stay there.

        Returns:
            UIDs of other objects for which that changes something.
        """
        told: set[str] = set()
        for place in self._needing:
            there = self._places[place]
            found = {(owner, digest): stay for (node, digest), stay in stays.items() if node == place[0]}
            of_this = {(owner, each.digest) for each in there.held.get(owner, ())}
            there.stays |= {key: stay for key, stay in found.items() if key in of_this}
            told |= _choose_anew(there)
        return {self._uids[other] for other in told - {owner} if other in self._uids}

    def asked(self, owner: str) -> dict[str, frozenset[str]]:
        """Per node name, the checkpoints of an object of which has to be told whether they have to stay."""
        return self._concerning(owner, lambda choice: choice.asked)

    def victims(self, owner: str) -> dict[str, frozenset[str]]:
        """Per node name, the checkpoints of an object that are to go for stagings that found no room there.

        Of those that may go, whichever was superseded first goes first, of whichever object, and no more than make the room;
        none where all of them don't.
        """
        return self._concerning(owner, lambda choice: choice.goes)

    def _concerning(self, owner: str, part: Callable[[_Choice], Digests]) -> dict[str, frozenset[str]]:
        found: dict[str, frozenset[str]] = {}
        for place in self._needing:
            digests = part(self._places[place].choice).get(owner)
            if digests:
                found[place[0]] = found.get(place[0], frozenset()) | digests
        return found

    def missing(self, owner: str) -> dict[str, str]:
        """Per node name on which an object's staging found no room, why nothing goes for it though former revisions are there."""
        found = {}
        for place in self._needing:
            there = self._places[place]
            if owner in there.needs and there.choice.missing_bytes:
                found[place[0]] = (
                    f"former revisions there that may go (retention LeastRecentlyUsed, used by no pod) take "
                    f"{human_bytes(there.choice.missing_bytes)} less than is lacking: none is removed"
                )
        return found

    def over_quota(self, snapshot: Snapshot) -> dict[str, str]:
        """Per node name, why the quota of the object's namespace lets it stage nothing there.

        What is to be staged counts with its size as soon as a node has proven it; before that, with nothing. A node that has it on
        its disk, and has to warm it only, is never refused.
        """
        where = storage.class_of_spec(snapshot.owner.spec, snapshot.policy)
        if where is None or not where.namespace_quota:
            return {}
        quota = where.namespace_quota
        owner = snapshot.owner.full_name
        candidate = snapshot.owner.status.candidate or snapshot.owner.status.published
        found = {}
        for node in snapshot.nodes:
            if self._on_disk.writes_nothing(owner, snapshot, where, node):
                continue
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
        there = self._places.get((node, class_name), _There())
        for owner, held in there.held.items():
            if self._of_owner[owner][0] == namespace:
                yield from held


def _put(there: dict[str, Any], owner: str, value: object) -> None:
    if value:
        there[owner] = value
    else:
        there.pop(owner, None)


def _choose_anew(there: _There) -> set[str]:
    """Choose what goes, and what is to be asked about; the objects for which that is another than before."""
    before, there.choice = there.choice, _choose(there) if there.needs else _Choice()
    now = there.choice
    owners = before.goes.keys() | before.asked.keys() | now.goes.keys() | now.asked.keys()
    told = {owner for owner in owners if before.concerns(owner) != now.concerns(owner)}
    return told | set(there.needs) if before.missing_bytes != now.missing_bytes else told


def _choose(there: _There) -> _Choice:
    left = there.lacking_bytes
    if left <= 0:
        return _Choice()
    may_go = [(owner, each) for owner, held in there.held.items() for each in held if each.superseded_at is not None]
    goes: list[tuple[str, str]] = []
    stay: list[tuple[str, str]] = []
    for owner, each in sorted(may_go, key=lambda item: item[1].superseded_at or _LONG_AGO):
        if left <= 0:
            break
        key = (owner, each.digest)
        if there.stays.get(key):
            # It is looked again and again whether it still has to.
            stay.append(key)
            continue
        left -= each.size_bytes or left
        goes.append(key)
    if left > 0:
        return _Choice(asked=_by_owner(stay), missing_bytes=left if may_go else 0)
    known = all(key in there.stays for key in goes)
    return _Choice(_by_owner(goes if known else ()), _by_owner((*stay, *goes)))


def _by_owner(keys: Iterable[tuple[str, str]]) -> Digests:
    found: dict[str, set[str]] = {}
    for owner, digest in keys:
        found.setdefault(owner, set()).add(digest)
    return {owner: frozenset(digests) for owner, digests in found.items()}


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
        for digest in filter(None, (entry.manifest_digest, *entry.other_digests, *entry.leftovers)):
            where = retention.class_on(owner, entry, digest, snapshot.policy)
            if where is None:
                continue
            goes = keeps == "LeastRecentlyUsed" and digest not in retention.wanted(owner, entry)
            since = (retention.superseded_at(owner, entry, digest) or _LONG_AGO) if goes else None
            size_bytes = 0 if digest in entry.leftovers else sizes.get(digest, 0)
            yield Held(node, where.name, digest, size_bytes, since)


def _needs(snapshot: Snapshot, started_at: datetime) -> dict[Place, Need]:
    where = storage.class_of_spec(snapshot.owner.spec, snapshot.policy)
    if where is None:
        return {}
    failed = [job for job in snapshot.jobs if job.state == "Failed" and not job.deleting]
    lacks = [(job, _lacking(job)) for job in failed if not _ended_before(job, started_at)]
    return {(job.node_name, where.name): Need(job.name, size_bytes) for job, size_bytes in lacks if size_bytes > 0}


def _failed_before(snapshot: Snapshot, started_at: datetime) -> set[str]:
    """Names of the nodes on which a staging found no room before that time, by the status or, if that is behind, by the Job."""
    told = {
        name
        for name, entry in snapshot.owner.status.nodes.items()
        if (entry.state, entry.reason) == ("Failed", reports.NO_ROOM)
    }
    jobs = (job for job in snapshot.jobs if job.state == "Failed" and _ended_before(job, started_at))
    return told | {job.node_name for job in jobs if _lacking(job) > 0}


def _ended_before(job: StagingJob, started_at: datetime) -> bool:
    return job.finished_at is not None and job.finished_at <= started_at


def _lacking(job: StagingJob) -> int:
    """The bytes that its step `fetch` lacked, 0 where that isn't why it failed."""
    report = reports.parse(job.result or failures.failed_report(job))
    if report is None or (report.step, report.reason) != ("fetch", reports.NO_ROOM):
        return 0
    return report.needed_bytes + report.reserve_bytes - report.disk_free_bytes
