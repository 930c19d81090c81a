"""Who gets a Job now: the caps of the object and those over all objects, and what is said to those who wait."""

from dataclasses import replace

import pytest

from modelweights_operator.api import v1alpha1 as api
from modelweights_operator.domain import failures, names
from modelweights_operator.domain.plan import Plan
from modelweights_operator.domain.snapshot import ContainerState, Fetch, FetchSettings, Taint
from tests.unit.domain.plans import A, B, C, job_nodes, plan_of, reasons, with_spec
from tests.unit.domain.samples import (
    COMMIT_A,
    POLICY,
    ago,
    failed_job,
    failure_text,
    make_claim_spec,
    make_entry,
    make_fetch_spec,
    make_job,
    make_pod,
    make_spec,
    make_status,
)

SPEC = make_fetch_spec()
PIN = api.Status(source=api.SourceStatus(digest=names.source_digest(SPEC), revision=COMMIT_A))
HUB = "huggingface.co"


def fetch(node: str, host: str = HUB, owner: str = "team/qwen") -> Fetch:
    return Fetch(f"team/{owner}-{node}", owner, host, node)


def capped(*fetching: Fetch, per_host: int, per_node: int) -> Plan:
    settings = FetchSettings(max_concurrent_per_host=per_host, max_concurrent_per_node=per_node)
    snapshot = with_spec(SPEC, A, B, C, status=PIN)
    return plan_of(replace(snapshot, policy=replace(POLICY, fetch=settings), fetching=fetching))


@pytest.mark.parametrize(
    ("fetching", "per_host", "per_node", "expected"),
    [
        ((), 2, 1, ["node-a", "node-b"]),
        ((), 0, 1, ["node-a", "node-b", "node-c"]),
        ((fetch("other"),), 2, 1, ["node-a"]),
        ((fetch("other"), fetch("another")), 2, 1, []),
        ((fetch("other", "elsewhere"),) * 5, 2, 1, ["node-a", "node-b"]),
        ((fetch("node-a", "elsewhere"),), 9, 1, ["node-b", "node-c"]),
        ((fetch("node-a", "elsewhere"),), 9, 2, ["node-a", "node-b", "node-c"]),
        ((fetch("node-a", ""),), 9, 1, ["node-b", "node-c"]),
    ],
)
def test_no_more_fetches_than_the_administrators_caps(
    fetching: tuple[Fetch, ...], per_host: int, per_node: int, expected: list[str]
) -> None:
    assert job_nodes(capped(*fetching, per_host=per_host, per_node=per_node)) == expected


def test_who_waits_for_others_says_for_whom_and_is_looked_at_again_soon() -> None:
    settings = FetchSettings(max_concurrent_per_host=2)
    others = (fetch("other"), fetch("node-a", owner="team/bert"))
    snapshot = with_spec(SPEC, A, B, status=PIN)
    plan = plan_of(replace(snapshot, policy=replace(POLICY, fetch=settings), fetching=others))
    assert plan.status.nodes["node-a"].message == (
        "waits for its turn: fetch.maxConcurrentPerNode is 1, and team/bert on node-a fetch(es) here"
    )
    assert plan.status.nodes["node-b"].message == (
        "waits for its turn: fetch.maxConcurrentPerHost is 2, and team/bert on node-a, team/qwen on other fetch(es) "
        "from huggingface.co"
    )
    assert {entry.reason for entry in plan.status.nodes.values()} == {"Queued"}
    assert plan.again_after_seconds == 10
    assert reasons(plan)["Reconciling"] == "Staging"


@pytest.mark.parametrize("spec", [make_spec(), make_claim_spec()], ids=["hostPath", "claim"])
def test_what_fetches_nothing_waits_for_nobody(spec: api.Spec) -> None:
    snapshot = replace(with_spec(spec, A, B), fetching=(fetch("node-a"), fetch("node-b")))
    assert job_nodes(plan_of(snapshot)) == ["node-a", "node-b"]


def test_a_local_copy_counts_on_its_node_and_for_no_host() -> None:
    spec = make_spec(storage={})
    settings = FetchSettings(max_concurrent_per_host=1)
    snapshot = replace(with_spec(spec, A, B, C), fetching=(fetch("node-a"), fetch("x")))
    plan = plan_of(replace(snapshot, policy=replace(POLICY, fetch=settings)))
    assert job_nodes(plan) == ["node-b", "node-c"]


