"""The main job: apply a ModelWeights, see it Ready; the pod that waits for it starts only then, and only where it may."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime

import pytest

from modelweights_operator.domain import names
from tests.e2e.client import path_of, version
from tests.e2e.objects import OTHER_GATE, model_weights, stand_in_pod
from tests.e2e.processes import FrozenStep, freeze_step
from tests.e2e.site import REAL, Site
from tests.installation import condition
from tests.json_client import Json
from tests.polling import poll


@dataclass(frozen=True)
class Run:
    """What the one run of the main job showed; the tests look at it from different sides."""

    namespace: str
    gated_before: bool
    process: FrozenStep
    ready_nodes_at_start: list[str]
    pod: Json
    model: Json


@pytest.fixture(scope="module")
def run(site: Site, module_namespace: str) -> Run:
    """Pods first, then the ModelWeights; the first node is held in its prefetch until the pod runs on the second."""
    namespace = module_namespace
    slow, _ = site.cluster.gpu_nodes
    settings = {"envFrom": [{"configMapRef": {"name": "minilm"}}]}
    site.client.make(stand_in_pod(namespace, "waiting", site.images.loader, "minilm", container=settings))
    site.client.make(stand_in_pod(namespace, "other-gate", site.images.loader, "minilm", gates=(OTHER_GATE,)))
    poll("the pods say that they are gated", lambda: site.is_gated(namespace, "waiting"))
    with ThreadPoolExecutor(1) as pool, freeze_step(site.cluster, slow, "prefetch", REAL, pool) as frozen:
        gated = site.is_gated(namespace, "waiting")
        site.client.make(model_weights(namespace, "minilm", REAL))
        process = frozen()
        site.await_condition(namespace, "minilm", "Available")
        pod = site.await_running(namespace, "waiting")
        nodes = site.client.get(path_of("ModelWeights", namespace, "minilm"))["status"]["nodes"]
        ready = [name for name, entry in nodes.items() if entry["state"] == "Ready"]
    site.cluster.kubectl(
        *("wait", "--for=condition=Ready", "mw/minilm", f"--namespace={namespace}", "--timeout=60s"), timeout=70
    )
    model = site.client.get(path_of("ModelWeights", namespace, "minilm"))
    return Run(namespace, gated, process, ready, pod, model)


def test_pod_waits_at_the_gate_until_available(site: Site, run: Run) -> None:
    assert run.gated_before
    available = next(
        body
        for body in site.record.states("models", run.namespace, "minilm")
        if condition(body, "Available").get("status") == "True"
    )
    lifted = next(
        body for body in site.record.states("pods", run.namespace, "waiting") if not body["spec"].get("schedulingGates")
    )
    assert version(lifted) > version(available)
    started = run.pod["status"]["containerStatuses"][0]["state"]["running"]["startedAt"]
    since = condition(run.model, "Available")["lastTransitionTime"]
    assert datetime.fromisoformat(started) >= datetime.fromisoformat(since)


def test_pod_lands_on_a_ready_node_only(site: Site, run: Run) -> None:
    slow, fast = site.cluster.gpu_nodes
    assert run.ready_nodes_at_start == [fast]
    assert run.pod["spec"]["nodeName"] == fast
    digest = run.model["status"]["published"]["manifestDigest"]
    assert site.node_labels(run.model) == {node: {names.label_digest(digest)} for node in (slow, fast)}


def test_pod_reads_digest_and_settings(site: Site, run: Run) -> None:
    digest = run.model["status"]["published"]["manifestDigest"]
    assert run.pod["metadata"]["annotations"][names.DIGEST_ANNOTATION] == digest
    lines = site.log(run.namespace, "waiting").splitlines()
    assert {
        f"digest={digest}",
        "FASTSAFETENSORS_ODIRECT=0",
        "VLLM_FASTSAFETENSORS_QUEUE_SIZE=0",
        f"MODEL_PATH={REAL}",
    } <= set(lines)


def test_gates_of_others_stay(site: Site, run: Run) -> None:
    def only_the_other() -> Json | None:
        pod = site.pod(run.namespace, "other-gate")
        return pod if pod["spec"].get("schedulingGates") == [{"name": OTHER_GATE}] else None

    pod = poll("our gate is gone from the pod with two", only_the_other)
    assert condition(pod, "PodScheduled")["reason"] == "SchedulingGated"
    assert not pod["spec"].get("nodeName")


def test_staging_process_has_no_rights(run: Run) -> None:
    """As the kernel of the node has it, not as the manifest says."""
    status = run.process.status
    assert status["Uid"].split() == ["65532"] * 4
    assert status["Gid"].split() == ["65532"] * 4
    assert status["CapEff"] == status["CapPrm"] == status["CapBnd"] == "0" * 16
    assert status["NoNewPrivs"] == "1"
    assert status["Seccomp"] == "2"
    mounts = {fields[4]: fields[5].split(",") for fields in map(str.split, run.process.mounts)}
    assert "ro" in mounts["/"]
    assert "ro" in mounts["/models"]
    assert not [path for path in mounts if "serviceaccount" in path]
    assert "kubernetes.io" not in run.process.run_secrets


def test_one_job_per_node_and_none_stays(site: Site, run: Run) -> None:
    uids = site.job_uids(run.namespace)
    assert {node: len(found) for node, found in uids.items()} == dict.fromkeys(site.cluster.gpu_nodes, 1)
    poll("no Job is left", lambda: not site.jobs(run.namespace))


def test_node_without_gpu_is_not_touched(site: Site, run: Run) -> None:
    node = site.client.get(f"/api/v1/nodes/{site.cluster.cpu_node}")
    assert names.staged_labels(node["metadata"]["labels"]) == {}
    hosts = {body["spec"].get("nodeName") for _, body in site.record.history("pods", run.namespace)}
    assert hosts - {None} == set(site.cluster.gpu_nodes)


def test_kubectl_shows_it(site: Site, run: Run) -> None:
    line = site.cluster.kubectl("get", "mw", "-o", "wide", f"--namespace={run.namespace}").splitlines()[-1]
    assert line.split()[:5] == ["minilm", "True", "2/2", "86.7Mi", "AllNodesReady"]
    described = site.describe(run.namespace, "minilm")()
    for said in ("pods may start: 2 of at least 1 node(s) hold it proven", "2 of 2 node(s) ready", "Manifest Digest"):
        assert said in described
