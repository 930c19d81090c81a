"""A staging is tried on a few nodes first: when the others follow, and when they are left alone."""

from dataclasses import replace
from typing import Any

import pytest

from modelweights_operator.api import v1alpha1 as api
from modelweights_operator.domain import canary, names
from modelweights_operator.domain.clock import rfc3339
from modelweights_operator.domain.snapshot import ContainerState, Node, StagingJob
from tests.unit.domain.plans import A, B, C, job_nodes, message, plan_of, reasons, states, with_spec
from tests.unit.domain.samples import (
    COMMIT_A,
    DIGEST_A,
    DIGEST_B,
    ago,
    complete_job,
    digest_of,
    failed_job,
    failure_text,
    fetch_ended,
    make_claim_spec,
    make_entry,
    make_fetch_spec,
    make_job,
    make_node,
    make_pod,
    make_revision,
    make_spec,
    make_status,
    report_text,
)

D, E = make_node("node-d"), make_node("node-e")
ONE: dict[str, Any] = {"placement": {"canaryNodes": 1}}
CLAIM = make_claim_spec(**ONE)
OWN_FILES = make_spec(**ONE)
HUB = make_fetch_spec(**ONE)
PIN = api.Status(source=api.SourceStatus(digest=names.source_digest(HUB), revision=COMMIT_A))
BAD = failure_text("BadHeader", 30, "a.safetensors: short")


def running(node: Node, spec: api.Spec, *steps: str, **changes: Any) -> StagingJob:
    """A Job whose steps ended well but for the last, which runs."""
    ended = [ContainerState(step, exit_code=0, message="{}") for step in steps[:-1]]
    return make_job(node, spec, pods=(make_pod(*ended, ContainerState(steps[-1])),), **changes)


def bad_entry(node: Node, spec: api.Spec, seconds_ago: float = 5, **changes: Any) -> api.NodeStatus:
    fields = {
        "state": "Failed",
        "reason": "BadHeader",
        "message": "a.safetensors: short",
        "exit_code": 30,
        "attempts": 1,
        "manifest_digest": "",
        "boot_id": "",
        "last_transition_time": rfc3339(ago(seconds_ago)),
    }
    return make_entry(node, spec, **{**fields, **changes})


@pytest.mark.parametrize(
    ("placement", "expected"),
    [
        ({}, ["node-a"]),
        ({"canaryNodes": 2}, ["node-a", "node-b"]),
        ({"canaryNodes": 0}, ["node-a", "node-b", "node-c"]),
        ({"canaryNodes": 0, "maxConcurrentNodes": 2}, ["node-a", "node-b"]),
        ({"canaryNodes": 3, "maxConcurrentNodes": 1}, ["node-a"]),
    ],
)
def test_so_many_nodes_try_first(placement: dict[str, int], expected: list[str]) -> None:
    claim = {"persistentVolumeClaim": {"claimName": "weights", "path": "llama"}}
    spec = api.Spec.model_validate({"source": claim, "placement": placement})
    assert job_nodes(plan_of(with_spec(spec, A, B, C))) == expected


def test_who_waits_for_it_says_so_and_is_in_motion() -> None:
    plan = plan_of(with_spec(CLAIM, A, B))
    assert states(plan) == {"node-a": ("Staging", "Starting"), "node-b": ("Waiting", canary.WAITS)}
    assert plan.status.nodes["node-b"].message == "waits until a node has proven it: placement.canaryNodes is 1"
    assert reasons(plan)["Reconciling"] == "Staging"
    assert plan.status.proven_staging is None


@pytest.mark.parametrize(
    ("jobs", "expected"),
    [
        ((running(A, CLAIM, "prefetch"),), []),
        ((running(A, CLAIM, "prefetch", "validate"),), []),
        ((running(A, CLAIM, "prefetch", "validate", "report"),), ["node-b", "node-c"]),
        ((running(A, CLAIM, "prefetch", "validate", "tune"),), ["node-b", "node-c"]),
        ((complete_job(A, CLAIM),), ["node-b", "node-c"]),
        # Of a former spec, whatever it proved.
        ((running(A, make_claim_spec("other"), "prefetch", "validate", "report"),), []),
        # A later step that fails disproves nothing.
        ((make_job(A, CLAIM, state="Failed", finished_at=ago(1), pods=(make_pod(
            ContainerState("validate", exit_code=0), ContainerState("report", exit_code=10), phase="Failed"),)),),
         ["node-b", "node-c"]),
    ],
    ids=["reads", "validates", "validated", "measures the engine", "complete", "of a former spec", "failed after"],
)  # fmt: skip
def test_the_others_follow_once_the_step_validate_ended_well(jobs: tuple[StagingJob, ...], expected: list[str]) -> None:
    plan = plan_of(with_spec(CLAIM, A, B, C, jobs=jobs))
    assert job_nodes(plan) == expected
    assert bool(plan.status.proven_staging) == (len(expected) == 2)


