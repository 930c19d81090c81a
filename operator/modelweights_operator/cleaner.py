"""Fetched files that go: between the domain's decisions and the API server. Called by the reconciler, for one object at a time.

prepare (finalizer, cleanup Jobs) -> the plan of the staging -> finish (Jobs that did their work, events)
delete: the same for an object that waits for its finalizer
"""

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from modelweights_operator.domain import cleanup, convert, names, retention
from modelweights_operator.domain.cleanup import Cleanup
from modelweights_operator.domain.cleanup_jobs import CleanupJob, Target
from modelweights_operator.domain.events import Event
from modelweights_operator.domain.retention import World
from modelweights_operator.domain.room import Rooms
from modelweights_operator.domain.snapshot import Owner, Policy, Snapshot, StagingPod
from modelweights_operator.domain.usage import PodUse
from modelweights_operator.kube import apply, cleaning, paths
from modelweights_operator.kube.client import Api, Json
from modelweights_operator.kube.informer import Informer, Item

_log = logging.getLogger(__name__)


class Cleaner:
    """Knows the cleanup Jobs and does what `cleanup` plans.

    Args:
        api: The connection.
        policy: Settings of the operator.
        may_hold: Whether the right to put finalizers on is there.
        wake: Told the UID of a ModelWeights that is to be looked at again.
    """

    def __init__(self, api: Api, policy: Policy, *, may_hold: bool, wake: Callable[[str], None]) -> None:
        self._api, self._policy, self._may_hold, self._wake = api, policy, may_hold, wake
        query = {"labelSelector": names.CLEANUP_LABEL}
        self._jobs = Informer(api, paths.JOBS, query, _job_item, lambda item: wake(item.value.owner_uid))
        self._pods = Informer(api, paths.PODS, query, _pod_item, lambda item: wake(item.value.owner_uid))
        self._refusals: dict[str, dict[str, str]] = {}
        self._told: dict[str, set[str]] = {}
        self._asked: dict[str, str] = {}

    @property
    def informers(self) -> Mapping[str, Informer[Any]]:
        """To be run by the reconciler."""
        return {"cleanup jobs": self._jobs, "cleanup pods": self._pods}

    async def prepare(
        self,
        snapshot: Snapshot,
        *,
        requires: Iterable[tuple[str, str]],
        rooms: Rooms,
        now: datetime,
    ) -> tuple[Snapshot, Cleanup]:
        """Put the finalizer on or off, and make and end cleanup Jobs.

        Args:
            snapshot: The object and what is around it.
            requires: What waiting pods ask for, each with the pod's namespace.
            rooms: Says which checkpoints are to make room for others, and is told which of them have to stay.
            now: The time.

        Returns:
            The snapshot with what the planner is to know of it, and the plan, for `finish`.
        """
        key = snapshot.owner.full_name
        world = self._world(snapshot, requires, rooms.asked(key))
        plan = await self._plan(world, now, rooms)
        snapshot = replace(snapshot, room_missing=rooms.missing(key))
        snapshot = replace(snapshot, owner=await self._begin(world, plan))
        cleaning_nodes = {job.node_name for job in world.jobs if job.state == "Active" or job.deleting}
        cleaning_nodes |= {made["metadata"]["annotations"][names.NODE_ANNOTATION] for made in plan.create}
        snapshot = replace(snapshot, cleaned=plan.cleaned, leaving=plan.leaving, cleaning=frozenset(cleaning_nodes))
        return snapshot, plan

    async def finish(self, snapshot: Snapshot, plan: Cleanup, now: datetime) -> None:
        """Delete Jobs of which the status tells by now, and post events."""
        await self._tell(snapshot, plan, now)
        await cleaning.delete(self._api, plan.finished)

    async def delete(self, snapshot: Snapshot, unlabel: Callable[[], Awaitable[None]], now: datetime) -> float | None:
        """Do what is to be done before a deleted object may go.

        Args:
            snapshot: The object and what is around it.
            unlabel: Takes the object's labels off the nodes.
            now: The time.

        Returns:
            In how many seconds to look again.
        """
        owner = snapshot.owner
        world = self._world(snapshot, (), {})
        if names.FINALIZER not in owner.finalizers and not world.jobs:
            return None
        await unlabel()
        plan = await self._plan(world, now)
        if plan.noted:
            await apply.note_nodes(self._api, owner, plan.noted)
        for name in plan.delete_staging:
            await self._api.delete(f"{paths.jobs(owner.namespace)}/{name}")
        await self._tell(snapshot, plan, now)
        await self._begin(world, plan)
        await cleaning.delete(self._api, plan.finished)
        return plan.again_after_seconds

    async def sweep(self, living: Collection[str]) -> None:
        """Delete the Jobs of objects that are gone, whoever let them go, and forget these.

        Args:
            living: UIDs of all ModelWeights, asked of the API server.
        """
        gone = [job for job in self._jobs.values() if job.owner_uid not in living and not job.deleting]
        for kept in (self._refusals, self._told, self._asked):
            for uid in kept.keys() - set(living):
                del kept[uid]
        await cleaning.delete(self._api, [(job.namespace, job.name) for job in gone])

    def _world(
        self, snapshot: Snapshot, requires: Iterable[tuple[str, str]], victims: Mapping[str, frozenset[str]]
    ) -> World:
        owner = snapshot.owner
        jobs = [
            cleaning.with_pods(job, self._pods.group(f"{job.namespace}/{job.name}"))
            for job in self._jobs.group(owner.uid)
        ]
        return World(
            owner=owner,
            nodes=snapshot.nodes,
            staging=(*snapshot.jobs, *snapshot.refreshes),
            jobs=tuple(jobs),
            policy=self._policy,
            may_hold=self._may_hold,
            asked=retention.has_former(owner)
            and any(retention.asks_for_revision(text, namespace, owner) for text, namespace in requires),
            victims=victims,
            refusals=self._refusals.get(owner.uid, {}),
        )

    async def _plan(self, world: World, now: datetime, rooms: Rooms | None = None) -> Cleanup:
        targets, later = retention.due(world, now)
        asking = cleanup.without_given_up(world, targets)
        usage = await self._usage(world, asking)
        again = [later]
        if rooms is not None and world.victims:
            asked = self._settle(world, usage, rooms, now)
            world = replace(world, victims=rooms.victims(world.owner.full_name))
            targets, _ = retention.due(world, now)
            again.append(cleanup.USE_SECONDS if asked != world.victims else None)
        plan = cleanup.plan(world, targets, usage, now)
        return replace(plan, again_after_seconds=min(filter(None, (plan.again_after_seconds, *again)), default=None))

    def _settle(
        self, world: World, usage: Mapping[str, tuple[PodUse, ...]], rooms: Rooms, now: datetime
    ) -> Mapping[str, frozenset[str]]:
        """Tell what has to stay, until nothing more is asked about: in the place of one that stays another one is chosen.

        Returns:
            What is asked about in the end.
        """
        key = world.owner.full_name
        while True:
            targets, _ = retention.due(world, now)
            asking = cleanup.without_given_up(world, targets)
            for uid in rooms.looked(key, cleanup.has_to_stay(world, asking, usage)):
                self._wake(uid)
            asked = rooms.asked(key)
            if all(digests <= world.victims.get(name, frozenset()) for name, digests in asked.items()):
                return asked
            world = replace(world, victims={name: asked[name] | world.victims.get(name, frozenset()) for name in asked})

    async def _usage(self, world: World, targets: Collection[Target]) -> dict[str, tuple[PodUse, ...]]:
        """The pods of the nodes on which something may go; of none where a Job is under way there."""
        busy = {job.node_name for job in world.jobs if job.state == "Active" or job.deleting}
        done = {job.node_name for job in world.jobs if job.state == "Complete" and not job.digests}
        nodes = dict.fromkeys(target.node.name for target in targets if target.node.ready)
        begun = {
            target.node.name for target in targets if self._policy.label_nodes and cleanup.has_begun(world, target)
        }
        free = [name for name in nodes if name not in busy | done]
        asked, last = cleanup.next_asked(free, begun, self._asked.get(world.owner.uid, ""))
        self._asked[world.owner.uid] = last
        if not asked:
            return {}
        unbound = await cleaning.pods_of(self._api, "")
        return {name: (*await cleaning.pods_of(self._api, name), *unbound) for name in asked}

    async def _begin(self, world: World, plan: Cleanup) -> Owner:
        """Carry out the first part of a plan; the object with the finalizers that it has then."""
        refusals: dict[str, str] = {}
        owner = world.owner
        if plan.finalizers is not None:
            owner = await cleaning.hold(self._api, owner, plan.finalizers)
        await cleaning.delete(self._api, plan.delete)
        for manifest in plan.create:
            made, refusal = await cleaning.create(self._api, manifest)
            if made is not None:
                self._jobs.expect(made)
            if refusal:
                refusals[manifest["metadata"]["annotations"][names.NODE_ANNOTATION]] = refusal
        if refusals or plan.create:
            self._refusals[world.owner.uid] = refusals
        return owner

    async def _tell(self, snapshot: Snapshot, plan: Cleanup, now: datetime) -> None:
        """Post events, each once for as long as this process lives."""
        owner = snapshot.owner
        told = self._told.setdefault(owner.uid, set())
        for notice in plan.notices:
            if notice.message not in told:
                told.add(notice.message)
                _log.info("%s: %s: %s", owner.full_name, notice.reason, notice.message)
                event = Event(notice.kind, notice.reason, notice.message)
                await apply.post_event(self._api, apply.reference(owner.namespace, owner.name, owner.uid), event, now)


def _job_item(body: Json) -> Item[CleanupJob] | None:
    job = cleaning.cleanup_job(body)
    return Item(job.owner_uid, job)


def _pod_item(body: Json) -> Item[StagingPod] | None:
    labels = body["metadata"].get("labels") or {}
    name = labels.get(convert.JOB_NAME_LABEL)
    pod = replace(convert.staging_pod(body), owner_uid=labels.get(names.CLEANUP_LABEL, ""))
    return Item(f"{body['metadata']['namespace']}/{name}", pod) if name else None
