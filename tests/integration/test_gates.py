"""Pods at the gate: they start only once what they require is there, and are told why when it never will be."""

from typing import Any

import pytest

from modelweights_operator.domain import names
from tests.integration.client import core_path, model_path
from tests.integration.cluster_double import DIGEST, Team
from tests.json_client import Json
from tests.polling import poll

pytestmark = pytest.mark.usefixtures("operator")


def add_pod(team: Team, name: str = "server", require: str | None = "llama", **spec: Any) -> None:
    annotations = {} if require is None else {names.REQUIRE_ANNOTATION: require}
    gates = [{"name": names.GATE}, {"name": "example.com/quota"}]
    body = {
        "metadata": {"name": name, "annotations": annotations},
        "spec": {"schedulingGates": gates, "containers": [{"name": "c", "image": "x"}], **spec},
    }
    team.admin.create(core_path(team.namespace, "pods"), body)


def pod(team: Team, name: str = "server") -> Json:
    return team.admin.get(core_path(team.namespace, "pods", name))


def gates(team: Team, name: str = "server") -> list[str]:
    return [gate["name"] for gate in pod(team, name)["spec"].get("schedulingGates", [])]


def told(team: Team, name: str = "server") -> list[tuple[str, str]]:
    events = team.admin.items(core_path(team.namespace, "events"))
    return [(event["reason"], event["message"]) for event in events if event["involvedObject"]["name"] == name]


def wait_told(team: Team, reason: str, name: str = "server") -> str:
    return poll(f"{reason} on {name}", lambda: next((text for kind, text in told(team, name) if kind == reason), ""))


def test_the_gate_opens_only_after_available_and_towards_the_label(team: Team) -> None:
    add_pod(team)
    team.add_node("a")
    version = pod(team)["metadata"]["resourceVersion"]
    team.create_model()
    team.wait_for_job("a")
    assert names.GATE in gates(team)
    team.stage("a")
    poll("the gate opens", lambda: names.GATE not in gates(team))
    lifted = pod(team)
    assert gates(team) == ["example.com/quota"]
    assert lifted["metadata"]["annotations"][names.DIGEST_ANNOTATION] == DIGEST
    assert lifted["metadata"]["annotations"][names.PATH_ANNOTATION] == "/models/llama"
    required = lifted["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    [(key, value)] = team.staged_labels("a").items()
    expression = {"key": key, "operator": "In", "values": [value]}
    assert required == {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    assert team.conditions()["Available"] == ("True", "NodesStaged")
    changes = team.admin.history(core_path(team.namespace, "pods"), version, fieldSelector="metadata.name=server")
    assert len(changes) == 1
    wait_told(team, "Staged")


def test_a_pod_that_comes_later_starts_at_once(team: Team) -> None:
    team.add_node("a")
    team.create_model()
    team.stage("a")
    team.wait_for("Ready", "True")
    add_pod(team)
    poll("the gate opens", lambda: names.GATE not in gates(team), seconds=5)


@pytest.mark.parametrize(
    ("require", "reason", "message"),
    [
        ("nothing", "RequireNotFound", "nothing doesn't exist"),
        (None, "RequireInvalid", "is missing or empty"),
        ("llama@", "RequireInvalid", "is not [namespace/]name[@revision]"),
        ("kube-system/llama", "RequireNotAllowed", "is of another namespace"),
    ],
)
def test_what_never_opens_is_told_on_the_pod_once(team: Team, require: str | None, reason: str, message: str) -> None:
    add_pod(team, require=require)
    assert message in wait_told(team, reason)
    team.add_node("a")
    team.create_model()
    team.stage("a")
    team.wait_for("Ready", "True")
    assert names.GATE in gates(team)
    assert [kind for kind, _ in told(team)] == [reason]


def test_a_require_that_is_met_later_opens_then(team: Team) -> None:
    add_pod(team)
    wait_told(team, "RequireNotFound")
    team.add_node("a")
    team.create_model()
    team.stage("a")
    poll("the gate opens", lambda: names.GATE not in gates(team))


def test_too_few_nodes_keep_the_gate_shut(team: Team) -> None:
    add_pod(team)
    for node in ("a", "b"):
        team.add_node(node)
    team.create_model(placement={"nodeSelector": {"team": team.namespace}, "minAvailableNodes": 2})
    team.stage("a")
    poll("the first node is ready", lambda: team.state("a") == "Ready Staged")
    assert names.GATE in gates(team)
    team.stage("b")
    poll("the gate opens", lambda: names.GATE not in gates(team))


def test_a_pod_of_two_models_waits_for_both(team: Team) -> None:
    add_pod(team, require="llama,qwen")
    team.add_node("a")
    team.create_model()
    team.stage("a")
    team.wait_for("Ready", "True")
    assert names.GATE in gates(team)
    team.create_model("qwen")
    team.stage("a")
    poll("the gate opens", lambda: names.GATE not in gates(team))
    assert pod(team)["metadata"]["annotations"][names.DIGEST_ANNOTATION] == f"{DIGEST},{DIGEST}"


def test_a_pod_bound_to_a_node_waits_for_that_node(team: Team) -> None:
    field = {"key": "metadata.name", "operator": "In", "values": [team.node_name("b")]}
    terms = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    add_pod(team, affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}})
    for node in ("a", "b"):
        team.add_node(node)
    team.create_model()
    team.stage("a")
    team.wait_for("Available", "True")
    assert names.GATE in gates(team)
    team.stage("b")
    poll("the gate opens", lambda: names.GATE not in gates(team))


