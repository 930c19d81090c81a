"""Refreshes of the page cache on a real API server; the test plays the Job controller, and turns the clock back in the status."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.client import core_path, job_path, model_path
from tests.integration.cluster_double import Team, failure, gated_pod, report
from tests.integration.operator_process import OperatorProcess
from tests.json_client import Json
from tests.polling import poll

LONG_AGO = "2026-03-01T12:00:00Z"
EVERY_FIVE_MINUTES = {"refreshIntervalSeconds": 300}


@pytest.fixture(scope="module")
def operator(account_kubeconfig: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    """One that the tests may kill."""
    with OperatorProcess(account_kubeconfig, tmp_path_factory.mktemp("operator") / "log") as operator:
        yield operator
        assert "Traceback" not in operator.log()


@pytest.fixture
def warm(team: Team, operator: OperatorProcess) -> Team:
    """A node on which `llama` was staged."""
    assert operator.probe("healthz") == 200
    team.add_node("a")
    return team


def stage(team: Team, *, policy: str = "BestEffort", name: str = "llama", resident_bytes: int = 1000) -> None:
    team.create_model(name, prefetch={**EVERY_FIVE_MINUTES, "policy": policy})
    team.end(team.wait_for_job("a"), report(residentBytes=resident_bytes))
    team.wait_for("Ready", "True", name=name)
    poll("the staging Job goes", lambda: not team.admin.items(job_path(team.namespace)))


def entry(team: Team) -> Json:
    found: Json = team.model()["status"]["nodes"][team.node_name("a")]
    return found


def let_time_pass(team: Team) -> None:
    """Have the status say that it was measured long ago."""
    status = {"nodes": {team.node_name("a"): {"measuredAt": LONG_AGO}}}
    team.admin.patch(f"{model_path(team.namespace, 'llama')}/status", {"status": status})


def measured(percent: float) -> str:
    figures = {"sizeBytes": 1000, "residentBytes": int(10 * percent), "residentPercent": percent}
    return json.dumps({"step": "refresh", "exitCode": 0, "message": "read 1 MiB", **figures})


def arguments(job: Json) -> list[str]:
    words: list[str] = job["spec"]["template"]["spec"]["containers"][0]["args"]
    return words


def test_what_cooled_is_warmed_while_the_node_stays_ready(warm: Team) -> None:
    stage(warm)
    assert entry(warm)["measuredAt"]
    assert warm.jobs() == []
    let_time_pass(warm)
    job = warm.wait_for_job("a")
    assert job["metadata"]["name"].startswith("refresh-llama-")
    assert {"--expect-size", "--expect-files", "--pages"} <= set(arguments(job))
    assert warm.conditions()["Ready"] == ("True", "AllNodesReady")
    warm.end(job, measured(99.0))
    poll("the result is noted", lambda: entry(warm)["residentBytes"] == 990)
    assert entry(warm)["measuredAt"] > LONG_AGO
    poll("the Job goes", lambda: not warm.admin.items(job_path(warm.namespace)))
    assert warm.conditions()["Ready"] == ("True", "AllNodesReady")


def test_with_required_nothing_new_is_sent_to_a_node_that_stays_cold_and_nothing_else_is_taken_away(warm: Team) -> None:
    stage(warm, policy="Required")
    labels = warm.staged_labels("a")
    assert labels
    settings = warm.admin.get(core_path(warm.namespace, "configmaps", "llama"))
    let_time_pass(warm)
    warm.end(warm.wait_for_job("a"), measured(61.0))
    said = warm.wait_for("Ready", "False", "ResidencyLost")
    assert "61.0 % of the weights are in the page cache" in said
    assert warm.conditions()["Available"] == ("True", "NodesStaged")
    assert warm.staged_labels("a") == {}
    assert warm.admin.get(core_path(warm.namespace, "configmaps", "llama")) == settings
    pods = [add_pod(warm, "free"), add_pod(warm, "pinned", affinity=pinned_to(warm.node_name("a")))]
    let_time_pass(warm)
    job = warm.wait_for_job("a")
    assert "--marker-dir" in arguments(job)
    assert [is_gated(warm, name) for name in pods] == [True, True]
    warm.end(job, measured(99.0))
    warm.wait_for("Ready", "True")
    assert warm.staged_labels("a") == labels
    poll("the gates open", lambda: not any(is_gated(warm, name) for name in pods))


def add_pod(team: Team, name: str, **spec: Any) -> str:
    team.admin.create(core_path(team.namespace, "pods"), gated_pod(name, "llama", **spec))
    return name


def is_gated(team: Team, name: str) -> bool:
    return "schedulingGates" in team.admin.get(core_path(team.namespace, "pods", name))["spec"]


def pinned_to(node: str) -> Json:
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    terms = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


def test_a_refresh_that_a_quota_refuses_is_tried_again_later_and_not_at_each_wake(warm: Team) -> None:
    stage(warm)
    quotas, hard = core_path(warm.namespace, "resourcequotas"), {"count/jobs.batch": "0"}
    warm.admin.create(quotas, {"metadata": {"name": "none"}, "spec": {"hard": hard}})
    warm.admin.patch(f"{quotas}/none/status", {"status": {"hard": hard, "used": hard}})
    let_time_pass(warm)
    poll("the refusal is noted", lambda: entry(warm).get("refreshRefusedAt"))
    assert "exceeded quota" in entry(warm)["message"]
    assert warm.conditions()["Ready"] == ("True", "AllNodesReady")
    warm.admin.delete(f"{quotas}/none")
    # Its staging shows that all was looked at once more.
    warm.add_node("b")
    warm.stage("b")
    warm.wait_for("Ready", "True")
    assert [job["metadata"]["name"] for job in warm.jobs() if job["metadata"]["name"].startswith("refresh-")] == []
    warm.admin.patch(
        f"{model_path(warm.namespace, 'llama')}/status",
        {"status": {"nodes": {warm.node_name("a"): {"refreshRefusedAt": LONG_AGO}}}},
    )
    warm.end(warm.wait_for_job("a"), measured(99.0))
    poll("the refusal is forgotten", lambda: "refreshRefusedAt" not in entry(warm))


def test_files_that_are_gone_are_staged_again(warm: Team) -> None:
    stage(warm)
    let_time_pass(warm)
    warm.end(warm.wait_for_job("a"), failure("MissingShard"))
    job = poll("a staging Job", lambda: next(iter(staging_jobs(warm)), None))
    assert warm.conditions()["Available"][0] == "True"
    warm.end(job, report())
    warm.wait_for("Ready", "True")


def staging_jobs(team: Team) -> list[Json]:
    return [job for job in team.jobs() if job["metadata"]["name"].startswith("stage-")]


def test_removed_by_hand_or_by_a_reboot_and_with_the_operator_killed_there_is_never_a_second(
    warm: Team, operator: OperatorProcess
) -> None:
    stage(warm)
    version = warm.admin.get(job_path(warm.namespace))["metadata"]["resourceVersion"]
    let_time_pass(warm)
    first = warm.wait_for_job("a")
    operator.kill()
    operator.start()
    warm.admin.delete(job_path(warm.namespace, first["metadata"]["name"]), propagationPolicy="Background")
    again = poll(
        "the Job is made anew",
        lambda: next((job for job in warm.jobs() if job["metadata"]["uid"] != first["metadata"]["uid"]), None),
    )
    assert again["metadata"]["name"] == first["metadata"]["name"]
    events = warm.admin.history(job_path(warm.namespace), version)
    assert len([event for event in events if event["type"] == "ADDED"]) == 2
    warm.boot_node("a", "boot-2")
    poll("a staging Job in its place", lambda: staging_jobs(warm))
    assert [job["metadata"]["name"][:6] for job in warm.jobs()] == ["stage-"]
    warm.stage("a")
    warm.wait_for("Ready", "True")


def test_what_another_holds_is_no_longer_there_to_be_taken(warm: Team) -> None:
    status = {"capacity": {"memory": "10000Ki"}}
    warm.admin.patch(f"/api/v1/nodes/{warm.node_name('a')}/status", {"status": status})
    stage(warm, resident_bytes=2_000_000)
    warm.create_model("other")
    job = warm.wait_for_job("a")
    (prefetch,) = [each for each in job["spec"]["template"]["spec"]["initContainers"] if each["name"] == "prefetch"]
    # 80 % of 10,000 KiB, less what llama holds.
    assert f"--max-resident={8_192_000 - 2_000_000}" in prefetch["args"]
    why = next(word for word in prefetch["args"] if word.startswith("--max-resident-because="))
    assert f"{warm.namespace}/llama holds 1.91Mi" in why


def test_one_that_reads_nothing_into_memory_keeps_nobody_waiting(warm: Team) -> None:
    content = "application/strategic-merge-patch+json"
    capacity = {"status": {"capacity": {"memory": "10000"}}}
    warm.admin.patch(f"/api/v1/nodes/{warm.node_name('a')}/status", capacity, content)
    warm.create_model("cold", prefetch={"mode": "None"})
    warm.wait_for_job("a")
    warm.create_model("warm")
    poll("both are staged", lambda: len(warm.jobs()) == 2)


def test_two_that_are_staged_for_the_first_time_share_the_nodes_memory(warm: Team) -> None:
    """Of neither is the size known before: the second begins once the first one's step has told it, with what is left."""
    content = "application/strategic-merge-patch+json"
    capacity = {"status": {"capacity": {"memory": "10000"}}}
    warm.admin.patch(f"/api/v1/nodes/{warm.node_name('a')}/status", capacity, content)
    warm.create_model("first")
    job = warm.wait_for_job("a")
    warm.create_model("second")

    def message() -> str:
        nodes = warm.model("second").get("status", {}).get("nodes", {})
        return str(nodes.get(warm.node_name("a"), {}).get("message", ""))

    poll("the second one says that it waits", lambda: f"size of {warm.namespace}/first is known" in message())
    assert [each["metadata"]["name"] for each in warm.jobs()] == [job["metadata"]["name"]]
    warm.end_prefetch(job, 3000)
    other = poll(
        "the second one's Job",
        lambda: next((each for each in warm.jobs() if "second" in each["metadata"]["name"]), None),
    )
    steps = other["spec"]["template"]["spec"]["initContainers"]
    [prefetch] = [step["args"] for step in steps if step["name"] == "prefetch"]
    assert "--max-resident=5000" in prefetch
