"""Revisions under a Deployment that runs: rolled out, rolled back, a bad one; and no container of it ever failed to start."""

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator

import pytest

from modelweights_operator.domain import names
from tests.e2e.client import path_of
from tests.e2e.objects import QUICK, controller, model_weights, models_mount, models_volume, stand_in_pod
from tests.e2e.site import Site
from tests.e2e.source_servers import HubServer, start_hub
from tests.installation import condition
from tests.json_client import Json
from tests.polling import poll

REPOSITORY = "org/minilm"
COMMITS = {"v1": "1" * 40, "v2": "2" * 40, "bad": "3" * 40}
REPLICAS = 2
FAILED = ("Failed", "BackOff", "FailedMount", "FailedCreatePodSandBox")
"""Reasons of events of pods whose containers don't start."""


@pytest.fixture(scope="module")
def hub(site: Site, make_namespace: Callable[[str, str], str]) -> Iterator[HubServer]:
    """A repository with three tags: the second one has a file more, the last one is broken."""
    namespace = make_namespace("rollout-hub", "")
    hub = start_hub(site, namespace)
    more = site.checkpoints / "rolled-out"
    shutil.copytree(site.checkpoints / "split", more, copy_function=os.link)
    (more / "generation_config.json").write_text('{"temperature": 0.5}\n', encoding="utf-8")
    for tag, folder in (("v1", site.checkpoints / "split"), ("v2", more), ("bad", site.checkpoints / "corrupt")):
        hub.add(REPOSITORY, COMMITS[tag], folder)
    hub.describe(REPOSITORY, refs=COMMITS)
    yield hub
    site.remove_namespace(namespace)


@pytest.fixture(scope="module")
def namespace(site: Site, hub: HubServer, module_namespace: str) -> str:
    """The first revision on both nodes, and a Deployment that runs with it."""
    model = model_weights(module_namespace, "minilm", "", placement={}, **QUICK)
    model["spec"]["source"] = {"huggingFace": {"repository": REPOSITORY, "endpoint": hub.url, "revision": "v1"}}
    site.client.make(model)
    where = {"fieldRef": {"fieldPath": f"metadata.annotations['{names.PATH_ANNOTATION}']"}}
    container = {
        "command": ["sh", "-ec", 'cd "$MODEL_PATH" && cat *.safetensors >/dev/null && ls && exec sleep 3600'],
        "env": [{"name": "MODEL_PATH", "valueFrom": where}],
        **models_mount(),
    }
    pod = stand_in_pod(
        module_namespace, "engine", site.images.loader, "minilm@v1", container=container, **models_volume()
    )
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}
    site.client.make(controller("Deployment", pod, replicas=REPLICAS, strategy=strategy))
    site.await_condition(module_namespace, "minilm", seconds=120)
    _await_rolled_out(site, module_namespace)
    return module_namespace


def _ask(site: Site, namespace: str, revision: str) -> None:
    source = {"source": {"huggingFace": {"revision": revision}}}
    site.client.patch(path_of("ModelWeights", namespace, "minilm"), {"spec": source})


def _require(site: Site, namespace: str, revision: str) -> None:
    template = {"metadata": {"annotations": {names.REQUIRE_ANNOTATION: f"minilm@{revision}"}}}
    site.client.patch(path_of("Deployment", namespace, "engine"), {"spec": {"template": template}})


def _await_rolled_out(site: Site, namespace: str) -> None:
    def done() -> bool:
        deployment = site.client.get(path_of("Deployment", namespace, "engine"))
        status = deployment["status"]
        current = status.get("observedGeneration") == deployment["metadata"]["generation"]
        counts = [status.get(field, 0) for field in ("replicas", "updatedReplicas", "availableReplicas")]
        return current and counts == [REPLICAS] * 3

    poll("the Deployment is rolled out", done, seconds=120, show=[site.describe(namespace, "minilm")])


def _status(site: Site, namespace: str) -> Json:
    found: Json = site.client.get(path_of("ModelWeights", namespace, "minilm"))["status"]
    return found


def _pods(site: Site, namespace: str) -> list[Json]:
    pods = site.client.items(path_of("Pod", namespace))
    return [pod for pod in pods if (pod["metadata"].get("labels") or {}).get("app") == "engine"]


def _digests(site: Site, namespace: str) -> set[str]:
    """Those that the pods were lifted with that aren't about to go."""
    staying = [pod for pod in _pods(site, namespace) if "deletionTimestamp" not in pod["metadata"]]
    return {pod["metadata"]["annotations"][names.DIGEST_ANNOTATION] for pod in staying}


