"""Refreshes of the page cache: when they are due, what becomes of their results, and that they take no proof away."""

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from modelweights_operator.api import v1alpha1 as api
from modelweights_operator.domain import gate, names, policies, refresh
from modelweights_operator.domain.clock import rfc3339
from modelweights_operator.domain.plan import Plan, make_plan
from modelweights_operator.domain.required import staged_model
from modelweights_operator.domain.snapshot import ContainerState, Node, Resident, Snapshot, StagingJob, Taint
from tests.unit.domain.plans import LABEL, OURS, A, B, C, is_true, job_nodes, message, plan_of, reasons, states
from tests.unit.domain.samples import (
    COMMIT_A,
    DIGEST_A,
    DIGEST_B,
    NOW,
    OWNER_UID,
    POLICY,
    ago,
    failure_text,
    make_entry,
    make_fetch_spec,
    make_job,
    make_node,
    make_owner,
    make_pod,
    make_revision,
    make_snapshot,
    make_spec,
    make_status,
    report_text,
)

INTERVAL = 3600
HOURLY = make_spec(prefetch={"refreshIntervalSeconds": INTERVAL})
REQUIRED = make_spec(prefetch={"refreshIntervalSeconds": INTERVAL, "policy": "Required"})
LONG_AGO = rfc3339(ago(3 * INTERVAL))


def entry(node: Node = A, spec: api.Spec = HOURLY, **changes: Any) -> api.NodeStatus:
    return make_entry(node, spec, **{"measured_at": LONG_AGO, **changes})


def lost(node: Node = A, spec: api.Spec = REQUIRED, **changes: Any) -> api.NodeStatus:
    fields = {"state": "Failed", "reason": "ResidencyLost", "message": "61 %", "exit_code": 40, "cold_digest": DIGEST_A}
    return entry(node, spec, **{**fields, **changes})


def refresh_job(node: Node = A, spec: api.Spec = HOURLY, follows: str = LONG_AGO, **changes: Any) -> StagingJob:
    return make_job(node, spec, name=f"refresh-{node.name}", follows=follows, source_digest="", **changes)


def measured(percent: float | None, node: Node = A, spec: api.Spec = HOURLY, **report: Any) -> StagingJob:
    """A refresh that ended well."""
    resident = None if percent is None else int(10 * percent)
    figures = {"step": "refresh", "exitCode": 0, "message": "said", "sizeBytes": 1000, "residentBytes": resident}
    text = json.dumps({**figures, "residentPercent": percent, "residencyMeasuredAt": rfc3339(ago(2)), **report})
    end = ContainerState("refresh", exit_code=0, message=text)
    return refresh_job(node, spec, state="Complete", finished_at=ago(1), pods=(make_pod(end, phase="Succeeded"),))


def failed(reason: str, exit_code: int, seconds_ago: float = 1, spec: api.Spec = HOURLY) -> StagingJob:
    text = failure_text(reason, exit_code, "model.safetensors is gone")
    end = ContainerState("refresh", exit_code=exit_code, message=text)
    pods = (make_pod(end, phase="Failed"),)
    return refresh_job(spec=spec, state="Failed", finished_at=ago(seconds_ago), pods=pods)


def snapshot(
    entries: dict[str, api.NodeStatus],
    *refreshes: StagingJob,
    spec: api.Spec = HOURLY,
    nodes: Sequence[Node] | None = None,
    **fields: Any,
) -> Snapshot:
    """All nodes hold the published checkpoint, with labels and ConfigMap as they are then."""
    labels = {LABEL: names.label_digest(DIGEST_A)}
    default = [replace(node, labels={**node.labels, **labels}) for node in (A, B, C) if node.name in entries]
    owner = make_owner(spec, make_status(entries, make_revision()))
    found = make_snapshot(owner, tuple(default if nodes is None else nodes), config_map=OURS, **fields)
    return replace(found, refreshes=refreshes)


def one(plan: Plan) -> api.NodeStatus:
    (found,) = plan.status.nodes.values()
    return found


def nothing_is_taken_away(plan: Plan) -> None:
    assert plan.label_nodes == {}
    stays_available(plan)


def only_the_label_goes(plan: Plan) -> None:
    """So that no pod is sent there any more."""
    assert plan.label_nodes == {"node-a": {LABEL: None}}
    assert one(plan).cold_digest == one(plan).manifest_digest == DIGEST_A
    stays_available(plan)


