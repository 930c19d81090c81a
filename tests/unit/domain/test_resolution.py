"""A source's revision is found out once: by one Job, noted before others are made, and never another under one source."""

from dataclasses import replace
from typing import Any

import pytest

from modelweights_operator.api import v1alpha1 as api
from modelweights_operator.domain import names, steps
from modelweights_operator.domain.snapshot import ContainerState, StagingJob, StorageClass
from tests.unit.domain.plans import A, B, C, job_nodes, plan_of, states, with_spec
from tests.unit.domain.samples import (
    COMMIT_A,
    COMMIT_B,
    DIGEST_A,
    DIGEST_B,
    POLICY,
    ago,
    complete_job,
    failed_job,
    failure_text,
    fetch_ended,
    make_claim_spec,
    make_entry,
    make_fetch_spec,
    make_job,
    make_pod,
    make_spec,
    make_status,
    report_text,
    resolve_ended,
)

SPEC = make_fetch_spec()
PINNED = api.SourceStatus(digest=names.source_digest(SPEC), revision=COMMIT_A)
WITH_PIN = api.Status(source=PINNED)
LISTED = f"sha256:{'c' * 64}"


def fetched(node: Any = A, revision: str = COMMIT_A, spec: api.Spec = SPEC, **changes: Any) -> StagingJob:
    """A Job whose step `fetch` has ended, and whose next one runs."""
    return make_job(node, spec, pods=(make_pod(fetch_ended(revision), ContainerState("prefetch")),), **changes)


def resolved(node: Any = A, revision: str = COMMIT_A, **changes: Any) -> StagingJob:
    """A Job whose step `resolve` has ended, and which fetches."""
    return make_job(node, SPEC, pods=(make_pod(resolve_ended(revision), ContainerState("fetch")),), **changes)


def noted(plan: Any) -> str:
    return plan.status.source.revision if plan.status.source else ""


# --- finding out --------------------------------------------------------------------------------------------------


def test_one_node_looks_and_the_others_wait() -> None:
    plan = plan_of(with_spec(SPEC, A, B, C))
    assert job_nodes(plan) == ["node-a"]
    assert states(plan)["node-b"] == ("Waiting", "Queued")
    assert "until the first node has found out" in plan.status.nodes["node-b"].message
    assert "modelweights.io/revision" not in plan.create_jobs[0]["metadata"]["annotations"]


def test_the_revision_is_noted_as_soon_as_fetch_ended_and_the_others_come_with_the_next_cycle() -> None:
    first = plan_of(with_spec(SPEC, A, B, jobs=(fetched(A),)))
    assert noted(first) == COMMIT_A
    assert first.status.source is not None
    assert first.status.source.described == f"hf://org/name at {COMMIT_A}"
    assert job_nodes(first) == []
    second = plan_of(with_spec(SPEC, A, B, status=first.status, jobs=(fetched(A),)))
    assert job_nodes(second) == ["node-b"]
    assert second.create_jobs[0]["metadata"]["annotations"]["modelweights.io/revision"] == COMMIT_A
    assert second.delete_jobs == ()


def test_it_is_noted_while_the_first_node_still_fetches() -> None:
    first = plan_of(with_spec(SPEC, A, B, C, jobs=(resolved(A),)))
    assert noted(first) == COMMIT_A
    assert first.status.source is not None
    assert first.status.source.described == f"hf://org/name at {COMMIT_A}"
    assert (states(first)["node-a"], job_nodes(first)) == (("Staging", "Fetching"), [])
    second = plan_of(with_spec(SPEC, A, B, C, status=first.status, jobs=(resolved(A),)))
    assert job_nodes(second) == ["node-b", "node-c"]
    assert second.delete_jobs == ()


def test_what_was_fetched_counts_more_than_what_was_resolved() -> None:
    pod = make_pod(resolve_ended(COMMIT_A), fetch_ended(COMMIT_B), ContainerState("prefetch"))
    job = make_job(A, SPEC, pods=(pod,))
    assert noted(plan_of(with_spec(SPEC, A, jobs=(job,)))) == COMMIT_B
    assert plan_of(with_spec(SPEC, A, status=WITH_PIN, jobs=(job,))).delete_jobs == (job.name,)


def test_resolving_is_said() -> None:
    job = make_job(A, SPEC, pods=(make_pod(ContainerState("resolve")),))
    plan = plan_of(with_spec(SPEC, A, B, jobs=(job,)))
    assert (states(plan)["node-a"], job_nodes(plan)) == (("Staging", "Resolving"), [])


