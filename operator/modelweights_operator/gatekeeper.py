"""Pods at our gate: between the domain's decisions and the API server. Made and woken by the reconciler.

gated pods (informer) --> queue, a group of pods as one: read models -> decide -> open the gates, or tell why not
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from modelweights_operator import errors
from modelweights_operator.domain import convert, gate, groups, required
from modelweights_operator.domain.access import NamespaceLabels
from modelweights_operator.domain.events import Event
from modelweights_operator.domain.gate import GatedPod, Lift, Requirement, StagedModel, Verdict
from modelweights_operator.domain.snapshot import Node
from modelweights_operator.kube import apply, items, paths
from modelweights_operator.kube.client import Api
from modelweights_operator.kube.informer import Informer, Item
from modelweights_operator.kube.queue import WorkQueue
from modelweights_operator.kube.rights import Features
from modelweights_operator.metrics import Metrics

Key = tuple[str, str]

_log = logging.getLogger(__name__)


class Gatekeeper:
    """Knows the pods that wait, and opens their gates.

    Args:
        api: The connection.
        nodes: All nodes by name, as the reconciler keeps them.
        features: What the optional rights let it do.
        metrics: Is told how long it takes.
    """

    def __init__(self, api: Api, nodes: Mapping[str, Node], features: Features, metrics: Metrics) -> None:
        self._api, self._nodes = api, nodes
        self._lift_pods, self._label_nodes = features.lift_pods, features.label_nodes
        self._queue: WorkQueue[Key] = WorkQueue(self._reconcile, observe=metrics.observer("gates"))
        self._told: dict[str, str] = {}
        self._gated = Informer(
            api,
            paths.PODS,
            {"fieldSelector": "spec.nodeName=,status.phase=Pending"},
            items.gated_item,
            lambda item: self._wake(item.value),
        )
        self._namespaces: Informer[NamespaceLabels] | None = None
        if features.watch_namespaces:
            self._namespaces = Informer(api, paths.NAMESPACES, {}, items.namespace_item, self._namespace_changed)

    @property
    def informers(self) -> Mapping[str, Informer[Any]]:
        """To be run by the reconciler."""
        found: dict[str, Informer[Any]] = {"gated pods": self._gated}
        return {**found, "namespaces": self._namespaces} if self._namespaces else found

    @property
    def waiting(self) -> list[GatedPod]:
        """All pods at the gate."""
        return self._gated.values()

    @property
    def length(self) -> int:
        """How many pods or groups have something to do."""
        return len(self._queue)

    async def finish(self, seconds: float) -> None:
        """Let what is being worked on come to its end for so long."""
        await self._queue.finish(seconds)

    async def close(self) -> None:
        """End where it is."""
        await self._queue.close()

    # --- wake-ups -------------------------------------------------------------------------------------------------

    def _wake(self, pod: GatedPod) -> None:
        self._queue.wake((pod.namespace, pod.group.selector if pod.group else pod.name))

    def _wake_if(self, concerns: Callable[[GatedPod], bool]) -> None:
        for pod in self._gated.values():
            if concerns(pod):
                self._wake(pod)

    def wake_all(self) -> None:
        """Look at every pod that waits."""
        self._wake_if(lambda _pod: True)

    def wake_for(self, model: Key) -> None:
        """Look at the pods that require a ModelWeights, by its namespace and name."""
        self._wake_if(lambda pod: gate.requires(pod.require, pod.namespace, model))

    def _namespace_changed(self, item: Item[NamespaceLabels]) -> None:
        """Other labels of a namespace may let its pods require what they couldn't."""
        self._wake_if(lambda pod: pod.namespace == item.value.namespace)

    # --- one pod, or one group ------------------------------------------------------------------------------------

    async def _reconcile(self, key: Key) -> float | None:
        pods = self._pods(key)
        if not pods or not self._lift_pods:
            return None
        verdicts = await self._judge(pods, {})
        if pods[0].group is not None and _all_go(verdicts):
            verdicts = await self._judge_group(pods[0].namespace, pods[0].group)
        verdicts = groups.together(verdicts)
        if _all_go(verdicts):
            await self._lift_all(verdicts)
            return None
        for pod, verdict in verdicts:
            if verdict.reason:
                await self._tell(pod, Event("Warning", verdict.reason, verdict.message))
        return None

    def _pods(self, key: Key) -> list[GatedPod]:
        pod = self._gated.get(key)
        return [pod] if pod is not None and pod.group is None else self._gated.group("/".join(key))

    async def _judge(self, pods: Sequence[GatedPod], kept: Mapping[Requirement, str]) -> list[tuple[GatedPod, Verdict]]:
        """Decide about pods of one namespace. What several of them require is read once, so that they get the same."""
        models = {
            item: await self._staged_model(item, pods[0].namespace, kept.get(item, ""))
            for item in gate.requirements(pods)
        }
        return [(pod, gate.decide(pod, models, label_nodes=self._label_nodes)) for pod in pods]

    async def _judge_group(self, namespace: str, group: gate.Group) -> list[tuple[GatedPod, Verdict]]:
        """Decide about a group by what the API server has of it now: which pods there are, and what the started ones got."""
        listed = await self._api.get(paths.pods(namespace), labelSelector=group.selector)
        present = convert.group_members(listed.get("items") or [])
        verdicts = await self._judge(present.waiting, groups.kept(present, namespace))
        return groups.whole(present, verdicts, datetime.now(UTC))

    async def _lift_all(self, verdicts: Sequence[tuple[GatedPod, Verdict]]) -> None:
        """Open the gates in one pass: one that was changed meanwhile keeps none of the others, and is decided anew."""
        failed: errors.ApiError | None = None
        for pod, verdict in verdicts:
            if isinstance(verdict, Lift):
                try:
                    await self._lift(pod, verdict)
                except errors.ApiError as error:
                    failed = error
        if failed is not None:
            raise failed

    async def _lift(self, pod: GatedPod, decision: Lift) -> None:
        try:
            await apply.lift(self._api, pod.namespace, pod.name, decision.patch)
        except errors.NotFoundError:
            return
        except (errors.InvalidError, errors.ForbiddenError) as error:
            await self._tell(pod, Event("Warning", "LiftRefused", str(error)))
            raise
        _log.info("%s/%s: gate lifted", pod.namespace, pod.name)
        await self._tell(pod, Event("Normal", decision.reason, decision.message))

    async def _tell(self, pod: GatedPod, event: Event) -> None:
        """Post an event on the pod, once for each message; also when another operator told it before this one started."""
        told = self._told.get(pod.uid)
        if told == event.message:
            return
        living = {gated.uid for gated in self._gated.values()}
        self._told = {uid: message for uid, message in self._told.items() if uid in living}
        self._told[pod.uid] = event.message
        involved = {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": pod.namespace,
            "name": pod.name,
            "uid": pod.uid,
        }
        await apply.post_event(self._api, involved, event, datetime.now(UTC), again=told is not None)

    async def _staged_model(self, requirement: Requirement, namespace: str, group_has: str) -> StagedModel | None:
        """What a pod of a namespace requires; None when it isn't there or isn't for it."""
        known = self._namespaces.get(("", namespace)) if self._namespaces else None
        if requirement.namespace != namespace and known is None:
            return None
        try:
            body = await self._api.get(paths.modelweights(requirement.namespace, requirement.name))
        except errors.NotFoundError:
            return None
        return required.for_pod(
            requirement,
            convert.owner(body),
            namespace,
            known,
            self._nodes.values(),
            label_nodes=self._label_nodes,
            group_has=group_has,
        )


def _all_go(verdicts: Sequence[tuple[GatedPod, Verdict]]) -> bool:
    return all(isinstance(verdict, Lift) for _, verdict in verdicts)
