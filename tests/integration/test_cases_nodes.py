"""Nodes that come, go, are lost, cordoned, tainted and made anew in mid-run, and the longest names: docs/cases.md."""

import pytest

from tests.integration.client import core_path, job_path, model_path
from tests.integration.cluster_double import Team
from tests.json_client import STRATEGIC, Json
from tests.polling import poll

pytestmark = pytest.mark.usefixtures("operator")
ONE_AT_A_TIME = {"maxConcurrentNodes": 1}


def set_ready(team: Team, name: str, status: str) -> None:
    """Play the kubelet, or the controller that misses it."""
    ready = {"type": "Ready", "status": status, "reason": "Test", "message": ""}
    path = f"/api/v1/nodes/{team.node_name(name)}/status"
    team.admin.patch(path, {"status": {"conditions": [ready]}}, STRATEGIC)


def change_spec(team: Team, name: str, **fields: object) -> None:
    team.admin.patch(f"/api/v1/nodes/{team.node_name(name)}", {"spec": fields})


def entry(team: Team, node: str) -> Json:
    found: Json = team.model()["status"].get("nodes", {}).get(team.node_name(node), {})
    return found


def one_at_a_time(team: Team) -> Json:
    return {"nodeSelector": {"team": team.namespace}, **ONE_AT_A_TIME}


def test_a_lost_node_is_no_failure_gives_its_place_away_and_goes_on_when_it_is_back(team: Team) -> None:
    for node in ("a", "b"):
        team.add_node(node)
    team.create_model(placement=one_at_a_time(team))
    first = team.wait_for_job("a")
    set_ready(team, "a", "Unknown")
    team.stage("b")
    team.wait_for("Available", "True")
    poll("it is said", lambda: team.state("a") == "Waiting NodeNotReady")
    assert "Stalled" not in team.conditions()
    assert entry(team, "a").get("attempts", 0) == 0
    set_ready(team, "a", "True")
    poll("it goes on", lambda: team.state("a") == "Staging Starting")
    assert team.wait_for_job("a")["metadata"]["uid"] == first["metadata"]["uid"]
    team.stage("a")
    team.wait_for("Ready", "True")


def test_a_cordoned_node_gets_no_job_and_keeps_the_one_that_it_has(team: Team) -> None:
    for node in ("a", "b"):
        team.add_node(node)
    change_spec(team, "b", unschedulable=True)
    team.create_model(placement=one_at_a_time(team))
    first = team.wait_for_job("a")
    team.cannot_schedule(first, "0/3 nodes are available: 1 node(s) were unschedulable.")
    poll("it stays", lambda: team.state("a") == "Staging Unschedulable")
    change_spec(team, "a", unschedulable=True)
    poll("it is said", lambda: (team.state("a"), team.state("b")) == ("Waiting NodeCordoned",) * 2)
    change_spec(team, "b", unschedulable=None)
    team.stage("b")
    change_spec(team, "a", unschedulable=None)
    poll("it goes on", lambda: team.state("a") == "Staging Unschedulable")
    same = team.wait_for_job("a")
    assert same["metadata"]["uid"] == first["metadata"]["uid"]
    team.end(same, '{"step": "validate", "exitCode": 10, "reason": "Unreachable", "message": "x"}')
    poll("what failed is counted from then on", lambda: entry(team, "a").get("attempts") == 1)


def test_a_taint_in_mid_run_ends_the_staging_and_a_toleration_begins_it_anew(team: Team) -> None:
    team.add_node("a")
    team.create_model()
    team.wait_for_job("a")
    taint = {"key": "team", "value": "red", "effect": "NoExecute"}
    change_spec(team, "a", taints=[taint])
    message = team.wait_for("Ready", "False", "NoNodes")
    assert f"such as team=red:NoExecute on {team.node_name('a')}" in message
    poll("the Job goes", lambda: not team.admin.items(job_path(team.namespace)))
    tolerations = [{"key": "team", "operator": "Exists"}]
    team.admin.patch(model_path(team.namespace, "llama"), {"spec": {"placement": {"tolerations": tolerations}}})
    kept = team.wait_for_job("a")["spec"]["template"]["spec"]["tolerations"]
    assert {"key": "team", "operator": "Exists"} in kept
    assert {"key": "nvidia.com/gpu", "operator": "Exists"} in kept
    team.stage("a")
    team.wait_for("Ready", "True")


