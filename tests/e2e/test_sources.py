"""Checkpoints that come from elsewhere: `kubectl apply` to Ready, from a real server of each kind, on real nodes."""

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from modelweights_loader.checkpoint import find_checkpoint
from modelweights_operator.domain import names
from tests.e2e.client import path_of
from tests.e2e.files import SUMS, parse_sums, sums_on_node
from tests.e2e.objects import (
    NOT_LOADED,
    QUICK,
    RESTRICTED,
    bound_volume,
    model_weights,
    models_mount,
    models_volume,
    stand_in_pod,
)
from tests.e2e.processes import freeze_step
from tests.e2e.site import FETCHED, SPLIT, STORAGE_CLAIM, STORAGE_CLASS_OF_CLAIM, Site
from tests.e2e.source_servers import HubServer, Server, StoreServer, start_hub, start_store, start_web
from tests.installation import condition
from tests.json_client import Json
from tests.polling import poll

REPOSITORY = "sentence-transformers/all-MiniLM-L6-v2"
PRIVATE = "modelweights/private-minilm"
TOKEN = f"hf_{secrets.token_hex(17)}"
FIRST, SECOND = "a" * 40, "b" * 40


@dataclass(frozen=True)
class Servers:
    """The servers, and the local folder whose files they all have."""

    namespace: str
    hub: HubServer
    store: StoreServer
    web: Server
    files: Path


@pytest.fixture(scope="module")
def servers(site: Site, make_namespace: Callable[[str, str], str]) -> Iterator[Servers]:
    """All three in one namespace, with the real checkpoint in shards; of the repository a second commit, with one file more."""
    name = make_namespace("servers", "")
    files = site.checkpoints / "split"
    more = site.checkpoints / "second"
    shutil.copytree(files, more, copy_function=os.link)
    (more / "generation_config.json").write_text("{}\n", encoding="utf-8")
    with ThreadPoolExecutor(3) as pool:
        hub = pool.submit(start_hub, site, name)
        store = pool.submit(start_store, site, name, files)
        web = pool.submit(start_web, site, name, _with_sums(files, site.checkpoints / "web"), site.authority)
        started = Servers(name, hub.result(), store.result(), web.result(), files)
    for repository in (REPOSITORY, PRIVATE):
        started.hub.add(repository, FIRST, files)
        started.hub.describe(repository, refs={"main": FIRST}, private=repository == PRIVATE)
    started.hub.add(REPOSITORY, SECOND, more)
    started.hub.settings(tokens={TOKEN: ["*"]}, lfsBytes=1 << 20)
    yield started
    site.remove_namespace(name)


def _with_sums(files: Path, folder: Path) -> Path:
    """The same files, and beside them what a web server can't say by itself: which there are."""
    shutil.copytree(files, folder, copy_function=os.link)
    lines = [f"{digest}  {name}\n" for name, digest in _sums_here(files).items()]
    (folder / "SHA256SUMS").write_text("".join(lines), encoding="utf-8")
    return folder


def _hugging_face(servers: Servers, repository: str = REPOSITORY, **more: object) -> Json:
    return {"huggingFace": {"repository": repository, "endpoint": servers.hub.url, **more}}


def _apply(site: Site, namespace: str, name: str, source: Json, node: str, **spec: object) -> None:
    body = model_weights(namespace, name, "", node, **spec)
    body["spec"]["source"] = source
    site.client.make(body)


def _secret(site: Site, namespace: str, name: str, data: dict[str, str]) -> None:
    site.client.create(f"/api/v1/namespaces/{namespace}/secrets", {"metadata": {"name": name}, "stringData": data})


def _staging_pods(site: Site, namespace: str) -> list[Json]:
    """Each staging pod of a namespace in its last state."""
    found = {
        body["metadata"]["uid"]: body
        for _, body in site.record.history("pods", namespace)
        if names.OWNER_LABEL in (body["metadata"].get("labels") or {})
    }
    return list(found.values())