def stays_available(plan: Plan) -> None:
    assert is_true(plan, "Available")
    assert plan.config_map is None
    assert plan.status.published == make_revision()


# --- when -------------------------------------------------------------------------------------------------------------


def test_a_node_that_was_measured_long_ago_is_due() -> None:
    plan = plan_of(snapshot({"node-a": entry()}))
    (job,) = plan.create_jobs
    assert job["metadata"]["name"].startswith("refresh-llama-")
    assert job["metadata"]["annotations"][names.FOLLOWS_ANNOTATION] == LONG_AGO
    assert [container["name"] for container in job["spec"]["template"]["spec"]["containers"]] == ["refresh"]
    assert "initContainers" not in job["spec"]["template"]["spec"]
    assert states(plan) == {"node-a": ("Ready", "Staged")}
    nothing_is_taken_away(plan)


def test_a_node_that_was_measured_a_moment_ago_is_not_and_it_is_looked_at_in_time() -> None:
    plan = plan_of(snapshot({"node-a": entry(measured_at=rfc3339(ago(1)))}))
    assert plan.create_jobs == ()
    assert plan.again_after_seconds is not None
    assert INTERVAL / 2 - 1 <= plan.again_after_seconds <= 1.5 * INTERVAL


@pytest.mark.parametrize("number", range(20))
def test_each_node_has_its_own_time_in_every_interval(number: int) -> None:
    node = make_node(f"node-{number}")
    found = snapshot({node.name: entry(node, measured_at=rfc3339(NOW))}, nodes=[node])
    first = plan_of(found).again_after_seconds
    assert first is not None
    times = []
    measured_at = NOW + timedelta(seconds=first)
    for _ in range(3):
        held = snapshot({node.name: entry(node, measured_at=rfc3339(measured_at))}, nodes=[node])
        left = make_plan(held, measured_at).again_after_seconds
        assert left is not None
        measured_at += timedelta(seconds=left)
        times.append(measured_at.timestamp() % INTERVAL)
    assert max(times) - min(times) <= 3


def test_the_nodes_times_are_spread_over_the_interval() -> None:
    nodes = [make_node(f"node-{number:03}") for number in range(200)]
    due = []
    for node in nodes:
        plan = make_plan(snapshot({node.name: entry(node, measured_at=rfc3339(NOW))}, nodes=[node]), NOW)
        assert plan.again_after_seconds is not None
        due.append(plan.again_after_seconds)
    quarters = [
        sum(INTERVAL / 2 + quarter * INTERVAL / 4 <= each < INTERVAL / 2 + (quarter + 1) * INTERVAL / 4 for each in due)
        for quarter in range(4)
    ]
    assert min(quarters) > 200 / 8


@pytest.mark.parametrize(
    ("node", "spec"),
    [
        (replace(A, ready=False), HOURLY),
        (replace(A, cordoned=True), HOURLY),
        (replace(A, taints=(Taint("node.kubernetes.io/memory-pressure", "", "NoSchedule"),)), HOURLY),
        (A, make_spec(prefetch={"refreshIntervalSeconds": INTERVAL}, suspend=True)),
    ],
    ids=["not ready", "cordoned", "under pressure", "suspended"],
)
def test_nothing_is_begun_where_nothing_is_staged_either(node: Node, spec: api.Spec) -> None:
    plan = plan_of(snapshot({"node-a": entry()}, spec=spec, nodes=[node]))
    assert plan.create_jobs == ()
    assert states(plan) == {"node-a": ("Ready", "Staged")}


def test_off_is_the_default_and_leaves_nothing_in_the_status() -> None:
    plan = plan_of(snapshot({"node-a": entry(spec=make_spec())}, spec=make_spec()))
    assert plan.create_jobs == ()
    assert one(plan).measured_at == ""


def test_a_node_that_was_staged_without_refresh_was_measured_then() -> None:
    plan = plan_of(snapshot({"node-a": entry(measured_at="", last_transition_time=LONG_AGO)}))
    assert job_nodes(plan) == ["node-a"]
    assert one(plan).measured_at == LONG_AGO


def test_a_time_that_lies_ahead_is_taken_for_now() -> None:
    plan = plan_of(snapshot({"node-a": entry(measured_at=rfc3339(NOW + timedelta(days=9)))}))
    assert plan.again_after_seconds is not None
    assert plan.again_after_seconds <= 1.5 * INTERVAL


