"""The node of the only operator loses its power: another pod of the Deployment acts elsewhere.

Kubernetes itself needs its time until the node counts as lost (16 s here, 40 s by default), and 5 s until the pod goes.
"""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.e2e.client import path_of
from tests.e2e.objects import NOT_LOADED, model_weights
from tests.e2e.processes import freeze_step
from tests.e2e.site import REAL, Site
from tests.e2e.test_nodes import taints
from tests.e2e.test_two_replicas import holder
from tests.polling import poll

pytestmark = pytest.mark.timeout(600, func_only=True)
"""Against hangs only."""
BACK_WITHIN_SECONDS = 30
"""After Kubernetes noticed: what the project promises."""
LOST = "node.kubernetes.io/unreachable"
_PREFERRED = "operator.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0]"
ANYWHERE = (
    "operator.tolerations[0].key=nvidia.com/gpu",
    "operator.tolerations[0].operator=Exists",
    f"{_PREFERRED}.weight=100",
    f"{_PREFERRED}.preference.matchExpressions[0].key=nvidia.com/gpu.present",
    f"{_PREFERRED}.preference.matchExpressions[0].operator=DoesNotExist",
)
"""On the GPU nodes too, but rather elsewhere."""


@pytest.fixture
def anywhere(site: Site) -> Iterator[None]:
    """The operator where it finds room; as the other tests have it afterwards."""
    site.install(*ANYWHERE)
    yield
    site.install()


@pytest.mark.usefixtures("anywhere")
def test_it_is_replaced_elsewhere_and_acts_again(site: Site, module_namespace: str) -> None:
    node, namespace = site.cluster.gpu_nodes[0], module_namespace
    acting = poll("it acts", lambda: _acting(site))
    lost = next(pod["spec"]["nodeName"] for pod in site.operator_pods() if pod["metadata"]["name"] == acting)
    assert lost == site.cluster.cpu_node
    with ThreadPoolExecutor(1) as pool, freeze_step(site.cluster, node, "prefetch", REAL, pool) as frozen:
        site.client.make(model_weights(namespace, "begun", REAL, node, **NOT_LOADED))
        frozen()
        stopped = time.monotonic()
        site.cluster.stop_node(lost)
        try:
            # What nobody has seen yet.
            site.client.make(model_weights(namespace, "new", REAL, site.cluster.gpu_nodes[1], **NOT_LOADED))
            poll("Kubernetes notices", lambda: LOST in taints(site, lost), every=0.05)
            noticed = time.monotonic()
            made = poll("another pod", lambda: _other(site, acting), every=0.05)
            replaced = time.monotonic()
            poll("it acts", lambda: holder(site) == made, every=0.05)
            held = time.monotonic()
            poll("it does its work", lambda: _has_job(site, namespace, "new"), every=0.05)
            back = time.monotonic()
        finally:
            site.cluster.start_node(lost)
    print(
        f"noticed after {noticed - stopped:.1f} s; from then on: its pod was made after {replaced - noticed:.1f} s, "
        f"had the Lease after {held - noticed:.1f} s, made a Job after {back - noticed:.1f} s"
    )
    for name in ("begun", "new"):
        site.await_condition(namespace, name)
    assert {name: len(uids) for name, uids in site.job_uids(namespace).items()} == dict.fromkeys(
        site.cluster.gpu_nodes, 1
    )
    assert back - noticed <= BACK_WITHIN_SECONDS


def _acting(site: Site) -> str:
    """The only pod, once it acts."""
    names = [pod["metadata"]["name"] for pod in site.operator_pods()]
    return holder(site) if names == [holder(site)] else ""


def _other(site: Site, former: str) -> str:
    return next((pod["metadata"]["name"] for pod in site.operator_pods() if pod["metadata"]["name"] != former), "")


def _has_job(site: Site, namespace: str, name: str) -> bool:
    return any(
        job["metadata"]["name"].startswith(f"stage-{name}-") for job in site.client.items(path_of("Job", namespace))
    )
