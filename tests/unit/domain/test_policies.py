"""The state machine of one node: each rule, in each state in which it can be met."""

# ruff: noqa: FBT001 - what hypothesis hands over

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelweights_operator.api.v1alpha1 import NodeStatus
from modelweights_operator.domain import failures, names, policies
from modelweights_operator.domain.clock import rfc3339
from modelweights_operator.domain.policies import NodeContext, NodeDecision
from modelweights_operator.domain.snapshot import ContainerState, Node, StagingJob, Taint
from tests.unit.domain.samples import (
    DIGEST_A,
    DIGEST_B,
    NOW,
    ago,
    complete_job,
    failed_job,
    failure_text,
    make_entry,
    make_job,
    make_node,
    make_pod,
    make_spec,
    report_text,
)

NODE = make_node()
STARVED = make_node(taints=(Taint("node.kubernetes.io/memory-pressure", "", "NoSchedule"),))
OTHER_SPEC = make_spec(prefetch={"numThreads": 99})
RUNNING = make_pod(ContainerState("prefetch"))
UNPULLED = make_pod(ContainerState("prefetch", image="loader:0", waiting_reason="ImagePullBackOff"))


def decide(
    entry: NodeStatus | None = None,
    *jobs: StagingJob,
    node: Node = NODE,
    suspended: bool = False,
) -> NodeDecision:
    digest = names.staging_digest(make_spec())
    context = NodeContext(node, digest, entry, jobs, suspended=suspended, now=NOW, loader_image="loader:1")
    return policies.decide(context)


def failed_entry(seconds_ago: float = 1, **changes: Any) -> NodeStatus:
    fields = {
        "state": "Failed",
        "reason": "Unreachable",
        "attempts": 1,
        "exit_code": 10,
        "manifest_digest": "",
        "boot_id": "",
        "last_transition_time": rfc3339(ago(seconds_ago)),
        **changes,
    }
    return make_entry(**fields)


@dataclass(frozen=True)
class Expected:
    """What a row says of the decision."""

    state: str
    reason: str
    wants_job: int | None = None
    deletes: int = 0
    finished: int = 0
    active: bool = False
    blocked: bool = False
    again: float | None = None
    attempts: int = 0


@dataclass(frozen=True)
class Row:
    """A state in which a node is found."""

    expected: Expected
    entry: NodeStatus | None = None
    jobs: tuple[StagingJob, ...] = ()
    node: Node = field(default_factory=make_node)
    suspended: bool = False


def waiting(reason: str, **fields: Any) -> Expected:
    return Expected("Waiting", reason, **fields)


TRANSIENT, PERMANENT = failure_text(), failure_text("BadHeader", 30)
MISMATCH: dict[str, Any] = {"state": "Failed", "reason": "DigestMismatch", "manifest_digest": DIGEST_B, "attempts": 0}
EVICTED = make_pod(phase="Failed", reason="Evicted", message="The node was low on resource: memory.")
PENDING = make_pod(
    scheduled=False, phase="Pending", message="0/3 nodes are available: too little CPU", created_at=ago(50)
)
CLAIMLESS = make_pod(
    scheduled=False, phase="Pending", claims=("weights",), message='persistentvolumeclaim "weights" not found',
    created_at=ago(121),
)  # fmt: skip
OLD_SPEC_JOB = make_job(spec=OTHER_SPEC, pods=(RUNNING,))
REBOOTED = make_node(boot_id="boot-2")

