"""What goes from the nodes' disks, when, and what keeps it. Called by the cleaner; pure: values and `now` in, values out.

    superseded --retention lets it--> due --no pod uses it--> its node label goes --> cleanup Job --> out of the status
    object deleted, policy Delete --> staging Jobs end --no pod uses it--> cleanup Job per node --> the finalizer goes

Only what `fetch` made ever goes. A staging and a cleanup of one object never run on one node at the same time: each
waits for the other. The deletion of an object never waits for ever: not for a node that is gone, for one that takes no pods
or files that are in use only a while, and for a Job that fails only some rounds.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from modelweights_operator.api import v1alpha1 as api
from modelweights_operator.domain import failures, names, storage
from modelweights_operator.domain.cleanup_jobs import CleanupJob, Target, cleanup_job, namespace_of
from modelweights_operator.domain.clock import rfc3339
from modelweights_operator.domain.conditions import list_some
from modelweights_operator.domain.pods import Manifest
from modelweights_operator.domain.retention import World, classes, wanted
from modelweights_operator.domain.snapshot import Node, Owner
from modelweights_operator.domain.usage import PodUse, users

MAX_ROUNDS: Final = 5
FIRST_BACKOFF_SECONDS: Final = 20
MAX_AT_A_TIME: Final = 20
"""Cleanup Jobs of one object that run at a time."""
MAX_NODES_ASKED: Final = 20
"""Of whose pods a list is fetched in one cycle; the others' turn comes later."""
USE_SECONDS: Final = 60.0
"""How often it is looked whether what is in use still is."""
LABEL_SECONDS: Final = 2.0
"""From a node label's end to the Job: the scheduler has heard of it by then, and pods that it bound before are seen."""
DELETION_WAITS: Final = timedelta(minutes=5)
"""So long a deletion waits for nodes that take no pods, pods that use the files, and Jobs whose pod doesn't start."""
DELETION_ENDS: Final = timedelta(minutes=30)
"""And so long for Jobs that run."""

_TERMINATING: Final = "because it is being terminated"
"""As the API server says it of a namespace: a claim in it goes with it."""

# Reasons of events.
LEFT_BEHIND: Final = "FilesLeftBehind"
CLEANED: Final = "FilesRemoved"
CLEANUP_FAILED: Final = "CleanupFailed"
CLEANUP_OFF: Final = "CleanupOff"


@dataclass(frozen=True)
class Notice:
    """An event to be posted on the ModelWeights."""

    kind: str
    reason: str
    message: str


@dataclass(frozen=True)
class Cleanup:
    """Effects, in the order in which they are safe.

    Attributes:
        finalizers: What the object's finalizers are to be; None where they are right. Put on before anything is staged.
        leaving: Per node name, checkpoints for which no pod is to be sent there any more.
        noted: Per name of a node with a staging of which the status doesn't tell, the entry that does. Written before the staging
            ends: nobody would know afterwards that files are there.
        delete_staging: Names of staging Jobs that end since the object is deleted.
        delete: Namespace and name of cleanup Jobs whose time is over.
        create: Cleanup Jobs.
        cleaned: Per node name, what is gone from there.
        finished: Namespace and name of cleanup Jobs that did their work, deleted once the status says so.
        notices: Events.
        again_after_seconds: When to look again.
        released: The object may go.
    """

    finalizers: tuple[str, ...] | None = None
    leaving: Mapping[str, frozenset[str]] = field(default_factory=dict)
    noted: Mapping[str, api.NodeStatus] = field(default_factory=dict)
    delete_staging: tuple[str, ...] = ()
    delete: tuple[tuple[str, str], ...] = ()
    create: tuple[Manifest, ...] = ()
    cleaned: Mapping[str, frozenset[str]] = field(default_factory=dict)
    finished: tuple[tuple[str, str], ...] = ()
    notices: tuple[Notice, ...] = ()
    again_after_seconds: float | None = None
    released: bool = False


Usage = Mapping[str, tuple[PodUse, ...]]
"""Per node name its pods, with those that aren't bound to any node yet."""


# --- an object that lives ---------------------------------------------------------------------------------------------------------


