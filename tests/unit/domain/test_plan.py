"""The plan of one ModelWeights: which nodes get a Job, and what becomes of those that go."""

import json
from typing import Any

import pytest

from modelweights_operator.domain.clock import rfc3339
from modelweights_operator.domain.snapshot import StagingJob
from tests.unit.domain.plans import LABEL, OURS, A, B, C, is_true, job_nodes, plan_of, reasons, states, with_spec
from tests.unit.domain.samples import (
    ago,
    failed_job,
    failure_text,
    make_entry,
    make_job,
    make_node,
    make_owner,
    make_revision,
    make_snapshot,
    make_spec,
    make_status,
    make_taint,
)

# --- creating Jobs ------------------------------------------------------------------------------------------------


def test_each_selected_node_gets_a_job() -> None:
    plan = plan_of(make_snapshot(nodes=(B, A, make_node("cpu", labels={}))))
    assert job_nodes(plan) == ["node-a", "node-b"]
    assert states(plan) == {"node-a": ("Staging", "Starting"), "node-b": ("Staging", "Starting")}
    assert reasons(plan) == {"Available": "NotEnoughNodes", "Ready": "Staging", "Reconciling": "Staging"}
    assert plan.status.summary.model_dump(exclude_none=True) == {
        "desired": 2, "ready": 0, "staging": 2, "failed": 0, "ready_ratio": "0/2", "size": "",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("cap", "jobs", "expected"),
    [
        (3, (), ["node-a", "node-b", "node-c"]),
        (2, (), ["node-a", "node-b"]),
        (1, (make_job(B),), []),
        (2, (make_job(B),), ["node-a"]),
        (1, (make_job(B, deleting=True),), []),
        (1, (make_job(B, make_spec(suspend=True, prefetch={"numThreads": 9})),), []),
        (1, (failed_job(B, text=failure_text()),), ["node-a"]),
    ],
)
def test_no_more_nodes_at_a_time_than_the_cap(cap: int, jobs: tuple[StagingJob, ...], expected: list[str]) -> None:
    plan = plan_of(with_spec(make_spec(placement={"maxConcurrentNodes": cap}), A, B, C, jobs=jobs))
    assert job_nodes(plan) == expected


def test_who_waits_for_its_turn_says_so() -> None:
    plan = plan_of(with_spec(make_spec(placement={"maxConcurrentNodes": 1}), A, B))
    assert states(plan)["node-b"] == ("Waiting", "Queued")
    assert plan.status.nodes["node-b"].message == "waits for its turn: maxConcurrentNodes is 1"


def test_a_second_cycle_on_the_same_picture_arrives_at_the_same_names() -> None:
    first = plan_of(make_snapshot(nodes=(A, B)))
    second = plan_of(make_snapshot(make_owner(status=first.status), (A, B)))
    assert [job["metadata"]["name"] for job in first.create_jobs] == [
        job["metadata"]["name"] for job in second.create_jobs
    ]


@pytest.mark.parametrize("change", [{"suspend": True}, {"staging": {"labels": {"a": "b"}}}])
def test_what_changes_no_result_touches_no_running_job(change: dict[str, Any]) -> None:
    plan = plan_of(with_spec(make_spec(**change), A, jobs=(make_job(A),)))
    assert (plan.create_jobs, plan.delete_jobs) == ((), ())


# --- nodes that go ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "nodes", [(A,), (A, make_node("node-b", labels={})), (A, make_node("node-b", taints=(make_taint("red"),)))],
    ids=["deleted", "relabelled", "tainted"],
)  # fmt: skip
def test_a_node_that_is_gone_or_deselected_loses_its_job_and_its_entry(nodes: tuple[Any, ...]) -> None:
    status = make_status({"node-a": make_entry(A), "node-b": make_entry(B)}, make_revision())
    job = make_job(B)
    plan = plan_of(make_snapshot(make_owner(status=status), nodes, (job,), OURS))
    assert plan.delete_jobs == (job.name,)
    assert states(plan) == {"node-a": ("Ready", "Staged")}
    assert is_true(plan, "Ready")


def test_a_deselected_node_loses_its_label() -> None:
    node = make_node("node-b", labels={LABEL: "a" * 40})
    status = make_status({"node-b": make_entry(node)}, make_revision())
    plan = plan_of(make_snapshot(make_owner(status=status), (A, node)))
    assert plan.label_nodes == {"node-b": {LABEL: None}}


def test_an_orphaned_job_that_goes_already_is_not_deleted_twice() -> None:
    assert plan_of(make_snapshot(nodes=(A,), jobs=(make_job(B, deleting=True),))).delete_jobs == ()


def test_a_job_whose_annotations_were_taken_off_goes() -> None:
    job = make_job(A, node_name="", node_uid="")
    assert plan_of(make_snapshot(nodes=(A,), jobs=(job,))).delete_jobs == (job.name,)


@pytest.mark.parametrize(("number", "limit"), [(300, 1024), (2000, 160)])
def test_messages_of_many_nodes_fit_one_object(number: int, limit: int) -> None:
    """The store takes 1.5 MiB: with 2,000 long messages no status at all could be written."""
    nodes = tuple(make_node(f"node-{index:04}.{'x' * 40}") for index in range(number))
    changes: dict[str, Any] = {
        "state": "Failed",
        "reason": "NoRoom",
        "attempts": 1,
        "exit_code": 40,
        "message": "é" * 512,
    }
    entries = {node.name: make_entry(node, **changes, last_transition_time=rfc3339(ago(1))) for node in nodes}
    plan = plan_of(with_spec(make_spec(), *nodes, status=make_status(entries)))
    assert {len(entry.message.encode()) for entry in plan.status.nodes.values()} <= {limit, limit - 1}
    written = json.dumps(plan.status.model_dump(mode="json", by_alias=True, exclude_defaults=True), ensure_ascii=False)
    assert len(written.encode()) < 1_200_000
    again = plan_of(with_spec(make_spec(), *nodes, status=plan.status))
    assert again.status.nodes == plan.status.nodes
