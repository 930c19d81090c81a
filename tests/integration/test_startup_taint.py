"""A node that starts with the taint loses it once it is staged, by the running operator and under its policy."""

import pytest

from tests.integration.client import model_path
from tests.integration.cluster_double import Team
from tests.integration.operator_process import OperatorProcess
from tests.polling import poll

pytestmark = pytest.mark.usefixtures("operator")
STARTUP = {"key": "modelweights.io/unstaged", "effect": "NoSchedule"}
OTHER = {"key": "example.com/team", "value": "red", "effect": "NoExecute"}


def add_tainted(team: Team, name: str) -> None:
    """A node as a pool makes it that starts with the taint."""
    team.add_node(name, taints=[STARTUP, OTHER])


def taints(team: Team, name: str) -> list[str]:
    spec = team.admin.get(f"/api/v1/nodes/{team.node_name(name)}")["spec"]
    return [taint["key"] for taint in spec.get("taints", []) if not taint["key"].startswith("node.kubernetes.io/")]


def create(team: Team, name: str = "llama") -> None:
    tolerations = [{"key": OTHER["key"], "operator": "Exists"}]
    placement = {"nodeSelector": {"team": team.namespace}, "tolerations": tolerations, "canaryNodes": 0}
    team.create_model(name, placement=placement)


def test_a_node_that_joins_is_staged_and_then_loses_it(team: Team, operator: OperatorProcess) -> None:
    create(team)
    add_tainted(team, "a")
    job = team.wait_for_job("a")
    tolerated = [toleration.get("key") for toleration in job["spec"]["template"]["spec"]["tolerations"]]
    assert STARTUP["key"] in tolerated
    create(team, "qwen")
    team.stage("a")
    poll("one of two is ready", lambda: "Ready Staged" in (team.state("a"), team.state("a", "qwen")))
    assert taints(team, "a") == [STARTUP["key"], OTHER["key"]]
    operator.kill()
    operator.start()
    team.stage("a")
    poll("the taint goes", lambda: taints(team, "a") == [OTHER["key"]])
    team.wait_for("Ready", "True")
    team.wait_for("Ready", "True", name="qwen")


def test_it_stays_while_one_that_was_not_planned_yet_selects_the_node(team: Team, operator: OperatorProcess) -> None:
    """An operator that just came back knows of none: what it knows must be all there is, and of the present spec."""
    create(team)
    team.add_node("a")
    team.stage("a")
    team.wait_for("Ready", "True")
    operator.kill()
    team.admin.patch(model_path(team.namespace, "llama"), {"spec": {"prefetch": {"numThreads": 3}}})
    team.admin.patch(f"/api/v1/nodes/{team.node_name('a')}", {"spec": {"taints": [STARTUP, OTHER]}})
    operator.start()
    job = team.wait_for_job("a")
    assert taints(team, "a") == [STARTUP["key"], OTHER["key"]]
    team.end_validate(job)
    team.stage("a")
    poll("the taint goes", lambda: taints(team, "a") == [OTHER["key"]])
