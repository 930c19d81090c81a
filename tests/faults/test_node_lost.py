"""One of two nodes loses its power in mid-staging: the pod that waits starts on the other; then it comes back, or it goes.

Kubernetes itself needs its time: 16 s here until the node counts as lost, and a minute until a pod of a deleted node goes.
"""

from concurrent.futures import ThreadPoolExecutor

from tests.e2e.client import path_of
from tests.e2e.objects import model_weights, stand_in_pod
from tests.e2e.processes import freeze_step
from tests.e2e.site import REAL, Site
from tests.e2e.test_nodes import ONE_AT_A_TIME, entry, say
from tests.installation import condition
from tests.polling import poll


def _lose_in_mid_staging(site: Site, namespace: str, lost: str, other: str) -> None:
    """The pod ends on the other node, and the lost one's staging is no failure."""
    site.cluster.stop_node(lost)
    assert site.await_running(namespace, "engine", seconds=90)["spec"]["nodeName"] == other
    poll("it is said", lambda: say(site, namespace, "minilm", lost) == "Waiting NodeNotReady")
    assert entry(site, namespace, "minilm", lost).get("attempts", 0) == 0
    found = site.model(namespace, "minilm")
    assert condition(found, "Available")["status"] == "True"
    assert condition(found, "Stalled") == {}
    assert "NodeNotReady" in condition(found, "Ready")["message"]


def test_the_pod_starts_on_the_other_and_the_lost_one_is_staged_on_its_return(
    site: Site, module_namespace: str
) -> None:
    lost, other = site.cluster.gpu_nodes
    namespace = module_namespace
    site.client.make(stand_in_pod(namespace, "engine", site.images.loader, "minilm"))
    body = model_weights(namespace, "minilm", REAL)
    body["spec"]["placement"] = ONE_AT_A_TIME
    with ThreadPoolExecutor(1) as pool, freeze_step(site.cluster, lost, "prefetch", REAL, pool) as frozen:
        site.client.make(body)
        frozen()
        try:
            _lose_in_mid_staging(site, namespace, lost, other)
        finally:
            site.cluster.start_node(lost)
    site.await_condition(namespace, "minilm")
    assert len(site.job_uids(namespace)[other]) == 1
    assert len(site.job_uids(namespace)[lost]) == 2, "one of each boot"


def test_what_a_deleted_node_had_begun_is_gone_for_good(site: Site, module_namespace: str) -> None:
    lost, other = site.cluster.gpu_nodes
    namespace = module_namespace
    body = model_weights(namespace, "again", REAL, prefetch={"numThreads": 3})
    body["spec"]["placement"] = ONE_AT_A_TIME
    with ThreadPoolExecutor(1) as pool, freeze_step(site.cluster, lost, "prefetch", REAL, pool) as frozen:
        site.client.make(body)
        frozen()
        site.cluster.stop_node(lost)
        try:
            site.cluster.kubectl("delete", "node", lost)
            model = site.await_condition(namespace, "again")
            assert set(model["status"]["nodes"]) == {other}
            poll("no Job is left", lambda: not site.jobs(namespace), seconds=120)
            staging = [pod for pod in site.client.items(path_of("Pod", namespace)) if "stage-again" in str(pod)]
            assert staging == []
        finally:
            site.cluster.start_node(lost)
    site.await_condition(namespace, "again")
