"""An operator that starts among many objects: nothing is written for those of which nothing changed, and work goes on at once.

`python -m tests.bench restart` measures the same with a thousand of them.
"""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.cluster.api import ApiServer
from tests.integration.client import Kube, core_path
from tests.integration.cluster_double import NODE, Team, failure, gated_pod, report
from tests.integration.conftest import RELEASE, SYSTEM, apply_chart
from tests.integration.operator_process import OperatorProcess
from tests.polling import poll

OBJECTS = 60
WRITES_FOR_ONE = 8


@pytest.fixture
def own_server() -> Iterator[ApiServer]:
    """An API server of this test's own: the counters of the shared one know other tests' objects too."""
    with ApiServer(["garbage-collector-controller"]) as server:
        apply_chart(server)
        yield server


@pytest.fixture
def team(own_server: ApiServer) -> Team:
    """A namespace there."""
    admin = Kube(own_server.kubeconfig)
    admin.create("/api/v1/namespaces", {"metadata": {"name": "team"}})
    return Team(admin, "team")


@pytest.fixture
def mortal(own_server: ApiServer, tmp_path: Path) -> Iterator[OperatorProcess]:
    """An operator that isn't started yet."""
    operator = OperatorProcess(own_server.kubeconfig_for_service_account(SYSTEM, RELEASE), tmp_path / "log")
    yield operator
    operator.kill()


def writes(admin: Kube) -> int:
    """How many writes of the operator there were; the Lease, questions, and what was refused since it is there already aside."""
    _, text = admin.ask("GET", "/metrics")
    kinds = ("modelweights", "jobs", "nodes", "pods", "configmaps", "events")
    total = 0
    for line in text.splitlines():
        if line.startswith('apiserver_request_total{code="2') and any(f'resource="{kind}"' in line for kind in kinds):
            verb = line.partition('verb="')[2].partition('"')[0]
            total += int(float(line.split()[-1])) if verb in ("POST", "PUT", "PATCH", "APPLY", "DELETE") else 0
    return total


def stage_many(team: Team, count: int, seconds: float) -> None:
    """Ready objects on one node, each staged by a Job of its own."""
    node = team.add_node("a")
    names = [f"model-{number:04}" for number in range(count)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(team.create_model, names))
        ended: set[str] = set()
        deadline = time.monotonic() + seconds
        while len(ended) < count:
            assert time.monotonic() < deadline, f"{len(ended)} of {count} staged"
            jobs = [job for job in team.jobs() if job["metadata"]["name"] not in ended]
            list(pool.map(lambda job: team.end(job, report()), jobs))
            ended |= {job["metadata"]["name"] for job in jobs if job["metadata"]["annotations"].get(NODE) == node}
    poll("all are ready", lambda: ready(team) == count, seconds=seconds, every=0.5)
    poll("good Jobs are gone", lambda: not team.jobs(), seconds=seconds, every=0.5)
    pods = f"/api/v1/namespaces/{team.namespace}/pods"
    poll("and their pods with them", lambda: not team.admin.items(pods), seconds=seconds, every=0.5)


def ready(team: Team) -> int:
    """How many objects are Ready."""
    items = team.admin.items(f"/apis/modelweights.io/v1alpha1/namespaces/{team.namespace}/modelweights")
    conditions = [item.get("status", {}).get("conditions", []) for item in items]
    return sum(any((c["type"], c["status"]) == ("Ready", "True") for c in found) for found in conditions)


def looked_at(admin: Kube) -> int:
    """How often one ModelWeights was read."""
    _, text = admin.ask("GET", "/metrics")
    wanted = ('resource="modelweights"', 'verb="GET"', 'scope="resource"')
    lines = [line for line in text.splitlines() if line.startswith("apiserver_request_total{")]
    return sum(int(float(line.split()[-1])) for line in lines if all(part in line for part in wanted))


def versions(team: Team) -> dict[str, str]:
    """The resourceVersion of each object."""
    items = team.admin.items(f"/apis/modelweights.io/v1alpha1/namespaces/{team.namespace}/modelweights")
    return {item["metadata"]["name"]: item["metadata"]["resourceVersion"] for item in items}


def event_versions(team: Team) -> dict[str, str]:
    """The resourceVersion of each event."""
    items = team.admin.items(core_path(team.namespace, "events"))
    return {item["metadata"]["name"]: item["metadata"]["resourceVersion"] for item in items}


def make_unhappy(team: Team) -> None:
    """What isn't well: a checkpoint that is bad, an object without a node, pods at the gate that wait for what there isn't."""
    team.create_model("bad")
    team.end(team.wait_for_job("a"), failure())
    team.create_model("homeless", placement={"nodeSelector": {"no": "node"}})
    for require in ("bad", "homeless", "nothing"):
        team.admin.create(core_path(team.namespace, "pods"), gated_pod(f"waits-{require}", require))
    team.wait_for("Stalled", "True", name="bad")
    team.wait_for("Ready", "False", name="homeless")
    poll("the pod is told", lambda: any(name.startswith("waits-nothing.") for name in event_versions(team)))


def test_a_restart_writes_nothing_for_what_did_not_change(team: Team, mortal: OperatorProcess) -> None:
    mortal.start()
    stage_many(team, OBJECTS, seconds=120)
    make_unhappy(team)
    assert mortal.stop() == 0
    before, events = versions(team), event_versions(team)
    asked, reads = writes(team.admin), looked_at(team.admin)
    mortal.start()
    poll("each was looked at", lambda: looked_at(team.admin) - reads >= len(before))
    team.create_model("another")
    poll("the new one has its Job", lambda: team.job_of("a"))
    after, later = versions(team), event_versions(team)
    assert {name: after[name] for name in before} == before
    assert {name: later[name] for name in events} == events
    # The object itself, its Job, its status, its events: some of them.
    assert writes(team.admin) - asked <= WRITES_FOR_ONE
