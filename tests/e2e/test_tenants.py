"""A catalogue, a consumer that lets only `restricted` pods in, and a hostile namespace: what each can reach of the others' files."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from tests.e2e.client import path_of
from tests.e2e.files import SUMS, parse_sums, sums_on_node
from tests.e2e.objects import QUICK, RESTRICTED, model_weights, stand_in_pod
from tests.e2e.site import FETCHED, REAL, STORAGE_CLAIM, STORAGE_CLASS_OF_CLAIM, Site
from tests.installation import RELEASE, condition
from tests.json_client import Json
from tests.polling import poll

LOADER_UID = 65532
"""Any pod may say that it is this user, who owns the files: only the mount keeps it from writing."""
TRY_TO_WRITE = """
cd /catalogue
for file in . */*/config.json; do
  touch "$file/x" 2>>/scratch/said || touch "$file" 2>>/scratch/said || continue
  echo "written: $file"
done
rm -rf /catalogue/* 2>>/scratch/said && echo "removed"
grep -c "Read-only file system" /scratch/said
"""


@dataclass(frozen=True)
class Tenants:
    """Three namespaces; `folder` holds what the catalogue staged on `node`, whose files have these `sums`."""

    catalogue: str
    consumer: str
    hostile: str
    node: str
    folder: str
    sums: dict[str, str]

    def check_unharmed(self, site: Site) -> None:
        """The catalogue's files are as they were, and no more of them."""
        assert sums_on_node(site, self.node, self.folder) == self.sums


@pytest.fixture(scope="module")
def tenants(site: Site, make_namespace: Callable[[str, str], str]) -> Iterator[Tenants]:
    """The catalogue's ModelWeights, and the volumes that the chart gives the consumer."""
    catalogue, consumer = make_namespace("catalogue", ""), make_namespace("consumer", "restricted")
    hostile, node = make_namespace("hostile", ""), site.cluster.gpu_nodes[0]
    reads = {"namespace": consumer, "class": "disk", "reads": catalogue, "claimName": "catalogue"}
    own = {"namespace": consumer, "class": STORAGE_CLASS_OF_CLAIM}
    site.install(
        *(f"tenants[{number}].{key}={value}" for number, each in enumerate((reads, own)) for key, value in each.items())
    )
    selector = {"matchLabels": {"kubernetes.io/metadata.name": consumer}}
    site.client.make(
        model_weights(catalogue, "minilm", REAL, node, storage={}, access={"namespaceSelector": selector}, **QUICK)
    )
    model = site.await_condition(catalogue, "minilm", seconds=120)
    folder = model["status"]["published"]["path"]
    yield Tenants(catalogue, consumer, hostile, node, folder, sums_on_node(site, node, folder))
    for name in (consumer, hostile, catalogue):
        site.remove_namespace(name)
    site.install()


def test_a_consumer_reads_the_catalogue_and_cannot_write_there(site: Site, tenants: Tenants) -> None:
    container = {
        "command": ["sh", "-c", f'(cd "/catalogue/minilm/${{DIGEST#sha256:}}" && {SUMS}); echo --; {TRY_TO_WRITE}'],
        "securityContext": {**RESTRICTED, "runAsUser": LOADER_UID, "runAsGroup": LOADER_UID},
        # Not even a pod that asks for the right to write gets it.
        "volumeMounts": [{"name": "catalogue", "mountPath": "/catalogue"}, {"name": "tmp", "mountPath": "/scratch"}],
    }
    volumes = [
        {"name": "catalogue", "persistentVolumeClaim": {"claimName": "catalogue"}},
        {"name": "tmp", "emptyDir": {}},
    ]
    require = f"{tenants.catalogue}/minilm"
    site.client.make(
        stand_in_pod(tenants.consumer, "reader", site.images.loader, require, container=container, volumes=volumes)
    )
    site.await_phase(tenants.consumer, "reader", "Succeeded")
    read, _, tried = site.log(tenants.consumer, "reader").partition("--\n")
    assert parse_sums(read) == tenants.sums
    # Of the folder, of a file, and of all that rm tried.
    assert int(tried) >= 3, tried
    tenants.check_unharmed(site)


def test_a_tenant_stages_into_its_own_claim_where_only_restricted_pods_are_let_in(site: Site, tenants: Tenants) -> None:
    """From the read-only claim into the one that the chart made: no pod of it mounts a hostPath."""
    body = model_weights(
        tenants.consumer,
        "own",
        "",
        tenants.node,
        storage={"class": STORAGE_CLASS_OF_CLAIM},
        staging={"uid": 4711},
        **QUICK,
    )
    path = tenants.folder.removeprefix(f"{FETCHED}/{tenants.catalogue}/")
    body["spec"]["source"] = {"persistentVolumeClaim": {"claimName": "catalogue", "path": path}}
    site.client.make(body)
    model = site.await_condition(tenants.consumer, "own", seconds=120)
    digest = model["status"]["published"]["manifestDigest"].removeprefix("sha256:")
    assert model["status"]["published"]["path"] == f"claim:{STORAGE_CLAIM}/own/{digest}"
    assert sums_on_node(site, tenants.node, f"/models/tenants/{tenants.consumer}/own/{digest}") == tenants.sums


def test_a_link_in_the_own_volume_leads_nowhere(site: Site, tenants: Tenants) -> None:
    """Who has a claim to write may plant what they like in it: here a home that is a link to the catalogue's."""
    link = f"/models/tenants/{tenants.consumer}/planted"
    site.cluster.node_exec(tenants.node, ["ln", "-s", tenants.folder.rpartition("/")[0], link])
    body = model_weights(
        tenants.consumer, "planted", "", tenants.node, storage={"class": STORAGE_CLASS_OF_CLAIM}, **QUICK
    )
    path = tenants.folder.removeprefix(f"{FETCHED}/{tenants.catalogue}/")
    body["spec"]["source"] = {"persistentVolumeClaim": {"claimName": "catalogue", "path": path}}
    site.client.make(body)
    assert _await_reason(site, tenants, tenants.consumer, "planted") == "ContainerCreateFailed"
    tenants.check_unharmed(site)


def test_a_hostile_namespace_gets_nothing(site: Site, tenants: Tenants) -> None:
    """All at once, since each of them only waits: see docs/threats.md."""
    own = f"{FETCHED}/{tenants.hostile}"
    links = f'mkdir -p "{own}" && ln -s "{tenants.folder}" "{own}/link" && ln -s "../{tenants.catalogue}/minilm" "{own}/home"'
    site.cluster.node_exec(tenants.node, ["sh", "-ec", links])
    named = model_weights(tenants.hostile, "named", tenants.folder, tenants.node, **QUICK)
    copied = model_weights(tenants.hostile, "copied", tenants.folder, tenants.node, storage={}, **QUICK)
    linked = model_weights(tenants.hostile, "linked", f"{own}/link", tenants.node, **QUICK)
    # Its own home is a link to another's.
    home = model_weights(tenants.hostile, "home", REAL, tenants.node, storage={}, **QUICK)
    for body in (named, copied, linked, home):
        site.client.make(body)
    site.client.make(stand_in_pod(tenants.hostile, "waits", site.images.loader, f"{tenants.catalogue}/minilm"))
    site.client.make(_claim(tenants.hostile, f"{RELEASE}.{tenants.consumer}.disk.{tenants.catalogue}"))

    for name in ("named", "copied"):
        assert "PathNotAllowed" in _reason(site, tenants.hostile, name)
    assert _await_reason(site, tenants, tenants.hostile, "linked") == "UnsafePath"
    assert _await_reason(site, tenants, tenants.hostile, "home") == "UnsafePath"
    told = f"/api/v1/namespaces/{tenants.hostile}/events"
    poll("the pod is told", lambda: "RequireNotAllowed" in {each["reason"] for each in site.client.items(told)})
    assert site.is_gated(tenants.hostile, "waits")
    claim = site.client.get(path_of("PersistentVolumeClaim", tenants.hostile, "theirs"))
    assert claim["status"]["phase"] == "Pending"
    tenants.check_unharmed(site)


def _claim(namespace: str, volume: str) -> Json:
    shape = {"accessModes": ["ReadOnlyMany"], "storageClassName": "", "volumeName": volume}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"namespace": namespace, "name": "theirs"},
        "spec": {**shape, "resources": {"requests": {"storage": "1Gi"}}},
    }


def _reason(site: Site, namespace: str, name: str) -> str:
    def ask() -> str:
        return str(condition(site.model(namespace, name), "Stalled").get("reason") or "")

    return poll(f"{namespace}/{name} is stalled", ask, show=[site.describe(namespace, name)])


def _await_reason(site: Site, tenants: Tenants, namespace: str, name: str) -> str:
    """Of the node: why the staging doesn't get on."""

    def ask() -> str:
        model = site.model(namespace, name) or {}
        entry = ((model.get("status") or {}).get("nodes") or {}).get(tenants.node) or {}
        is_stuck = entry.get("state") == "Failed" or entry.get("reason") in ("ContainerCreateFailed", "VolumeNotReady")
        return str(entry["reason"]) if is_stuck else ""

    return poll(f"{name} gets nowhere", ask, seconds=60, show=[site.describe(namespace, name)])
