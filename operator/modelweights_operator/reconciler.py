"""The running operator: informers and queues around gather, plan and apply. Made and fed by `handlers`.

ModelWeights (kopf) ------------------+
nodes, Jobs, staging pods (informers) +--> models queue: gather -> make_plan -> apply --wakes--> gated pods
gated pods: `gatekeeper`
every RESYNC_SECONDS: all models, labels that belong to no model, and whether kopf's watches still live
"""

import asyncio
import logging
import time
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, ClassVar, Final

from modelweights_operator import errors
from modelweights_operator.cleaner import Cleaner
from modelweights_operator.domain import failures, names
from modelweights_operator.domain.concerns import Concerns
from modelweights_operator.domain.plan import Plan, make_plan
from modelweights_operator.domain.residents import Residents, size_told
from modelweights_operator.domain.room import Rooms
from modelweights_operator.domain.snapshot import Node, Policy, Snapshot, StagingJob
from modelweights_operator.domain.startup_taint import selector_of
from modelweights_operator.domain.turns import Turns
from modelweights_operator.gatekeeper import Gatekeeper
from modelweights_operator.kube import apply, convert, gather, items, paths
from modelweights_operator.kube.client import METADATA_ONLY, Api, Json
from modelweights_operator.kube.informer import Informer, Item
from modelweights_operator.kube.last_warnings import LastWarnings
from modelweights_operator.kube.objects import Objects
from modelweights_operator.kube.progress import ProgressReader
from modelweights_operator.kube.queue import WorkQueue
from modelweights_operator.kube.rights import Features
from modelweights_operator.kube.startup_taints import StartupTaints
from modelweights_operator.settings import Settings
from modelweights_operator.watchdog import Watchdog

Key = tuple[str, str]

RESYNC_SECONDS: Final = 60.0
_CYCLE_SECONDS: Final = 4.0
_WRITE_SECONDS: Final = 4.0
"""Together with what kopf takes this fits into the pod's `terminationGracePeriodSeconds`."""
_SPREAD_SECONDS: Final = 40.0
_APART_SECONDS: Final = 0.05
"""How far apart objects are looked at again in a resync at most, and for how long that may take at most."""
_REST_SECONDS_A_NODE: Final = 0.0005
_MAX_REST_SECONDS: Final = 0.4
_OURS: Final = f"{names.MANAGED_BY_LABEL}={names.MANAGED_BY}"

_log = logging.getLogger(__name__)