# --- how many ---------------------------------------------------------------------------------------------------------


def capped(cap: int) -> api.Spec:
    return make_spec(prefetch={"refreshIntervalSeconds": INTERVAL}, placement={"maxConcurrentNodes": cap})


def test_after_an_outage_of_the_operator_no_more_begin_than_the_cap_lets_those_measured_longest_ago_first() -> None:
    spec = capped(2)
    entries = {
        "node-a": entry(A, spec, measured_at=rfc3339(ago(30_000))),
        "node-b": entry(B, spec, measured_at=rfc3339(ago(50_000))),
        "node-c": entry(C, spec, measured_at=rfc3339(ago(40_000))),
    }
    assert job_nodes(plan_of(snapshot(entries, spec=spec))) == ["node-b", "node-c"]


def test_a_refresh_that_runs_takes_a_place() -> None:
    spec = capped(1)
    entries = {"node-a": entry(A, spec), "node-b": entry(B, spec)}
    assert plan_of(snapshot(entries, refresh_job(A, spec), spec=spec)).create_jobs == ()


def test_a_refresh_on_a_lost_node_takes_no_place() -> None:
    spec = capped(1)
    entries = {"node-a": entry(A, spec), "node-b": entry(B, spec)}
    nodes = [replace(A, ready=False), B]
    assert job_nodes(plan_of(snapshot(entries, refresh_job(A, spec), spec=spec, nodes=nodes))) == ["node-b"]


def test_stagings_come_first() -> None:
    spec = capped(1)
    plan = plan_of(snapshot({"node-a": entry(A, spec)}, spec=spec, nodes=[A, B]))
    (job,) = plan.create_jobs
    assert (job_nodes(plan), names.FOLLOWS_ANNOTATION in job["metadata"]["annotations"]) == (["node-b"], False)


def test_the_same_measurement_is_followed_by_the_same_job_and_another_one_by_another() -> None:
    def name(measured_at: str) -> str:
        return str(plan_of(snapshot({"node-a": entry(measured_at=measured_at)})).create_jobs[0]["metadata"]["name"])

    assert name(LONG_AGO) == name(LONG_AGO)
    assert name(LONG_AGO) != name(rfc3339(ago(4 * INTERVAL)))


def test_never_two_at_once_on_a_node() -> None:
    running = refresh_job(pods=(make_pod(ContainerState("refresh")),))
    plan = plan_of(snapshot({"node-a": entry()}, running))
    assert (plan.create_jobs, plan.delete_jobs) == ((), ())
    gone = plan_of(snapshot({"node-a": entry()}, replace(running, deleting=True)))
    assert (gone.create_jobs, gone.delete_jobs) == ((), ())


def test_one_that_was_removed_by_hand_is_made_again() -> None:
    before = plan_of(snapshot({"node-a": entry()}))
    again = plan_of(snapshot({"node-a": one(before)}))
    assert [job["metadata"]["name"] for job in again.create_jobs] == [
        job["metadata"]["name"] for job in before.create_jobs
    ]


# --- what was measured ------------------------------------------------------------------------------------------------


def test_what_is_warm_again_is_noted_with_its_time_and_the_job_goes() -> None:
    plan = plan_of(snapshot({"node-a": entry(resident_bytes=1)}, measured(99.0)))
    assert (one(plan).resident_bytes, one(plan).measured_at, one(plan).message) == (990, rfc3339(ago(2)), "")
    assert (plan.finished_jobs, plan.create_jobs) == (("refresh-node-a",), ())
    assert one(plan).last_transition_time == entry().last_transition_time
    assert is_true(plan, "Ready")
    nothing_is_taken_away(plan)


@pytest.mark.parametrize("said", ["", "yesterday", rfc3339(ago(9 * INTERVAL)), rfc3339(NOW + timedelta(hours=2))])
def test_a_clock_that_can_not_be_right_is_not_believed(said: str) -> None:
    plan = plan_of(snapshot({"node-a": entry()}, measured(99.0, residencyMeasuredAt=said)))
    assert one(plan).measured_at == rfc3339(NOW)


