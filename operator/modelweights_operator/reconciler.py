"""The running operator: informers and queues around gather, plan and apply. Made and fed by `handlers`.

ModelWeights (kopf) ------------------+
nodes, Jobs, staging pods (informers) +--> models queue: gather -> make_plan -> apply --wakes--> gated pods
gated pods: `gatekeeper`
every RESYNC_SECONDS: all models, labels that belong to no model, and whether kopf's watches still live
"""

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, ClassVar, Final

from modelweights_operator import errors
from modelweights_operator.cleaner import Cleaner
from modelweights_operator.domain import failures, names
from modelweights_operator.domain.figures import Figures, figures_of
from modelweights_operator.domain.outcomes import ended
from modelweights_operator.domain.plan import Plan, make_plan
from modelweights_operator.domain.residents import Residents, size_told
from modelweights_operator.domain.room import Rooms
from modelweights_operator.domain.snapshot import Node, Policy, Snapshot
from modelweights_operator.domain.startup_taint import selector_of
from modelweights_operator.domain.turns import Turns
from modelweights_operator.gatekeeper import Gatekeeper
from modelweights_operator.kube import apply, gather, items, paths
from modelweights_operator.kube.client import METADATA_ONLY, Api, Json
from modelweights_operator.kube.informer import Informer, Item
from modelweights_operator.kube.progress import ProgressReader
from modelweights_operator.kube.queue import WorkQueue
from modelweights_operator.kube.rights import Features
from modelweights_operator.kube.startup_taints import StartupTaints
from modelweights_operator.metrics import Metrics
from modelweights_operator.settings import Settings
from modelweights_operator.watchdog import Watchdog

Key = tuple[str, str]

