"""Why a staging failed or waits: one reason and one sentence, whoever says it; and how long until the next attempt."""

# ruff: noqa: FBT001 - a column of a table

from typing import Any

import pytest

from modelweights_operator.domain import failures, reports
from modelweights_operator.domain.failures import Failure, Progress
from modelweights_operator.domain.snapshot import ContainerState, StagingPod
from tests.unit.domain.samples import ago, failure_text, make_job, make_pod, report_text


@pytest.mark.parametrize(
    ("exit_code", "attempts", "expected"),
    [
        (10, 1, 10),
        (10, 2, 20),
        (10, 3, 40),
        (10, 5, 160),
        (10, 6, 600),
        (10, 10**9, 600),
        (1, 1, 10),
        (0, 0, 10),
        (2, 1, 600),
        (20, 1, 600),
        (30, 1, 600),
        (40, 1, 600),
        (137, 1, 10),
    ],
)
def test_back_off_doubles_and_is_long_at_once_where_repeating_is_in_vain(
    exit_code: int, attempts: int, expected: float
) -> None:
    assert failures.backoff_seconds(exit_code, attempts) == expected


def test_memory_that_was_too_little_is_so_again_and_a_kill_may_not_be() -> None:
    assert failures.backoff_seconds(137, 1, "OOMKilled") == 600
    assert failures.needs_someone(137, 1, "OOMKilled")
    assert failures.backoff_seconds(137, 1, "StepFailed") == 10
    assert not failures.needs_someone(137, 1, "StepFailed")


def ended(code: int, name: str = "validate", **fields: Any) -> ContainerState:
    return ContainerState(name, exit_code=code, **fields)


KILLED = ended(137, terminated_reason="OOMKilled")
EVICTED = make_pod(phase="Failed", reason="Evicted", message="the node was low on memory")


@pytest.mark.parametrize(
    ("pods", "job", "expected"),
    [
        ([make_pod(ended(30, message=failure_text("BadHeader", 30, "a.st: short")))], {}, Failure("BadHeader", "a.st: short", 30)),
        ([make_pod(ended(1, message="Traceback\n  boom"))], {}, Failure("StepFailed", "step validate ended with 1: Traceback boom", 1)),
        ([make_pod(ended(139))], {}, Failure("StepFailed", "step validate ended with 139: no output", 139)),
        ([EVICTED], {}, Failure("Evicted", "the node was low on memory", 10)),
        ([make_pod(reason="Evicted", name="p")], {}, Failure("Evicted", "pod p failed", 10)),
        ([make_pod(ended(137), reason="OutOfmemory", message="low")], {}, Failure("OutOfmemory", "low", 10)),
        ([make_pod(ended(1), reason="OutOfmemory")], {}, Failure("StepFailed", "step validate ended with 1: no output", 1)),
        ([], {"failure_reason": "PodFailurePolicy", "failure_message": "rule 1"}, Failure("PodFailurePolicy", "rule 1", 10)),
        ([], {"name": "j"}, Failure("JobFailed", "Job j failed", 10)),
        ([make_pod(ended(0), ended(40, message=failure_text("NoRoom", 40, "full")))], {}, Failure("NoRoom", "full", 40)),
    ],
)  # fmt: skip
def test_the_loader_is_believed_first_then_the_kubelet_then_the_job(
    pods: list[StagingPod], job: dict[str, Any], expected: Failure
) -> None:
    made = make_job(state="Failed", pods=tuple(pods), **job)
    assert failures.describe(made, failures.failed_report(made)) == expected


def test_a_step_killed_for_memory_says_which_limit_to_raise() -> None:
    found = failures.describe(make_job(state="Failed", pods=(make_pod(KILLED),)), "")
    assert (found.reason, found.exit_code) == ("OOMKilled", 137)
    assert "step validate was killed for memory: raise spec.staging.resources.limits.memory" in found.message


def test_a_report_kept_on_the_job_outlives_its_pod() -> None:
    found = failures.describe(make_job(state="Failed", pods=()), failure_text("Gone", 20, "no such folder"))
    assert found == Failure("Gone", "no such folder", 20)


def test_the_last_output_is_bounded() -> None:
    found = failures.describe(make_job(state="Failed", pods=(make_pod(ended(1, message="x" * 5000)),)), "")
    assert len(found.message) < 500


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        ([make_pod(ended(0, "report", message="text"))], "text"),
        ([make_pod(ended(1, "report", message="text"))], ""),
        ([make_pod(ended(0, "validate", message="text"))], ""),
        ([make_pod(ended(0, "report", message="old")), make_pod(ended(0, "report", message="new"))], "new"),
        ([], ""),
    ],
)
def test_only_the_report_of_a_step_that_ended_well_is_final(pods: list[StagingPod], expected: str) -> None:
    assert failures.final_report(make_job(state="Complete", pods=tuple(pods))) == expected