def test_too_little_with_best_effort_is_said_and_the_node_stays_ready() -> None:
    plan = plan_of(snapshot({"node-a": entry()}, measured(61.0)))
    assert states(plan) == {"node-a": ("Ready", "Staged")}
    assert "61.0 % of the weights" in one(plan).message
    assert is_true(plan, "Ready")
    nothing_is_taken_away(plan)


def test_too_little_with_required_makes_the_node_unready_and_takes_its_label_and_nothing_else() -> None:
    plan = plan_of(snapshot({"node-a": entry(spec=REQUIRED)}, measured(61.0, spec=REQUIRED), spec=REQUIRED))
    assert states(plan) == {"node-a": ("Failed", "ResidencyLost")}
    assert (one(plan).manifest_digest, one(plan).boot_id) == (DIGEST_A, A.boot_id)
    assert (reasons(plan)["Ready"], reasons(plan)["Stalled"]) == ("ResidencyLost", "ResidencyLost")
    assert "61.0 %" in message(plan)
    assert "95 % are asked for" in message(plan)
    assert "nodeMemory.budget" in message(plan)
    only_the_label_goes(plan)
    warnings = [event.message for event in plan.events if event.kind == "Warning"]
    assert len(warnings) == 2
    assert warnings[1].startswith("node-a: 61.0 %")


def test_it_stays_so_until_the_next_refresh_and_nothing_is_staged_again() -> None:
    found = lost(measured_at=rfc3339(ago(5)))
    plan = plan_of(snapshot({"node-a": found}, spec=REQUIRED, nodes=[A]))
    assert (one(plan), plan.create_jobs) == (found, ())
    nothing_is_taken_away(plan)
    assert again(plan).events == ()


def again(plan: Plan, *refreshes: StagingJob) -> Plan:
    """The plan after the status of the former was written, and its label taken off."""
    found = snapshot(dict(plan.status.nodes), *refreshes, spec=REQUIRED, nodes=[A])
    return plan_of(replace(found, owner=replace(found.owner, status=plan.status)))


def test_the_next_refresh_that_finds_it_warm_makes_it_ready() -> None:
    plan = plan_of(snapshot({"node-a": lost()}, measured(99.0, spec=REQUIRED), spec=REQUIRED, nodes=[A]))
    assert states(plan) == {"node-a": ("Ready", "Staged")}
    assert plan.label_nodes == {"node-a": {LABEL: names.label_digest(DIGEST_A)}}
    assert (one(plan).message, one(plan).exit_code, one(plan).cold_digest) == ("", 0, "")
    assert one(plan).last_transition_time == rfc3339(NOW)
    assert is_true(plan, "Ready")


def test_another_checkpoint_that_the_node_holds_keeps_its_label() -> None:
    labels = names.digest_labels(OWNER_UID, [DIGEST_A, DIGEST_B])
    node = replace(A, labels={**A.labels, **labels})
    found = snapshot({"node-a": lost(other_digests=(DIGEST_B,))}, spec=REQUIRED, nodes=[node])
    assert plan_of(found).label_nodes == {"node-a": {LABEL: None}}


def test_the_settings_are_there_though_every_node_is_cold() -> None:
    found = snapshot({"node-a": lost()}, spec=REQUIRED)
    assert plan_of(replace(found, config_map=None)).config_map is not None


def test_while_it_is_staged_again_the_label_stays_away_until_that_proved_it_anew() -> None:
    spec = make_spec(prefetch={"refreshIntervalSeconds": INTERVAL, "policy": "Required", "numThreads": 3})
    plan = plan_of(snapshot({"node-a": lost()}, spec=spec, nodes=[A]))
    assert (states(plan), plan.label_nodes) == ({"node-a": ("Staging", "Starting")}, {})
    assert one(plan).cold_digest == DIGEST_A
    ended = make_job(A, spec, state="Complete", result=report_text(), finished_at=ago(1))
    proven = plan_of(snapshot({"node-a": one(plan)}, spec=spec, nodes=[A], jobs=(ended,)))
    assert states(proven) == {"node-a": ("Ready", "Staged")}
    assert (one(proven).cold_digest, proven.label_nodes) == ("", {"node-a": {LABEL: names.label_digest(DIGEST_A)}})


def test_where_it_needn_t_be_warm_any_more_the_label_comes_back_at_once() -> None:
    plan = plan_of(snapshot({"node-a": lost()}, spec=HOURLY, nodes=[A]))
    assert (one(plan).cold_digest, plan.label_nodes) == ("", {"node-a": {LABEL: names.label_digest(DIGEST_A)}})


