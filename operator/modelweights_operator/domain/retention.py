"""Which fetched files may go from which node, by the spec's retention and by time. Called by `cleanup`; pure.

What a pod uses, `usage` says; here the pods aren't looked at yet.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from modelweights_operator.api import v1alpha1 as api
from modelweights_operator.api.sources import Storage
from modelweights_operator.domain import leftovers, names, storage
from modelweights_operator.domain.cleanup_jobs import CleanupJob, Target
from modelweights_operator.domain.clock import parse_time
from modelweights_operator.domain.snapshot import Node, Owner, Policy, Snapshot, StagingJob, StorageClass


@dataclass(frozen=True)
class World:
    """All that decisions about one object's files depend on.

    Attributes:
        owner: The ModelWeights.
        nodes: All nodes of the cluster.
        staging: Its staging Jobs.
        jobs: Its cleanup Jobs.
        policy: Settings of the operator.
        may_hold: Whether the right to put the finalizer on is there.
        asked: Whether a waiting pod asks for one of its revisions by name.
        victims: Per node name, checkpoints that are to make room for others.
        refusals: Per node name, why the API server refused its cleanup Job a moment ago.
    """

    owner: Owner
    nodes: tuple[Node, ...]
    staging: tuple[StagingJob, ...] = ()
    jobs: tuple[CleanupJob, ...] = ()
    policy: Policy = field(default_factory=lambda: Policy("", "", ()))
    may_hold: bool = True
    asked: bool = False
    victims: Mapping[str, frozenset[str]] = field(default_factory=dict)
    refusals: Mapping[str, str] = field(default_factory=dict)


def due(world: World, now: datetime) -> tuple[tuple[Target, ...], float | None]:
    """What may go now, if no pod uses it, and in how many seconds to look again for more.

    Args:
        world: The object and what is around it.
        now: The time.
    """
    owner = world.owner
    if owner.deleting:
        return (_of_deletion(world), None)
    targets: list[Target] = []
    later: list[float] = []
    nodes = {node.name: node for node in world.nodes}
    for name, entry in owner.status.nodes.items():
        node = nodes.get(name)
        if node is None:
            continue
        by_class: dict[str, tuple[StorageClass, set[str]]] = {}
        for digest in (*entry.other_digests, *entry.leftovers):
            where = class_on(owner, entry, digest, world.policy)
            wait = _seconds_until_due(world, entry, name, digest, now)
            if where is None or wait is None:
                continue
            if digest in entry.leftovers and not leftovers.may_go(entry, where, tuple(owner.status.nodes.values())):
                continue
            if wait > 0:
                later.append(wait)
                continue
            by_class.setdefault(where.name, (where, set()))[1].add(digest)
        targets += [Target(node, where, frozenset(digests)) for where, digests in by_class.values()]
    return tuple(targets), min(later, default=None)


def _of_deletion(world: World) -> tuple[Target, ...]:
    """All that the object may have on its nodes; on those that are there still."""
    nodes = {node.name: node for node in world.nodes}
    # It may be deleted between a Job and the status that tells of it.
    staged = {*world.owner.status.nodes, *(job.node_name for job in world.staging)}
    return tuple(
        Target(nodes[name], where)
        for name in sorted(staged)
        if name in nodes
        for where in classes(world.owner, world.policy)
    )


def classes(owner: Owner, policy: Policy) -> list[StorageClass]:
    """The classes in which it has, or had, files."""
    found: dict[str, StorageClass] = {}
    present = storage.class_of_spec(owner.spec, policy)
    if present is not None:
        found[present.name] = present
    status = owner.status
    for revision in (status.published, status.candidate, *status.previous):
        if revision is not None:
            known = storage.class_of(owner, revision.path, revision.manifest_digest, policy)
            if known is not None:
                found[known.name] = known
    return list(found.values())


def class_on(owner: Owner, entry: api.NodeStatus, digest: str, policy: Policy) -> StorageClass | None:
    """The class in which a node has a checkpoint.

    One that was never published lies in the present one, if anywhere, and leftovers where the last staging went.
    """
    for revision in (owner.status.published, owner.status.candidate, *owner.status.previous):
        if revision is not None and revision.manifest_digest == digest and digest not in entry.leftovers:
            return storage.class_of(owner, revision.path, digest, policy)
    return storage.class_of_spec(owner.spec, policy)


def _seconds_until_due(world: World, entry: api.NodeStatus, node: str, digest: str, now: datetime) -> float | None:
    """None where nothing of it depends on time alone."""
    owner = world.owner
    is_asked = world.asked and (digest in entry.leftovers or _previous(owner, digest) is not None)
    if digest in wanted(owner, entry) or is_asked:
        return None
    storage_spec = owner.spec.storage if owner.spec and owner.spec.storage else Storage()
    if storage_spec.retention == "Keep" or owner.spec is None or owner.spec.suspend:
        return None
    if storage_spec.retention == "LeastRecentlyUsed":
        return 0.0 if digest in world.victims.get(node, frozenset()) else None
    period = storage_spec.grace_period_seconds
    ahead = ((superseded_at(owner, entry, digest) or now) - now).total_seconds()
    # A time that lies ahead comes from a clock that was wrong. Further ahead than the period it counts as passed, or the files
    # would stay until that time comes.
    return 0.0 if ahead > period else max(period + ahead, 0.0)


def wanted(owner: Owner, entry: api.NodeStatus) -> frozenset[str]:
    """Checkpoints that never go, whatever the retention."""
    revisions = (owner.status.published, owner.status.candidate)
    return frozenset({each.manifest_digest for each in revisions if each is not None} | {entry.manifest_digest})


def superseded_at(owner: Owner, entry: api.NodeStatus, digest: str) -> datetime | None:
    """Since when a node holds a checkpoint without need: one that was never published since the node went on from it."""
    seen = leftovers.since(entry, digest)
    if seen is not None:
        return seen
    revision = _previous(owner, digest)
    return parse_time(revision.superseded_at if revision is not None else entry.last_transition_time)


def _previous(owner: Owner, digest: str) -> api.Revision | None:
    return next((each for each in owner.status.previous if each.manifest_digest == digest), None)


# --- for the planner --------------------------------------------------------------------------------------------------


def without_cleaned(snapshot: Snapshot) -> Snapshot:
    """The snapshot without the checkpoints that cleanup Jobs have removed from nodes."""
    if not snapshot.cleaned:
        return snapshot
    entries = {
        name: entry.model_copy(
            update={
                "other_digests": tuple(
                    digest for digest in entry.other_digests if digest not in snapshot.cleaned.get(name, ())
                ),
                **leftovers.without(entry, snapshot.cleaned.get(name, frozenset())),
            }
        )
        for name, entry in snapshot.owner.status.nodes.items()
    }
    status = snapshot.owner.status.model_copy(update={"nodes": entries})
    return replace(snapshot, owner=replace(snapshot.owner, status=status))


def staying(snapshot: Snapshot, holding: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """What nodes hold without what is about to be removed: it is held until it is gone, but nobody is sent there for it."""
    return {
        name: tuple(digest for digest in digests if digest not in snapshot.leaving.get(name, ()))
        for name, digests in holding.items()
    }


def has_former(owner: Owner) -> bool:
    """Whether it has anything that a pod might ask for by its revision and that might go."""
    return bool(owner.status.previous) or any(entry.leftovers for entry in owner.status.nodes.values())


def asks_for_revision(require: str, namespace: str, owner: Owner) -> bool:
    """Whether a waiting pod's annotation asks for any revision of an object by name.

    Args:
        require: The annotation.
        namespace: Of the pod.
        owner: The object.
    """
    if len(require) > names.MAX_REQUIRE_LENGTH:
        return False
    for part in require.split(","):
        before, asks, _ = part.strip().partition("@")
        place, slash, name = before.rpartition("/")
        if asks and (place if slash else namespace, name) == (owner.namespace, owner.name):
            return True
    return False