@pytest.mark.parametrize(
    "pod",
    [
        make_pod(ContainerState("resolve")),
        make_pod(ContainerState("resolve", exit_code=10, message=failure_text())),
        make_pod(resolve_ended("main"), ContainerState("fetch")),
        make_pod(ContainerState("fetch")),
        make_pod(ContainerState("fetch", exit_code=10, message=failure_text())),
        make_pod(fetch_ended("not a commit"), ContainerState("prefetch")),
        make_pod(fetch_ended(f"{COMMIT_A}\n"), ContainerState("prefetch")),
        make_pod(ContainerState("fetch", exit_code=0, message="cut off {"), ContainerState("prefetch")),
        make_pod(ContainerState("prefetch", exit_code=0, message=fetch_ended().message)),
    ],
    ids=[
        "resolves",
        "failed to resolve",
        "no commit",
        "running",
        "failed",
        "no revision",
        "a newline",
        "cut off",
        "another step",
    ],
)
def test_nothing_else_is_taken_for_an_answer(pod: Any) -> None:
    plan = plan_of(with_spec(SPEC, A, B, jobs=(make_job(A, SPEC, pods=(pod,)),)))
    assert noted(plan) == ""
    assert job_nodes(plan) == []


def test_a_commit_in_the_spec_needs_no_finding_out() -> None:
    spec = make_fetch_spec({"huggingFace": {"repository": "org/name", "revision": COMMIT_B}})
    plan = plan_of(with_spec(spec, A, B))
    assert job_nodes(plan) == ["node-a", "node-b"]
    assert noted(plan) == COMMIT_B


@pytest.mark.parametrize("revision", [COMMIT_B[:39], COMMIT_B.upper(), f"{COMMIT_B}0", "main"])
def test_what_is_no_full_commit_is_found_out(revision: str) -> None:
    spec = make_fetch_spec({"huggingFace": {"repository": "org/name", "revision": revision}})
    assert job_nodes(plan_of(with_spec(spec, A, B))) == ["node-a"]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (make_spec(), False),
        (make_claim_spec(), False),
        (make_fetch_spec({"objectStore": {"url": "s3://b"}}), True),
        (make_claim_spec(storage={}), True),
        # Each node copies a folder of its own, whose files have times of their own.
        (make_spec(storage={}), False),
    ],
)
def test_which_sources_have_a_revision_for_all_nodes(spec: api.Spec, expected: bool) -> None:  # noqa: FBT001
    assert steps.needs_revision(spec) == expected
    assert len(plan_of(with_spec(spec, A, B)).create_jobs) == (1 if expected else 2)


def test_a_listing_of_a_bucket_is_a_revision() -> None:
    spec = make_fetch_spec({"objectStore": {"url": "s3://b"}})
    assert noted(plan_of(with_spec(spec, A, jobs=(fetched(A, LISTED, spec),)))) == LISTED


def test_another_source_is_found_out_anew() -> None:
    other = make_fetch_spec({"huggingFace": {"repository": "org/name", "revision": "v2"}})
    plan = plan_of(with_spec(other, A, B, status=WITH_PIN))
    assert noted(plan) == ""
    assert job_nodes(plan) == ["node-a"]


def test_other_settings_of_the_same_source_keep_its_revision() -> None:
    other = make_fetch_spec(prefetch={"numThreads": 2}, files={"exclude": ["x"]})
    plan = plan_of(with_spec(other, A, B, status=WITH_PIN))
    assert (noted(plan), job_nodes(plan)) == (COMMIT_A, ["node-a", "node-b"])


# --- trouble ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pods", "rejection"),
    [
        ((make_pod(scheduled=False, message="no room"),), ""),
        ((), "exceeded quota"),
        ((make_pod(ContainerState("fetch", waiting_reason="ErrImagePull")),), ""),
    ],
    ids=["unschedulable", "rejected", "no image"],
)
def test_a_node_on_which_nothing_moves_keeps_no_other_from_looking(pods: Any, rejection: str) -> None:
    job = make_job(A, SPEC, pods=pods, rejection=rejection)
    assert job_nodes(plan_of(with_spec(SPEC, A, B, C, jobs=(job,)))) == ["node-b"]


