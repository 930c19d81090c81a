"""Every kind of pod waits at the gate: made bare, by a Deployment, a StatefulSet, a DaemonSet and a Job."""

from collections.abc import Callable
from typing import Any

import pytest

from modelweights_operator.domain import names
from tests.e2e.client import path_of, version
from tests.e2e.objects import QUICK, controller, model_weights, stand_in_pod
from tests.e2e.site import REAL, Site
from tests.installation import condition
from tests.json_client import Json
from tests.polling import poll

KINDS = ("Deployment", "StatefulSet", "DaemonSet", "Job")
GPU_NODES: dict[str, Any] = {"nodeSelector": {"nvidia.com/gpu.present": "true"}}


@pytest.fixture(scope="module")
def namespace(site: Site, module_namespace: str) -> str:
    """Workloads first, all of them gated; then the ModelWeights, on the first node only, until Ready."""
    ended = {"command": ["true"]}
    for kind in KINDS:
        container = ended if kind == "Job" else {}
        pod = stand_in_pod(
            module_namespace, kind.lower(), site.images.loader, "minilm", container=container, **GPU_NODES
        )
        extra = {"serviceName": "none"} if kind == "StatefulSet" else {}
        site.client.make(controller(kind, pod, **extra))
    expected = len(KINDS) + 1  # The DaemonSet has one on each GPU node.
    poll("all pods are gated", lambda: len(_gated(site, module_namespace)) == expected)
    site.client.make(model_weights(module_namespace, "minilm", REAL, site.cluster.gpu_nodes[0], **QUICK))
    site.await_condition(module_namespace, "minilm")
    return module_namespace


def _gated(site: Site, namespace: str) -> list[Json]:
    pods = site.client.items(path_of("Pod", namespace))
    gates = [pod for pod in pods if pod["spec"].get("schedulingGates") == [{"name": names.GATE}]]
    return [pod for pod in gates if condition(pod, "PodScheduled").get("reason") == "SchedulingGated"]


def _ready(field: str) -> Callable[[Json], bool]:
    return lambda body: body["status"].get(field) == 1


DONE: dict[str, Callable[[Json], bool]] = {
    "Deployment": _ready("availableReplicas"),
    "StatefulSet": _ready("availableReplicas"),
    "DaemonSet": _ready("numberAvailable"),
    "Job": _ready("succeeded"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_its_pod_starts_on_the_ready_node_once_available(site: Site, namespace: str, kind: str) -> None:
    poll(f"the {kind} is done", lambda: DONE[kind](site.client.get(path_of(kind, namespace, kind.lower()))))
    available = next(
        body
        for body in site.record.states("models", namespace, "minilm")
        if condition(body, "Available").get("status") == "True"
    )
    bound = [
        body
        for body in site.record.states("pods", namespace)
        if (body["metadata"].get("labels") or {}).get("app") == kind.lower() and body["spec"].get("nodeName")
    ]
    assert {body["spec"]["nodeName"] for body in bound} == {site.cluster.gpu_nodes[0]}
    assert min(version(body) for body in bound) > version(available)


def test_daemon_pod_waits_for_its_own_node(site: Site, namespace: str) -> None:
    """The others are lifted; the one that is bound to the node without the checkpoint is not."""
    poll("one pod is left at the gate", lambda: len(_gated(site, namespace)) == 1)
    (waiting,) = _gated(site, namespace)
    assert waiting["metadata"]["labels"]["app"] == "daemonset"
    terms = waiting["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert terms["nodeSelectorTerms"][0]["matchFields"][0]["values"] == [site.cluster.gpu_nodes[1]]


def test_daemon_pod_starts_when_its_node_is_staged(site: Site, namespace: str) -> None:
    selector = {"kubernetes.io/hostname": None, "nvidia.com/gpu.present": "true"}
    path = path_of("ModelWeights", namespace, "minilm")
    site.client.patch(path, {"spec": {"placement": {"nodeSelector": selector}}})
    site.await_condition(namespace, "minilm")

    def both() -> bool:
        status = site.client.get(path_of("DaemonSet", namespace, "daemonset"))["status"]
        return bool(status.get("numberAvailable") == 2)

    poll("both of the DaemonSet's pods are there", both)
    assert {node: len(uids) for node, uids in site.job_uids(namespace).items()} == dict.fromkeys(
        site.cluster.gpu_nodes, 1
    ), "the first node wasn't staged again"


@pytest.mark.parametrize(
    ("require", "reason", "said"),
    [
        ("nothing-of-that-name", "RequireNotFound", "create it, or correct the annotation"),
        ("elsewhere/minilm", "RequireNotAllowed", "of another namespace"),
        ("minilm@main", "RevisionNotFound", "neither published nor being staged"),
    ],
    ids=["that-does-not-exist", "in-another-namespace", "with-a-revision-that-nobody-has"],
)
def test_requirement_that_cannot_be_met_is_told_on_the_pod(
    site: Site, namespace: str, require: str, reason: str, said: str
) -> None:
    name = reason.lower()
    site.client.make(stand_in_pod(namespace, name, site.images.loader, require))

    def event() -> Json | None:
        events = site.client.items(f"/api/v1/namespaces/{namespace}/events?fieldSelector=involvedObject.name={name}")
        return next((each for each in events if each["reason"] == reason), None)

    assert said in poll("an event on the pod", event)["message"]
    assert site.is_gated(namespace, name)
