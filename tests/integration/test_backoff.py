"""The back-off of a failed node: it outlives the operator and the Job, and ends when someone asks for that."""

from tests.integration.client import core_path, job_path, model_path
from tests.integration.cluster_double import Team, failure
from tests.integration.operator_process import OperatorProcess
from tests.json_client import Json
from tests.polling import poll


def entry(team: Team, node: str) -> Json:
    found: Json = team.model()["status"]["nodes"][team.node_name(node)]
    return found


def rounds(team: Team, version: str) -> list[str]:
    """The round of each Job that was made since."""
    events = team.admin.history(job_path(team.namespace), version)
    added = [event["object"]["metadata"]["annotations"] for event in events if event["type"] == "ADDED"]
    return [notes["modelweights.io/round"] for notes in added]


def ask(team: Team, value: str) -> None:
    patch = {"metadata": {"annotations": {"modelweights.io/retry-now": value}}}
    team.admin.patch(model_path(team.namespace, "llama"), patch)
    poll(f"{value} is noted", lambda: team.model()["status"].get("lastHandledRetry") == value)


def test_it_outlives_the_operator_and_ends_when_asked(team: Team, operator: OperatorProcess) -> None:
    team.add_node("a")
    version = team.create_model()["metadata"]["resourceVersion"]
    job = team.wait_for_job("a")
    team.end(job, failure())
    team.wait_for("Stalled", "True", "BadHeader")
    operator.kill()
    before = entry(team, "a")
    team.admin.delete(job_path(team.namespace, job["metadata"]["name"]), propagationPolicy="Background")
    operator.start()
    # Another node makes the operator look at all of them: what it would do about the first it would do then.
    team.add_node("b")
    team.stage("b")
    poll("b is ready", lambda: team.state("b") == "Ready Staged")
    assert (entry(team, "a"), rounds(team, version)) == (before, ["0", "0"])

    ask(team, "2026-03-01 noon")
    team.end(team.wait_for_job("a"), failure())
    poll("it failed again", lambda: entry(team, "a").get("attempts") == 2)
    ask(team, "once more")
    team.stage("a")
    team.wait_for("Ready", "True")
    assert rounds(team, version) == ["0", "0", "1", "2"]
    events = team.admin.items(core_path(team.namespace, "events"))
    assert "1 failed node(s) are tried again" in {e["reason"]: e["message"] for e in events}["Retrying"]
