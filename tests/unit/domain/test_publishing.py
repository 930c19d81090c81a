"""Which checkpoint is published, by which nodes, and with which settings."""

from dataclasses import replace

import pytest

from modelweights_operator.api import v1alpha1 as api
from modelweights_operator.domain import engine
from modelweights_operator.domain.clock import rfc3339
from modelweights_operator.domain.plan import Plan, make_plan
from modelweights_operator.domain.snapshot import EngineConfigMap
from tests.unit.domain.plans import (
    LABEL,
    LABEL_B,
    OURS,
    READY_STATUS,
    RECENTLY,
    THEIRS,
    A,
    B,
    C,
    is_true,
    job_nodes,
    message,
    plan_of,
    reasons,
    states,
    with_spec,
)
from tests.unit.domain.samples import (
    DIGEST_A,
    DIGEST_B,
    NOW,
    ago,
    complete_job,
    make_entry,
    make_node,
    make_owner,
    make_revision,
    make_snapshot,
    make_spec,
    make_status,
)

# --- publishing ---------------------------------------------------------------------------------------------------


def test_the_first_good_node_publishes() -> None:
    job = complete_job(A)
    plan = plan_of(make_snapshot(nodes=(A, B), jobs=(job,)))
    assert plan.status.published == api.Revision(
        manifest_digest=DIGEST_A, path="/models/llama", file_count=4, size_bytes=1000, tensor_count=20, since=rfc3339(NOW)
    )  # fmt: skip
    assert is_true(plan, "Available")
    assert not is_true(plan, "Ready")
    assert plan.record_results == {job.name: job.pods[0].containers[0].message}
    assert plan.label_nodes == {"node-a": {LABEL: "a" * 40}}
    assert plan.finished_jobs == (job.name,)
    assert plan.config_map == engine.config_map(make_owner(), make_spec(), make_revision())
    assert plan.status.summary.size == "1000"


@pytest.mark.parametrize(("need", "available"), [(1, True), (2, True), (3, False)])
def test_available_needs_as_many_nodes_as_asked(need: int, available: bool) -> None:  # noqa: FBT001
    spec = make_spec(placement={"minAvailableNodes": need})
    plan = plan_of(with_spec(spec, A, B, C, jobs=(complete_job(A), complete_job(B))))
    assert (plan.status.published is not None) == available
    assert is_true(plan, "Available") == available


def test_nothing_is_written_again_when_all_is_as_it_should_be() -> None:
    nodes = tuple(make_node(name, labels={**A.labels, LABEL: "a" * 40}) for name in ("node-a", "node-b"))
    first = plan_of(make_snapshot(make_owner(status=READY_STATUS), nodes, config_map=OURS))
    again = make_plan(make_snapshot(make_owner(status=first.status), nodes, config_map=OURS), NOW.replace(hour=23))
    assert again == Plan(status=first.status)


def test_a_joining_node_turns_ready_but_never_available() -> None:
    plan = plan_of(make_snapshot(make_owner(status=READY_STATUS), (A, B, C), config_map=OURS))
    assert is_true(plan, "Available")
    assert reasons(plan)["Ready"] == "Staging"
    assert job_nodes(plan) == ["node-c"]


def test_a_rebooted_node_no_longer_counts_and_loses_its_label() -> None:
    rebooted = make_node("node-a", boot_id="boot-2", labels={**A.labels, LABEL: "a" * 40})
    status = make_status({"node-a": make_entry(A)}, make_revision())
    plan = plan_of(make_snapshot(make_owner(status=status), (rebooted,), config_map=OURS))
    assert plan.label_nodes == {"node-a": {LABEL: None}}
    assert not is_true(plan, "Available")
    assert job_nodes(plan) == ["node-a"]


def test_an_edited_spec_breaks_nothing_that_runs() -> None:
    spec = make_spec(source={"hostPath": {"path": "/models/next"}})
    nodes = tuple(make_node(name, labels={**A.labels, LABEL: "a" * 40}) for name in ("node-a", "node-b"))
    plan = plan_of(make_snapshot(make_owner(spec, READY_STATUS, generation=4), nodes, config_map=OURS))
    assert plan.status.published == make_revision()
    assert is_true(plan, "Available")
    assert not is_true(plan, "Ready")
    assert plan.label_nodes == {}
    assert plan.config_map is None


