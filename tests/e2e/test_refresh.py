"""What has left a node's page cache is warmed again, while the node stays ready and its pods run."""

from tests import node_page_cache
from tests.e2e.client import path_of
from tests.e2e.objects import NOT_LOADED, model_weights
from tests.e2e.site import REAL, Site
from tests.installation import condition
from tests.json_client import Json
from tests.polling import poll

RESIDENT_PERCENT = 95
LONG_AGO = "2026-01-01T00:00:00Z"


def test_what_has_cooled_is_warm_again_and_the_node_was_ready_all_the_time(site: Site, namespace: str) -> None:
    """The least interval is five minutes: the test empties the cache and has the status say that it was measured long ago."""
    node, model = site.cluster.gpu_nodes[0], path_of("ModelWeights", namespace, "minilm")
    warm = {"refreshIntervalSeconds": 300, "policy": "Required"}
    # A copy on the node, so that it is found by its digest in a home.
    site.client.make(model_weights(namespace, "minilm", REAL, node, prefetch=warm, storage={}, **NOT_LOADED))
    staged = site.await_condition(namespace, "minilm")
    path, measured_at = staged["status"]["published"]["path"], staged["status"]["nodes"][node]["measuredAt"]
    poll("the staging Job is gone", lambda: not site.jobs(namespace))
    node_page_cache.drop(site.cluster, node, path)

    site.client.patch(f"{model}/status", {"status": {"nodes": {node: {"measuredAt": LONG_AGO}}}})

    def refreshed() -> Json | None:
        entry: Json = (site.model(namespace, "minilm") or {})["status"]["nodes"][node]
        return entry if entry["measuredAt"] > measured_at else None

    entry = poll("it is measured anew", refreshed, seconds=60, show=[site.describe(namespace, "minilm")])
    size = node_page_cache.size_bytes(site.cluster, node, path)
    found = 100 * node_page_cache.resident_bytes(site.cluster, node, path) / size
    print(f"resident: 0 % after the cache was dropped, then {found:.1f} %; status: {entry}")
    assert found >= RESIDENT_PERCENT
    assert 100 * entry["residentBytes"] / size >= RESIDENT_PERCENT
    poll("the Job is gone", lambda: not site.jobs(namespace))
    refreshes = [
        body["metadata"]["name"]
        for _, body in site.record.history("jobs", namespace)
        if body["metadata"]["name"].startswith("refresh-")
    ]
    assert len(set(refreshes)) == 1
    # From the first time that it was ready until now.
    states = [condition(body, "Ready").get("status") for body in site.record.states("models", namespace, "minilm")]
    assert set(states[states.index("True") :]) == {"True"}