def test_what_is_proven_stays_so_though_no_node_holds_it_any_more() -> None:
    """All nodes booted anew, and were replaced: nobody has to be first again."""
    proven = plan_of(with_spec(CLAIM, A, status=make_status({"node-a": make_entry(A, CLAIM)}))).status
    assert proven.proven_staging
    again = replace(with_spec(CLAIM, B, C, D, status=proven))
    assert job_nodes(plan_of(again)) == ["node-b", "node-c", "node-d"]
    edited = make_claim_spec(prefetch={"numThreads": 3}, **ONE)
    assert job_nodes(plan_of(with_spec(edited, B, C, D, status=proven))) == ["node-b"]


def test_another_revision_is_tried_anew() -> None:
    job = make_job(A, HUB, pods=(make_pod(fetch_ended(), ContainerState("validate", exit_code=0)),), revision=COMMIT_A)
    plan = plan_of(with_spec(HUB, A, B, C, status=PIN, jobs=(job,)))
    assert job_nodes(plan) == ["node-b", "node-c"]
    moved = (
        PIN.model_copy(update={"source": PIN.source.model_copy(update={"revision": "b" * 40})}) if PIN.source else PIN
    )
    noted = moved.model_copy(update={"proven_staging": plan.status.proven_staging})
    assert job_nodes(plan_of(with_spec(HUB, B, C, status=noted))) == ["node-b"]


def test_the_way_back_to_a_revision_that_was_proven_needs_no_canary() -> None:
    """Staged in the same way, and with a source that says which revision it is."""
    at = {"revision": COMMIT_A, "path": "/data/team/llama"}
    published = make_revision(DIGEST_B, **{**at, "revision": "b" * 40})
    former = make_revision(DIGEST_A, **at, superseded_at=rfc3339(ago(60)))
    entry = make_entry(D, HUB, manifest_digest=DIGEST_B, staging_digest="another", other_digests=(DIGEST_A,))

    def back(proven_staging: str) -> list[str]:
        known = former.model_copy(update={"proven_staging": proven_staging})
        changes = {"published": published, "previous": (known,), "nodes": {"node-d": entry}}
        return job_nodes(plan_of(with_spec(HUB, A, B, C, D, status=PIN.model_copy(update=changes))))

    assert back(names.short_hash(digest_of(HUB), COMMIT_A)) == ["node-a", "node-b", "node-c", "node-d"]
    assert back("") == back("of another validation") == ["node-a"]


def test_a_published_revision_notes_by_which_staging_it_was_proven_and_so_does_a_former_one() -> None:
    job = make_job(A, HUB, state="Complete", result=report_text(revision=COMMIT_A), revision=COMMIT_A)
    first = plan_of(with_spec(HUB, A, status=PIN, jobs=(job,))).status
    key = names.short_hash(digest_of(HUB), COMMIT_A)
    assert first.published is not None
    assert (first.published.revision, first.published.proven_staging) == (COMMIT_A, key)


def test_files_at_a_path_are_tried_first_again_though_others_were_proven_there() -> None:
    known = make_revision(DIGEST_B, proven_staging=names.short_hash(digest_of(CLAIM), ""))
    status = make_status({}).model_copy(update={"published": known})
    assert job_nodes(plan_of(with_spec(CLAIM, B, C, D, status=status))) == ["node-b"]


def test_until_the_revision_is_known_one_looks_and_then_tries_alone() -> None:
    assert job_nodes(plan_of(with_spec(HUB, A, B, C))) == ["node-a"]
    fetching = make_job(A, HUB, pods=(make_pod(fetch_ended(), ContainerState("prefetch")),))
    assert job_nodes(plan_of(with_spec(HUB, A, B, C, status=PIN, jobs=(fetching,)))) == []


# --- failures -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", [CLAIM, HUB], ids=["claim", "hub"])
def test_a_bad_checkpoint_stops_the_rest_and_is_said(spec: api.Spec) -> None:
    status = PIN if spec is HUB else None
    plan = plan_of(
        with_spec(spec, A, B, C, status=status, jobs=(failed_job(A, spec=spec, text=BAD, revision=COMMIT_A),))
    )
    assert plan.create_jobs == ()
    assert states(plan) == {
        "node-a": ("Failed", "BadHeader"), "node-b": ("Waiting", canary.WAITS), "node-c": ("Waiting", canary.WAITS)
    }  # fmt: skip
    assert plan.status.nodes["node-b"].message == "isn't tried while node-a finds the checkpoint itself bad"
    assert reasons(plan)["Stalled"] == "CanaryFailed"
    assert message(plan) == (
        "0 of 3 node(s) ready; node-a tried it first and found the checkpoint itself bad: BadHeader: a.safetensors: short; "
        "2 other node(s) aren't tried. Mend the source or the spec; it is tried there again every 10 minutes, and at once "
        "with the annotation modelweights.io/retry-now"
    )
    assert [event.reason for event in plan.events if event.kind == "Warning"] == ["CanaryFailed", "BadHeader"]


