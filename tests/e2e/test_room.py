"""Fetched files go from real nodes: superseded ones, those of a deleted object, and what makes room on a disk that is full."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from modelweights_operator.domain import names
from tests.checkpoints.synthetic import make_synthetic
from tests.e2e.client import path_of, selecting
from tests.e2e.objects import QUICK, model_weights, models_mount, models_volume, stand_in_pod
from tests.e2e.site import FETCHED, SMALL_DISK, Site
from tests.filesystems.tools import ensure_tools
from tests.installation import NAMESPACE, RELEASE
from tests.json_client import Json
from tests.polling import poll

pytestmark = pytest.mark.usefixtures("sources")
MIB = 2**20
SOURCES = "/models/revisions"
DELETES = {"deletionPolicy": "Delete"}


@pytest.fixture(scope="module")
def sources(site: Site) -> Iterator[None]:
    """Three checkpoints of 18 MiB on both nodes that have no file in common but the configuration."""
    for number in (1, 2, 3):
        folder = make_synthetic(site.checkpoints / f"revision-{number}", (17 + number) * MIB, shards=1)
        for node in site.cluster.gpu_nodes:
            site.cluster.copy_to_node(node, folder, f"{SOURCES}/{number}")
    yield
    for node in site.cluster.gpu_nodes:
        site.cluster.node_exec(node, ["rm", "-rf", SOURCES])


def copied(namespace: str, name: str, number: int, node: str = "", **storage: object) -> Json:
    body = model_weights(namespace, name, f"{SOURCES}/{number}", node, storage=storage, **QUICK)
    body["spec"]["placement"]["maxConcurrentNodes"] = 2
    return body


def move_on(site: Site, namespace: str, name: str, number: int) -> Json:
    """Another revision; until it is published."""
    spec = {"source": {"hostPath": {"path": f"{SOURCES}/{number}"}}}
    site.client.patch(path_of("ModelWeights", namespace, name), {"spec": spec})
    return site.await_condition(namespace, name)


def folders(site: Site, node: str, home: str) -> set[str]:
    """The checkpoints that lie in a home, by the beginning of their digests."""
    listed = site.cluster.node_exec(node, ["sh", "-c", 'ls "$1" 2>/dev/null || true', "sh", home])
    return {f"sha256:{name}" for name in listed.split()}


def cleanup_jobs(site: Site, model: Json) -> list[Json]:
    """Cleanup Jobs, all that there ever were."""
    uid = model["metadata"]["uid"]
    bodies = site.record.states("jobs", NAMESPACE)
    return [body for body in bodies if (body["metadata"].get("labels") or {}).get(names.CLEANUP_LABEL) == uid]


def test_superseded_goes_where_no_pod_uses_it_and_with_the_object_all(site: Site, namespace: str) -> None:
    used, free = site.cluster.gpu_nodes
    home = f"{FETCHED}/{namespace}/llama"
    # As after a reboot: nobody knows of it any more.
    unknown = f"{home}/{'f' * 64}"
    folders_of_loader = [f"{FETCHED}/{namespace}", home, unknown]
    site.cluster.node_exec(free, ["install", "-d", "-g", "65532", "-m", "2775", *folders_of_loader])
    site.client.make(copied(namespace, "llama", 1, gracePeriodSeconds=1))
    model = site.await_condition(namespace, "llama")
    first = model["status"]["published"]["manifestDigest"]
    pod = stand_in_pod(namespace, "engine", site.images.loader, container=models_mount(), **models_volume(home))
    site.client.make({**pod, "spec": {**pod["spec"], "nodeName": used}})
    site.await_running(namespace, "engine")

    model = move_on(site, namespace, "llama", 2)
    second = model["status"]["published"]["manifestDigest"]
    poll("it goes from the node without the pod", lambda: folders(site, free, home) == {second})
    poll("the status says so", lambda: _holds(site, namespace, free) == {second})
    assert folders(site, used, home) == {first, second}
    assert _holds(site, namespace, used) == {first, second}
    assert {body["metadata"]["annotations"][names.NODE_ANNOTATION] for body in cleanup_jobs(site, model)} == {free}

    site.client.remove(path_of("Pod", namespace, "engine"), grace_seconds=0)
    poll("the pod is gone", lambda: site.client.find(path_of("Pod", namespace, "engine")) is None)
    # It is asked again each minute; a change of the object has it asked now.
    path = path_of("ModelWeights", namespace, "llama")
    site.client.patch(path, {"spec": {"deletionPolicy": "Delete"}})
    poll("it goes from the other one", lambda: folders(site, used, home) == {second})
    poll("the object knows", lambda: "previous" not in site.client.get(path)["status"])
    assert site.client.get(path)["metadata"]["finalizers"] == [names.FINALIZER]

    site.client.remove(path)
    poll("the object is gone", lambda: site.client.find(path) is None)
    for node in site.cluster.gpu_nodes:
        left = site.cluster.node_exec(node, ["find", FETCHED, "-path", f"*{namespace}*"])
        assert set(left.split()) <= {f"{FETCHED}/{namespace}"}
    poll("its Jobs are gone", lambda: not _jobs_now(site, model))


def test_a_namespace_that_is_deleted_takes_its_files_along(
    site: Site, make_namespace: Callable[[str, str], str]
) -> None:
    """Also those that a pod of the namespace uses till then. What was said in it is gone, so the operator's log has it."""
    namespace = make_namespace("goes", "")
    home = f"{FETCHED}/{namespace}/llama"
    body = copied(namespace, "llama", 1)
    site.client.make({**body, "spec": body["spec"] | DELETES})
    digest = site.await_condition(namespace, "llama")["status"]["published"]["manifestDigest"]
    for node in site.cluster.gpu_nodes:
        assert folders(site, node, home) == {digest}
    mounted = {"container": models_mount(), **models_volume(home), "nodeName": site.cluster.gpu_nodes[0]}
    site.client.make(stand_in_pod(namespace, "engine", site.images.loader, **mounted))
    site.await_running(namespace, "engine")

    site.remove_namespace(namespace)
    path = f"/api/v1/namespaces/{namespace}"
    poll("the namespace is gone", lambda: site.client.find(path) is None, seconds=120)
    for node in site.cluster.gpu_nodes:
        assert site.cluster.node_exec(node, ["find", FETCHED, "-path", f"*{namespace}/*"]) == ""
    said = site.cluster.kubectl("logs", f"--namespace={NAMESPACE}", f"deploy/{RELEASE}", "--tail=500")
    assert f"{namespace}/llama: FilesRemoved: removed {home} from 2 node(s)" in said


