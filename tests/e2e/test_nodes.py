"""Nodes that are drained, rebooted, lost, and that come after the pod asked: where staging and gated pods end.

The table of such cases is docs/cases.md. What takes longer, as until a node without power counts as lost, is in tests/faults.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.e2e.client import path_of
from tests.e2e.objects import model_weights, stand_in_pod
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
    body = model_weights(namespace, "minilm", REAL)
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
    body = model_weights(namespace, "minilm", "", node)
    body["spec"]["source"] = {"huggingFace": {"repository": REPOSITORY, "endpoint": hub.url}}
    site.client.make(body)
    model = site.await_condition(namespace, "minilm")
    path, fetched = model["status"]["published"]["path"], hub_bytes(hub)
    assert fetched > 0
    assert resident_percent(site, node, path) >= RESIDENT_PERCENT

    # So that the cache can be looked at before it is warmed again.
    suspend(site, namespace, suspended=True)
    site.cluster.restart_node(node)
    poll("it is seen", lambda: say(site, namespace, "minilm", node) == "Waiting Suspended")
    assert condition(site.model(namespace, "minilm"), "Available")["status"] == "False"
    assert site.node_labels(model) == {}
    assert resident_percent(site, node, path) == 0
    site.client.make(stand_in_pod(namespace, "engine", site.images.loader, "minilm"))

    suspend(site, namespace, suspended=False)
    again = site.await_condition(namespace, "minilm")
    percent = resident_percent(site, node, path)
    print(f"resident after the reboot: 0 %, then {percent:.1f} %")
    assert percent >= RESIDENT_PERCENT
    assert again["status"]["published"] == model["status"]["published"]
    assert again["status"]["nodes"][node]["bootID"] != model["status"]["nodes"][node]["bootID"]
    assert again["status"]["nodes"][node].get("fetchedBytes", 0) == 0
    assert hub_bytes(hub) == fetched
    assert site.await_running(namespace, "engine")["spec"]["nodeName"] == node


def suspend(site: Site, namespace: str, *, suspended: bool) -> None:
    site.client.patch(path_of("ModelWeights", namespace, "minilm"), {"spec": {"suspend": suspended}})


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
    """The node's power is cut and the node deleted, as a cloud does; it comes back as an autoscaler's new one would."""
    lost, other = site.cluster.gpu_nodes
    site.client.make(stand_in_pod(namespace, "engine", site.images.loader, "minilm"))
    site.client.make(
        stand_in_pod(namespace, "late", site.images.loader, "minilm", nodeSelector={"kubernetes.io/hostname": lost})
    )
    body = model_weights(namespace, "minilm", REAL)
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
        finally:
            site.cluster.start_node(lost)
    late = site.await_running(namespace, "late")
    assert late["spec"]["nodeName"] == lost
    model = site.await_condition(namespace, "minilm")
    assert set(model["status"]["nodes"]) == {lost, other}