def test_one_that_was_cold_before_it_differed_from_the_rest_is_cold_after() -> None:
    differs = lost(reason="DigestMismatch", last_transition_time=rfc3339(ago(5)))
    plan = plan_of(snapshot({"node-a": differs}, spec=REQUIRED, nodes=[A]))
    assert states(plan) == {"node-a": ("Failed", "ResidencyLost")}
    assert plan.label_nodes == {}


@pytest.mark.parametrize("label_nodes", [True, False])
def test_no_gate_opens_towards_a_cold_node_be_its_label_there_still(label_nodes: bool) -> None:  # noqa: FBT001
    found = snapshot({"node-a": lost(), "node-b": entry(B, REQUIRED)}, spec=REQUIRED)
    plan = plan_of(found)
    owner = replace(found.owner, status=plan.status)
    assert set(staged_model(owner, "", found.nodes, label_nodes=label_nodes).holders) == {"node-b"}


@pytest.mark.parametrize("label_nodes", [True, False])
@pytest.mark.parametrize("pinned", [True, False])
def test_where_all_are_cold_pods_wait_though_it_is_available(pinned: bool, label_nodes: bool) -> None:  # noqa: FBT001
    found = snapshot({"node-a": lost()}, spec=REQUIRED)
    plan = plan_of(found)
    assert is_true(plan, "Available")
    model = staged_model(replace(found.owner, status=plan.status), "", found.nodes, label_nodes=label_nodes)
    to_node = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-a"]}]}
    pod = gate.GatedPod("team", "server", "pod-uid", "1", "llama", terms=(to_node,) if pinned else None)
    required = {gate.Requirement("team", "llama"): model}
    assert gate.decide(pod, required, label_nodes=label_nodes) == gate.Wait()


def test_pods_that_wait_themselves_start_but_are_not_drawn_to_a_cold_node() -> None:
    spec = make_spec(
        prefetch={"refreshIntervalSeconds": INTERVAL, "policy": "Required"}, placement={"whenNoRoom": "Provision"}
    )
    found = snapshot({"node-a": lost(spec=spec)}, spec=spec)
    owner = replace(found.owner, status=plan_of(found).status)
    model = staged_model(owner, "", found.nodes, label_nodes=True)
    pod = gate.GatedPod("team", "server", "pod-uid", "1", "llama", waits_itself=True)
    decision = gate.decide(pod, {gate.Requirement("team", "llama"): model}, label_nodes=True)
    assert isinstance(decision, gate.Lift)
    affinity = decision.patch["spec"]["affinity"]["nodeAffinity"]
    assert list(affinity) == ["preferredDuringSchedulingIgnoredDuringExecution"]
    assert plan_of(found).label_nodes == {"node-a": {LABEL: None}}


@pytest.mark.parametrize(
    ("unknown", "policy", "state"),
    [("Fail", "Required", "Failed"), ("Accept", "Required", "Ready"), ("Fail", "BestEffort", "Ready")],
)
def test_where_nobody_may_measure_the_spec_says_what_follows(unknown: str, policy: str, state: str) -> None:
    spec = make_spec(prefetch={"refreshIntervalSeconds": INTERVAL, "policy": policy, "unknownResidency": unknown})
    plan = plan_of(snapshot({"node-a": entry(spec=spec)}, measured(None, spec=spec), spec=spec))
    assert one(plan).state == state


def retried(found: Snapshot) -> Snapshot:
    return replace(found, owner=replace(found.owner, retry="please"))


def test_retry_now_refreshes_a_node_that_lost_its_pages_at_once() -> None:
    found = snapshot({"node-a": lost(measured_at=rfc3339(ago(5)))}, spec=REQUIRED)
    assert plan_of(found).create_jobs == ()
    assert job_nodes(plan_of(retried(found))) == ["node-a"]


def test_retry_now_ends_the_wait_after_a_failed_refresh_and_hurries_no_other() -> None:
    assert plan_of(retried(snapshot({"node-a": entry()}, failed("ReadFailed", 10)))).delete_jobs == ("refresh-node-a",)
    assert plan_of(retried(snapshot({"node-a": entry(measured_at=rfc3339(ago(5)))}))).create_jobs == ()