ROWS = {
    # --- no Job
    "a new node wants a Job": Row(waiting("Queued", wants_job=0)),
    "a node that isn't ready waits": Row(waiting("NodeNotReady"), node=make_node(ready=False)),
    "a cordoned node waits": Row(waiting("NodeCordoned"), node=make_node(cordoned=True)),
    "a node under pressure waits": Row(waiting("NodeUnderPressure"), node=STARVED),
    "a suspended object starts nothing": Row(waiting("Suspended"), suspended=True),
    "a Job removed by someone is made anew": Row(
        waiting("Queued", wants_job=2, attempts=2), entry=make_entry(state="Staging", attempts=2)
    ),
    # --- staged
    "a ready node is left alone": Row(Expected("Ready", "Staged"), entry=make_entry()),
    "a ready node stays so while it is not ready, cordoned and suspended": Row(
        Expected("Ready", "Staged"), entry=make_entry(), node=make_node(ready=False, cordoned=True), suspended=True
    ),
    "a ready node's good Job goes": Row(Expected("Ready", "Staged", finished=1), make_entry(), (complete_job(),)),
    "a good Job that goes already is not deleted twice": Row(
        Expected("Ready", "Staged"), make_entry(), (make_job(state="Complete", deleting=True),)
    ),
    "another spec stages again": Row(waiting("Queued", wants_job=0), entry=make_entry(spec=OTHER_SPEC)),
    "another spec forgets the attempts of the former": Row(
        waiting("Queued", wants_job=0), entry=failed_entry(spec=OTHER_SPEC, attempts=9)
    ),
    "a rebooted node is warmed again": Row(waiting("Queued", wants_job=0), entry=make_entry(), node=REBOOTED),
    # --- a running Job
    "a running Job": Row(
        Expected("Staging", "Prefetching", active=True, again=30.0), entry=None, jobs=(make_job(pods=(RUNNING,)),)
    ),
    "a running Job goes on while suspended": Row(
        Expected("Staging", "Prefetching", active=True, again=30.0), jobs=(make_job(pods=(RUNNING,)),), suspended=True
    ),
    "a Job without a pod is looked at again for events": Row(
        Expected("Staging", "Starting", active=True, again=5.0), jobs=(make_job(),)
    ),
    "a Job whose pods are rejected is stuck": Row(
        Expected("Staging", "PodRejected", active=True, blocked=True, again=5.0), jobs=(make_job(rejection="quota"),)
    ),
    "a Job whose image can't be pulled is stuck": Row(
        Expected("Staging", "ImagePullFailed", active=True, blocked=True),
        jobs=(make_job(image="loader:1", pods=(UNPULLED,)),),
    ),
    "a Job whose image can't be pulled goes when another one is named": Row(
        waiting("ReplacingJob", active=True, deletes=1), jobs=(make_job(image="loader:0", pods=(UNPULLED,)),)
    ),
    "a Job that runs goes on with the image that it has": Row(
        Expected("Staging", "Prefetching", active=True, again=30.0), jobs=(make_job(image="loader:0", pods=(RUNNING,)),)
    ),
    "the attempts survive in the Job's round": Row(
        Expected("Staging", "Prefetching", active=True, attempts=3, again=30.0), None, (make_job(round=3, pods=(RUNNING,)),)
    ),
    "a Job that is being deleted still holds its place": Row(
        waiting("ReplacingJob", active=True), jobs=(make_job(deleting=True),)
    ),
    # --- what keeps a running Job from its node
    "a pod without a place is looked at again when it waited too long": Row(
        Expected("Staging", "Unschedulable", active=True, again=70.0),
        jobs=(make_job(started_at=ago(999), pods=(PENDING,)),),
    ),
    "after two minutes it stalls": Row(
        Expected("Staging", "Unschedulable", active=True, blocked=True),
        jobs=(make_job(started_at=ago(999), pods=(replace(PENDING, created_at=ago(120)),)),),
    ),
    "a claim that isn't there stalls likewise": Row(
        Expected("Staging", "ClaimNotReady", active=True, blocked=True),
        jobs=(make_job(started_at=ago(999), pods=(CLAIMLESS,)),),
    ),
    "a Job that gets no pod stalls too": Row(
        Expected("Staging", "Starting", active=True, blocked=True, again=5.0), jobs=(make_job(started_at=ago(120)),)
    ),
    "not one that a queue let go a moment ago": Row(
        Expected("Staging", "Starting", active=True, again=5.0), jobs=(make_job(created_at=ago(9999)),)
    ),
    "nor a pod whose image takes its time": Row(
        Expected("Staging", "Starting", active=True, again=5.0),
        jobs=(make_job(started_at=ago(999), pods=(make_pod(phase="Pending", created_at=ago(999)),)),),
    ),
    "a Job whose parallelism someone took is said": Row(
        Expected("Staging", "JobPaused", active=True, blocked=True), jobs=(make_job(parallelism=0),)
    ),
    "what a lost node began waits for it": Row(
        waiting("NodeNotReady", active=True), jobs=(make_job(pods=(RUNNING,)),), node=make_node(ready=False)
    ),
    "what a drained node began waits for its return": Row(
        waiting("NodeCordoned", active=True), jobs=(make_job(pods=(PENDING,)),), node=make_node(cordoned=True)
    ),
    "what was evicted waits for the end of the pressure": Row(
        waiting("NodeUnderPressure", active=True), jobs=(make_job(pods=(EVICTED, PENDING)),), node=STARVED
    ),
    "what runs on a node under pressure goes on": Row(
        Expected("Staging", "Prefetching", active=True, again=30.0), jobs=(make_job(pods=(RUNNING,)),), node=STARVED
    ),
    "what runs on a cordoned node goes on": Row(
        Expected("Staging", "Prefetching", active=True, again=30.0),
        jobs=(make_job(pods=(RUNNING,)),),
        node=make_node(cordoned=True),
    ),
    "two evictions are the Job controller's to mend": Row(
        Expected("Staging", "Prefetching", active=True, again=30.0), jobs=(make_job(pods=(EVICTED, EVICTED, RUNNING)),)
    ),
    "the third is a failure, since the Job itself would never end": Row(
        Expected("Failed", "EvictedRepeatedly", attempts=1, deletes=1, active=True, blocked=True, again=600.0),
        jobs=(make_job(pods=(EVICTED, EVICTED, EVICTED, RUNNING)),),
    ),
    "nothing is tried again soon after that": Row(
        Expected("Failed", "EvictedRepeatedly", attempts=1, blocked=True, again=599.0),
        failed_entry(1, reason="EvictedRepeatedly"),
    ),
    # --- edits and reboots in mid-run
    "the Job of a former spec ends first": Row(
        waiting("ReplacingJob", active=True, deletes=1), make_entry(state="Staging"), (OLD_SPEC_JOB,)
    ),
    "the Job of a former spec is waited for while it goes": Row(
        waiting("ReplacingJob", active=True), jobs=(make_job(spec=OTHER_SPEC, deleting=True),)
    ),
    "a good Job of a former spec is never published as the new": Row(
        waiting("ReplacingJob", active=True, deletes=1), jobs=(complete_job(spec=OTHER_SPEC),)
    ),
    "the Job of a former boot ends first": Row(
        waiting("ReplacingJob", active=True, deletes=1), jobs=(complete_job(),), node=REBOOTED
    ),
    "the Job of a former node of that name ends first": Row(
        waiting("ReplacingJob", active=True, deletes=1), jobs=(make_job(),), node=make_node(uid="uid-2")
    ),
    "back to the former spec in mid-run: its Job stays, the other goes": Row(
        Expected("Staging", "Prefetching", active=True, deletes=1, again=30.0),
        jobs=(OLD_SPEC_JOB, make_job(pods=(RUNNING,))),
    ),
    "of two rounds the later counts": Row(
        Expected("Staging", "Prefetching", active=True, deletes=1, attempts=1, again=30.0),
        jobs=(failed_job(text=TRANSIENT), make_job(round=1, pods=(RUNNING,))),
    ),
    # --- a good end
    "a good Job makes the node ready": Row(Expected("Ready", "Staged", finished=1), jobs=(complete_job(),)),
    "the last step's report counts before the Job controller has seen it": Row(
        Expected("Ready", "Staged", finished=1), jobs=(replace(complete_job(), state="Active"),)
    ),
    "a last report that can't be read counts once the Job has ended": Row(
        Expected("Staging", "Starting", active=True, again=5.0),
        jobs=(replace(complete_job(manifestDigest=""), state="Active"),),
    ),
    "a good end while suspended counts": Row(
        Expected("Ready", "Staged", finished=1), jobs=(complete_job(),), suspended=True
    ),
    "a report that was kept outlives the pod": Row(
        Expected("Ready", "Staged", finished=1), jobs=(make_job(state="Complete", result=report_text()),)
    ),
    "a lost report costs one more round": Row(
        Expected("Failed", "ResultLost", attempts=1, again=9.0), jobs=(make_job(state="Complete", finished_at=ago(1)),)
    ),
    "a report without a digest counts as lost": Row(
        Expected("Failed", "ResultLost", attempts=1, again=9.0), jobs=(complete_job(manifestDigest=""),)
    ),
    # --- failure
    "a failure is counted and its Job kept": Row(
        Expected("Failed", "Unreachable", attempts=1, again=9.0), jobs=(failed_job(text=TRANSIENT),)
    ),
    "the third failure waits longer": Row(
        Expected("Failed", "Unreachable", attempts=3, again=39.0), jobs=(failed_job(text=TRANSIENT, round=2),)
    ),
    "the sixth failure stalls": Row(
        Expected("Failed", "Unreachable", attempts=6, blocked=True, again=599.0),
        jobs=(failed_job(text=TRANSIENT, round=5),),
    ),
    "a bad checkpoint stalls at once": Row(
        Expected("Failed", "BadHeader", attempts=1, blocked=True, again=599.0), jobs=(failed_job(text=PERMANENT),)
    ),
    "after the back-off the failed Job goes first": Row(
        Expected("Failed", "Unreachable", attempts=1, deletes=1, active=True),
        jobs=(failed_job(text=TRANSIENT, finished_seconds_ago=11),),
    ),
    "a failed Job that goes keeps what it said": Row(
        Expected("Failed", "Unreachable", attempts=1, active=True),
        failed_entry(11),
        (failed_job(text=TRANSIENT, finished_seconds_ago=11, deleting=True),),
    ),
    "then comes the next round": Row(waiting("Queued", wants_job=1, attempts=1), failed_entry(11)),
    "a failed Job removed by someone does not cut the back-off short": Row(
        Expected("Failed", "Unreachable", attempts=1, again=9.0), failed_entry(1)
    ),
    "a permanent failure stays stalled without its Job": Row(
        Expected("Failed", "BadHeader", attempts=1, blocked=True, again=599.0),
        failed_entry(1, reason="BadHeader", exit_code=30),
    ),
    "after a failure a cordoned node waits": Row(
        waiting("NodeCordoned", attempts=1), failed_entry(11), node=make_node(cordoned=True)
    ),
    "after a failure a node under pressure waits": Row(
        waiting("NodeUnderPressure", attempts=1), failed_entry(11), node=STARVED
    ),
    "a failed node of a suspended object rests, and nobody looks each second": Row(
        Expected("Failed", "Unreachable", attempts=1), failed_entry(11), suspended=True
    ),
    "a failed Job of a suspended object rests likewise": Row(
        Expected("Failed", "Unreachable", attempts=1),
        jobs=(failed_job(text=TRANSIENT, finished_seconds_ago=11),),
        suspended=True,
    ),
    "a rebooted node forgets no failure of this spec": Row(
        Expected("Failed", "Unreachable", attempts=1, again=9.0), failed_entry(1), node=REBOOTED
    ),
    # --- another checkpoint than the other nodes'
    "a node with other files is looked at again after ten minutes": Row(
        Expected("Failed", "DigestMismatch", again=599.0),
        make_entry(**MISMATCH, last_transition_time=rfc3339(ago(1))),
    ),
    "then it is staged again": Row(
        waiting("Queued", wants_job=1, attempts=1), make_entry(**MISMATCH, last_transition_time=rfc3339(ago(601)))
    ),
    "not while suspended, and nobody looks each second": Row(
        Expected("Failed", "DigestMismatch"),
        make_entry(**MISMATCH, last_transition_time=rfc3339(ago(601))),
        suspended=True,
    ),
    "not while its node is under pressure": Row(
        Expected("Failed", "DigestMismatch"),
        make_entry(**MISMATCH, last_transition_time=rfc3339(ago(601))),
        node=STARVED,
    ),
    "not while its node is cordoned": Row(
        Expected("Failed", "DigestMismatch"),
        make_entry(**MISMATCH, last_transition_time=rfc3339(ago(601))),
        node=make_node(cordoned=True),
    ),
}  # fmt: skip


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_decision(row: Row) -> None:
    found = decide(row.entry, *row.jobs, node=row.node, suspended=row.suspended)
    assert row.expected == Expected(
        state=found.entry.state,
        reason=found.entry.reason,
        wants_job=found.wants_job,
        deletes=len(found.delete_jobs),
        finished=len(found.finished_jobs),
        active=found.active,
        blocked=found.blocked,
        again=found.again_after_seconds,
        attempts=found.entry.attempts,
    )