def test_after_three_failures_the_rest_needs_not_ask_too() -> None:
    text = failure_text("Gated", 20)
    jobs = tuple(failed_job(node, spec=SPEC, text=text) for node in (A, B))
    assert job_nodes(plan_of(with_spec(SPEC, A, B, C, jobs=jobs))) == ["node-c"]
    nodes = [replace(A, name=f"node-{letter}", uid=letter) for letter in "abcd"]
    jobs = tuple(failed_job(node, spec=SPEC, text=text) for node in nodes[:3])
    plan = plan_of(with_spec(SPEC, *nodes, jobs=jobs))
    assert job_nodes(plan) == []
    expected = "waits until one of node-a, node-b, node-c has found out which revision the source has: Gated"
    assert plan.status.nodes["node-d"].message == expected


@pytest.mark.parametrize(
    ("reason", "exit_code"), [("NoRoom", 40), ("NotWritable", 20), ("Locked", 10), ("OOMKilled", 137)]
)
def test_three_nodes_that_are_to_blame_themselves_keep_no_other_from_looking(reason: str, exit_code: int) -> None:
    nodes = [replace(A, name=f"node-{letter}", uid=letter) for letter in "abcd"]
    text = failure_text(reason, exit_code)
    jobs = tuple(failed_job(node, spec=SPEC, text=text) for node in nodes[:3])
    assert job_nodes(plan_of(with_spec(SPEC, *nodes, jobs=jobs))) == ["node-d"]


def test_a_node_that_was_lost_while_it_looked_keeps_no_other_from_looking() -> None:
    job = make_job(A, SPEC, pods=(make_pod(ContainerState("fetch")),))
    assert job_nodes(plan_of(with_spec(SPEC, A, B, jobs=(job,)))) == []
    assert job_nodes(plan_of(with_spec(SPEC, replace(A, ready=False), B, jobs=(job,)))) == ["node-b"]


def test_a_job_that_fetched_another_commit_is_replaced_and_never_ready() -> None:
    """Its pod was evicted and came again after the branch had moved."""
    job = complete_job(A, SPEC, manifestDigest=DIGEST_B)
    pod = replace(job.pods[0], containers=(fetch_ended(COMMIT_B), *job.pods[0].containers))
    plan = plan_of(with_spec(SPEC, A, status=WITH_PIN, jobs=(replace(job, pods=(pod,)),)))
    assert plan.delete_jobs == (job.name,)
    assert states(plan) == {"node-a": ("Waiting", "ReplacingJob")}


def test_a_pod_that_came_again_is_not_let_resolve_again() -> None:
    former = make_pod(fetch_ended(), name="x-1", phase="Failed", created_at=ago(50))
    again = make_pod(ContainerState("fetch"), name="x-2", created_at=ago(5))
    job = make_job(A, SPEC, pods=(former, again))
    assert plan_of(with_spec(SPEC, A, status=WITH_PIN, jobs=(job,))).delete_jobs == (job.name,)
    given = replace(job, revision=COMMIT_A)
    assert plan_of(with_spec(SPEC, A, status=WITH_PIN, jobs=(given,))).delete_jobs == ()


def test_a_pod_that_came_again_is_not_let_resolve_again_before_it_fetched() -> None:
    former = make_pod(resolve_ended(), ContainerState("fetch"), name="x-1", phase="Failed", created_at=ago(50))
    again = make_pod(ContainerState("resolve"), name="x-2", created_at=ago(5))
    job = make_job(A, SPEC, pods=(former, again))
    assert plan_of(with_spec(SPEC, A, status=WITH_PIN, jobs=(job,))).delete_jobs == (job.name,)


def failed_fetch(node: Any, reason: str, exit_code: int, **changes: Any) -> StagingJob:
    """A Job that resolved, and whose fetch failed."""
    failed = ContainerState("fetch", exit_code=exit_code, message=failure_text(reason, exit_code))
    job = failed_job(node, spec=SPEC, text=failure_text(reason, exit_code))
    return replace(job, pods=(make_pod(resolve_ended(), failed, phase="Failed"),), **changes)