def plan(world: World, targets: Iterable[Target], usage: Usage, now: datetime) -> Cleanup:
    """What is to be done about one object's files.

    Args:
        world: The object and what is around it.
        targets: What `due` says.
        usage: The pods of these nodes, asked for just now.
        now: The time.
    """
    owner = world.owner
    if owner.deleting:
        return _deletion(world, tuple(targets), usage, now)
    cleanup = _superseded(world, tuple(targets), usage, now)
    holds = names.FINALIZER in owner.finalizers
    if deletes(owner) and not holds and world.may_hold:
        return replace(cleanup, finalizers=(*owner.finalizers, names.FINALIZER))
    if deletes(owner) and not world.may_hold:
        text = (
            "deletionPolicy is Delete, but the operator has no right to hold the object back: nothing will be removed"
        )
        return replace(
            cleanup, notices=(*cleanup.notices, Notice("Warning", CLEANUP_OFF, f"{text} (chart: cleanup.enabled)"))
        )
    if holds and not deletes(owner):
        return replace(cleanup, finalizers=_without_ours(owner))
    return cleanup


def has_begun(world: World, target: Target) -> bool:
    """Whether the node labels of what is to go from a node are off already."""
    return bool(target.digests) and not any(
        names.has_label(target.node.labels, world.owner.uid, digest) for digest in target.digests
    )


def without_given_up(world: World, targets: Iterable[Target]) -> tuple[Target, ...]:
    """The targets without what no further Job is made for: nobody need ask about the pods that use it."""
    left = []
    for target in targets:
        given_up = _given_up(world, target)
        digests = target.digests.difference(*(job.digests for job in given_up))
        if digests or not given_up:
            left.append(Target(target.node, target.where, digests))
    return tuple(left)


def _given_up(world: World, target: Target) -> tuple[CleanupJob, ...]:
    """The Jobs that were the last try for a target, or for a part of it."""
    return tuple(
        job
        for job in world.jobs
        if (job.node_uid, job.class_name, job.state) == (target.node.uid, target.where.name, "Failed")
        and job.round + 1 >= MAX_ROUNDS
        and (job.digests <= target.digests if job.digests else not target.digests)
    )


def has_to_stay(world: World, targets: Iterable[Target], usage: Usage) -> dict[tuple[str, str], bool]:
    """By name of the node and digest, whether what others need the room of has to stay there.

    Args:
        world: With what is asked about as its `victims`.
        targets: What may go by retention and hasn't been given up.
        usage: The pods of those nodes that were asked about; of others nothing is said.
    """
    where = {(target.node.name, digest): target.where for target in targets for digest in target.digests}
    asked = [(node, digest) for node, digests in world.victims.items() for digest in digests]
    return {
        (node, digest): (node, digest) not in where
        or bool(users(usage[node], world.owner, where[node, digest], digest))
        for node, digest in asked
        if (node, digest) not in where or node in usage
    }


def next_asked(nodes: Iterable[str], begun: Collection[str], last: str) -> tuple[list[str], str]:
    """About whose pods to ask now: in a round, so that pods which stay on some nodes keep no other node waiting.

    Args:
        nodes: Names of nodes from which something may go.
        begun: Those that `has_begun` says so of: they come first, since their label would come back otherwise.
        last: As the last call gave it, "" before.
    """
    turn = sorted(nodes, key=lambda name: (name not in begun, name <= last, name))[:MAX_NODES_ASKED]
    return turn, next((name for name in reversed(turn) if name not in begun), last)


def deletes(owner: Owner) -> bool:
    """Whether its files go with it. Files that are used in place never do."""
    return owner.spec is not None and owner.spec.deletion_policy == "Delete" and owner.spec.is_fetched


def _without_ours(owner: Owner) -> tuple[str, ...]:
    return tuple(each for each in owner.finalizers if each != names.FINALIZER)


def _superseded(world: World, targets: tuple[Target, ...], usage: Usage, now: datetime) -> Cleanup:
    plan = _Plan(world, now)
    for job in world.jobs:
        _follow(world, plan, job)
    for node_name, text in world.refusals.items():
        plan.notices.append(Notice("Warning", CLEANUP_FAILED, f"{node_name}: {text}"[:1000]))
        plan.again(USE_SECONDS)
    for target in targets:
        for job in _given_up(world, target):
            # A part of it may be gone: no pod is sent there for it, and no other node waits for this one.
            plan.leave(target.node.name, job.digests)
            plan.give_up(job)
    for target in without_given_up(world, targets):
        entry = world.owner.status.nodes[target.node.name]
        digests = target.digests - plan.cleaned.get(target.node.name, set())
        if digests and not plan.is_busy(target) and entry.state != "Staging" and not _takes_no_pods(target.node):
            _remove_unused(plan, Target(target.node, target.where, digests), usage)
    return plan.result()


