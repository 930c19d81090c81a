"""Nodes that are drained, rebooted, lost, and that come after the pod asked: where staging and gated pods end.

The table of such cases is docs/cases.md. What takes longer, as until a node without power counts as lost, is in tests/faults.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from tests.e2e.client import path_of, version
from tests.e2e.objects import (
    GPU_TOLERATION,
    NOT_LOADED,
    QUICK,
    STARTUP_TAINT,
    model_weights,
    models_mount,
    models_volume,
    stand_in_pod,
    waiting_step,
)
from tests.e2e.processes import freeze_step
from tests.e2e.site import REAL, Site
from tests.e2e.source_servers import HubServer, start_hub
from tests.installation import condition
from tests.json_client import Json
from tests.polling import poll

REPOSITORY = "sentence-transformers/all-MiniLM-L6-v2"
REVISION = "d" * 40
RESIDENT_PERCENT = 95
"""What Ready promises (the default of minResidentPercent)."""
ONE_AT_A_TIME = {"maxConcurrentNodes": 1}
COMING = "/models/coming"


def entry(site: Site, namespace: str, name: str, node: str) -> Json:
    """What the status says of a node; empty for nothing."""
    body = site.model(namespace, name) or {}
    found: Json = (body.get("status") or {}).get("nodes", {}).get(node, {})
    return found


def say(site: Site, namespace: str, name: str, node: str) -> str:
    """State and reason of a node."""
    found = entry(site, namespace, name, node)
    return f"{found.get('state', '')} {found.get('reason', '')}".strip()


def test_drained_in_mid_staging_it_waits_and_the_same_job_goes_on(site: Site, namespace: str) -> None:
    drained, other = site.cluster.gpu_nodes
    site.client.make(stand_in_pod(namespace, "engine", site.images.loader, "minilm"))
    body = model_weights(namespace, "minilm", REAL, **NOT_LOADED)
    body["spec"]["placement"] = ONE_AT_A_TIME
    with ThreadPoolExecutor(1) as pool, freeze_step(site.cluster, drained, "prefetch", REAL, pool) as frozen:
        site.client.make(body)
        frozen()
        options = ("--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=60s")
        try:
            site.cluster.kubectl("drain", drained, *options, timeout=70)
            assert site.await_running(namespace, "engine")["spec"]["nodeName"] == other
            poll("it is said", lambda: say(site, namespace, "minilm", drained) == "Waiting NodeCordoned")
            assert entry(site, namespace, "minilm", drained).get("attempts", 0) == 0
            assert condition(site.model(namespace, "minilm"), "Stalled") == {}
        finally:
            site.cluster.kubectl("uncordon", drained)
    site.await_condition(namespace, "minilm")
    assert {node: len(uids) for node, uids in site.job_uids(namespace).items()} == {drained: 1, other: 1}


@pytest.fixture
def hub(site: Site, make_namespace: Callable[[str, str], str]) -> Iterator[HubServer]:
    """A hub with the real checkpoint."""
    name = make_namespace("nodes-hub", "")
    server = start_hub(site, name)
    server.add(REPOSITORY, REVISION, site.checkpoints / "split")
    server.describe(REPOSITORY, refs={"main": REVISION})
    yield server
    site.remove_namespace(name)


def test_rebooted_it_is_warmed_from_its_disk_and_nothing_is_fetched_again(
    site: Site, hub: HubServer, namespace: str
) -> None:
    node = site.cluster.gpu_nodes[0]
    body = model_weights(namespace, "minilm", "", node, **NOT_LOADED)
    body["spec"]["source"] = {"huggingFace": {"repository": REPOSITORY, "endpoint": hub.url}}
    site.client.make(body)
    model = site.await_condition(namespace, "minilm")
    path, fetched = model["status"]["published"]["path"], hub_bytes(hub)
    assert fetched > 0
    assert resident_percent(site, node, path) >= RESIDENT_PERCENT

    # So that the cache can be looked at before it is warmed again.
    suspend(site, namespace, "minilm", suspended=True)
    site.cluster.restart_node(node)
    poll("it is seen", lambda: say(site, namespace, "minilm", node) == "Waiting Suspended")
    assert condition(site.model(namespace, "minilm"), "Available")["status"] == "False"
    assert site.node_labels(model) == {}
    assert resident_percent(site, node, path) == 0
    site.client.make(stand_in_pod(namespace, "engine", site.images.loader, "minilm"))

    suspend(site, namespace, "minilm", suspended=False)
    again = site.await_condition(namespace, "minilm")
    percent = resident_percent(site, node, path)
    print(f"resident after the reboot: 0 %, then {percent:.1f} %")
    assert percent >= RESIDENT_PERCENT
    assert again["status"]["published"] == model["status"]["published"]
    assert again["status"]["nodes"][node]["bootID"] != model["status"]["nodes"][node]["bootID"]
    assert again["status"]["nodes"][node].get("fetchedBytes", 0) == 0
    assert hub_bytes(hub) == fetched
    assert site.await_running(namespace, "engine")["spec"]["nodeName"] == node


def suspend(site: Site, namespace: str, name: str, *, suspended: bool) -> int:
    """Suspends it or lets it go on; the generation that says so."""
    body = site.client.patch(path_of("ModelWeights", namespace, name), {"spec": {"suspend": suspended}})
    return int(body["metadata"]["generation"])


def hub_bytes(hub: HubServer) -> int:
    """All that the hub ever sent of files."""
    path = f"{path_of('Pod', hub.namespace, hub.name)}:8080/proxy/-/counters"
    return sum(hub.site.client.get(path)["bytes"].values())


def resident_percent(site: Site, node: str, folder: str) -> float:
    """How much of the shards is in the node's page cache, as root sees it page by page."""
    ask = 'fincore --bytes --noheadings --raw --output=RES,SIZE "$1"/*.safetensors'
    lines = site.cluster.node_exec(node, ["sh", "-c", ask, "sh", folder]).splitlines()
    pairs = [[int(word) for word in line.split()] for line in lines]
    return 100 * sum(resident for resident, _ in pairs) / sum(size for _, size in pairs)


