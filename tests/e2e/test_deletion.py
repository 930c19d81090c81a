"""A deleted ModelWeights leaves nothing behind, also when the operator was away."""

from concurrent.futures import ThreadPoolExecutor

from tests.e2e.client import path_of
from tests.e2e.objects import QUICK, model_weights
from tests.e2e.processes import freeze_step
from tests.e2e.site import REAL, Site
from tests.installation import NAMESPACE, RELEASE
from tests.json_client import Json
from tests.polling import poll

SLOW, FAST = "slow-to-stage", "staged"


def _stage_one_and_hold_another(site: Site, namespace: str) -> None:
    site.client.make(model_weights(namespace, FAST, REAL, site.cluster.gpu_nodes[1], **QUICK))
    model = site.await_condition(namespace, FAST)
    assert set(site.node_labels(model)) == {site.cluster.gpu_nodes[1]}
    assert site.client.find(path_of("ConfigMap", namespace, FAST)) is not None
    site.client.make(model_weights(namespace, SLOW, REAL, site.cluster.gpu_nodes[0]))


def _delete_both_and_see_all_gone(site: Site, namespace: str) -> None:
    staged = site.client.get(path_of("ModelWeights", namespace, FAST))
    assert "finalizers" not in staged["metadata"]
    for name in (FAST, SLOW):
        site.client.remove(path_of("ModelWeights", namespace, name))
    both = path_of("ModelWeights", namespace)
    poll("both are gone", lambda: not site.client.items(both), seconds=5)
    poll("its ConfigMap is gone", lambda: site.client.find(path_of("ConfigMap", namespace, FAST)) is None)


def _last(site: Site, namespace: str) -> Json:
    """The last state of the one that was staged."""
    return list(site.record.states("models", namespace, FAST))[-1]


def test_jobs_labels_and_settings_go(site: Site, namespace: str) -> None:
    slow = site.cluster.gpu_nodes[0]
    with ThreadPoolExecutor(1) as pool, freeze_step(site.cluster, slow, "prefetch", REAL, pool) as frozen:
        _stage_one_and_hold_another(site, namespace)
        frozen()
        assert site.jobs(namespace)
        _delete_both_and_see_all_gone(site, namespace)
        poll("the Job is gone", lambda: not site.jobs(namespace))
        poll("its pod is gone", lambda: not site.client.items(path_of("Pod", namespace)))
    poll("the node's label is gone", lambda: not site.node_labels(_last(site, namespace)))


def test_operator_that_was_away_cleans_up_on_its_return(site: Site, namespace: str) -> None:
    slow = site.cluster.gpu_nodes[0]
    scale = ("scale", f"deployment/{RELEASE}", f"--namespace={NAMESPACE}")
    with ThreadPoolExecutor(1) as pool, freeze_step(site.cluster, slow, "prefetch", REAL, pool) as frozen:
        _stage_one_and_hold_another(site, namespace)
        frozen()
        site.cluster.kubectl(*scale, "--replicas=0")
        try:
            poll("the operator is away", lambda: not site.operator_pods(), seconds=40)
            _delete_both_and_see_all_gone(site, namespace)
            assert site.node_labels(_last(site, namespace)), "nobody is there to take it off"
        finally:
            site.cluster.kubectl(*scale, "--replicas=1")
        poll("the Job is gone", lambda: not site.jobs(namespace))
    poll("the node's label is gone", lambda: not site.node_labels(_last(site, namespace)))
