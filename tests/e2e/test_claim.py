"""A claim as the source, in a namespace that enforces Pod Security `restricted`."""

import json
from collections.abc import Callable, Iterator

import pytest

from tests.e2e.objects import RESTRICTED, bound_volume, model_weights, stand_in_pod
from tests.e2e.site import REAL, Site
from tests.installation import condition
from tests.json_client import Json
from tests.polling import poll

OTHER_UID = 4711
RESIDENT_PERCENT = 95
"""What Ready promises (the default of minResidentPercent): a kernel may reclaim cold pages at any time since (DAMON)."""


def volume_and_claim(namespace: str, node: str) -> tuple[Json, Json]:
    """On the models of one node."""
    on_node = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}
    affinity = {"required": {"nodeSelectorTerms": [on_node]}}
    return bound_volume(namespace, "weights", "ReadWriteOnce", local={"path": "/models"}, nodeAffinity=affinity)


@pytest.fixture
def restricted(site: Site, make_namespace: Callable[[str, str], str]) -> Iterator[str]:
    """The namespace; the claim on a folder of the first node isn't there yet."""
    name = make_namespace("claim", "restricted")
    yield name
    site.remove_namespace(name)
    site.cluster.kubectl("delete", "pv", name, "--wait=false", "--ignore-not-found")


def await_claim_not_ready(site: Site, namespace: str, said: str) -> None:
    """The staging waits for the claim, and says so of it; that is no failure."""

    def ask() -> bool:
        body = site.model(namespace, "claimed") or {}
        entries = list((body.get("status") or {}).get("nodes", {}).values())
        return bool(entries) and entries[0]["reason"] == "ClaimNotReady" and said in entries[0]["message"]

    poll(f"it waits, {said}", ask, show=[site.describe(namespace, "claimed")])
    assert condition(site.model(namespace, "claimed"), "Stalled") == {}, "not before two minutes"


def test_claim_is_waited_for_and_staged_where_only_restricted_pods_are_let_in(site: Site, restricted: str) -> None:
    body = model_weights(restricted, "claimed", "", site.cluster.gpu_nodes[0])
    body["spec"]["source"] = {"persistentVolumeClaim": {"claimName": "weights", "path": REAL.removeprefix("/models/")}}
    site.client.make(body)
    await_claim_not_ready(site, restricted, 'claim weights: 0/3 nodes are available: persistentvolumeclaim "weights"')
    volume, claim = volume_and_claim(restricted, site.cluster.gpu_nodes[0])
    site.client.make(claim)
    await_claim_not_ready(site, restricted, "unbound immediate PersistentVolumeClaims")
    site.client.create("/api/v1/persistentvolumes", volume)
    model = site.await_condition(restricted, "claimed")
    (entry,) = model["status"]["nodes"].values()
    assert entry.get("attempts", 0) == 0
    assert condition(model, "Available")["status"] == "True"
    assert list(model["status"]["nodes"]) == [site.cluster.gpu_nodes[0]]
    pods = {pod["spec"].get("nodeName") for _, pod in site.record.history("pods", restricted)}
    assert pods - {None} == {site.cluster.gpu_nodes[0]}

    site.client.make(_reader(site, restricted))
    site.await_phase(restricted, "reader", "Succeeded")
    found = json.loads(site.log(restricted, "reader"))
    print(f"residency in a restricted pod, uid {OTHER_UID}: {found['residentPercent']} %, {found['residencyMethod']}")
    assert found["residentPercent"] >= RESIDENT_PERCENT


def _reader(site: Site, namespace: str) -> Json:
    path = f"/data/{REAL.removeprefix('/models/')}"
    container = {
        "command": ["modelweights-loader", "residency", "--json", path],
        "securityContext": RESTRICTED,
        "volumeMounts": [{"name": "data", "mountPath": "/data", "readOnly": True}],
    }
    return stand_in_pod(
        namespace,
        "reader",
        site.images.loader,
        "claimed",
        container=container,
        securityContext={"runAsUser": OTHER_UID, "runAsNonRoot": True},
        volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "weights", "readOnly": True}}],
    )
