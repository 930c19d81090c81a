"""Settings of the chart that change what the operator may do or run; the usual ones are restored in the end."""

import time
from collections.abc import Iterator

import pytest

from modelweights_operator.domain import names
from tests.e2e.objects import QUICK, model_weights, stand_in_pod
from tests.e2e.site import REAL, Site
from tests.json_client import Json
from tests.polling import poll

STALLED_SECONDS = 120


@pytest.fixture(scope="module", autouse=True)
def usual_settings(site: Site) -> Iterator[None]:
    """The chart as the other tests have it, whatever happens here."""
    yield
    site.install()


def test_image_that_cannot_be_pulled_stalls_and_heals(site: Site, namespace: str) -> None:
    tag = "never-pushed"
    site.install(f"loader.image.tag={tag}", "prepareNodes.enabled=false")
    site.client.make(stand_in_pod(namespace, "waiting", site.images.loader, "minilm"))
    site.client.make(model_weights(namespace, "minilm", REAL, site.cluster.gpu_nodes[0], **QUICK))
    began = time.monotonic()
    site.await_condition(namespace, "minilm", "Stalled", seconds=STALLED_SECONDS)
    print(f"stalled after {time.monotonic() - began:.1f} s")
    image = f"{site.images.loader.rpartition(':')[0]}:{tag}"
    assert f"image {image} can't be pulled" in site.describe(namespace, "minilm")()
    assert site.is_gated(namespace, "waiting")

    site.install()
    site.await_condition(namespace, "minilm")
    site.await_running(namespace, "waiting")


def test_without_the_right_to_label_nodes_pods_are_bound_to_hostnames(site: Site, namespace: str) -> None:
    """Nothing but rights changes with this setting, in both directions: the operator has to notice."""
    ready = site.cluster.gpu_nodes[1]
    # The startup taint needs the same right.
    site.install("nodeLabels.enabled=false", "startupTaint.enabled=false")
    site.client.make(stand_in_pod(namespace, "by-hostname", site.images.loader, "minilm"))
    site.client.make(model_weights(namespace, "minilm", REAL, ready, **QUICK))
    model = site.await_condition(namespace, "minilm")
    pod = site.await_running(namespace, "by-hostname")
    assert _required(pod) == [{"key": "kubernetes.io/hostname", "operator": "In", "values": [ready]}]
    assert pod["spec"]["nodeName"] == ready
    assert site.node_labels(model) == {}

    site.install()
    poll("the node has its label", lambda: set(site.node_labels(model)) == {ready})
    site.client.make(stand_in_pod(namespace, "by-label", site.images.loader, "minilm"))
    pod = site.await_running(namespace, "by-label")
    digest = model["status"]["published"]["manifestDigest"]
    assert [each["key"] for each in _required(pod)] == [names.node_label(model["metadata"]["uid"], digest)]


@pytest.mark.parametrize(
    ("role", "verb", "subresource", "allowed"),
    [
        ("view", "list", "", True),
        ("view", "create", "", False),
        ("edit", "patch", "", True),
        ("admin", "delete", "", True),
        ("admin", "patch", "status", False),
    ],
)
def test_kubernetes_own_roles_reach_modelweights(
    site: Site, namespace: str, role: str, verb: str, subresource: str, *, allowed: bool
) -> None:
    user = f"{role}-of-{namespace}"
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}
    bound = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}
    binding = {"metadata": {"name": role}, "subjects": [subject], "roleRef": bound}
    site.client.create(f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings", binding)

    def may(asked: str, part: str = "") -> bool:
        what = {"group": "modelweights.io", "resource": "modelweights", "subresource": part}
        review = {"spec": {"user": user, "resourceAttributes": {"namespace": namespace, "verb": asked, **what}}}
        answer = site.client.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
        return bool(answer["status"]["allowed"])

    poll("the binding counts", lambda: may("get"))
    assert may(verb, subresource) == allowed


def _required(pod: Json) -> list[Json]:
    """What the pod asks of a node's labels."""
    required = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (term,) = required["nodeSelectorTerms"]
    expressions: list[Json] = term["matchExpressions"]
    return expressions