def _sums_here(folder: Path) -> dict[str, str]:
    """sha256 of each file that an engine would read; others aren't fetched."""
    files = find_checkpoint(str(folder)).files
    return {file.path: hashlib.sha256(Path(file.real_path).read_bytes()).hexdigest() for file in files}


def _size_of(folder: Path) -> int:
    return sum(file.size_bytes for file in find_checkpoint(str(folder)).files)


@pytest.fixture(scope="module")
def late(site: Site, servers: Servers, module_namespace: str) -> str:
    """A private repository, asked for with a Secret that isn't there yet."""
    source = _hugging_face(servers, PRIVATE, tokenSecretRef={"name": "late", "key": "token"})
    _apply(site, module_namespace, "late", source, site.cluster.gpu_nodes[0], **QUICK)
    return "late"


def test_missing_secret_is_named(site: Site, module_namespace: str, late: str) -> None:
    def ask() -> Json | None:
        body = site.model(module_namespace, late)
        entries = list(((body or {}).get("status") or {}).get("nodes", {}).values())
        return entries[0] if entries and entries[0]["state"] == "Failed" else None

    entry = poll("the staging without a Secret fails", ask, show=[site.describe(module_namespace, late)])
    assert entry["reason"] == "SecretMissing"
    assert "/secrets/late/token" in entry["message"]
    # Its next attempt is a minute from now; other tests take that time, and the last one looks.
    _secret(site, module_namespace, "late", {"token": TOKEN})


def test_hugging_face_repository_reaches_every_node(site: Site, servers: Servers, module_namespace: str) -> None:
    pod = stand_in_pod(module_namespace, "engine", site.images.loader, "minilm", **models_volume())
    where = {"fieldRef": {"fieldPath": f"metadata.annotations['{names.PATH_ANNOTATION}']"}}
    command = ["sh", "-c", f'cd "$MODEL_PATH" && {SUMS}; exec sleep 3600']
    pod["spec"]["containers"][0].update(
        {"command": command, "env": [{"name": "MODEL_PATH", "valueFrom": where}], **models_mount()}
    )
    site.client.make(pod)
    _apply(site, module_namespace, "minilm", _hugging_face(servers), "")
    model = site.await_condition(module_namespace, "minilm", seconds=120)
    # Whatever the branch says from now on: what is staged stays what it was.
    servers.hub.describe(REPOSITORY, refs={"main": SECOND})
    status = model["status"]
    print(json.dumps(status, indent=1))
    assert status["published"]["revision"] == FIRST
    assert status["source"]["revision"] == FIRST
    assert set(status["nodes"]) == set(site.cluster.gpu_nodes)
    hexadecimal = status["published"]["manifestDigest"].removeprefix("sha256:")
    assert status["published"]["path"] == f"{FETCHED}/{module_namespace}/minilm/{hexadecimal}"
    for node in site.cluster.gpu_nodes:
        assert sums_on_node(site, node, status["published"]["path"]) == _sums_here(servers.files)
        assert status["nodes"][node]["fetchedBytes"] == _size_of(servers.files)
        assert status["nodes"][node]["fetchSeconds"] > 0
    site.await_running(module_namespace, "engine")
    expected = _sums_here(servers.files)
    poll("the pod has read its files", lambda: parse_sums(site.log(module_namespace, "engine")) == expected)


def test_staging_pod_may_write_in_the_fetch_alone(site: Site, module_namespace: str) -> None:
    pods = [pod for pod in _staging_pods(site, module_namespace) if pod["metadata"]["name"].startswith("stage-minilm")]
    assert len(pods) == len(site.cluster.gpu_nodes)
    for pod in pods:
        print(json.dumps(pod["spec"]["securityContext"]))
        assert pod["spec"]["automountServiceAccountToken"] is False
        for container in (*pod["spec"]["initContainers"], *pod["spec"]["containers"]):
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"]
            assert not context["allowPrivilegeEscalation"]
            assert context["capabilities"] == {"drop": ["ALL"]}
            on_models = [each for each in container["volumeMounts"] if each["name"] == "model"]
            written = {each["mountPath"] for each in on_models if not each.get("readOnly")}
            expected = {"fetch": {f"{FETCHED}/{module_namespace}/minilm"}, "report": {"/run/modelweights/markers"}}
            assert written == expected.get(container["name"], set())