def test_where_refresh_is_turned_off_a_node_that_lost_its_pages_is_staged_again() -> None:
    spec = make_spec(prefetch={"policy": "Required"})
    plan = plan_of(snapshot({"node-a": lost(spec=spec)}, spec=spec))
    assert states(plan) == {"node-a": ("Waiting", "Queued")}
    only_the_label_goes(plan)
    assert job_nodes(plan_of(snapshot({"node-a": one(plan)}, spec=spec))) == ["node-a"]


# --- what failed ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exit_code", [20, 30])
def test_files_that_are_gone_or_others_are_staged_again_and_nothing_is_taken_away_before(exit_code: int) -> None:
    plan = plan_of(snapshot({"node-a": entry()}, failed("FileChanged", exit_code)))
    assert states(plan) == {"node-a": ("Waiting", "Queued")}
    assert "model.safetensors is gone" in one(plan).message
    assert plan.finished_jobs == ("refresh-node-a",)
    nothing_is_taken_away(plan)
    (job,) = plan_of(snapshot({"node-a": one(plan)})).create_jobs
    assert job["metadata"]["name"].startswith("stage-")


@pytest.mark.parametrize("exit_code", [2, 10, 40, 137])
def test_another_failure_is_said_and_tried_again_later(exit_code: int) -> None:
    plan = plan_of(snapshot({"node-a": entry()}, failed("ReadFailed", exit_code)))
    assert states(plan) == {"node-a": ("Ready", "Staged")}
    assert "ReadFailed" in one(plan).message
    assert (plan.create_jobs, plan.delete_jobs, plan.finished_jobs) == ((), (), ())
    assert plan.again_after_seconds == pytest.approx(refresh.RETRY_SECONDS - 1)
    nothing_is_taken_away(plan)
    later = plan_of(snapshot({"node-a": one(plan)}, failed("ReadFailed", exit_code, seconds_ago=601)))
    assert later.delete_jobs == ("refresh-node-a",)
    assert later.create_jobs == ()
    assert job_nodes(plan_of(snapshot({"node-a": one(later)}))) == ["node-a"]


def test_a_good_job_without_a_report_is_tried_again_later() -> None:
    gone = refresh_job(state="Complete", finished_at=ago(1))
    plan = plan_of(snapshot({"node-a": entry()}, gone))
    assert "ResultLost" in one(plan).message
    assert plan.finished_jobs == ()


def test_one_that_can_not_begin_is_said_and_goes_after_a_while() -> None:
    unpulled = make_pod(ContainerState("refresh", image="loader:0", waiting_reason="ImagePullBackOff"))
    plan = plan_of(snapshot({"node-a": entry()}, refresh_job(pods=(unpulled,))))
    assert "ImagePullFailed" in one(plan).message
    assert plan.delete_jobs == ()
    old = plan_of(snapshot({"node-a": entry()}, refresh_job(pods=(unpulled,), created_at=ago(601))))
    assert old.delete_jobs == ("refresh-node-a",)
    assert is_true(old, "Ready")


def test_a_refused_job_is_said_and_the_node_stays_ready() -> None:
    plan = plan_of(replace(snapshot({"node-a": entry()}), refusals={"node-a": "exceeded quota"}))
    assert states(plan) == {"node-a": ("Ready", "Staged")}
    assert "exceeded quota" in one(plan).message
    assert plan.again_after_seconds == refresh.RETRY_SECONDS
    nothing_is_taken_away(plan)


def refused(seconds_ago: float, node: Node = A, spec: api.Spec = HOURLY) -> api.NodeStatus:
    found = plan_of(
        replace(snapshot({node.name: entry(node, spec)}, spec=spec), refusals={node.name: "exceeded quota"})
    )
    return one(found).model_copy(update={"refresh_refused_at": rfc3339(ago(seconds_ago))})


def test_what_was_refused_is_tried_again_after_a_while_and_at_no_wake_before() -> None:
    early = plan_of(snapshot({"node-a": refused(599)}))
    assert early.create_jobs == ()
    assert early.again_after_seconds == pytest.approx(1.0)
    assert "exceeded quota" in one(early).message
    late = plan_of(snapshot({"node-a": refused(600)}))
    assert job_nodes(late) == ["node-a"]


