"""Takes the startup taint off nodes that are staged. Made and fed by the reconciler.

What a plan said of each ModelWeights is kept here. That none is missing, and none older than its spec, is asked of the API
server each time: a taint never goes on a guess.
"""

import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from modelweights_operator import errors
from modelweights_operator.domain import convert, placement, startup_taint
from modelweights_operator.domain.events import Event
from modelweights_operator.domain.snapshot import Node
from modelweights_operator.domain.startup_taint import Selector
from modelweights_operator.kube import apply, paths
from modelweights_operator.kube.client import METADATA_ONLY, Api, Json
from modelweights_operator.kube.queue import WorkQueue
from modelweights_operator.metrics import Metrics

_ALL: Final = "startup taints"

_log = logging.getLogger(__name__)


class StartupTaints:
    """Looks at all nodes with the taint whenever something changed.

    Args:
        api: The connection.
        nodes: All nodes by their name; kept true by the reconciler.
        metrics: Is told how long it takes.
        enabled: Whether the administrator wants it, and the right is there.
    """

    def __init__(self, api: Api, nodes: Mapping[str, Node], metrics: Metrics, *, enabled: bool) -> None:
        self._api, self._nodes, self._enabled = api, nodes, enabled
        self._models: dict[str, Selector] = {}
        self._clocks: startup_taint.Clocks = {}
        self._unplanned: startup_taint.Since = {}
        self._tainted: startup_taint.Since = {}
        self._halted: dict[str, Selector] = {}
        self._queue: WorkQueue[str] = WorkQueue(self._look, concurrency=1, observe=metrics.observer("startup taints"))

    def note(self, model: Selector) -> None:
        """What the latest plan said of a ModelWeights."""
        if self._enabled and self._models.get(model.uid) != model:
            self._models[model.uid] = model
            self.wake()

    def wake(self) -> None:
        """A node or a ModelWeights came, changed or went."""
        if self._enabled and any(map(startup_taint.is_tainted, self._nodes.values())):
            self._queue.wake(_ALL)

    async def finish(self, seconds: float) -> None:
        """Let what is being worked on come to its end for so long."""
        await self._queue.finish(seconds)

    async def close(self) -> None:
        """End where it is."""
        await self._queue.close()

    async def _look(self, _: str) -> float | None:
        listed = await self._api.get(paths.ALL_MODELWEIGHTS, accept=METADATA_ONLY)
        living = [item["metadata"] for item in listed.get("items") or [] if "deletionTimestamp" not in item["metadata"]]
        uids = {metadata["uid"] for metadata in living}
        self._models = {uid: model for uid, model in self._models.items() if uid in uids}
        now = datetime.now(UTC)
        nodes = dict(self._nodes)
        tainted = [node.uid for node in nodes.values() if startup_taint.is_tainted(node)]
        self._tainted = startup_taint.since(self._tainted, tainted, now)
        unplanned = {each["uid"]: each for each in living if self._generation(each["uid"]) != each.get("generation", 0)}
        self._unplanned = startup_taint.since(self._unplanned, unplanned, now)
        again = startup_taint.look_again_seconds(self._unplanned, now)
        overdue = startup_taint.overdue(self._unplanned, now)
        if unplanned.keys() - overdue:
            return again
        halted = [model for uid in sorted(overdue) if (model := await self._halted_one(unplanned[uid])) is not None]
        self._halted = {model.uid: model for model in halted}
        models = [*halted, *(model for uid, model in self._models.items() if uid not in overdue)]
        clocks = startup_taint.with_halted(self._clocks, halted, self._unplanned, nodes.values(), self._tainted)
        found = startup_taint.decide(list(nodes.values()), models, clocks, now)
        self._clocks = found.clocks
        for name, held_by in found.free.items():
            if await self._free(nodes[name]):
                for model in held_by:
                    await self._tell(model, name, now)
        return min(filter(None, (found.again_after_seconds, again)), default=None)

    async def _halted_one(self, metadata: Json) -> Selector | None:
        """What is known of a ModelWeights whose plan can't be carried out: which nodes it selects. None when it is gone."""
        known = self._halted.get(metadata["uid"])
        if known is not None and known.generation == metadata.get("generation", 0):
            return known
        try:
            owner = convert.owner(await self._api.get(paths.modelweights(metadata["namespace"], metadata["name"])))
        except errors.NotFoundError:
            return None
        placement_of = owner.spec.placement if owner.spec is not None else None
        return Selector(owner.uid, owner.namespace, owner.name, owner.generation, placement_of, halted=True)

    def _generation(self, uid: str) -> int:
        model = self._models.get(uid)
        return model.generation if model is not None else -1

    async def _free(self, node: Node) -> bool:
        """Take the taint off; bound to the version that was read, since taints are written as a whole."""
        listed = await self._api.get(paths.NODES, fieldSelector=f"metadata.name={node.name}")
        body: Json | None = next(iter(listed.get("items") or []), None)
        if body is None or body["metadata"]["uid"] != node.uid:
            return False
        taints = body["spec"].get("taints") or []
        left = [taint for taint in taints if taint["key"] != placement.STARTUP_TAINT]
        if left == taints:
            return False
        metadata = {"resourceVersion": body["metadata"]["resourceVersion"]}
        try:
            await self._api.patch(paths.node(node.name), {"metadata": metadata, "spec": {"taints": left or None}})
        except errors.NotFoundError:
            return False
        _log.info("node %s: startup taint taken off", node.name)
        return True

    async def _tell(self, model: Selector, node: str, now: datetime) -> None:
        involved = apply.reference(model.namespace, model.name, model.uid)
        message = (
            f"node {node} lost the taint {placement.STARTUP_TAINT} without being staged: nothing has moved there for "
            f"{startup_taint.STUCK_SECONDS / 60:.0f} minutes"
        )
        await apply.post_event(self._api, involved, Event("Warning", "StartupTaintRemoved", message), now)