def test_the_entry_of_a_good_job() -> None:
    assert decide(None, complete_job()).entry == NodeStatus.model_validate(
        {
            "state": "Ready",
            "reason": "Staged",
            "stagingDigest": names.staging_digest(make_spec()),
            "manifestDigest": DIGEST_A,
            "bootID": "boot-node-a",
            "residentBytes": 990,
            "prefetchBytesPerSecond": 123,
            "loadSeconds": 1.235,
            "lastTransitionTime": rfc3339(NOW),
        }
    )


@pytest.mark.parametrize("job", [complete_job(), failed_job(text=TRANSIENT)], ids=["good", "failed"])
def test_a_report_is_copied_to_its_job_once(job: StagingJob) -> None:
    text = job.pods[0].containers[0].message
    assert decide(None, job).record == (job.name, text)
    kept = make_job(state=job.state, finished_at=job.finished_at, result=text)
    assert decide(None, kept).record is None
    assert decide(None, kept).entry == decide(None, job).entry


def test_a_limit_that_evicts_what_was_warmed_is_said_of_a_ready_node() -> None:
    end = ContainerState("report", exit_code=0, message=report_text())
    job = make_job(state="Complete", finished_at=ago(1), pods=(make_pod(end, memory_limit_bytes=10),))
    assert "memory limit of 10 bytes" in decide(None, job).entry.message