def test_lost_in_mid_staging_it_is_forgotten_and_what_comes_later_gets_the_pods_that_asked(
    site: Site, namespace: str
) -> None:
    """The node's power is cut and the node deleted, as a cloud does; it comes back as an autoscaler's new one would.

    Pods that asked for it meanwhile: one at the gate, one without a gate, and one that doesn't wait at its gate for a node.
    """
    lost, other = site.cluster.gpu_nodes
    lay_out_what_nobody_staged(site, lost)
    site.client.make(stand_in_pod(namespace, "engine", site.images.loader, "minilm"))
    on_lost = {"kubernetes.io/hostname": lost}
    site.client.make(stand_in_pod(namespace, "late", site.images.loader, "minilm", nodeSelector=on_lost))
    body = model_weights(namespace, "minilm", REAL, **NOT_LOADED)
    body["spec"]["placement"] = ONE_AT_A_TIME
    with ThreadPoolExecutor(1) as pool, freeze_step(site.cluster, lost, "prefetch", REAL, pool) as frozen:
        site.client.make(body)
        frozen()
        site.cluster.stop_node(lost)
        try:
            site.cluster.kubectl("delete", "node", lost)
            model = site.await_condition(namespace, "minilm")
            assert set(model["status"]["nodes"]) == set(site.node_labels(model)) == {other}
            assert site.await_running(namespace, "engine")["spec"]["nodeName"] == other
            assert not site.pod(namespace, "late")["spec"].get("nodeName")
            site.client.make(stand_in_pod(namespace, "ungated", site.images.loader, nodeSelector=on_lost))
            ask_for_a_node_to_come(site, namespace, lost)
        finally:
            site.cluster.start_node(lost, taints=[{"key": STARTUP_TAINT, "effect": "NoSchedule"}])
    the_taint_holds_until_all_is_staged(site, namespace, lost)
    for name in ("late", "ungated", "early"):
        assert site.await_running(namespace, name)["spec"]["nodeName"] == lost
    model = site.await_condition(namespace, "minilm")
    assert set(model["status"]["nodes"]) == {lost, other}
    staged = first(site, "models", namespace, "coming", lambda body: is_ready(body, lost))
    bound = first(site, "pods", namespace, "ungated", lambda body: "nodeName" in body["spec"])
    assert version(bound) > version(staged)