def test_rollout_of_both_at_once(site: Site, namespace: str) -> None:
    """The Deployment first: its new pods wait for a revision that nobody has heard of yet."""
    before = _status(site, namespace)["published"]
    assert _digests(site, namespace) == {before["manifestDigest"]}
    _require(site, namespace, "v2")
    poll("a new pod waits", lambda: len(_pods(site, namespace)) == REPLICAS + 1)
    began = time.monotonic()
    _ask(site, namespace, "v2")
    _await_rolled_out(site, namespace)
    print(f"rolled out after {time.monotonic() - began:.1f} s", flush=True)
    site.await_condition(namespace, "minilm", seconds=120)
    status = _status(site, namespace)
    print(json.dumps({key: status[key] for key in ("published", "previous")}, indent=1))
    assert (status["published"]["revision"], status["published"]["requested"]) == (COMMITS["v2"], "v2")
    assert [known["requested"] for known in status["previous"]] == ["v1"]
    assert _digests(site, namespace) == {status["published"]["manifestDigest"]}
    both = {names.label_digest(each["manifestDigest"]) for each in (before, status["published"])}
    model = site.client.get(path_of("ModelWeights", namespace, "minilm"))
    labels = site.node_labels(model)
    assert labels.keys() == set(site.cluster.gpu_nodes)
    assert all(digests == both for digests in labels.values())


def test_rollback_fetches_nothing(site: Site, namespace: str) -> None:
    began = time.monotonic()
    _ask(site, namespace, "v1")
    _require(site, namespace, "v1")
    revision = COMMITS["v1"]
    poll("v1 is published", lambda: _status(site, namespace)["published"]["revision"] == revision, seconds=60)
    published_seconds = time.monotonic() - began
    _await_rolled_out(site, namespace)
    print(f"rolled back: published after {published_seconds:.1f} s, pods after {time.monotonic() - began:.1f} s")
    site.await_condition(namespace, "minilm", seconds=60)
    print(f"ready after {time.monotonic() - began:.1f} s", flush=True)
    status = _status(site, namespace)
    assert [entry.get("fetchedBytes", 0) for entry in status["nodes"].values()] == [0, 0]
    assert _digests(site, namespace) == {status["published"]["manifestDigest"]}


def test_bad_revision_leaves_what_runs(site: Site, namespace: str) -> None:
    before, pods = _status(site, namespace)["published"], {pod["metadata"]["uid"] for pod in _pods(site, namespace)}
    _ask(site, namespace, "bad")
    _require(site, namespace, "bad")
    model = site.await_condition(namespace, "minilm", "Stalled", seconds=120)
    print(condition(model, "Stalled")["message"])
    assert model["status"]["published"] == before
    assert condition(model, "Available")["status"] == "True"
    running = [pod for pod in _pods(site, namespace) if pod["status"]["phase"] == "Running"]
    assert {pod["metadata"]["uid"] for pod in running} == pods
    (waiting,) = [pod for pod in _pods(site, namespace) if pod["status"]["phase"] == "Pending"]
    assert site.is_gated(namespace, waiting["metadata"]["name"])


def test_no_container_failed_to_start(site: Site, namespace: str) -> None:
    """By all states that pods were ever in, and by their events. One that is deleted may end as it likes."""
    pods = {
        body["metadata"]["uid"]
        for _, body in site.record.history("pods", namespace)
        if (body["metadata"].get("labels") or {}).get("app") == "engine"
    }
    failed = [
        (body["metadata"]["name"], status["state"])
        for _, body in site.record.history("pods", namespace)
        if body["metadata"]["uid"] in pods and "deletionTimestamp" not in body["metadata"]
        for status in body["status"].get("containerStatuses", [])
        if status["restartCount"] or "terminated" in status["state"] or _is_stuck(status["state"])
    ]
    events = site.client.items(f"/api/v1/namespaces/{namespace}/events")
    told = [each for each in events if each["involvedObject"].get("uid") in pods and each["reason"] in FAILED]
    print(f"{len(pods)} pods, {len(failed)} failed starts, {len(told)} events of failures", flush=True)
    assert len(pods) >= 3 * REPLICAS + 1
    assert failed == []
    assert told == []


def _is_stuck(state: Json) -> bool:
    return state.get("waiting", {}).get("reason", "ContainerCreating") not in ("ContainerCreating", "PodInitializing")