def _follow(world: World, plan: "_Plan", job: CleanupJob) -> None:
    """What a Job of an earlier cycle came to."""
    owner = world.owner
    entry, node = owner.status.nodes.get(job.node_name), plan.nodes.get(job.node_name)
    if job.deleting:
        plan.again(USE_SECONDS)
    elif job.state == "Complete" and job.digests:
        plan.cleaned.setdefault(job.node_name, set()).update(job.digests)
        plan.finished.append((job.namespace, job.name))
    elif node is None or node.uid != job.node_uid or entry is None or _is_over(job, entry, owner):
        plan.delete.append((job.namespace, job.name))
    elif job.state == "Active":
        plan.leave(job.node_name, job.digests)


def _remove_unused(plan: "_Plan", target: Target, usage: Usage) -> None:
    free = frozenset(each for each in target.digests if not plan.used(target, each, usage))
    if free != target.digests:
        plan.again(USE_SECONDS)
    if not free:
        return
    plan.leave(target.node.name, free)
    if any(names.has_label(target.node.labels, plan.owner.uid, each) for each in free):
        # Once the scheduler has heard of it, it is looked again whether a pod came in between.
        plan.again(LABEL_SECONDS)
    else:
        plan.clean(Target(target.node, target.where, free))


def _is_over(job: CleanupJob, entry: api.NodeStatus, owner: Owner) -> bool:
    """What it would remove is wanted again, or the object isn't being deleted any more."""
    return not job.digests or bool(job.digests & wanted(owner, entry))


class _Plan:
    """Effects as they are collected."""

    def __init__(self, world: World, now: datetime) -> None:
        self._world, self._now, self.owner = world, now, world.owner
        self.nodes = {node.name: node for node in world.nodes}
        self.cleaned: dict[str, set[str]] = {}
        self.leaving: dict[str, set[str]] = {}
        self.finished: list[tuple[str, str]] = []
        self.delete: list[tuple[str, str]] = []
        self.create: list[Manifest] = []
        self.notices: list[Notice] = []
        self._again: list[float] = []
        self._active = sum(job.state == "Active" for job in world.jobs)

    def again(self, seconds: float) -> None:
        """Look again, whatever happens."""
        self._again.append(max(seconds, 1.0))

    def leave(self, node: str, digests: Iterable[str]) -> None:
        """Send no pod there for these any more."""
        self.leaving.setdefault(node, set()).update(digests)

    def is_busy(self, target: Target) -> bool:
        """Whether a staging of this object has a Job on the node, or a cleanup of it runs there."""
        name = target.node.name
        return any(job.node_name == name for job in self._world.staging) or any(
            job.node_name == name and (job.state == "Active" or job.deleting) for job in self._world.jobs
        )

    def used(self, target: Target, digest: str, usage: Usage) -> list[str]:
        """The pods that use it; a node nobody asked about counts as one where all is used."""
        pods = usage.get(target.node.name)
        return ["?"] if pods is None else users(pods, self._world.owner, target.where, digest)

    def rounds(self, target: Target) -> list[CleanupJob]:
        """Jobs for the same target, the latest first."""
        same = [
            job
            for job in self._world.jobs
            if (job.node_uid, job.class_name, job.digests) == (target.node.uid, target.where.name, target.digests)
        ]
        return sorted(same, key=lambda job: job.round, reverse=True)

    def give_up(self, job: CleanupJob) -> str:
        """Say that a Job was the last try, and why it failed."""
        text = f"{job.node_name}: cleaning failed {job.round + 1} times: {job.reason}: {job.message}"
        self.notices.append(Notice("Warning", CLEANUP_FAILED, text[:1000]))
        return job.message or job.reason or "failed"

    def clean(self, target: Target) -> str:
        """Make the next Job where it is time for it; why there will be none any more, "" while there may."""
        world, former = self._world, self.rounds(target)
        attempt = former[0].round + 1 if former else 0
        if former and former[0].state == "Active":
            return ""
        if not namespace_of(world.owner, target.where, world.policy):
            return "the operator doesn't know its own namespace, in which cleanup Jobs run (MODELWEIGHTS_NAMESPACE)"
        if former:
            over = (former[0].finished_at or self._now) + timedelta(
                seconds=FIRST_BACKOFF_SECONDS * 2 ** former[0].round
            )
            if self._now < over:
                self.again((over - self._now).total_seconds())
                return ""
        if self._active >= MAX_AT_A_TIME:
            self.again(10.0)
            return ""
        self._active += 1
        self.create.append(cleanup_job(world.owner, target, attempt=attempt, policy=world.policy))
        self.delete += [(job.namespace, job.name) for job in former if not job.deleting]
        return ""

    def result(self) -> Cleanup:
        """All effects."""
        return Cleanup(
            leaving={name: frozenset(digests) for name, digests in self.leaving.items() if digests},
            delete=tuple(self.delete),
            create=tuple(self.create),
            cleaned={name: frozenset(digests) for name, digests in self.cleaned.items()},
            finished=tuple(self.finished),
            notices=tuple(self.notices),
            again_after_seconds=min(self._again, default=None),
        )