def test_branch_that_moves_between_two_nodes_is_not_mixed(site: Site, servers: Servers, module_namespace: str) -> None:
    """The first node's fetch is held until the branch has moved; the second node must get what the first one resolved."""
    servers.hub.describe(REPOSITORY, refs={"main": FIRST})
    home = f"{FETCHED}/{module_namespace}/moved"
    first = site.cluster.gpu_nodes[0]
    with ThreadPoolExecutor(1) as pool, freeze_step(site.cluster, first, "prefetch", home, pool) as held:
        _apply(site, module_namespace, "moved", _hugging_face(servers), "", **NOT_LOADED)
        held()
        servers.hub.describe(REPOSITORY, refs={"main": SECOND})
    model = site.await_condition(module_namespace, "moved", seconds=120)
    assert model["status"]["source"]["revision"] == FIRST
    digests = {entry["manifestDigest"] for entry in model["status"]["nodes"].values()}
    assert len(model["status"]["nodes"]) == len(site.cluster.gpu_nodes)
    assert len(digests) == 1


def test_killed_fetch_goes_on_where_it_was(site: Site, servers: Servers, module_namespace: str) -> None:
    """SIGKILL, as a lost pod gives it; the files are right in the end, and one further staging was enough."""
    node = site.cluster.gpu_nodes[1]
    home = f"{FETCHED}/{module_namespace}/killed"
    with ThreadPoolExecutor(1) as pool, freeze_step(site.cluster, node, "fetch", home, pool) as held:
        _apply(site, module_namespace, "killed", _hugging_face(servers, revision=FIRST), node, **QUICK)
        held()
        pod = next(
            pod for pod in _staging_pods(site, module_namespace) if pod["metadata"]["name"].startswith("stage-killed")
        )
        site.client.remove(path_of("Pod", module_namespace, pod["metadata"]["name"]), grace_seconds=0)
    model = site.await_condition(module_namespace, "killed", seconds=120)
    assert sums_on_node(site, node, model["status"]["published"]["path"]) == _sums_here(servers.files)


def test_cache_layout_is_found_offline_by_name(site: Site, servers: Servers, module_namespace: str) -> None:
    node = site.cluster.gpu_nodes[0]
    source = _hugging_face(servers, revision=FIRST)
    _apply(site, module_namespace, "cached", source, node, storage={"layout": "HuggingFaceCache"}, **QUICK)
    program = f"from huggingface_hub import snapshot_download; print(snapshot_download({REPOSITORY!r}))"
    container = {
        "command": ["python", "-c", program],
        "env": [],
        "envFrom": [{"configMapRef": {"name": "cached"}}],
        **models_mount(),
    }
    site.client.make(
        stand_in_pod(module_namespace, "offline", site.images.loader, "cached", container=container, **models_volume())
    )
    model = site.await_condition(module_namespace, "cached", seconds=120)
    site.await_phase(module_namespace, "offline", "Succeeded")
    found = site.log(module_namespace, "offline").strip().splitlines()[-1]
    assert found.endswith(f"/snapshots/{FIRST}")
    assert found == model["status"]["published"]["path"]


@pytest.fixture
def restricted(site: Site, make_namespace: Callable[[str, str], str]) -> Iterator[str]:
    """A namespace that lets only `restricted` pods in, with the claim of the second storage class."""
    name = make_namespace("tenant", "restricted")
    folder = f"/models/tenants/{name}"
    # As the administrator does it: one volume for each namespace, which on every node is a folder of that node.
    for node in site.cluster.gpu_nodes:
        site.cluster.node_exec(node, ["install", "-d", "-g", "65532", "-m", "2775", folder, f"{folder}/.modelweights"])
    place = {"path": folder, "type": "Directory"}
    volume, claim = bound_volume(name, STORAGE_CLAIM, "ReadWriteMany", hostPath=place)
    site.client.create("/api/v1/persistentvolumes", volume)
    site.client.make(claim)
    yield name
    site.remove_namespace(name)
    site.cluster.kubectl("delete", "pv", name, "--wait=false")