def test_what_a_node_holds_is_kept_while_it_is_staged_anew() -> None:
    found = decide(make_entry(spec=OTHER_SPEC), make_job(pods=(RUNNING,)))
    assert found.entry.state == "Staging"
    assert policies.holds(found.entry, NODE)
    assert found.entry.manifest_digest == DIGEST_A


def test_a_rebooted_node_holds_nothing() -> None:
    assert not policies.holds(make_entry(), REBOOTED)
    assert decide(make_entry(), node=REBOOTED).entry.manifest_digest == ""


def test_that_a_node_had_it_before_its_boot_is_noted_until_it_is_proven_anew() -> None:
    """Also by an operator that has just started, and over one boot after the other."""
    waits = decide(make_entry(), node=REBOOTED).entry
    assert waits.proven_before
    again = make_node(boot_id="boot-3")
    assert decide(decide(waits, node=again).entry, node=again).entry.proven_before
    proven = decide(waits, make_job(node=REBOOTED, state="Complete", result=report_text()), node=REBOOTED).entry
    assert (proven.state, proven.proven_before) == ("Ready", False)
    assert not decide(make_entry(spec=OTHER_SPEC), node=REBOOTED).entry.proven_before
    assert not decide(failed_entry(), node=REBOOTED).entry.proven_before
    assert not decide(make_entry(spec=OTHER_SPEC), make_job(pods=(RUNNING,))).entry.proven_before


