"""Jobs of all objects together: no more than the administrator lets, whoever waits gets a turn, and all are staged in the end."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.api import ApiServer
from tests.integration.client import Kube, job_path
from tests.integration.cluster_double import Team, report
from tests.integration.conftest import RELEASE, SYSTEM, render
from tests.integration.operator_process import OperatorProcess
from tests.json_client import Json
from tests.polling import poll

MOST = 5
NAMES = ("one", "two", "three")
NODES = ("a", "b", "c", "d")


@pytest.fixture
def team(tmp_path: Path) -> Iterator[Team]:
    """Alone on an API server: the cap counts everybody's Jobs."""
    with ApiServer(["garbage-collector-controller"]) as server:
        server.kubectl("create", "namespace", SYSTEM)
        server.kubectl("apply", "--server-side", "-f", "-", input=render(RELEASE, "hostPathRoots={/models}"))
        server.kubectl("wait", "--for=condition=Established", "crd/modelweights.modelweights.io", "--timeout=20s")
        admin = Kube(server.kubeconfig)
        admin.create("/api/v1/namespaces", {"metadata": {"name": "team"}})
        kubeconfig = server.kubeconfig_for_service_account(SYSTEM, RELEASE)
        with OperatorProcess(kubeconfig, tmp_path / "log", MODELWEIGHTS_MAX_JOBS=str(MOST)):
            yield Team(admin, "team")


def under_way(job: Json) -> bool:
    ended = any(each["status"] == "True" for each in job.get("status", {}).get("conditions", []))
    return not ended and "deletionTimestamp" not in job["metadata"]


def waiting(team: Team) -> list[str]:
    """Messages of the entries that have no Job."""
    entries = [entry for name in NAMES for entry in team.model(name).get("status", {}).get("nodes", {}).values()]
    return [entry["message"] for entry in entries if entry["state"] == "Waiting"]


def test_no_more_jobs_are_under_way_than_the_cap_and_everybody_gets_a_turn(team: Team) -> None:
    version = team.admin.get(job_path(team.namespace))["metadata"]["resourceVersion"]
    for node in NODES:
        team.add_node(node)
    for name in NAMES:
        team.create_model(name)
    pairs = len(NAMES) * len(NODES)
    poll("the rest waits", lambda: len(waiting(team)) == pairs - MOST)
    assert set(waiting(team)) == {f"waits for its turn: jobs.maxConcurrent is {MOST}, for all ModelWeights together"}
    assert len(team.jobs()) == MOST

    def all_ready() -> bool:
        for job in filter(under_way, team.jobs()):
            team.end(job, report())
        return all(team.conditions(name).get("Ready") == ("True", "AllNodesReady") for name in NAMES)

    poll("all are ready", all_ready, seconds=120)
    living: set[str] = set()
    most, served = 0, []
    for event in team.admin.history(job_path(team.namespace), version):
        job = event["object"]
        if event["type"] == "ADDED":
            served.append(job["metadata"]["ownerReferences"][0]["name"])
        (living.add if event["type"] != "DELETED" and under_way(job) else living.discard)(job["metadata"]["uid"])
        most = max(most, len(living))
    assert most == MOST
    assert sorted(served) == sorted(name for name in NAMES for _ in NODES)
    assert set(served[: -len(NODES)]) == set(NAMES)
