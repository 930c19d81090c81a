"""Each stall names its reason; events, labels and times follow the status."""

from dataclasses import replace
from typing import Any

import pytest

from modelweights_operator.domain.snapshot import StagingJob
from tests.unit.domain.plans import (
    LABEL,
    OURS,
    READY_STATUS,
    A,
    B,
    C,
    job_nodes,
    message,
    plan_of,
    reasons,
    states,
    with_spec,
)
from tests.unit.domain.samples import (
    POLICY,
    complete_job,
    failed_job,
    failure_text,
    make_entry,
    make_job,
    make_node,
    make_owner,
    make_snapshot,
    make_spec,
    make_status,
    make_taint,
)

# --- what keeps nothing from moving -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        (
            (),
            "no node matches spec.placement (nvidia.com/gpu.present=true): label the nodes, or change the selector; autoscalers skip pods that wait at a gate, see spec.placement.whenNoRoom",
        ),
        ((make_node(labels={}),), "no node matches spec.placement (nvidia.com/gpu.present=true)"),
        ((make_node(taints=(make_taint("team", "red"),)),), "such as team=red:NoSchedule on node-a: add it to"),
        ((make_node(taints=(make_taint("alone"),)),), "such as alone:NoSchedule on node-a"),
    ],
)
def test_why_no_node_is_selected(nodes: tuple[Any, ...], expected: str) -> None:
    plan = plan_of(make_snapshot(nodes=nodes))
    assert reasons(plan) == {"Available": "NotEnoughNodes", "Ready": "NoNodes"}
    assert expected in message(plan)


def test_an_invalid_spec_stalls_and_ends_its_jobs_but_takes_nothing_from_pods() -> None:
    owner = make_owner(status=READY_STATUS, invalid="spec.source: Field required")
    labelled = make_node("node-a", labels={**A.labels, LABEL: "a" * 40})
    job = make_job(B)
    plan = plan_of(make_snapshot(replace(owner, spec=None), (labelled, B), (job,), OURS))
    assert reasons(plan) == {"Available": "NodesStaged", "Ready": "InvalidSpec", "Stalled": "InvalidSpec"}
    assert message(plan) == "spec.source: Field required"
    assert plan.delete_jobs == (job.name,)
    assert plan.label_nodes == {"node-b": {LABEL: "a" * 40}}
    assert plan.status.nodes == READY_STATUS.nodes


@pytest.mark.parametrize("roots", [(), ("/data",), ("/models/llama",)])
def test_a_path_that_is_not_allowed_stalls(roots: tuple[str, ...]) -> None:
    plan = plan_of(make_snapshot(nodes=(A,), policy=replace(POLICY, host_path_roots=roots)))
    assert reasons(plan)["Stalled"] == "PathNotAllowed"
    assert plan.create_jobs == ()


@pytest.mark.parametrize(("count", "reason"), [(2000, "Reconciling"), (2001, "Stalled")])
def test_more_nodes_than_one_object_bears_stall_with_the_advice_to_split(count: int, reason: str) -> None:
    plan = plan_of(make_snapshot(nodes=tuple(make_node(f"node-{index:04}") for index in range(count))))
    assert reason in reasons(plan)
    if reason == "Stalled":
        assert message(plan) == "2001 nodes are selected, at most 2000 fit one object: split it by nodeSelector"
        assert plan.create_jobs == ()


def test_a_failed_node_does_not_hide_that_another_moves() -> None:
    jobs = (failed_job(A, text=failure_text("BadHeader", 30, "a.st: short")), make_job(B))
    plan = plan_of(make_snapshot(nodes=(A, B), jobs=jobs))
    assert reasons(plan) == {"Available": "NotEnoughNodes", "Ready": "BadHeader", "Reconciling": "Staging"}
    assert "node-a: BadHeader: a.st: short" in message(plan)