@pytest.mark.parametrize(
    ("reason", "exit_code", "kept"),
    [("NoSafetensors", 30, False), ("SourceChanged", 20, False), ("WriteFailed", 10, True), ("NoRoom", 40, True)],
)
def test_a_revision_that_was_no_good_for_anybody_is_found_out_anew(reason: str, exit_code: int, *, kept: bool) -> None:
    """It was pinned before the fetch: somebody may still have been filling the source."""
    job = failed_fetch(A, reason, exit_code)
    first = plan_of(with_spec(SPEC, A, status=WITH_PIN, jobs=(job,)))
    assert states(first) == {"node-a": ("Failed", reason)}
    second = plan_of(with_spec(SPEC, A, B, C, status=first.status, jobs=(job,)))
    assert noted(second) == (COMMIT_A if kept else "")
    assert job_nodes(second) == (["node-b", "node-c"] if kept else ["node-b"])
    # The failed Job, which stays with its logs, doesn't bring it back.
    third = plan_of(with_spec(SPEC, A, status=second.status, jobs=(job,)))
    assert noted(third) == (COMMIT_A if kept else "")


def test_it_is_found_out_anew_also_where_nodes_still_hold_what_another_source_gave() -> None:
    held = make_entry(A, SPEC, state="Failed", reason="NoSafetensors", exit_code=30, attempts=1)
    published = api.Revision(manifest_digest=held.manifest_digest, path="/data/team/llama/old", revision=COMMIT_B)
    status = make_status({"node-a": held}, published).model_copy(update={"source": PINNED})
    assert noted(plan_of(with_spec(SPEC, A, status=status, jobs=(failed_fetch(A, "NoSafetensors", 30),)))) == ""


@pytest.mark.parametrize("published", [True, False])
def test_a_revision_that_a_node_holds_is_kept(published: bool) -> None:  # noqa: FBT001
    revision = (
        api.Revision(manifest_digest=DIGEST_A, path="/data/team/llama/x", revision=COMMIT_A) if published else None
    )
    nodes = {"node-a": make_entry(A, SPEC, state="Failed", reason="NoSafetensors", manifest_digest="", exit_code=30)}
    if not published:
        nodes["node-b"] = make_entry(B, SPEC)
    status = make_status(nodes, revision).model_copy(update={"source": PINNED})
    job = failed_fetch(A, "NoSafetensors", 30)
    assert noted(plan_of(with_spec(SPEC, A, B, status=status, jobs=(job,)))) == COMMIT_A


@pytest.mark.parametrize("given", [True, False])
def test_a_revision_that_another_node_still_fetches_is_kept(given: bool) -> None:  # noqa: FBT001
    failed = failed_fetch(A, "NoSafetensors", 30)
    other = make_job(B, SPEC, revision=COMMIT_A) if given else resolved(B)
    first = plan_of(with_spec(SPEC, A, B, status=WITH_PIN, jobs=(failed, other)))
    second = plan_of(with_spec(SPEC, A, B, status=first.status, jobs=(failed, other)))
    assert (noted(second), second.delete_jobs) == (COMMIT_A, ())


def test_two_that_looked_at_the_same_time_are_made_one() -> None:
    jobs = (fetched(A, COMMIT_A, created_at=ago(60)), fetched(B, COMMIT_B, created_at=ago(59)))
    plan = plan_of(with_spec(SPEC, A, B, jobs=jobs))
    assert noted(plan) == COMMIT_A
    assert plan.delete_jobs == (jobs[1].name,)


def test_a_lost_status_is_found_again_by_the_jobs() -> None:
    jobs = (make_job(B, SPEC, revision=COMMIT_A), fetched(A, COMMIT_B))
    plan = plan_of(with_spec(SPEC, A, B, jobs=jobs))
    assert noted(plan) == COMMIT_A
    assert plan.delete_jobs == (jobs[1].name,)


def test_a_result_without_a_revision_makes_nothing_ready() -> None:
    plan = plan_of(with_spec(SPEC, A, jobs=(complete_job(A, SPEC),)))
    assert states(plan) == {"node-a": ("Failed", "ResultLost")}


def test_a_bucket_that_changed_under_half_of_the_nodes_mixes_nothing_and_says_what_to_do() -> None:
    spec = make_fetch_spec({"objectStore": {"url": "s3://b"}}, placement={"minAvailableNodes": 1})
    pin = api.SourceStatus(digest=names.source_digest(spec), revision=LISTED)
    text = failure_text("SourceChanged", 20, "the listing of s3://b gives sha256:dd now")
    status = make_status({"node-a": make_entry(A, spec)}).model_copy(update={"source": pin})
    jobs = (replace(failed_job(B, spec=spec, text=text), revision=LISTED),)
    plan = plan_of(with_spec(spec, A, B, status=status, jobs=jobs))
    assert states(plan) == {"node-a": ("Ready", "Staged"), "node-b": ("Failed", "SourceChanged")}
    assert "delete and create the ModelWeights" in plan.status.nodes["node-b"].message
    assert noted(plan) == LISTED
    assert plan.status.published is not None
    assert plan.status.published.revision == LISTED
    assert {each.type: each.reason for each in plan.status.conditions} == {
        "Available": "NodesStaged",
        "Ready": "SourceChanged",
        "Stalled": "SourceChanged",
    }