def test_one_that_was_refused_keeps_its_place_so_that_no_more_than_the_cap_knock() -> None:
    spec = capped(1)
    entries = {"node-a": refused(5, spec=spec), "node-b": entry(B, spec)}
    assert plan_of(snapshot(entries, spec=spec)).create_jobs == ()


def test_retry_now_ends_that_wait_too() -> None:
    assert job_nodes(plan_of(retried(snapshot({"node-a": refused(5)})))) == ["node-a"]


def test_once_one_is_measured_the_refusal_is_forgotten() -> None:
    plan = plan_of(snapshot({"node-a": refused(5)}, measured(99.0)))
    assert (one(plan).refresh_refused_at, one(plan).message) == ("", "")


# --- what changes in the middle ---------------------------------------------------------------------------------------


def test_another_spec_in_mid_refresh_ends_it_first_and_then_stages() -> None:
    spec = make_spec(prefetch={"refreshIntervalSeconds": INTERVAL, "numThreads": 3})
    plan = plan_of(snapshot({"node-a": entry()}, refresh_job(), spec=spec))
    assert (plan.delete_jobs, plan.create_jobs) == (("refresh-node-a",), ())
    nothing_is_taken_away(plan)
    going = plan_of(snapshot({"node-a": one(plan)}, replace(refresh_job(), deleting=True), spec=spec))
    assert (going.delete_jobs, going.create_jobs) == ((), ())
    gone = plan_of(snapshot({"node-a": one(going)}, spec=spec))
    assert gone.create_jobs[0]["metadata"]["name"].startswith("stage-")


def test_another_interval_in_mid_refresh_changes_nothing_of_it() -> None:
    spec = make_spec(prefetch={"refreshIntervalSeconds": 300})
    plan = plan_of(snapshot({"node-a": entry()}, refresh_job(), spec=spec))
    assert (plan.delete_jobs, plan.create_jobs) == ((), ())


def test_a_reboot_in_mid_refresh_is_seen_at_once_and_stages() -> None:
    rebooted = make_node("node-a", boot_id="boot-2", labels=A.labels)
    plan = plan_of(snapshot({"node-a": entry()}, refresh_job(), nodes=[rebooted]))
    assert states(plan) == {"node-a": ("Waiting", "Queued")}
    assert (plan.delete_jobs, plan.create_jobs) == (("refresh-node-a",), ())
    assert not is_true(plan, "Available")
    after = plan_of(snapshot({"node-a": one(plan)}, nodes=[rebooted]))
    assert after.create_jobs[0]["metadata"]["name"].startswith("stage-")


def test_a_result_of_another_boot_is_not_taken_in() -> None:
    rebooted = make_node("node-a", boot_id="boot-2", labels=A.labels)
    plan = plan_of(snapshot({"node-a": entry(rebooted, measured_at=LONG_AGO)}, measured(10.0), nodes=[rebooted]))
    assert (plan.delete_jobs, one(plan).measured_at) == (("refresh-node-a",), LONG_AGO)


def test_a_job_whose_result_is_in_the_status_already_goes() -> None:
    plan = plan_of(snapshot({"node-a": entry(measured_at=rfc3339(ago(2)))}, measured(10.0)))
    assert plan.delete_jobs == ("refresh-node-a",)
    assert one(plan).resident_bytes == entry().resident_bytes


def test_jobs_of_nodes_that_are_no_longer_selected_go() -> None:
    plan = plan_of(snapshot({"node-a": entry()}, refresh_job(B), nodes=[A]))
    assert "refresh-node-b" in plan.delete_jobs


def test_an_object_with_a_fault_of_its_own_ends_its_refreshes() -> None:
    spec = make_spec(source={"hostPath": {"path": "/elsewhere/x"}}, prefetch={"refreshIntervalSeconds": INTERVAL})
    plan = plan_of(snapshot({"node-a": entry()}, refresh_job(), spec=spec))
    assert plan.delete_jobs == ("refresh-node-a",)


def test_a_node_with_other_files_than_the_rest_is_not_refreshed() -> None:
    entries = {"node-a": entry(), "node-b": entry(B), "node-c": entry(C, manifest_digest=DIGEST_B)}
    assert sorted(job_nodes(plan_of(snapshot(entries)))) == ["node-a", "node-b"]


# --- the Job ----------------------------------------------------------------------------------------------------------


def arguments(plan: Plan) -> list[str]:
    (job,) = plan.create_jobs
    return list(job["spec"]["template"]["spec"]["containers"][0]["args"])