@pytest.mark.parametrize(
    ("jobs", "entries", "expected"),
    [
        ((), {}, {"Ready": "Suspended"}),
        ((make_job(A),), {}, {"Ready": "Suspended", "Reconciling": "Staging"}),
        ((), {"node-a": make_entry(A)}, {"Ready": "AllNodesReady"}),
        ((failed_job(A, text=failure_text()),), {}, {"Ready": "Unreachable", "Stalled": "Unreachable"}),
    ],
    ids=["nothing yet", "a Job still runs", "all staged", "the last one failed"],
)
def test_suspended(jobs: tuple[StagingJob, ...], entries: dict[str, Any], expected: dict[str, str]) -> None:
    plan = plan_of(with_spec(make_spec(suspend=True), A, jobs=jobs, status=make_status(entries)))
    found = reasons(plan)
    del found["Available"]
    assert found == expected
    assert plan.create_jobs == ()


def test_a_refused_job_is_told_and_its_node_keeps_its_place() -> None:
    spec = make_spec(placement={"maxConcurrentNodes": 2})
    refused = replace(with_spec(spec, A, B, C), refusals={"node-a": "exceeded quota"})
    plan = plan_of(refused)
    assert states(plan) == {
        "node-a": ("Failed", "JobRefused"),
        "node-b": ("Staging", "Starting"),
        "node-c": ("Waiting", "Queued"),
    }
    assert "node-a: JobRefused: exceeded quota" in message(plan)
    later = plan_of(with_spec(spec, A, B, C, status=plan.status, jobs=(make_job(B, spec),)))
    assert job_nodes(later) == []


def test_an_object_whose_every_job_is_refused_stalls_at_once_and_stays_so() -> None:
    plan = plan_of(replace(make_snapshot(nodes=(A,)), refusals={"node-a": "exceeded quota"}))
    assert reasons(plan)["Stalled"] == "JobRefused"
    assert plan.again_after_seconds == 10.0
    later = plan_of(make_snapshot(make_owner(status=plan.status), (A,)))
    assert reasons(later)["Stalled"] == "JobRefused"


# --- events, labels, times ----------------------------------------------------------------------------------------


def test_events_tell_transitions_once() -> None:
    jobs = (complete_job(A), failed_job(B, text=failure_text("BadHeader", 30, "short")))
    plan = plan_of(make_snapshot(nodes=(A, B), jobs=jobs))
    assert [(event.kind, event.reason) for event in plan.events] == [
        ("Normal", "Available"),
        ("Warning", "BadHeader"),
        ("Warning", "BadHeader"),
    ]
    again = plan_of(make_snapshot(make_owner(status=plan.status), (A, B), jobs))
    assert again.events == ()


def test_without_the_right_to_label_no_label_is_planned() -> None:
    policy = replace(POLICY, label_nodes=False)
    assert plan_of(make_snapshot(nodes=(A,), jobs=(complete_job(A),), policy=policy)).label_nodes == {}


def test_a_label_that_someone_else_set_is_taken_off() -> None:
    node = make_node("node-a", labels={**A.labels, LABEL: "f" * 40})
    assert plan_of(make_snapshot(nodes=(node,))).label_nodes == {"node-a": {LABEL: None}}


def test_the_soonest_look_counts() -> None:
    jobs = (
        failed_job(A, text=failure_text("BadHeader", 30)),
        failed_job(B, text=failure_text(), finished_seconds_ago=4),
    )
    assert plan_of(make_snapshot(nodes=(A, B), jobs=jobs)).again_after_seconds == 6.0


def test_the_status_speaks_of_the_present_generation() -> None:
    assert plan_of(make_snapshot(make_owner(generation=9), (A,))).status.observed_generation == 9


def test_a_write_that_is_refused_is_told_and_takes_nothing_from_pods() -> None:
    """A quota of ConfigMaps, a policy on nodes: without this the status would stand still, with no word of it."""
    snapshot = make_snapshot(make_owner(status=READY_STATUS), (A, B), (complete_job(A),))
    plan = plan_of(replace(snapshot, write_refusal="exceeded quota"))
    assert reasons(plan) == {"Available": "NodesStaged", "Ready": "WriteRefused", "Stalled": "WriteRefused"}
    assert message(plan) == "what the operator has to write was refused: exceeded quota"
    assert states(plan) == {"node-a": ("Ready", "Staged"), "node-b": ("Ready", "Staged")}