def test_the_time_of_the_transition_stays_while_a_node_is_staged() -> None:
    before = make_entry(state="Staging", reason="Starting", last_transition_time=rfc3339(ago(77)))
    assert decide(before, make_job(pods=(RUNNING,))).entry.last_transition_time == rfc3339(ago(77))


def test_the_back_off_runs_from_the_end_of_the_job_and_not_from_when_it_was_seen() -> None:
    assert decide(None, failed_job(text=TRANSIENT, finished_seconds_ago=8)).again_after_seconds == 2.0


nodes = st.builds(
    make_node, st.just("node-a"), boot_id=st.sampled_from(["boot-node-a", "boot-2"]),
    ready=st.booleans(), cordoned=st.booleans(), taints=st.sampled_from([(), STARVED.taints]),
)  # fmt: skip
some_jobs = st.lists(
    st.builds(
        make_job,
        spec=st.sampled_from([make_spec(), OTHER_SPEC]),
        round=st.integers(0, 3),
        state=st.sampled_from(["Active", "Complete", "Failed"]),
        finished_at=st.sampled_from([ago(1), ago(1000)]),
        deleting=st.booleans(),
        result=st.sampled_from(["", report_text(), TRANSIENT, PERMANENT]),
    ),
    max_size=3,
    unique_by=lambda job: job.name,
)
entries = st.none() | st.builds(
    make_entry,
    spec=st.sampled_from([make_spec(), OTHER_SPEC]),
    state=st.sampled_from(["Waiting", "Staging", "Ready", "Failed"]),
    reason=st.sampled_from(["Staged", "DigestMismatch", "BadHeader"]),
    exit_code=st.sampled_from([0, 10, 30]),
    attempts=st.integers(0, 8),
    last_transition_time=st.sampled_from([rfc3339(ago(1)), rfc3339(ago(1000)), "", "never"]),
)


