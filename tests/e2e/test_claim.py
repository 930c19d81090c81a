"""A claim as the source, in a namespace that enforces Pod Security `restricted`."""

import json
from collections.abc import Callable, Iterator

import pytest

from tests.e2e.objects import RESTRICTED, model_weights, stand_in_pod
from tests.e2e.site import REAL, Site
from tests.installation import condition
from tests.json_client import Json

OTHER_UID = 4711
RESIDENT_PERCENT = 95
"""What Ready promises (the default of minResidentPercent): a kernel may reclaim cold pages at any time since (DAMON)."""


def _volume_and_claim(namespace: str, node: str) -> list[Json]:
    on_node = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}
    shape = {"accessModes": ["ReadWriteOnce"], "storageClassName": "", "volumeMode": "Filesystem"}
    return [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": namespace},
            "spec": {
                **shape,
                "capacity": {"storage": "1Gi"},
                "persistentVolumeReclaimPolicy": "Retain",
                "local": {"path": "/models"},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [on_node]}},
                "claimRef": {"namespace": namespace, "name": "weights"},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"namespace": namespace, "name": "weights"},
            "spec": {**shape, "volumeName": namespace, "resources": {"requests": {"storage": "1Gi"}}},
        },
    ]


@pytest.fixture
def restricted(site: Site, make_namespace: Callable[[str, str], str]) -> Iterator[str]:
    """The namespace, with a claim on a folder of the first node."""
    name = make_namespace("claim", "restricted")
    manifest = {"apiVersion": "v1", "kind": "List", "items": _volume_and_claim(name, site.cluster.gpu_nodes[0])}
    site.cluster.kubectl("create", "--filename=-", input=json.dumps(manifest))
    yield name
    site.remove_namespace(name)
    site.cluster.kubectl("delete", "pv", name, "--wait=false")


def test_claim_is_staged_where_only_restricted_pods_are_let_in(site: Site, restricted: str) -> None:
    body = model_weights(restricted, "claimed", "", site.cluster.gpu_nodes[0])
    body["spec"]["source"] = {"persistentVolumeClaim": {"claimName": "weights", "path": REAL.removeprefix("/models/")}}
    site.client.make(body)
    model = site.await_condition(restricted, "claimed")
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