class Reconciler:
    """Holds what the operator knows and works on what changed.

    Args:
        api: The connection.
        settings: Settings of the operator.
        features: What the optional rights let it do. Without lifting gates stay shut, without labels lifts name nodes,
            without holding objects `deletionPolicy: Delete` removes nothing, without watching namespaces no pod may require
            what another one has, without logs nobody knows how far a staging is.
        startup_taint: Whether the startup taint is taken off nodes that are staged.
    """

    ready_text: ClassVar[str] = "ok"

    def __init__(self, api: Api, settings: Settings, features: Features, *, startup_taint: bool = False) -> None:
        self._api = api
        self._quiet_seconds = settings.quiet_seconds
        self._policy = Policy(
            loader_image=settings.loader_image,
            image_pull_policy=settings.image_pull_policy,
            host_path_roots=settings.host_path_roots,
            label_nodes=features.label_nodes,
            storage_classes=settings.storage_classes,
            fetch=settings.fetch,
            memory_budget=settings.memory_budget,
            namespace=settings.namespace,
            pull_secrets=settings.pull_secrets,
            max_jobs=settings.max_jobs,
        )
        self._cleaner = Cleaner(api, self._policy, may_hold=features.hold_objects, wake=self._wake_owner)
        self._objects, self._concerns, self._warnings = Objects(api), Concerns(), LastWarnings(api)
        self._turns, self._residents = Turns(), Residents()
        self._rooms = Rooms(datetime.now(UTC))
        self._models: WorkQueue[Key] = WorkQueue(self._reconcile_model, pause=self._rest_seconds)
        self._sweeps: WorkQueue[str] = WorkQueue(self._sweep_labels, concurrency=1)
        self._stuck: dict[Key, set[str]] = {}
        self._keys: dict[str, Key] = {}
        self._nodes = self._concerns.nodes
        self._taints = StartupTaints(api, self._nodes, enabled=startup_taint)
        self._gates = Gatekeeper(api, self._nodes, features)
        self._watchdog = Watchdog(settings.quiet_seconds)
        self._progress = ProgressReader(api, may_read=features.read_logs, on_change=self._wake_owner)
        self._jobs = Informer(
            api,
            paths.JOBS,
            {"labelSelector": _OURS},
            items.job_item,
            self._job_changed,
        )
        self._pods = Informer(
            api,
            paths.PODS,
            {"labelSelector": _OURS},
            items.pod_item,
            lambda item: self._wake_owner(item.value.owner_uid),
        )
        self._nodes_informer = Informer(api, paths.NODES, {}, items.node_item, self._node_changed)
        self._informers: dict[str, Informer[Any]] = {
            "nodes": self._nodes_informer,
            "jobs": self._jobs,
            "staging pods": self._pods,
            **self._gates.informers,
            **self._cleaner.informers,
        }
        self._tasks: list[asyncio.Task[None]] = []

    # --- life -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the informers and the resync."""
        runs = {name: informer.run() for name, informer in self._informers.items()}
        runs["resync"] = self._resync_forever()
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(run, name=name) for name, run in runs.items()]
        for task in self._tasks:
            task.add_done_callback(_log_end)

    async def close(self) -> None:
        """Let each object that is worked on be finished; after some seconds only the writes at hand; then stop."""
        await asyncio.gather(*(queue.finish(_CYCLE_SECONDS) for queue in (self._models, self._gates, self._taints)))
        await self._api.finish(_WRITE_SECONDS)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        parts = (self._models, self._gates, self._sweeps, self._taints, self._progress)
        await asyncio.gather(*(part.close() for part in parts))

    def is_ready(self) -> bool:
        """Whether every informer has its first list."""
        return all(informer.synced.is_set() for informer in self._informers.values())

    def is_alive(self) -> str:
        """Why the operator is to be restarted; "" when it isn't."""
        for name, informer in self._informers.items():
            if informer.quiet_seconds > self._quiet_seconds:
                return f"nothing heard of {name} for {informer.quiet_seconds:.0f} s"
        for task in self._tasks:
            if task.done():
                return f"task {task.get_name()} ended"
        return self._watchdog.verdict()

    # --- what the handler tells -----------------------------------------------------------------------------------

    def model_seen(self, body: Json, *, gone: bool) -> None:
        """A ModelWeights came, changed or went."""
        metadata = body["metadata"]
        key = (metadata["namespace"], metadata["name"])
        if gone:
            self._model_went(metadata["uid"])
            return
        self._watchdog.seen(key, metadata["resourceVersion"])
        self._model_changed(body)

    def _model_changed(self, body: Json) -> None:
        """By whomever: also by us, whose status may bring the next step. What the watch tells of that later is no news."""
        if not self._objects.heard(body):
            return
        key = (body["metadata"]["namespace"], body["metadata"]["name"])
        self._keys[body["metadata"]["uid"]] = key
        self._residents.note("/".join(key), body)
        self._models.wake(key)
        self._gates.wake_for(key)

    def _model_went(self, uid: str) -> None:
        key = self._keys.pop(uid, None)
        if key is None:
            return
        if key not in self._keys.values():
            self._watchdog.seen(key, "")
            self._objects.gone(key)
            self._residents.forget("/".join(key))
        self._models.wake(key)
        self._gates.wake_for(key)

    # --- wake-ups -------------------------------------------------------------------------------------------------

    def _node_changed(self, item: Item[Node]) -> None:
        """A node came, changed or went: wake those whom it concerns. What staging doesn't care for, as heartbeats, wakes nobody."""
        is_there = self._nodes_informer.get(("", item.value.name)) is not None
        concerned = self._concerns.put(item.value) if is_there else self._concerns.drop(item.value.name)
        self._taints.wake()
        for key in concerned:
            self._models.wake(key)

    def _node_labelled(self, key: Key, body: Json) -> None:
        """Known at once, or the next plan, which comes before the watch tells of it, would label the node again."""
        node = convert.node(body)
        known = self._nodes.get(node.name)
        if known is not None and known.uid == node.uid:
            for other in self._concerns.put(node) - {key}:
                self._models.wake(other)

    def _job_changed(self, item: Item[StagingJob]) -> None:
        job = item.value
        self._wake_owner(job.owner_uid)
        if job.state != "Active" or job.deleting:
            self._call_next(1)

    def _call_next(self, places: int) -> None:
        """Places among all Jobs are free, for those that wait longest."""
        for _ in range(places):
            following = self._turns.next_for_jobs()
            if not following:
                return
            self._models.wake(_key_of(following))

    def _wake_owner(self, uid: str) -> None:
        key = self._keys.get(uid)
        if key is not None:
            self._models.wake(key)

    # --- one model ------------------------------------------------------------------------------------------------

    async def _reconcile_model(self, key: Key) -> float | None:
        try:
            return await self._look_at_model(key)
        except Exception:
            # Whatever it was: what was written is seen by reading, not by remembering.
            self._objects.doubt(key)
            raise

    async def _look_at_model(self, key: Key) -> float | None:
        # Before that nothing is planned: a node that is missing would be cleaned up.
        for informer in self._informers.values():
            await informer.synced.wait()
        now = datetime.now(UTC)
        snapshot = await gather.gather(
            key,
            objects=self._objects,
            warnings=self._warnings,
            concerns=self._concerns,
            jobs=self._jobs,
            pods=self._pods,
            policy=self._policy,
            now=now,
        )
        if snapshot is None:
            self._forget(key)
            return None
        if snapshot.owner.deleting:
            # In the foreground: whatever were made for it now, the garbage collector would have to remove again.
            self._gates.wake_for(key)
            return await self._cleaner.delete(snapshot, partial(self._take_labels, snapshot.owner.uid), now)
        name = snapshot.owner.full_name
        snapshot = replace(
            snapshot,
            resident=self._residents.beside(name, self._nodes, now),
            jobs=self._progress.add(snapshot.jobs, now),
        )
        for other in self._residents.learn(name, size_told(snapshot.jobs)):
            self._models.wake(_key_of(other))
        self._stuck[key] = {f"{key[0]}/{job.name}" for job in snapshot.jobs if failures.is_stuck(job)}
        requires = [(pod.require, pod.namespace) for pod in self._gates.waiting]
        for other in self._rooms.note(name, snapshot):
            self._models.wake(_key_of(other))
        made = self._rooms.made_room(name, now)
        snapshot = replace(snapshot, over_quota=self._rooms.over_quota(snapshot), room_made=made)
        snapshot, cleanup = await self._cleaner.prepare(snapshot, requires=requires, rooms=self._rooms, now=now)
        snapshot, plan, refusals = await self._plan_jobs(snapshot, now)
        write_refusal = await apply.prepare(self._api, snapshot, plan, self._jobs, partial(self._node_labelled, key))
        if plan.config_map is not None:
            self._objects.wrote_config_map(key)
        if write_refusal:
            plan = make_plan(replace(snapshot, refusals=refusals, write_refusal=write_refusal), now)
        await apply.apply(self._api, snapshot, plan, self._jobs, now, self._model_changed)
        self._call_next(len(plan.delete_jobs) + len(plan.finished_jobs))
        self._taints.note(selector_of(snapshot.owner, plan))
        await self._cleaner.finish(snapshot, cleanup, now)
        self._gates.wake_for(key)
        return min(filter(None, (plan.again_after_seconds, cleanup.again_after_seconds)), default=None)

    def _rest_seconds(self, key: Key) -> float:
        """A cycle costs by the nodes, and so do events come: large objects aren't looked at for each single one."""
        return min(self._concerns.count(key) * _REST_SECONDS_A_NODE, _MAX_REST_SECONDS)

    def _forget(self, key: Key) -> None:
        self._turns.forget("/".join(key))
        self._rooms.forget("/".join(key))
        self._stuck.pop(key, None)
        self._concerns.forget(key)
        self._taints.wake()
        self._sweeps.wake("")

    async def _plan_jobs(self, snapshot: Snapshot, now: datetime) -> tuple[Snapshot, Plan, dict[str, str]]:
        """Plan, and delete and create Jobs; the plan is the one that knows what was refused."""
        owner = snapshot.owner
        counted = owner.status.summary.ready < owner.status.summary.desired
        if counted:
            # It will hardly be without Jobs to make; the plan needn't be made twice then.
            snapshot = self._beside_others(snapshot, now)
        plan = make_plan(snapshot, now)
        if plan.config_map is not None and owner.status.published is None:
            found = await self._objects.read_config_map((owner.namespace, owner.name), owner)
            # Meanwhile others may have taken places.
            snapshot, counted = replace(snapshot, config_map=found), False
            plan = make_plan(snapshot, now)
        if plan.create_jobs and not counted:
            snapshot = self._beside_others(snapshot, now)
            plan = make_plan(snapshot, now)
        # Without a pause since the plan was made: the next plan, of whichever object, counts what this one takes.
        self._turns.note(owner.full_name, plan.waits, served=bool(plan.create_jobs), now=now)
        self._residents.begin(owner.full_name, plan.begins, now)
        refusals = await apply.change_jobs(self._api, owner, plan, self._jobs, now)
        if refusals:
            plan = make_plan(replace(snapshot, refusals=refusals), now)
        return snapshot, plan, refusals

    def _beside_others(self, snapshot: Snapshot, now: datetime) -> Snapshot:
        """With what all objects have under way, for the caps over all of them."""
        stuck = frozenset().union(*self._stuck.values())
        nodes = self._nodes.values()
        return replace(
            snapshot,
            under_way=gather.under_way(self._jobs, nodes=nodes, stuck=stuck),
            fetching=gather.fetching(self._jobs, self._pods, self._keys, nodes=nodes, stuck=stuck, now=now),
            ahead=self._turns.ahead(snapshot.owner.full_name, now),
        )

    async def _take_labels(self, uid: str) -> None:
        """No pod is to be sent anywhere any more for an object that is being deleted."""
        for node in list(self._nodes.values()) if self._policy.label_nodes else ():
            labels = node.staged_of(uid)
            if labels:
                await apply.label_node(self._api, node.name, dict.fromkeys(labels))

    async def _sweep_labels(self, _: str = "") -> None:
        """Take labels off nodes that no living ModelWeights stands behind.

        Nodes have no owner references, and a finalizer only for this would make deletion wait for the operator. What
        lives is asked of the API server and not of a cache: a label is never taken on a guess.
        """
        await self._nodes_informer.synced.wait()
        labelled = [
            (node, label) for node in self._nodes.values() for labels in node.staged.values() for label in labels
        ]
        if not labelled or not self._policy.label_nodes:
            return
        listed = await self._api.get(paths.ALL_MODELWEIGHTS, accept=METADATA_ONLY)
        living = {names.node_label_owner(item["metadata"]["uid"]) for item in listed.get("items") or []}
        for node, label in labelled:
            if names.owner_of_label(label) not in living:
                await apply.label_node(self._api, node.name, {label: None})

    # --- resync ---------------------------------------------------------------------------------------------------

    async def _resync_forever(self) -> None:
        while True:
            began = time.monotonic()
            try:
                await self._resync()
            except errors.ApiError as error:
                _log.warning("resync: %s", error)
            await asyncio.sleep(max(began + RESYNC_SECONDS - time.monotonic(), 1.0))

    async def _resync(self) -> None:
        """Look at everything once more, so that an event that got lost costs a minute and not for ever."""
        known = set(self._keys)
        listed = await self._api.get(paths.ALL_MODELWEIGHTS, accept=METADATA_ONLY)
        metadata = [item["metadata"] for item in listed.get("items") or []]
        for uid in known - {item["uid"] for item in metadata}:
            # kopf doesn't tell what went while its watch was broken off.
            self._model_went(uid)
        self._watchdog.listed({(item["namespace"], item["name"]): item["resourceVersion"] for item in metadata})
        versions = {(item["namespace"], item["name"]): item["resourceVersion"] for item in metadata}
        for key in self._objects.keys() | versions.keys():
            self._objects.compare(key, versions.get(key, ""))
        self._gates.wake_all()
        self._taints.wake()
        await self._sweep_labels()
        await self._cleaner.sweep({item["uid"] for item in metadata})
        # Not all at once: what just happened to one of them would have to wait for a thousand others.
        for key in self._objects.keys() | versions.keys():
            self._models.wake(key)
            await asyncio.sleep(min(_SPREAD_SECONDS / len(versions), _APART_SECONDS) if versions else 0)


def _log_end(task: asyncio.Task[None]) -> None:
    """These tasks end by being cancelled only; anything else fails the liveness probe and is told here."""
    if not task.cancelled():
        _log.error("task %s ended: %r", task.get_name(), task.exception(), exc_info=task.exception())


def _key_of(owner: str) -> Key:
    namespace, _, name = owner.partition("/")
    return namespace, name
