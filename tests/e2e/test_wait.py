"""The second way to wait: `modelweights-loader wait` as an init container, no gate and no access to the API."""

from functools import partial

import pytest

from tests.e2e.client import path_of
from tests.e2e.objects import QUICK, model_weights, models_mount, models_volume, stand_in_pod, waiting_step
from tests.e2e.site import FETCHED, REAL, Site
from tests.json_client import Json
from tests.polling import poll

PATH = "/models/waited"
MARKERS = "/models/.modelweights"


@pytest.fixture(scope="module")
def namespace(site: Site, module_namespace: str) -> str:
    """The checkpoint lies on both nodes under a path that nobody staged yet, and a pod on each waits for it."""
    for number, node in enumerate(site.cluster.gpu_nodes, start=1):
        site.cluster.node_exec(node, ["rm", "-rf", PATH, f"{MARKERS}/waited.json"])
        site.cluster.node_exec(node, ["cp", "-al", REAL, PATH])
        site.client.make(_waiting_pod(site, module_namespace, f"on-{number}", node))
    return module_namespace


def _waiting_pod(site: Site, namespace: str, name: str, node: str) -> Json:
    wait = waiting_step(site.images.loader, PATH)
    spec = {"initContainers": [wait], "nodeSelector": {"kubernetes.io/hostname": node}, **models_volume()}
    return stand_in_pod(namespace, name, site.images.loader, container=models_mount(), **spec)


def test_pod_is_scheduled_and_waits_for_the_marker_of_its_node(site: Site, namespace: str) -> None:
    staged, other = site.cluster.gpu_nodes
    for name in ("on-1", "on-2"):
        poll(f"{name} waits in its init container", partial(site.waits_on_its_node, namespace, name))
    site.client.make(model_weights(namespace, "waited", PATH, staged, **QUICK))
    site.await_condition(namespace, "waited")
    marker = site.cluster.node_exec(staged, ["cat", f"{MARKERS}/waited.json"])
    started = site.await_running(namespace, "on-1")
    said = site.log(namespace, "on-1", "wait")
    assert "waiting: no marker of waited in" in said
    digest = site.await_condition(namespace, "waited")["status"]["published"]["manifestDigest"]
    assert digest in marker
    assert started["spec"]["nodeName"] == staged
    pod = site.waits_on_its_node(namespace, "on-2")
    assert pod is not None
    assert pod["spec"]["nodeName"] == other
    assert "no marker of waited" in site.log(namespace, "on-2", "wait")


def test_marker_is_the_loaders_and_can_be_read_by_all(site: Site, namespace: str) -> None:
    site.await_condition(namespace, "waited")
    staged = site.cluster.gpu_nodes[0]
    assert site.cluster.node_exec(staged, ["stat", "-c", "%u:%g %a", f"{MARKERS}/waited.json"]) == "65532:65532 644\n"
    assert site.cluster.node_exec(staged, ["stat", "-c", "%g", MARKERS]) == "65532\n"


def test_pod_from_before_anything_was_fetched_finds_it_by_its_home(site: Site, namespace: str) -> None:
    """As on a node that an autoscaler brings for it: nobody can know the digest, and so no path."""
    node, home, link = site.cluster.gpu_nodes[1], f"{FETCHED}/{namespace}/fetched", "/run/model/current"
    body = model_weights(namespace, "fetched", REAL, node, storage={}, suspend=True, **QUICK)
    body["spec"]["placement"]["whenNoRoom"] = "Provision"
    site.client.make(body)
    mounts = [*models_mount(FETCHED)["volumeMounts"], {"name": "run", "mountPath": "/run/model"}]
    wait = {
        **waiting_step(site.images.loader, home),
        "args": ["wait", home, "--newest", "--link", link],
        "volumeMounts": mounts,
    }
    shown = f"readlink {link} && cat {link}/config.json > /dev/null && exec sleep 3600"
    volumes = [*models_volume(FETCHED)["volumes"], {"name": "run", "emptyDir": {}}]
    pod = stand_in_pod(
        namespace,
        "early",
        site.images.loader,
        "fetched",
        container={"command": ["sh", "-ec", shown], "volumeMounts": mounts},
        initContainers=[wait],
        nodeSelector={"kubernetes.io/hostname": node},
        volumes=volumes,
    )
    site.client.make(pod)
    poll("it waits on the node", partial(site.waits_on_its_node, namespace, "early"))
    poll(
        "it says for what",
        lambda: f"no marker of a checkpoint in {namespace}/fetched" in site.log(namespace, "early", "wait"),
    )
    site.client.patch(path_of("ModelWeights", namespace, "fetched"), {"spec": {"suspend": False}})
    published = site.await_condition(namespace, "fetched")["status"]["published"]
    assert published["path"] == f"{home}/{published['manifestDigest'].removeprefix('sha256:')}"
    site.await_running(namespace, "early")
    assert site.log(namespace, "early").strip() == published["path"]
