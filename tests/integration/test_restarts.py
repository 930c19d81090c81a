"""The operator away, killed at any moment, started again: no second Job, nothing lost, and labels are swept up."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.api import ApiServer
from tests.integration.client import core_path, job_path, model_path
from tests.integration.cluster_double import DIGEST, Team, report
from tests.integration.conftest import SYSTEM
from tests.integration.operator_process import OperatorProcess
from tests.polling import poll


@pytest.fixture
def mortal(account_kubeconfig: Path, tmp_path: Path) -> Iterator[OperatorProcess]:
    """An operator that isn't started yet."""
    operator = OperatorProcess(account_kubeconfig, tmp_path / "log")
    yield operator
    operator.kill()


def created_jobs(team: Team, version: str) -> list[str]:
    """The node of each Job that was ever created since."""
    events = team.admin.history(job_path(team.namespace), version)
    added = [event["object"]["metadata"] for event in events if event["type"] == "ADDED"]
    return sorted(metadata["annotations"]["modelweights.io/node"] for metadata in added)


def test_killed_at_any_moment_it_makes_no_second_job(team: Team, mortal: OperatorProcess) -> None:
    nodes = ["a", "b", "c"]
    for node in nodes:
        team.add_node(node)
    version = team.admin.get(job_path(team.namespace))["metadata"]["resourceVersion"]
    team.create_model()
    for seconds in (0.0, 0.1):
        mortal.kill_after(seconds)
    mortal.start()
    jobs = [team.wait_for_job(node) for node in nodes]
    for job in jobs[:1]:
        mortal.kill()
        team.end(job, report())
        mortal.start()
    mortal.kill()
    for job in jobs[1:]:
        team.end(job, report())
    mortal.start()
    team.wait_for("Ready", "True", seconds=30)
    assert created_jobs(team, version) == sorted(map(team.node_name, nodes))
    assert team.model()["status"]["published"]["manifestDigest"] == DIGEST
    poll("good Jobs are gone", lambda: not team.admin.items(job_path(team.namespace)))


def test_what_was_deleted_while_it_was_away_is_swept_up(team: Team, mortal: OperatorProcess) -> None:
    mortal.start()
    team.add_node("a")
    team.create_model()
    team.stage("a")
    team.wait_for("Ready", "True")
    assert mortal.stop() == 0
    team.admin.delete(model_path(team.namespace, "llama"))
    assert len(team.staged_labels("a")) == 1
    mortal.start()
    poll("the label goes", lambda: team.staged_labels("a") == {})


def test_what_happened_while_it_was_away_is_caught_up(team: Team, mortal: OperatorProcess) -> None:
    mortal.start()
    for node in ("a", "b"):
        team.add_node(node)
    team.create_model()
    team.stage("a", "b")
    team.wait_for("Ready", "True")
    mortal.kill()
    team.boot_node("a", "boot-2")
    team.delete_node("b")
    team.add_node("c")
    mortal.start()
    team.stage("a", "c")
    # The status is still that of before until the operator's first cycle has ended.
    expected = {team.node_name("a"), team.node_name("c")}
    poll("the nodes are those that there are", lambda: team.model()["status"]["nodes"].keys() == expected)
    team.wait_for("Ready", "True")


def test_a_result_that_was_kept_outlives_a_lost_status_and_pod(team: Team, mortal: OperatorProcess) -> None:
    mortal.start()
    team.add_node("a")
    team.create_model()
    job = team.wait_for_job("a")
    mortal.kill()
    team.end(job, report())
    name = job["metadata"]["name"]
    team.admin.patch(
        job_path(team.namespace, name), {"metadata": {"annotations": {"modelweights.io/result": report()}}}
    )
    team.admin.delete(core_path(team.namespace, "pods", f"{name}-x"), gracePeriodSeconds=0)
    team.admin.patch(f"{model_path(team.namespace, 'llama')}/status", {"status": None})
    mortal.start()
    team.wait_for("Ready", "True")


def test_with_nothing_to_do_it_gets_ready_and_stops_on_sigterm(mortal: OperatorProcess) -> None:
    mortal.start()
    assert mortal.probe("healthz") == 200
    assert mortal.stop() == 0
    assert "Traceback" not in mortal.log()


def test_without_rights_it_ends_with_one_line_that_names_them(server: ApiServer, chart: str, tmp_path: Path) -> None:
    assert chart
    stranger = OperatorProcess(server.kubeconfig_for_service_account(SYSTEM, "stranger"), tmp_path / "log")
    stranger.start(wait=False)
    try:
        poll("the message", lambda: "lacks these rules" in stranger.log(), seconds=30)
        assert stranger.wait() == 1
    finally:
        stranger.kill()
    last = stranger.log().strip().splitlines()[-1]
    assert last.startswith("modelweights-operator: the service account lacks these rules of a ClusterRole: apiGroups:")
    assert "Traceback" not in stranger.log()


COMMIT, OTHER = "a" * 40, "b" * 40
REVISION = "modelweights.io/revision"
HUB = {"huggingFace": {"repository": "org/name"}}


def test_a_revision_that_was_found_while_the_operator_was_away_counts(team: Team, mortal: OperatorProcess) -> None:
    for node in ("a", "b"):
        team.add_node(node)
    team.create_model(source=HUB)
    mortal.start()
    first = team.wait_for_job("a")
    mortal.kill()
    team.end_fetch(first, COMMIT)
    team.end(first, report())
    mortal.kill_after(0.2)
    mortal.start()
    second = team.wait_for_job("b")
    assert second["metadata"]["annotations"][REVISION] == COMMIT
    team.end_fetch(second, COMMIT)
    team.end(second, report())
    team.wait_for("Ready", "True", seconds=30)
    assert team.model()["status"]["source"]["revision"] == COMMIT


def test_a_job_that_fetched_another_commit_is_made_anew(team: Team, mortal: OperatorProcess) -> None:
    """Its pod came again after the branch had moved, while the operator was away."""
    team.add_node("a")
    team.create_model(source=HUB)
    mortal.start()
    first = team.wait_for_job("a")
    team.end_fetch(first, COMMIT)
    poll("it is noted", lambda: team.model().get("status", {}).get("source", {}).get("revision") == COMMIT)
    mortal.kill()
    team.admin.delete(core_path(team.namespace, "pods", f"{first['metadata']['name']}-x"), gracePeriodSeconds=0)
    poll("the pod is gone", lambda: not team.admin.items(core_path(team.namespace, "pods")))
    team.end_fetch(first, OTHER)
    team.end(first, report("sha256:" + "f" * 64))
    mortal.start()
    second = poll(
        "a Job that was told",
        lambda: next((job for job in team.jobs() if REVISION in job["metadata"]["annotations"]), None),
    )
    assert second["metadata"]["annotations"][REVISION] == COMMIT
    team.end_fetch(second, COMMIT)
    team.end(second, report())
    team.wait_for("Ready", "True", seconds=30)
    assert team.model()["status"]["published"]["manifestDigest"] == DIGEST
