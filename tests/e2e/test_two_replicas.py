"""Two replicas of the operator: the pod of the one that acts is deleted in mid-staging, and the other one brings it to its end."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.e2e.client import path_of
from tests.e2e.objects import model_weights
from tests.e2e.processes import freeze_step
from tests.e2e.site import REAL, Site
from tests.installation import NAMESPACE, condition
from tests.polling import poll

LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/modelweights-operator"
HANDOVER_SECONDS = 30


@pytest.fixture
def two_replicas(site: Site) -> Iterator[None]:
    """The chart with two replicas, and as the other tests have it afterwards."""
    site.install("operator.replicas=2")
    yield
    site.install()


def holder(site: Site) -> str:
    """The name of the pod that acts; "" while none does."""
    lease = site.client.find(LEASE) or {"spec": {}}
    return str(lease["spec"].get("holderIdentity", "")).partition("_")[0]


def acting_of_two(site: Site) -> str:
    """The pod that acts, once there are two and none that ends."""
    pods = site.operator_pods()
    ready = {pod["metadata"]["name"] for pod in pods if condition(pod, "Ready").get("status") == "True"}
    return holder(site) if len(pods) == len(ready) == 2 and holder(site) in ready else ""


@pytest.mark.usefixtures("two_replicas")
def test_the_other_one_takes_over_in_mid_staging(site: Site, namespace: str) -> None:
    node = site.cluster.gpu_nodes[0]
    acting = poll("one of two acts", lambda: acting_of_two(site))
    with ThreadPoolExecutor(1) as pool, freeze_step(site.cluster, node, "prefetch", REAL, pool) as frozen:
        # Other threads than the other tests', or what they staged would do.
        site.client.make(model_weights(namespace, "minilm", REAL, node, prefetch={"numThreads": 2}))
        frozen()
        began = time.monotonic()
        site.client.remove(path_of("Pod", NAMESPACE, acting), grace_seconds=20)
        other = poll("another one acts", lambda: holder(site) if holder(site) not in ("", acting) else "", every=0.1)
        took = time.monotonic() - began
    print(f"{other} took over from {acting} after {took:.1f} s")
    assert took < HANDOVER_SECONDS
    site.await_condition(namespace, "minilm")
    assert {name: len(uids) for name, uids in site.job_uids(namespace).items()} == {node: 1}
