"""The operator dies by SIGKILL at five moments of a run: no second Job on any node, Ready soon after its return.

To meet each moment for certain, the staging pod's process or the operator's own is held (SIGSTOP) until the kill.
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from modelweights_operator.domain import names
from tests.e2e.client import version
from tests.e2e.objects import NOT_LOADED, OTHER_GATE, model_weights, stand_in_pod
from tests.e2e.processes import OperatorProcess, freeze_step
from tests.e2e.site import REAL, Site
from tests.installation import condition
from tests.json_client import Json
from tests.polling import poll

READY_SECONDS = 30
WAITING_PODS = 40


@dataclass(frozen=True)
class Scene:
    """What a moment works with."""

    site: Site
    namespace: str
    operator: OperatorProcess
    path: str

    def start(self, **spec: Any) -> None:
        """Apply the ModelWeights."""
        self.site.client.make(model_weights(self.namespace, "minilm", self.path, **{**NOT_LOADED, **spec}))

    def kill(self) -> None:
        """Kill the operator and say what stood."""
        self.operator.kill()
        jobs = [_state(job) for job in self.site.jobs(self.namespace)]
        model = self.site.model(self.namespace, "minilm") or {}
        entries = (model.get("status") or {}).get("nodes") or {}
        print(f"killed: Jobs {jobs}, nodes {[entry['state'] for entry in entries.values()]}", end="; ")


def _state(job: Json) -> str:
    return next((kind for kind in ("Complete", "Failed") if condition(job, kind).get("status") == "True"), "Active")


def _before_the_jobs_are_made(scene: Scene) -> None:
    scene.operator.signal("STOP")
    scene.start()
    scene.kill()
    assert scene.site.job_uids(scene.namespace) == {}


def _during(step: str, **spec: Any) -> Callable[[Scene], None]:
    def moment(scene: Scene) -> None:
        node = scene.site.cluster.gpu_nodes[0]
        with ThreadPoolExecutor(1) as pool, freeze_step(scene.site.cluster, node, step, scene.path, pool) as frozen:
            scene.start(**spec)
            frozen()
            scene.kill()

    return moment


def _between_job_and_status(scene: Scene) -> None:
    node = scene.site.cluster.gpu_nodes[0]
    with ThreadPoolExecutor(1) as pool, freeze_step(scene.site.cluster, node, "report", scene.path, pool) as frozen:
        scene.start()
        frozen()
        scene.operator.signal("STOP")

    def complete() -> bool:
        return "Complete" in [_state(job) for job in scene.site.jobs(scene.namespace)]

    poll("the Job is complete", complete, seconds=15, every=0.1)
    scene.kill()
    nodes = (scene.site.model(scene.namespace, "minilm") or {})["status"]["nodes"]
    assert nodes[node]["state"] == "Staging"


def _while_gates_are_lifted(scene: Scene) -> None:
    for number in range(WAITING_PODS):
        name = f"waiting-{number}"
        body = stand_in_pod(scene.namespace, name, scene.site.images.loader, "minilm", gates=(OTHER_GATE,))
        scene.site.client.make(body)
    scene.start()
    # Asked of what the watch has brought, since a question to the API server takes longer than a lift.
    poll("a gate is lifted", lambda: _lifted(scene.site, scene.namespace), every=0.001)
    scene.kill()
    print(f"{len(_lifted(scene.site, scene.namespace))} of {WAITING_PODS} gates were lifted", end="; ")


def _lifted(site: Site, namespace: str) -> set[str]:
    return {
        pod["metadata"]["name"]
        for pod in site.record.states("pods", namespace)
        if pod["spec"].get("schedulingGates") == [{"name": OTHER_GATE}]
    }


MOMENTS: dict[str, Callable[[Scene], None]] = {
    "before-the-jobs-are-made": _before_the_jobs_are_made,
    "during-prefetch": _during("prefetch"),
    "during-validate": _during("validate", validation={}),  # A load lives long enough to be caught.
    "between-job-and-status": _between_job_and_status,
    "while-gates-are-lifted": _while_gates_are_lifted,
}


@pytest.fixture(scope="module")
def paths(site: Site) -> Iterator[Callable[[str], str]]:
    """Gives each moment a path of its own to the same files."""
    made = []

    def make(moment: str) -> str:
        path = f"/models/killed-{moment}"
        for node in site.cluster.gpu_nodes:
            site.cluster.node_exec(node, ["sh", "-ec", 'rm -rf "$2"; cp -al "$1" "$2"', "sh", REAL, path])
        made.append(path)
        return path

    yield make
    for node in site.cluster.gpu_nodes:
        site.cluster.node_exec(node, ["rm", "-rf", *made])


@pytest.mark.parametrize("moment", MOMENTS)
def test_run_is_finished_with_one_job_per_node(
    site: Site, namespace: str, paths: Callable[[str], str], moment: str
) -> None:
    scene = Scene(site, namespace, OperatorProcess(site), paths(moment))
    print(f"\n{moment}", end=": ")
    MOMENTS[moment](scene)
    scene.operator.await_return()
    returned = time.monotonic()
    model = site.await_condition(namespace, "minilm", seconds=READY_SECONDS)
    print(f"Ready {time.monotonic() - returned:.1f} s after its return")
    poll("no Job is left", lambda: not site.jobs(namespace))
    jobs = {node: len(uids) for node, uids in site.job_uids(namespace).items()}
    assert jobs == dict.fromkeys(site.cluster.gpu_nodes, 1)
    assert set(site.node_labels(model)) == set(site.cluster.gpu_nodes)


def test_every_gate_is_lifted_once_in_the_end(site: Site) -> None:
    """After the last moment: no pod was forgotten, and none was lifted before Available."""
    namespaces = {body["metadata"]["namespace"] for body in site.record.everything("pods")}
    namespace = next(name for name in namespaces if len(_pods_at_the_gate(site, name)) == WAITING_PODS)
    poll("all gates are lifted", lambda: len(_lifted(site, namespace)) == WAITING_PODS)
    available = next(
        body
        for body in site.record.states("models", namespace, "minilm")
        if condition(body, "Available").get("status") == "True"
    )
    lifts = [
        version(pod)
        for pod in site.record.states("pods", namespace)
        if pod["spec"].get("schedulingGates") == [{"name": OTHER_GATE}]
    ]
    assert min(lifts) > version(available)


def _pods_at_the_gate(site: Site, namespace: str) -> set[str]:
    return {
        pod["metadata"]["name"]
        for pod in site.record.states("pods", namespace)
        if {"name": names.GATE} in (pod["spec"].get("schedulingGates") or [])
    }