@given(entries, some_jobs, nodes, st.booleans())
def test_never_two_jobs_for_a_node_at_once(
    entry: NodeStatus | None, jobs: list[StagingJob], node: Node, suspended: bool
) -> None:
    found = decide(entry, *jobs, node=node, suspended=suspended)
    if found.wants_job is not None:
        assert not jobs
        assert node.ready
        assert not node.cordoned
        assert not node.pressure
        assert not suspended
    gone = {*found.delete_jobs, *found.finished_jobs}
    staying = [job for job in jobs if job.name not in gone and not job.deleting]
    assert len(staying) <= 1
    assert not gone & {job.name for job in jobs if job.deleting}


@given(entries, some_jobs, nodes, st.booleans())
def test_only_a_proof_makes_a_node_ready(
    entry: NodeStatus | None, jobs: list[StagingJob], node: Node, suspended: bool
) -> None:
    found = decide(entry, *jobs, node=node, suspended=suspended).entry
    if found.state == "Ready":
        assert found.staging_digest == names.staging_digest(make_spec())
        assert found.boot_id == node.boot_id
        assert found.manifest_digest == DIGEST_A


@given(entries, some_jobs, nodes)
def test_nothing_is_looked_at_again_at_once(entry: NodeStatus | None, jobs: list[StagingJob], node: Node) -> None:
    again = decide(entry, *jobs, node=node).again_after_seconds
    assert again is None or 1.0 <= again <= failures.LONG_BACKOFF_SECONDS


@pytest.mark.parametrize("time", ["9999-12-31T23:59:59Z", "0001-01-01T00:00:00Z", rfc3339(ago(-3600))])
def test_a_wait_that_began_in_the_far_future_is_over(time: str) -> None:
    """By a wrong clock or a wrong hand: the node would wait for ever."""
    assert decide(failed_entry(last_transition_time=time)).wants_job == 1


def test_a_job_that_ended_ahead_of_our_clock_is_waited_out_from_now() -> None:
    decision = decide(None, failed_job(text=failure_text(), finished_seconds_ago=-3600))
    assert decision.entry.last_transition_time == rfc3339(NOW)
    assert (decision.delete_jobs, decision.again_after_seconds) == ((), 10.0)