def test_bucket_is_staged_where_only_restricted_pods_are_let_in(site: Site, servers: Servers, restricted: str) -> None:
    _secret(site, restricted, "bucket", dict(servers.store.credentials))
    source = {
        "objectStore": {
            "url": "s3://weights",
            "endpoint": servers.store.url,
            "region": "us-east-1",
            "pathStyle": True,
            "credentialsSecretRef": {"name": "bucket"},
        }
    }
    _apply(site, restricted, "bucket", source, "", storage={"class": STORAGE_CLASS_OF_CLAIM}, **QUICK)
    model = site.await_condition(restricted, "bucket", seconds=120)
    print(json.dumps(model["status"], indent=1))
    hexadecimal = model["status"]["published"]["manifestDigest"].removeprefix("sha256:")
    assert model["status"]["published"]["path"] == f"claim:{STORAGE_CLAIM}/bucket/{hexadecimal}"
    assert model["status"]["source"]["revision"].startswith("sha256:")

    reader = {
        "command": ["sh", "-c", f'cd "/data/$HERE" && {SUMS}'],
        "env": [{"name": "HERE", "value": f"bucket/{hexadecimal}"}],
        "securityContext": {**RESTRICTED, "runAsUser": 4711},
        "volumeMounts": [{"name": "data", "mountPath": "/data", "readOnly": True}],
    }
    claim = {"name": "data", "persistentVolumeClaim": {"claimName": STORAGE_CLAIM, "readOnly": True}}
    site.client.make(
        stand_in_pod(restricted, "reader", site.images.loader, "bucket", container=reader, volumes=[claim])
    )
    site.await_phase(restricted, "reader", "Succeeded")
    assert parse_sums(site.log(restricted, "reader")) == _sums_here(servers.files)
    secret = servers.store.credentials["AWS_SECRET_ACCESS_KEY"]
    for pod in _staging_pods(site, restricted):
        assert secret not in json.dumps(pod)


def test_web_server_with_an_authority_of_its_own(site: Site, servers: Servers, module_namespace: str) -> None:
    node = site.cluster.gpu_nodes[0]
    _apply(site, module_namespace, "web", {"objectStore": {"url": f"{servers.web.url}/"}}, node, **QUICK)
    model = site.await_condition(module_namespace, "web", seconds=120)
    sums = sums_on_node(site, node, model["status"]["published"]["path"])
    assert sums == _sums_here(servers.files)


def test_folder_is_copied_where_storage_asks_for_it(site: Site, servers: Servers, module_namespace: str) -> None:
    node = site.cluster.gpu_nodes[1]
    _apply(site, module_namespace, "copied", {"hostPath": {"path": SPLIT}}, node, storage={}, **QUICK)
    model = site.await_condition(module_namespace, "copied", seconds=120)
    path = model["status"]["published"]["path"]
    assert path.startswith(f"{FETCHED}/{module_namespace}/copied/")
    assert sums_on_node(site, node, path) == _sums_here(servers.files)


def test_secret_that_came_later_is_used(site: Site, module_namespace: str, late: str) -> None:
    model = site.await_condition(module_namespace, late, seconds=120)
    assert condition(model, "Available")["status"] == "True"
    everything = json.dumps(model) + json.dumps(_staging_pods(site, module_namespace))
    events = site.client.get(f"/api/v1/namespaces/{module_namespace}/events")
    operator_log = site.cluster.kubectl("logs", "--namespace=modelweights-system", "deploy/modelweights-operator")
    assert TOKEN not in everything + json.dumps(events) + operator_log
