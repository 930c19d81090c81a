"""A staging is tried on one node first, by the running operator: the others follow, or are left alone."""

import pytest

from tests.integration.client import job_path, model_path
from tests.integration.cluster_double import NODE, Team, failure
from tests.integration.operator_process import OperatorProcess
from tests.json_client import Json
from tests.polling import poll

pytestmark = pytest.mark.usefixtures("operator")
CLAIM = {"persistentVolumeClaim": {"claimName": "weights"}}


def tried(team: Team) -> list[str]:
    """The nodes that have a Job."""
    return sorted(job["metadata"]["annotations"][NODE] for job in team.jobs())


def start(team: Team, *nodes: str) -> Json:
    """Nodes, a ModelWeights as its author would write it, and the canary's Job."""
    for node in nodes:
        team.add_node(node)
    team.create_model(source=CLAIM, placement={"nodeSelector": {"team": team.namespace}})
    job = team.wait_for_job("a")
    poll("the others wait", lambda: {team.state(node) for node in nodes[1:]} == {"Waiting WaitsForCanary"})
    assert tried(team) == [team.node_name("a")]
    return job


def test_the_others_follow_when_the_load_was_proven_and_before_the_report(team: Team) -> None:
    job = start(team, "a", "b", "c")
    team.end_validate(job)
    poll("the others are staged", lambda: tried(team) == [team.node_name(node) for node in "abc"])
    assert team.state("a").startswith("Staging")
    team.stage("a", "b", "c")
    team.wait_for("Ready", "True")
    proven = team.model()["status"]["provenStaging"]
    team.add_node("d")
    team.add_node("e")
    team.stage("e", "d")
    team.wait_for("Ready", "True")
    assert team.model()["status"]["provenStaging"] == proven


def test_a_bad_checkpoint_is_tried_on_no_other_node_until_it_is_mended(team: Team, operator: OperatorProcess) -> None:
    job = start(team, "a", "b", "c")
    team.end(job, failure())
    message = team.wait_for("Stalled", "True", "CanaryFailed")
    assert f"{team.node_name('a')} tried it first" in message
    assert "BadHeader: a.safetensors: short; 2 other node(s) aren't tried" in message
    operator.kill()
    operator.start()
    # What the operator that came back did is seen by a look at everything, which a node that joins brings about.
    team.add_node("d")
    poll("the new node waits too", lambda: team.state("d") == "Waiting WaitsForCanary")
    assert [job["metadata"]["name"] for job in team.admin.items(job_path(team.namespace))] == [job["metadata"]["name"]]
    better = {"persistentVolumeClaim": {"claimName": "weights", "path": "better"}}
    team.admin.patch(model_path(team.namespace, "llama"), {"spec": {"source": better}})
    team.stage("a", "b", "c", "d")
    team.wait_for("Ready", "True")


def test_a_node_that_fails_for_itself_lets_the_next_one_try(team: Team) -> None:
    team.end(start(team, "a", "b", "c"), failure("NoRoom", 40))
    team.wait_for_job("b")
    assert team.state("c") == "Waiting WaitsForCanary"
    team.stage("b", "c")
    team.wait_for("Ready", "False", "NoRoom")