@pytest.mark.parametrize(
    ("reason", "exit_code"), [("Unreachable", 10), ("NoRoom", 40), ("Forbidden", 20), ("OOMKilled", 137)]
)
def test_after_any_other_failure_the_next_node_is_tried(reason: str, exit_code: int) -> None:
    plan = plan_of(with_spec(CLAIM, A, B, C, jobs=(failed_job(A, spec=CLAIM, text=failure_text(reason, exit_code)),)))
    assert job_nodes(plan) == ["node-b"]
    assert "Stalled" not in reasons(plan)


@pytest.mark.parametrize(("failed", "expected"), [(1, ["node-b"]), (2, ["node-c"]), (3, [])])
def test_files_of_each_nodes_own_are_bad_everywhere_once_three_nodes_say_so(failed: int, expected: list[str]) -> None:
    nodes = (A, B, C, D, E)
    entries = {node.name: bad_entry(node, OWN_FILES) for node in nodes[:failed]}
    plan = plan_of(with_spec(OWN_FILES, *nodes, status=make_status(entries)))
    assert job_nodes(plan) == expected
    assert ("CanaryFailed" in reasons(plan).values()) == (failed == 3)


def test_a_single_node_says_what_is_wrong_with_it() -> None:
    """There is no rest that could be stopped."""
    plan = plan_of(with_spec(CLAIM, A, jobs=(failed_job(A, spec=CLAIM, text=BAD),)))
    assert reasons(plan)["Stalled"] == "BadHeader"


def test_a_bad_node_among_proven_ones_stops_nobody() -> None:
    entries = {"node-a": make_entry(A, CLAIM), "node-b": bad_entry(B, CLAIM)}
    plan = plan_of(with_spec(CLAIM, A, B, C, status=make_status(entries)))
    assert job_nodes(plan) == ["node-c"]
    assert "CanaryFailed" not in reasons(plan).values()


def test_the_node_that_found_it_bad_tries_again_before_all_others() -> None:
    due = make_status(
        {"node-a": make_entry(A, CLAIM, state="Waiting", manifest_digest=""), "node-c": bad_entry(C, CLAIM, 601)}
    )
    plan = plan_of(with_spec(CLAIM, A, B, C, status=due))
    assert job_nodes(plan) == ["node-c"]
    assert "Stalled" not in reasons(plan)
    tries = make_job(C, CLAIM, round=1, pods=(make_pod(ContainerState("validate")),))
    assert job_nodes(plan_of(with_spec(CLAIM, A, B, C, status=plan.status, jobs=(tries,)))) == []


def test_a_mended_spec_is_tried_anew_at_once() -> None:
    mended = make_claim_spec("better", **ONE)
    plan = plan_of(with_spec(mended, A, B, status=make_status({"node-a": bad_entry(A, CLAIM)})))
    assert job_nodes(plan) == ["node-a"]


def test_a_second_canary_that_still_runs_may_prove_it() -> None:
    spec = make_claim_spec(placement={"canaryNodes": 2})
    jobs = (failed_job(A, spec=spec, text=BAD), running(B, spec, "validate"))
    plan = plan_of(with_spec(spec, A, B, C, jobs=jobs))
    assert (plan.create_jobs, reasons(plan)["Reconciling"]) == ((), "Staging")
    proves = running(B, spec, "validate", "report")
    assert job_nodes(plan_of(with_spec(spec, A, B, C, jobs=(jobs[0], proves)))) == ["node-c"]


def test_one_that_gets_nowhere_keeps_nobody_from_trying() -> None:
    image = ContainerState("prefetch", waiting_reason="ImagePullBackOff")
    blocked = make_job(A, CLAIM, pods=(make_pod(image, phase="Pending"),))
    assert job_nodes(plan_of(with_spec(CLAIM, A, B, C, jobs=(blocked,)))) == ["node-b"]
    lost = replace(A, ready=False)
    assert job_nodes(plan_of(with_spec(CLAIM, lost, B, C, jobs=(running(A, CLAIM, "validate"),)))) == ["node-b"]


def test_the_hash_that_is_noted_belongs_to_staging_and_revision() -> None:
    entry = make_entry(A, CLAIM, manifest_digest=DIGEST_A)
    plan = plan_of(with_spec(CLAIM, A, status=make_status({"node-a": entry})))
    assert plan.status.proven_staging == names.short_hash(digest_of(CLAIM), "")