def lay_out_what_nobody_staged(site: Site, node: str) -> None:
    """The checkpoint under another path."""
    site.cluster.node_exec(node, ["rm", "-rf", COMING, "/models/.modelweights/coming.json"])
    site.cluster.node_exec(node, ["cp", "-al", REAL, COMING])


def ask_for_a_node_to_come(site: Site, namespace: str, node: str) -> None:
    """A pod whose init container waits leaves the gate though the only node for it isn't there, so that one is brought."""
    body = model_weights(namespace, "coming", COMING, node, **QUICK)
    body["spec"]["placement"]["whenNoRoom"] = "Provision"
    site.client.make(body)
    pod = stand_in_pod(namespace, "early", site.images.loader, "coming", container=models_mount(), **models_volume())
    pod["spec"] |= {
        "initContainers": [waiting_step(site.images.loader, COMING)],
        "nodeSelector": {"kubernetes.io/hostname": node},
        "tolerations": [GPU_TOLERATION, {"key": STARTUP_TAINT, "operator": "Exists"}],
    }
    site.client.make(pod)
    events = f"/api/v1/namespaces/{namespace}/events"

    def told() -> bool:
        return ("early", "Provisioned") in {
            (each["involvedObject"]["name"], each["reason"]) for each in site.client.items(events)
        }

    poll("it is said that an autoscaler may bring a node", told)
    early = site.pod(namespace, "early")
    assert not early["spec"].get("schedulingGates")
    assert not early["spec"].get("nodeName")
    assert site.client.find(f"/api/v1/nodes/{node}") is None
    # So that the pods that wait for it can be looked at.
    generation = suspend(site, namespace, "coming", suspended=True)

    def seen() -> bool:
        return bool(condition(site.model(namespace, "coming"), "Ready").get("observedGeneration") == generation)

    poll("that is seen", seen)


def the_taint_holds_until_all_is_staged(site: Site, namespace: str, node: str) -> None:
    """What waits on the node is there before; what has no gate isn't, and neither is what was lifted as the first was staged."""
    poll("early waits on the node", lambda: site.waits_on_its_node(namespace, "early"))
    poll("one of two is staged", lambda: say(site, namespace, "minilm", node).startswith("Ready"))
    for name in ("late", "ungated"):
        poll(f"{name} is kept off", partial(is_kept_off, site, namespace, name))
    # The pods tolerate the other one.
    assert taints(site, node) == {GPU_TOLERATION["key"], STARTUP_TAINT}
    suspend(site, namespace, "coming", suspended=False)
    site.await_condition(namespace, "coming")
    poll("the taint goes", lambda: STARTUP_TAINT not in taints(site, node))


def taints(site: Site, node: str) -> set[str]:
    return {taint["key"] for taint in site.client.get(f"/api/v1/nodes/{node}")["spec"].get("taints") or []}


def is_kept_off(site: Site, namespace: str, name: str) -> bool:
    """Whether the scheduler says that a taint keeps a pod off a node."""
    found = condition(site.pod(namespace, name), "PodScheduled")
    return found.get("reason") == "Unschedulable" and "untolerated taint" in found["message"]


def first(site: Site, kind: str, namespace: str, name: str, holds: Callable[[Json], bool]) -> Json:
    """The first state of an object for which something holds."""
    return next(body for body in site.record.states(kind, namespace, name) if holds(body))


def is_ready(model: Json, node: str) -> bool:
    """Whether a ModelWeights says that a node is ready."""
    return bool((model.get("status") or {}).get("nodes", {}).get(node, {}).get("state") == "Ready")