WAITS: dict[str, Any] = {"initContainers": [{"name": "wait", "image": "loader", "args": ["wait", "/models/llama"]}]}


def provision(team: Team) -> None:
    team.create_model(placement={"nodeSelector": {"team": team.namespace}, "whenNoRoom": "Provision"})
    team.wait_for("Ready", "False", "NoNodes")


def test_a_pod_that_waits_itself_starts_before_there_is_a_node(team: Team) -> None:
    """As an autoscaler needs it, which skips pods at a gate and knows nothing of labels that nodes are to have."""
    provision(team)
    add_pod(team, **WAITS)
    poll("the gate opens", lambda: names.GATE not in gates(team))
    assert "nodeAffinity" not in pod(team)["spec"].get("affinity", {})
    wait_told(team, "Provisioned")
    team.add_node("a")
    team.stage("a")
    team.wait_for("Ready", "True")
    soft = {"weight": 5, "preference": {"matchExpressions": [{"key": "zone", "operator": "Exists"}]}}
    kind = "preferredDuringSchedulingIgnoredDuringExecution"
    add_pod(team, "later", affinity={"nodeAffinity": {kind: [soft]}}, **WAITS)
    poll("the gate opens", lambda: names.GATE not in gates(team, "later"))
    [(key, value)] = team.staged_labels("a").items()
    staged = {"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]}
    found = pod(team, "later")["spec"]["affinity"]["nodeAffinity"]
    assert found == {kind: [soft, {"weight": 100, "preference": staged}]}


def test_a_pod_that_does_not_wait_itself_is_told_what_it_lacks(team: Team) -> None:
    provision(team)
    add_pod(team)
    assert "no init container" in wait_told(team, "ProvisionNeedsWait")
    assert names.GATE in gates(team)


def test_without_a_node_that_is_told_on_pod_and_model(team: Team) -> None:
    team.create_model()
    assert "see spec.placement.whenNoRoom" in team.wait_for("Ready", "False", "NoNodes")
    add_pod(team, **WAITS)
    assert "selects no node" in wait_told(team, "NoNodes")
    team.add_node("a")
    team.stage("a")
    poll("the gate opens", lambda: names.GATE not in gates(team))


def test_a_deleted_model_opens_nothing(team: Team) -> None:
    team.add_node("a")
    team.create_model()
    team.stage("a")
    team.wait_for("Ready", "True")
    team.admin.delete(model_path(team.namespace, "llama"))
    poll("the label goes", lambda: team.staged_labels("a") == {})
    add_pod(team)
    wait_told(team, "RequireNotFound")
    assert names.GATE in gates(team)