def _holds(site: Site, namespace: str, node: str) -> set[str]:
    entry = (site.model(namespace, "llama") or {})["status"]["nodes"][node]
    return {entry["manifestDigest"], *entry.get("otherDigests", ())}


def _jobs_now(site: Site, model: Json) -> list[Json]:
    query = f"{names.CLEANUP_LABEL}={model['metadata']['uid']}"
    return site.client.items(selecting(path_of("Job", NAMESPACE), labelSelector=query))


@contextmanager
def small_disk(site: Site, node: str) -> Iterator[None]:
    """A file system of 64 MiB at the root of the class `small`, prepared as the chart would do it."""
    ensure_tools("ext4")
    image = "/models/small.img"
    make = f"truncate -s 64M {image} && mkfs.ext4 -q -F -m 0 {image} && mount -o loop {image} {SMALL_DISK}"
    own = f"for each in {SMALL_DISK} {SMALL_DISK}/.modelweights; do install -d -g 65532 -m 2775 $each; done"
    try:
        site.cluster.node_exec(node, ["sh", "-ec", f"mkdir -p {SMALL_DISK}; {make}; {own}"])
        yield
    finally:
        # Lazily: the pods of a test that failed may have it open still. The loop device goes with the last user.
        site.cluster.node_exec(node, ["sh", "-c", f"umount -l {SMALL_DISK}; rm -f {image}"], check=False)


def test_full_disk_lets_what_was_superseded_go_and_the_staging_is_tried_at_once(site: Site, namespace: str) -> None:
    node = site.cluster.gpu_nodes[0]
    with small_disk(site, node):
        where = {"class": "small", "retention": "LeastRecentlyUsed"}
        site.client.make(copied(namespace, "kept", 1, node, **where))
        first = site.await_condition(namespace, "kept")["status"]["published"]["manifestDigest"]
        model = move_on(site, namespace, "kept", 2)
        assert folders(site, node, f"{SMALL_DISK}/{namespace}/kept") == {
            first,
            model["status"]["published"]["manifestDigest"],
        }
        site.client.make(copied(namespace, "next", 3, node, **where))
        # Its back-off is ten minutes long.
        site.await_condition(namespace, "next")
        assert first not in folders(site, node, f"{SMALL_DISK}/{namespace}/kept")
        said = [each["status"] for each in site.record.states("models", namespace, "next") if "status" in each]
        failed = [each["nodes"][node] for each in said if each.get("nodes", {}).get(node, {}).get("state") == "Failed"]
        assert {each["reason"] for each in failed} == {"NoRoom"}
        assert failed[0]["diskFreeBytes"] < 64 * MIB
        for name in ("kept", "next"):
            site.client.patch(path_of("ModelWeights", namespace, name), {"spec": {"suspend": True}})