def test_the_next_checkpoint_replaces_the_former_once_enough_nodes_proved_it() -> None:
    spec = make_spec(source={"hostPath": {"path": "/models/next"}}, placement={"minAvailableNodes": 2})
    one = plan_of(with_spec(spec, A, B, status=READY_STATUS, jobs=(complete_job(A, spec, manifestDigest=DIGEST_B),)))
    assert one.status.published == make_revision()
    assert one.status.candidate is not None
    assert one.status.candidate.manifest_digest == DIGEST_B
    assert is_true(one, "Available"), "the former one is still at its own path"
    assert one.label_nodes == {
        "node-a": {LABEL: "a" * 40, LABEL_B: "b" * 40}, "node-b": {LABEL: "a" * 40},
    }  # fmt: skip
    jobs = (complete_job(B, spec, manifestDigest=DIGEST_B),)
    both = plan_of(with_spec(spec, A, B, status=one.status, jobs=jobs))
    assert both.status.published is not None
    assert (both.status.published.manifest_digest, both.status.published.path) == (DIGEST_B, "/models/next")
    assert is_true(both, "Available")
    assert both.label_nodes == {node: {LABEL: "a" * 40, LABEL_B: "b" * 40} for node in ("node-a", "node-b")}
    assert both.status.previous == (make_revision(superseded_at=rfc3339(NOW)),)


def test_the_same_checkpoint_at_another_path_keeps_since_when_it_is_published() -> None:
    spec = make_spec(source={"hostPath": {"path": "/models/moved"}})
    plan = plan_of(with_spec(spec, A, status=READY_STATUS, jobs=(complete_job(A, spec),)))
    published = plan.status.published
    assert published is not None
    assert (published.path, published.since) == ("/models/moved", rfc3339(ago(3600)))


def test_asking_for_fewer_nodes_publishes_what_they_hold_already() -> None:
    held_back = make_spec(placement={"minAvailableNodes": 2})
    before = plan_of(with_spec(held_back, A, B, jobs=(complete_job(A),)))
    assert before.status.published is None
    after = plan_of(with_spec(make_spec(), A, B, status=before.status))
    assert after.status.published is not None
    assert after.status.published.manifest_digest == DIGEST_A


def test_the_smallest_majority_wins_and_the_others_are_told() -> None:
    jobs = (complete_job(A), complete_job(B, manifestDigest=DIGEST_B), complete_job(C))
    plan = plan_of(make_snapshot(nodes=(A, B, C), jobs=jobs))
    assert plan.status.published is not None
    assert plan.status.published.manifest_digest == DIGEST_A
    assert states(plan)["node-b"] == ("Failed", "DigestMismatch")
    assert "copy the same checkpoint to all nodes" in plan.status.nodes["node-b"].message
    assert reasons(plan) == {"Available": "NodesStaged", "Ready": "DigestMismatch", "Stalled": "DigestMismatch"}


def test_in_a_tie_the_published_checkpoint_stays() -> None:
    status = make_status({"node-a": make_entry(A)}, make_revision())
    jobs = (complete_job(B, manifestDigest=DIGEST_B),)
    plan = plan_of(make_snapshot(make_owner(status=status), (A, B), jobs, OURS))
    assert plan.status.published == make_revision()
    assert states(plan) == {"node-a": ("Ready", "Staged"), "node-b": ("Failed", "DigestMismatch")}


def test_when_the_majority_turns_the_former_odd_one_is_ready() -> None:
    entries = {
        "node-a": make_entry(A),
        "node-b": make_entry(
            B, state="Failed", reason="DigestMismatch", manifest_digest=DIGEST_B, last_transition_time=RECENTLY
        ),
    }
    status = make_status(entries, make_revision())
    jobs = (complete_job(C, manifestDigest=DIGEST_B),)
    plan = plan_of(make_snapshot(make_owner(status=status), (A, B, C), jobs, OURS))
    assert {name: state for name, (state, _) in states(plan).items()} == {
        "node-a": "Failed",
        "node-b": "Ready",
        "node-c": "Ready",
    }
    assert is_true(plan, "Available")


# --- the ConfigMap ------------------------------------------------------------------------------------------------


def test_a_foreign_config_map_is_a_conflict_that_is_said_and_never_written() -> None:
    plan = plan_of(make_snapshot(make_owner(status=READY_STATUS), (A, B), config_map=THEIRS))
    assert plan.config_map is None
    assert reasons(plan) == {
        "Available": "NodesStaged", "Ready": "ConfigMapConflict", "Stalled": "ConfigMapConflict",
    }  # fmt: skip
    assert "team/llama exists and isn't the operator's" in message(plan)


def test_a_foreign_config_map_is_no_matter_before_anything_is_published() -> None:
    assert "ConfigMapConflict" not in reasons(plan_of(make_snapshot(nodes=(A,), config_map=THEIRS))).values()


@pytest.mark.parametrize(("existing", "written"), [(None, True), (replace(OURS, data={"a": "b"}), True), (OURS, False)])
def test_the_config_map_is_written_only_where_it_differs(existing: EngineConfigMap | None, written: bool) -> None:  # noqa: FBT001
    plan = plan_of(make_snapshot(make_owner(status=READY_STATUS), (A, B), config_map=existing))
    assert (plan.config_map is not None) == written
