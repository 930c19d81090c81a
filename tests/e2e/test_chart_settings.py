"""Settings of the chart that change what the operator may do or run; the usual ones are restored in the end."""

import time
from collections.abc import Iterator

import pytest

from tests.e2e.objects import model_weights, stand_in_pod
from tests.e2e.site import PREPARED, REAL, Site
from tests.installation import install

STALLED_SECONDS = 120


@pytest.fixture(scope="module", autouse=True)
def usual_settings(site: Site) -> Iterator[None]:
    """The chart as the other tests have it, whatever happens here."""
    yield
    install(site.cluster, site.images, *PREPARED)


def test_image_that_cannot_be_pulled_stalls_and_heals(site: Site, namespace: str) -> None:
    """With the right to label nodes taken away at the same time, which is for the next test."""
    tag = "never-pushed"
    install(site.cluster, site.images, "nodeLabels.enabled=false", f"loader.image.tag={tag}")
    site.client.create(stand_in_pod(namespace, "waiting", site.images.loader, "minilm"))
    site.client.create(model_weights(namespace, "minilm", REAL, site.cluster.gpu_nodes[0]))
    began = time.monotonic()
    site.await_condition(namespace, "minilm", "Stalled", seconds=STALLED_SECONDS)
    print(f"stalled after {time.monotonic() - began:.1f} s")
    described = site.describe(namespace, "minilm")()
    image = f"{site.images.loader.rpartition(':')[0]}:{tag}"
    assert f"image {image} can't be pulled" in described
    assert site.is_gated(namespace, "waiting")

    install(site.cluster, site.images, "nodeLabels.enabled=false")
    model = site.await_condition(namespace, "minilm")
    assert site.node_labels(model) == {}
    pod = site.await_running(namespace, "waiting")
    assert pod["spec"]["nodeName"] == site.cluster.gpu_nodes[0]


def test_without_the_right_to_label_nodes_the_pod_is_bound_to_hostnames(site: Site, namespace: str) -> None:
    install(site.cluster, site.images, "nodeLabels.enabled=false")
    ready = site.cluster.gpu_nodes[1]
    site.client.create(stand_in_pod(namespace, "waiting", site.images.loader, "minilm"))
    site.client.create(model_weights(namespace, "minilm", REAL, ready))
    model = site.await_condition(namespace, "minilm")
    pod = site.await_running(namespace, "waiting")
    required = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    by_hostname = {"key": "kubernetes.io/hostname", "operator": "In", "values": [ready]}
    assert required["nodeSelectorTerms"] == [{"matchExpressions": [by_hostname]}]
    assert pod["spec"]["nodeName"] == ready
    assert site.node_labels(model) == {}