RESYNC_SECONDS: Final = 60.0
_CYCLE_SECONDS: Final = 4.0
_WRITE_SECONDS: Final = 4.0
"""Together with what kopf takes this fits into the pod's `terminationGracePeriodSeconds`."""
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
        metrics: Is told what happens, and asks for what there is.
        startup_taint: Whether the startup taint is taken off nodes that are staged.
    """

    ready_text: ClassVar[str] = "ok"

    def __init__(
        self, api: Api, settings: Settings, features: Features, metrics: Metrics, *, startup_taint: bool = False
    ) -> None:
        self._api, self._metrics = api, metrics
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
        )
        self._cleaner = Cleaner(api, self._policy, may_hold=features.hold_objects, wake=self._wake_owner)
        self._admission, self._turns, self._residents = asyncio.Lock(), Turns(), Residents()
        self._rooms = Rooms(datetime.now(UTC))
        self._models: WorkQueue[Key] = WorkQueue(self._reconcile_model, observe=metrics.observer("models"))
        self._stuck: dict[Key, set[str]] = {}
        self._keys: dict[str, Key] = {}
        self._figures: dict[Key, Figures] = {}
        self._nodes: dict[str, Node] = {}
        self._taints = StartupTaints(api, self._nodes, metrics, enabled=startup_taint)
        self._gates = Gatekeeper(api, self._nodes, features, metrics)
        self._watchdog = Watchdog(settings.quiet_seconds)
        self._progress = ProgressReader(api, may_read=features.read_logs, on_change=self._wake_owner)
        self._jobs = Informer(
            api,
            paths.JOBS,
            {"labelSelector": _OURS},
            items.job_item,
            lambda item: self._wake_owner(item.value.owner_uid),
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
        await asyncio.gather(*(part.close() for part in (self._models, self._gates, self._taints, self._progress)))

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

    # --- what the metrics ask -------------------------------------------------------------------------------------

    def figures(self) -> Mapping[Key, Figures]:
        """Each ModelWeights in numbers, as its latest status tells."""
        return self._figures

    def lengths(self) -> Mapping[str, int]:
        """Per queue, how many keys have something to do or wait for a time."""
        return {"models": len(self._models), "gates": self._gates.length}

    def counts(self) -> Mapping[str, int]:
        """What there is once in a cluster."""
        active = sum(job.state == "Active" and not job.deleting for job in self._jobs.values())
        return {"jobs_active": active, "gated_pods": len(self._gates.waiting)}

    # --- what the handler tells -----------------------------------------------------------------------------------

    def model_seen(self, body: Json, *, gone: bool) -> None:
        """A ModelWeights came, changed or went."""
        metadata = body["metadata"]
        key = (metadata["namespace"], metadata["name"])
        if gone:
            self._model_went(metadata["uid"])
            return
        self._watchdog.seen(key, metadata["resourceVersion"])
        self._keys[metadata["uid"]] = key
        self._residents.note("/".join(key), body)
        self._figures[key] = figures_of(body)
        self._models.wake(key)
        self._gates.wake_for(key)

    def _model_went(self, uid: str) -> None:
        key = self._keys.pop(uid, None)
        if key is None:
            return
        if key not in self._keys.values():
            self._watchdog.seen(key, "")
            self._residents.forget("/".join(key))
            self._figures.pop(key, None)
            self._metrics.forget(key)
        self._models.wake(key)
        self._gates.wake_for(key)

    # --- wake-ups -------------------------------------------------------------------------------------------------

    def _node_changed(self, item: Item[Node]) -> None:
        """A node came, changed or went. What staging doesn't care for, as heartbeats, wakes nobody."""
        node = item.value
        former = self._nodes.get(node.name)
        if self._nodes_informer.get(("", node.name)) is None:
            self._nodes.pop(node.name, None)
            self._wake_all()
            return
        self._nodes[node.name] = node
        self._taints.wake()
        if former is None or _without_our_labels(former) != _without_our_labels(node):
            self._wake_all()
            return
        # Our labels change with every staged node: that concerns the models whose labels they are, not all of them.
        changed = {
            owner
            for owner in former.staged.keys() | node.staged.keys()
            if former.staged.get(owner) != node.staged.get(owner)
        }
        for uid, key in self._keys.items() if changed else ():
            if names.node_label_owner(uid) in changed:
                self._models.wake(key)

    def _wake_all(self) -> None:
        for key in self._keys.values():
            self._models.wake(key)

    def _wake_owner(self, uid: str) -> None:
        key = self._keys.get(uid)
        if key is not None:
            self._models.wake(key)

    # --- one model ------------------------------------------------------------------------------------------------

    async def _reconcile_model(self, key: Key) -> float | None:
        # Before that nothing is planned: a node that is missing would be cleaned up.
        for informer in self._informers.values():
            await informer.synced.wait()
        now = datetime.now(UTC)
        snapshot = await gather.gather(
            self._api, key, nodes=self._nodes.values(), jobs=self._jobs, pods=self._pods, policy=self._policy, now=now
        )
        if snapshot is None:
            self._turns.forget("/".join(key))
            self._rooms.forget("/".join(key))
            self._stuck.pop(key, None)
            self._taints.wake()
            await self._sweep_labels()
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
        write_refusal = await apply.prepare(self._api, snapshot, plan)
        if write_refusal:
            plan = make_plan(replace(snapshot, refusals=refusals, write_refusal=write_refusal), now)
        await apply.apply(self._api, snapshot, plan, now)
        if key in self._figures:
            # Else it went meanwhile, and its series with it.
            self._metrics.staged(key, ended(snapshot.owner.status.nodes, plan.status.nodes, self._nodes))
        self._taints.note(selector_of(snapshot.owner, plan))
        await self._cleaner.finish(snapshot, cleanup, now)
        self._gates.wake_for(key)
        return min(filter(None, (plan.again_after_seconds, cleanup.again_after_seconds)), default=None)

    async def _plan_jobs(self, snapshot: Snapshot, now: datetime) -> tuple[Snapshot, Plan, dict[str, str]]:
        """Plan, and delete and create Jobs; the plan is the one that knows what was refused.

        The caps over all objects are looked at and taken by one at a time, or two would both see the last place free.
        """
        plan, name = make_plan(snapshot, now), snapshot.owner.full_name
        fetches = snapshot.owner.spec is not None and snapshot.owner.spec.is_fetched
        async with self._admission if plan.create_jobs and fetches else contextlib.nullcontext():
            if plan.create_jobs and fetches:
                fetching = gather.fetching(
                    self._jobs,
                    self._pods,
                    self._keys,
                    nodes=snapshot.nodes,
                    stuck=set().union(*self._stuck.values()),
                    now=now,
                )
                snapshot = replace(snapshot, fetching=fetching, ahead=self._turns.ahead(name, now))
                plan = make_plan(snapshot, now)
            self._turns.note(name, plan.waits, served=fetches and bool(plan.create_jobs), now=now)
            if snapshot.owner.spec is not None and snapshot.owner.spec.prefetch.mode == "PageCache":
                # Without a pause since the plan was made: the next plan, of whichever object, knows of it.
                self._residents.begin(name, plan.begins, now)
            refusals = await apply.change_jobs(self._api, snapshot.owner, plan, self._jobs.expect)
        if refusals:
            plan = make_plan(replace(snapshot, refusals=refusals), now)
        return snapshot, plan, refusals

    async def _take_labels(self, uid: str) -> None:
        """No pod is to be sent anywhere any more for an object that is being deleted."""
        for node in list(self._nodes.values()) if self._policy.label_nodes else ():
            labels = node.staged_of(uid)
            if labels:
                await apply.label_node(self._api, node.name, dict.fromkeys(labels))

    async def _sweep_labels(self) -> None:
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
            try:
                await self._resync()
            except errors.ApiError as error:
                _log.warning("resync: %s", error)
            await asyncio.sleep(RESYNC_SECONDS)

    async def _resync(self) -> None:
        """Look at everything once more, so that an event that got lost costs a minute and not for ever."""
        known = set(self._keys)
        listed = await self._api.get(paths.ALL_MODELWEIGHTS, accept=METADATA_ONLY)
        metadata = [item["metadata"] for item in listed.get("items") or []]
        for uid in known - {item["uid"] for item in metadata}:
            # kopf doesn't tell what went while its watch was broken off.
            self._model_went(uid)
        self._watchdog.listed({(item["namespace"], item["name"]): item["resourceVersion"] for item in metadata})
        for item in metadata:
            self._models.wake((item["namespace"], item["name"]))
        self._gates.wake_all()
        self._taints.wake()
        await self._sweep_labels()
        await self._cleaner.sweep({item["uid"] for item in metadata})


def _without_our_labels(node: Node) -> Node:
    return replace(
        node, labels={key: value for key, value in node.labels.items() if not key.startswith(names.NODE_LABEL_PREFIX)}
    )


def _log_end(task: asyncio.Task[None]) -> None:
    """These tasks end by being cancelled only; anything else fails the liveness probe and is told here."""
    if not task.cancelled():
        _log.error("task %s ended: %r", task.get_name(), task.exception(), exc_info=task.exception())


def _key_of(owner: str) -> Key:
    namespace, _, name = owner.partition("/")
    return namespace, name
