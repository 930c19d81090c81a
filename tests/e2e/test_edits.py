"""A spec that is edited in mid-run: the old staging ends, and only what was asked last is published."""

from concurrent.futures import ThreadPoolExecutor

from tests.e2e.client import path_of, version
from tests.e2e.objects import NOT_LOADED, QUICK, model_weights
from tests.e2e.processes import freeze_step
from tests.e2e.site import REAL, SPLIT, SPLIT_SHARDS, Site
from tests.polling import poll


def test_old_staging_ends_and_the_new_one_is_published(site: Site, namespace: str) -> None:
    node = site.cluster.gpu_nodes[0]
    with ThreadPoolExecutor(1) as pool, freeze_step(site.cluster, node, "validate", REAL, pool) as frozen:
        site.client.make(model_weights(namespace, "edited", REAL, node))
        frozen()
        (old,) = site.jobs(namespace)
        site.client.patch(
            path_of("ModelWeights", namespace, "edited"), {"spec": {"source": {"hostPath": {"path": SPLIT}}}}
        )
        poll("the old Job is gone", lambda: old["metadata"]["uid"] not in _uids(site, namespace))
    model = site.await_condition(namespace, "edited")
    assert model["status"]["published"]["path"] == SPLIT
    assert model["status"]["published"]["fileCount"] > SPLIT_SHARDS
    # The record is a watch of its own, which may hear of it a moment later.
    poll("the record has it", lambda: SPLIT in _published(site, namespace))
    assert _published(site, namespace) == {SPLIT}
    assert len(site.job_uids(namespace)[node]) == 2


def test_two_pods_never_stage_one_node_at_once(site: Site, namespace: str) -> None:
    """The new Job comes when the old one's pod is gone for good."""
    node = site.cluster.gpu_nodes[0]
    with ThreadPoolExecutor(1) as pool, freeze_step(site.cluster, node, "prefetch", REAL, pool) as frozen:
        site.client.make(model_weights(namespace, "edited", REAL, node, **NOT_LOADED))
        frozen()
        site.client.patch(path_of("ModelWeights", namespace, "edited"), {"spec": {"prefetch": {"numThreads": 5}}})
        poll("there is a second pod", lambda: len(_pods(site, namespace)) == 2)
    first, second = _pods(site, namespace).values()
    assert first[-1][0] == "DELETED"
    assert first[-1][1] < second[0][1]
    site.await_condition(namespace, "edited")


def test_toleration_stages_nothing_again(site: Site, namespace: str) -> None:
    node = site.cluster.gpu_nodes[0]
    site.client.make(model_weights(namespace, "edited", REAL, node, **QUICK))
    site.await_condition(namespace, "edited")
    tolerations = [{"key": "example.com/spot", "operator": "Exists"}]
    site.client.patch(
        path_of("ModelWeights", namespace, "edited"), {"spec": {"placement": {"tolerations": tolerations}}}
    )
    site.await_condition(namespace, "edited")
    assert len(site.job_uids(namespace)[node]) == 1


def _published(site: Site, namespace: str) -> set[str]:
    """All paths that were ever published."""
    return {
        body["status"]["published"]["path"]
        for body in site.record.states("models", namespace, "edited")
        if (body.get("status") or {}).get("published")
    }


def _uids(site: Site, namespace: str) -> set[str]:
    return {job["metadata"]["uid"] for job in site.jobs(namespace)}


def _pods(site: Site, namespace: str) -> dict[str, list[tuple[str, int]]]:
    """Per pod in the order of their coming, what happened to it and when."""
    found: dict[str, list[tuple[str, int]]] = {}
    for event, body in site.record.history("pods", namespace):
        found.setdefault(body["metadata"]["uid"], []).append((event, version(body)))
    return found