def test_who_failed_least_often_comes_first() -> None:
    """Else the first few by name, which fail again and again, would keep all others waiting."""
    spec = make_spec(placement={"maxConcurrentNodes": 1})
    failed = make_entry(A, spec, state="Failed", reason="WriteFailed", manifest_digest="", attempts=2, exit_code=10)
    plan = plan_of(with_spec(spec, A, B, status=make_status({"node-a": failed})))
    assert job_nodes(plan) == ["node-b"]


def test_nodes_that_were_lost_in_mid_staging_take_no_place() -> None:
    spec = make_spec(placement={"maxConcurrentNodes": 1})
    lost, job = replace(A, ready=False), make_job(A, spec, pods=(make_pod(ContainerState("prefetch")),))
    assert job_nodes(plan_of(with_spec(spec, A, B, jobs=(job,)))) == []
    assert job_nodes(plan_of(with_spec(spec, lost, B, jobs=(job,)))) == ["node-b"]


def test_a_drained_node_takes_no_place_and_one_that_is_only_cordoned_does() -> None:
    spec = make_spec(placement={"maxConcurrentNodes": 1})
    cordoned, pending = replace(A, cordoned=True), make_pod(scheduled=False, phase="Pending", message="cordoned")
    job = make_job(A, spec, pods=(pending,))
    assert job_nodes(plan_of(with_spec(spec, cordoned, B, jobs=(job,)))) == ["node-b"]
    running = replace(job, pods=(make_pod(ContainerState("prefetch")),))
    assert job_nodes(plan_of(with_spec(spec, cordoned, B, jobs=(running,)))) == []


def test_a_node_under_pressure_takes_no_place_unless_its_staging_runs() -> None:
    spec = make_spec(placement={"maxConcurrentNodes": 1})
    starved = replace(A, taints=(Taint("node.kubernetes.io/disk-pressure", "", "NoSchedule"),))
    job = make_job(A, spec, pods=(make_pod(scheduled=False, phase="Pending", message="untolerated taint"),))
    assert job_nodes(plan_of(with_spec(spec, starved, B, jobs=(job,)))) == ["node-b"]
    running = replace(job, pods=(make_pod(ContainerState("prefetch")),))
    assert job_nodes(plan_of(with_spec(spec, starved, B, jobs=(running,)))) == []


# --- failures of a fetch ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "reason", ["SecretMissing", "Unauthorized", "Gated", "Forbidden", "UnknownCredential", "RepositoryNotFound"]
)
@pytest.mark.parametrize("attempts", [1, 100])
def test_what_somebody_mends_elsewhere_is_tried_again_each_minute_and_stalls_meanwhile(
    reason: str, attempts: int
) -> None:
    assert failures.backoff_seconds(20, attempts, reason) == 60
    job = failed_job(A, spec=SPEC, text=failure_text(reason, 20), round=attempts - 1, finished_seconds_ago=20)
    plan = plan_of(with_spec(SPEC, A, jobs=(job,)))
    assert reasons(plan)["Stalled"] == reason
    assert plan.again_after_seconds == 40
    due = replace(job, finished_at=ago(61))
    assert plan_of(with_spec(SPEC, A, jobs=(due,))).delete_jobs == (job.name,)


@pytest.mark.parametrize("reason", ["RevisionNotFound", "BucketNotFound", "NoRoom"])
def test_what_the_spec_or_the_disk_is_to_blame_for_waits_long(reason: str) -> None:
    exit_code = 40 if reason == "NoRoom" else 20
    job = failed_job(A, spec=SPEC, text=failure_text(reason, exit_code))
    plan = plan_of(with_spec(SPEC, A, jobs=(job,)))
    assert reasons(plan)["Stalled"] == reason
    assert plan.again_after_seconds == 599


def test_fetching_is_said() -> None:
    job = make_job(A, SPEC, pods=(make_pod(ContainerState("fetch")),))
    assert plan_of(with_spec(SPEC, A, jobs=(job,))).status.nodes["node-a"].reason == "Fetching"