@pytest.mark.parametrize(
    "taint", ["node.kubernetes.io/disk-pressure", "node.kubernetes.io/unreachable", "nvidia.com/gpu"]
)
def test_a_taint_that_goes_by_itself_or_is_a_gpus_changes_nothing(team: Team, taint: str) -> None:
    team.add_node("a")
    team.create_model()
    uid = team.wait_for_job("a")["metadata"]["uid"]
    change_spec(team, "a", taints=[{"key": taint, "effect": "NoSchedule"}])
    team.add_node("b")
    team.wait_for("Ready", "False", "Staging")
    poll("the operator looked since", lambda: team.node_name("b") in team.model()["status"]["nodes"])
    assert team.wait_for_job("a")["metadata"]["uid"] == uid


def test_another_node_of_the_same_name_is_staged_anew(team: Team) -> None:
    """As where an autoscaler, or a machine that was installed anew, gives a name again."""
    team.add_node("a")
    team.create_model()
    first = team.wait_for_job("a")
    team.delete_node("a")
    team.add_node("a")
    second = poll(
        "another Job",
        lambda: job if (job := team.job_of("a")) and job["metadata"]["uid"] != first["metadata"]["uid"] else None,
    )
    assert second["metadata"]["name"] != first["metadata"]["name"]
    poll("the former is gone", lambda: team.admin.find(job_path(team.namespace, first["metadata"]["name"])) is None)
    team.stage("a")
    team.wait_for("Ready", "True")
    team.delete_node("a")
    team.wait_for("Available", "False")
    team.add_node("a")
    team.stage("a")
    team.wait_for("Ready", "True")
    assert len(team.staged_labels("a")) == 1


def test_a_node_whose_label_goes_and_comes_back(team: Team) -> None:
    for node in ("a", "b"):
        team.add_node(node)
    team.create_model()
    team.stage("a", "b")
    team.wait_for("Ready", "True")
    team.label_node("a", {"team": "other"})
    poll("it is forgotten", lambda: team.model()["status"]["summary"]["desired"] == 1)
    assert team.staged_labels("a") == {}
    assert team.conditions()["Available"] == ("True", "NodesStaged")
    team.label_node("a", {"team": team.namespace})
    team.stage("a")
    # Until the status tells of the second node, Ready is that of the first one.
    poll("both are ready", lambda: team.model()["status"]["summary"]["readyRatio"] == "2/2")
    team.wait_for("Ready", "True")


def test_the_longest_names_are_staged_labelled_published_and_told(team: Team) -> None:
    """253 characters each, with dots, which a label's value, a Job's name and a file's name can't hold."""
    model = "m" + ".long-name" * 25 + "ab"
    node = ".node-01" * 40
    node = "n" + node[: 253 - len(team.namespace) - 2]
    assert (len(model), len(team.node_name(node))) == (253, 253)
    team.admin.create("/api/v1/nodes", {"metadata": {"name": team.node_name(node), "labels": {"team": team.namespace}}})
    team.boot_node(node, "boot-1")
    team.create_model(model)
    job = team.wait_for_job(node)
    (term,) = job["spec"]["template"]["spec"]["affinity"]["nodeAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]["nodeSelectorTerms"]
    assert term["matchFields"][0]["values"] == [team.node_name(node)]
    team.stage(node)
    team.wait_for("Ready", "True", name=model)
    assert list(team.model(model)["status"]["nodes"]) == [team.node_name(node)]
    assert len(team.staged_labels(node)) == 1
    assert team.admin.get(core_path(team.namespace, "configmaps", model))["data"]["MODEL_PATH"] == "/models/llama"

    def told() -> bool:
        events = team.admin.items(core_path(team.namespace, "events"))
        return "Ready" in {event["reason"] for event in events if event["involvedObject"]["name"] == model}

    poll("the event is there", told)