def waits(reason: str, message: str = "", image: str = "loader:1", name: str = "prefetch") -> ContainerState:
    return ContainerState(name, image=image, waiting_reason=reason, message=message)


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        ([], Progress("Starting", silent=True)),
        ([make_pod(scheduled=False)], Progress("Starting", silent=True)),
        ([make_pod(scheduled=False, message="0/3 nodes")], Progress("Unschedulable", "0/3 nodes")),
        ([make_pod(waits("PodInitializing"))], Progress("Starting", silent=True)),
        ([make_pod(waits("Waiting"), message="no such claim")], Progress("VolumeNotReady", "no such claim", blocked=True, silent=True)),
        ([make_pod(waits("ErrImagePull", "denied"))], Progress("ImagePullFailed", "image loader:1 can't be pulled: ErrImagePull: denied", blocked=True)),
        ([make_pod(waits("InvalidImageName"))], Progress("ImagePullFailed", "image loader:1 can't be pulled: InvalidImageName", blocked=True)),
        ([make_pod(waits("CreateContainerConfigError", "no secret"))], Progress("ContainerCreateFailed", "step prefetch can't start: CreateContainerConfigError: no secret", blocked=True)),
        ([make_pod(ContainerState("prefetch"))], Progress("Prefetching")),
        ([make_pod(ended(0, "prefetch"), ContainerState("validate"))], Progress("Validating")),
        ([make_pod(ended(0, "prefetch"), ended(0), ContainerState("report"))], Progress("Reporting")),
        ([make_pod(ContainerState("fetch"))], Progress("Fetching")),
        ([make_pod(ContainerState("sidecar"))], Progress("Staging")),
        ([make_pod(ContainerState("validate"), created_at=ago(9)), make_pod(ContainerState("prefetch"), created_at=ago(99))], Progress("Validating")),
        ([make_pod(ContainerState("validate"), deleting=True)], Progress("Starting", silent=True)),
        ([make_pod(ended(1), phase="Failed")], Progress("Starting", silent=True)),
    ],
)  # fmt: skip
def test_progress_is_that_of_the_youngest_living_pod(pods: list[StagingPod], expected: Progress) -> None:
    assert failures.progress(make_job(pods=tuple(pods))) == expected


def test_a_job_held_by_a_queue_waits_and_does_not_fail() -> None:
    found = failures.progress(make_job(suspended=True, rejection="x"))
    assert (found.reason, found.blocked) == ("JobSuspended", False)


def test_a_rejected_pod_blocks_with_the_words_of_who_rejected_it() -> None:
    found = failures.progress(make_job(rejection="exceeded quota: pods=0"))
    assert found == Progress("PodRejected", "exceeded quota: pods=0", blocked=True, silent=True)


def test_a_claim_that_keeps_a_pod_from_its_node_is_named() -> None:
    said = "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims."
    pod = make_pod(scheduled=False, message=said, claims=("weights",))
    assert failures.progress(make_job(pods=(pod,))) == Progress("ClaimNotReady", f"claim weights: {said}")
    assert failures.is_stuck(make_job(pods=(pod,)))


def test_what_else_the_scheduler_says_of_a_pod_with_a_claim_is_no_matter_of_the_claim() -> None:
    pod = make_pod(scheduled=False, message="0/3 nodes are available: 3 Insufficient cpu.", claims=("weights",))
    assert failures.progress(make_job(pods=(pod,))).reason == "Unschedulable"


def test_a_job_that_may_have_no_pod_says_what_to_do() -> None:
    found = failures.progress(make_job(parallelism=0))
    assert (found.reason, found.blocked) == ("JobPaused", True)
    assert "set it to 1, or delete the Job" in found.message


def test_the_last_eviction_is_told_and_those_of_a_drain_are_not_counted() -> None:
    drained = make_pod(phase="Failed", reason="Terminated")
    assert failures.evicted_repeatedly(make_job(pods=(EVICTED, EVICTED, drained))) is None
    latest = make_pod(phase="Failed", reason="Evicted", message="low on ephemeral-storage", created_at=ago(1))
    found = failures.evicted_repeatedly(make_job(pods=(EVICTED, latest, EVICTED, drained)))
    assert found is not None
    assert "evicted 3 staging pods in a row, the last one with: low on ephemeral-storage" in found.message
    assert failures.needs_someone(found.exit_code, 1, found.reason)


@pytest.mark.parametrize(("limit", "noted"), [(0, False), (1000, False), (2000, False), (999, True)])
def test_a_memory_limit_below_the_checkpoints_size_is_noted(limit: int, noted: bool) -> None:
    report = reports.parse(report_text(sizeBytes=1000))
    assert report is not None
    text = failures.memory_limit_note(make_job(pods=(make_pod(memory_limit_bytes=limit),)), report)
    assert bool(text) == noted
    assert not noted or "memory limit of 999 bytes" in text