# --- deletion ---------------------------------------------------------------------------------------------------------


def _deletion(world: World, targets: tuple[Target, ...], usage: Usage, now: datetime) -> Cleanup:
    owner = world.owner
    all_jobs = tuple((job.namespace, job.name) for job in world.jobs)
    if names.FINALIZER not in owner.finalizers:
        return Cleanup(finished=all_jobs, released=True)
    if not deletes(owner):
        return Cleanup(finalizers=_without_ours(owner), finished=all_jobs, released=True)
    staging = tuple(job.name for job in world.staging if not job.deleting)
    since = owner.deleted_at or now
    plan = _Plan(world, now)
    plan.delete += [(job.namespace, job.name) for job in world.jobs if job.digests and not job.deleting]
    left: list[str] = []
    waits = False
    for target in targets:
        why = _clean_for_deletion(world, plan, target, usage, now - since)
        if why is None:
            waits = True
        elif why:
            left.append(f"{target.node.name}: {storage.home(owner, target.where).path} ({why})")
    if waits:
        plan.again(10.0)
        unknown = {job.node_name for job in world.staging} - owner.status.nodes.keys()
        begun = api.NodeStatus(state="Staging", reason=failures.STARTING, last_transition_time=rfc3339(now))
        return replace(plan.result(), noted=dict.fromkeys(sorted(unknown), begun), delete_staging=staging)
    where = {str(storage.home(owner, each).path) for each in classes(owner, world.policy)}
    notice = (
        Notice("Warning", LEFT_BEHIND, f"left on {len(left)} node(s): {list_some(left)}"[:1000])
        if left
        else Notice("Normal", CLEANED, f"removed {list_some(sorted(where)) or 'nothing'} from {len(targets)} node(s)")
    )
    return Cleanup(
        finalizers=_without_ours(owner),
        delete_staging=staging,
        finished=all_jobs,
        notices=(*plan.notices, notice),
        released=True,
    )


def _clean_for_deletion(world: World, plan: _Plan, target: Target, usage: Usage, passed: timedelta) -> str | None:
    """Where one target stands: "" for cleaned, why it is left as it is, or None to wait."""
    latest = next(iter(plan.rounds(target)), None)
    if latest is not None and latest.state == "Complete":
        return ""
    if passed > DELETION_ENDS:
        return "not done in time"
    is_late = passed > DELETION_WAITS
    if latest is not None and latest.state == "Active":
        return _late(is_late and not latest.running, f"its pod didn't start: {latest.message or 'no word'}")
    given_up = _given_up(world, target)
    if given_up:
        return plan.give_up(given_up[0])
    hindrance = _hindrance(world, plan, target, usage)
    if hindrance is not None:
        return _late(is_late and hindrance, hindrance)
    refusal = world.refusals.get(target.node.name, "")
    if refusal and (is_late or _TERMINATING in refusal):
        return refusal
    return plan.clean(target) or None


def _hindrance(world: World, plan: _Plan, target: Target, usage: Usage) -> str | None:
    """What keeps a target from being cleaned now; "" where its turn hasn't come, None where nothing does."""
    name = target.node.name
    if any(job.node_name == name for job in world.staging):
        return "a staging doesn't end"
    if why := _takes_no_pods(target.node):
        return why
    if name not in usage:
        return ""
    used = plan.used(target, "", usage)
    return f"used by {list_some(used)}" if used else None


def _takes_no_pods(node: Node) -> str:
    """Why no Job would run on a node now, "" where one may: it would use up its rounds for nothing."""
    if not node.ready:
        return "the node isn't ready"
    return f"the node has the taint {node.pressure}" if node.pressure else ""


def _late(over: object, why: str) -> str | None:
    return why if over else None