def test_files_in_place_must_have_the_sizes_that_were_staged() -> None:
    found = snapshot({"node-a": entry()})
    published = make_revision(size_bytes=1000, file_count=4)
    status = found.owner.status.model_copy(update={"published": published})
    given = arguments(plan_of(replace(found, owner=replace(found.owner, status=status))))
    assert given[given.index("--expect-size") + 1] == "1000"
    assert given[given.index("--expect-files") + 1] == "4"


def test_what_was_fetched_is_found_by_its_digest_without_source_or_secret() -> None:
    hub = {"huggingFace": {"repository": "org/name", "tokenSecretRef": {"name": "t"}}}
    spec = make_fetch_spec(hub, prefetch={"refreshIntervalSeconds": INTERVAL})
    source = api.SourceStatus(digest=names.source_digest(spec), revision=COMMIT_A)
    found = snapshot({"node-a": entry(spec=spec)}, spec=spec)
    status = found.owner.status.model_copy(update={"source": source})
    plan = plan_of(replace(found, owner=replace(found.owner, status=status)))
    assert f"--digest={DIGEST_A}" in arguments(plan)
    pod = plan.create_jobs[0]["spec"]["template"]["spec"]
    assert {volume["name"] for volume in pod["volumes"]} == {"model", "results", "tmp"}
    model = next(mount for mount in pod["containers"][0]["volumeMounts"] if mount["name"] == "model")
    assert model["readOnly"]
    assert names.SOURCE_DIGEST_ANNOTATION not in plan.create_jobs[0]["metadata"]["annotations"]


def marker_mounts(job: Any) -> list[Any]:
    (container,) = job["spec"]["template"]["spec"]["containers"]
    return [mount for mount in container["volumeMounts"] if mount.get("subPath") == ".modelweights"]


@pytest.mark.parametrize("policy", ["Required", "BestEffort"])
@pytest.mark.parametrize("fetched", [True, False])
def test_where_it_has_to_be_warm_and_only_there_the_refresh_changes_the_marker(fetched: bool, policy: str) -> None:  # noqa: FBT001
    prefetch = {"refreshIntervalSeconds": INTERVAL, "policy": policy, "minResidentPercent": 90}
    hub = {"huggingFace": {"repository": "org/name", "revision": COMMIT_A}}
    spec = make_fetch_spec(hub, prefetch=prefetch) if fetched else make_spec(prefetch=prefetch)
    source = api.SourceStatus(digest=names.source_digest(spec), revision=COMMIT_A) if fetched else None
    found = snapshot({"node-a": entry(spec=spec)}, spec=spec)
    status = found.owner.status.model_copy(update={"source": source})
    plan = plan_of(replace(found, owner=replace(found.owner, status=status)))
    (job,) = plan.create_jobs
    given, mounts = arguments(plan), marker_mounts(job)
    volumes = {volume["name"] for volume in job["spec"]["template"]["spec"]["volumes"]}
    assert ("prepared" in volumes) == (fetched and policy == "Required")
    if policy == "BestEffort":
        assert ("--marker-dir" in given, mounts) == (False, [])
        return
    root = "/data" if fetched else "/models"
    assert given[given.index("--marker-root") + 1] == root
    assert given[given.index("--min-resident-percent") + 1] == "90"
    assert given[given.index("--unknown-residency") + 1] == "Fail"
    # It fails for what is no failure of its own otherwise.
    assert "--policy" not in given
    (mount,) = mounts
    assert mount["mountPath"] == given[given.index("--marker-dir") + 1]
    assert "readOnly" not in mount


def test_the_nodes_budget_bounds_what_it_may_keep() -> None:
    node = replace(A, memory_bytes=1000)
    found = snapshot({"node-a": entry()}, nodes=[node])
    beside = {"node-a": (Resident("team/other", 300),)}
    plan = plan_of(replace(found, policy=replace(POLICY, memory_budget="80%"), resident=beside))
    assert "--max-resident=500" in arguments(plan)


def test_the_same_loss_is_told_once() -> None:
    first = plan_of(snapshot({"node-a": lost()}, spec=REQUIRED))
    plan = again(first, measured(50.0, spec=REQUIRED))
    assert one(plan).reason == policies.RESIDENCY_LOST
    assert plan.events == ()