# --- figures ------------------------------------------------------------------------------------------------------


def test_what_fetch_took_and_of_which_revision_it_was_is_in_the_status() -> None:
    job = complete_job(A, SPEC)
    pod = replace(job.pods[0], containers=(fetch_ended(), *job.pods[0].containers))
    plan = plan_of(with_spec(SPEC, A, status=WITH_PIN, jobs=(replace(job, pods=(pod,)),)))
    entry = plan.status.nodes["node-a"]
    assert (entry.state, entry.fetch_seconds, entry.fetched_bytes) == ("Ready", 2.5, 900)
    assert plan.status.published is not None
    assert plan.status.published.revision == COMMIT_A
    assert plan.status.published.path == f"/data/team/llama/{'a' * 64}"
    # What is noted on the Job is enough when its pod is gone.
    later = replace(job, pods=(), result=plan.record_results[job.name])
    again = plan_of(with_spec(SPEC, A, status=WITH_PIN, jobs=(later,)))
    assert again.status.nodes == plan.status.nodes


def test_a_published_checkpoint_keeps_its_path_until_all_nodes_have_it_at_the_new_one() -> None:
    old = make_fetch_spec()
    new = make_fetch_spec(storage={"class": "shared"})
    published = api.Revision(manifest_digest=DIGEST_A, path="/data/team/llama/old", revision=COMMIT_A)
    status = make_status({"node-a": make_entry(A, old), "node-b": make_entry(B, old)}, published)
    status = status.model_copy(update={"source": PINNED})
    job = replace(complete_job(A, new), revision=COMMIT_A, result=report_text(revision=COMMIT_A))
    half = plan_of(with_spec(new, A, B, status=status, jobs=(job,)))
    assert half.status.published is not None
    assert half.status.published.path == "/data/team/llama/old"
    other = replace(complete_job(B, new), revision=COMMIT_A, result=report_text(revision=COMMIT_A))
    whole = plan_of(with_spec(new, A, B, status=half.status, jobs=(other,)))
    assert whole.status.published is not None
    assert whole.status.published.path == f"claim:models/llama/{'a' * 64}"


def test_a_class_that_means_another_folder_now_is_staged_anew_and_nobody_is_sent_there_before() -> None:
    """The administrator changed the chart's storage.classes; the spec is the same, and only names the class."""
    published = api.Revision(manifest_digest=DIGEST_A, path="/data/team/llama/old", revision=COMMIT_A)
    status = make_status({"node-a": make_entry(A, SPEC)}, published).model_copy(update={"source": PINNED})
    moved = replace(POLICY, storage_classes=(StorageClass("nvme", root="/moved", is_default=True),))
    plan = plan_of(with_spec(SPEC, A, status=status, policy=moved))
    assert job_nodes(plan) == ["node-a"]
    assert plan.status.published is not None
    assert plan.status.published.path == "/data/team/llama/old"
    renamed = replace(POLICY, storage_classes=(StorageClass("fast", root="/data", is_default=True),))
    assert job_nodes(plan_of(with_spec(SPEC, A, status=status, policy=renamed))) == []


@pytest.mark.parametrize("revision", ["main", "--verify", COMMIT_A.upper(), f"{COMMIT_A} "])
def test_what_somebody_wrote_for_a_revision_is_found_out_anew(revision: str) -> None:
    status = api.Status(source=PINNED.model_copy(update={"revision": revision}))
    plan = plan_of(with_spec(SPEC, A, B, status=status))
    assert (noted(plan), job_nodes(plan)) == ("", ["node-a"])


def test_a_failed_job_stays_with_its_logs_when_another_node_found_the_revision() -> None:
    job = failed_job(A, spec=SPEC, text=failure_text())
    plan = plan_of(with_spec(SPEC, A, status=WITH_PIN, jobs=(job,)))
    assert (states(plan), plan.delete_jobs) == ({"node-a": ("Failed", "Unreachable")}, ())
    due = replace(job, finished_at=ago(11))
    assert plan_of(with_spec(SPEC, A, status=WITH_PIN, jobs=(due,))).delete_jobs == (job.name,)
