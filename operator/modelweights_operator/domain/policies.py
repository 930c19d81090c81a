"""Where one node stands and what is to be done about it. Called by `plan` for each node; pure.

    (no Job) --slot free--> Staging --Complete--> Ready --other spec or boot--> (no Job)
        ^                      |
        |                      +----Failed-----> Failed --back-off over: delete the Job--> (no Job, next round)

Each decision is a function that answers, or leaves it to the next one; `decide` reads as the order of the rules.
A node *holds* a checkpoint when it proved one under its present boot, whatever is under way there since.
"""

from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from modelweights_operator.api.v1alpha1 import NodeStatus
from modelweights_operator.domain import failures, holdings, leftovers, percent, reports, steps, waits
from modelweights_operator.domain.clock import parse_time, rfc3339
from modelweights_operator.domain.snapshot import Node, StagingJob

# Reasons of a node that waits.
QUEUED: Final = "Queued"
SUSPENDED: Final = "Suspended"
NODE_NOT_READY: Final = "NodeNotReady"
NODE_CORDONED: Final = "NodeCordoned"
NODE_UNDER_PRESSURE: Final = "NodeUnderPressure"
REPLACING: Final = "ReplacingJob"
DIGEST_MISMATCH: Final = "DigestMismatch"
RESIDENCY_LOST: Final = "ResidencyLost"
"""Proven and on disk, but too much of it has left the page cache, and a refresh didn't bring it back."""
JOB_REFUSED: Final = "JobRefused"
STAGED: Final = "Staged"


@dataclass(frozen=True)
class NodeContext:
    """All that the decision about one node depends on.

    `entry` is what the status says of it so far, `refusal` why the API server refused its Job a moment ago,
    `loader_image` with what a Job would be made now, `foreign_jobs` the Jobs that fetch another revision than is wanted.
    `unresolved`: the source's revision is needed and not known, not even by these Jobs. `volume_image` is the image that
    Jobs must mount as a volume, `pull_secrets` with which pull secrets they would be made now, `places` where checkpoints lie.
    Failures up to `retry_at` wait no longer. `room_missing`: why nothing goes for a fetch that found no room.
    """

    node: Node
    staging_digest: str
    entry: NodeStatus | None
    jobs: tuple[StagingJob, ...]
    suspended: bool
    now: datetime
    refusal: str = ""
    loader_image: str = ""
    foreign_jobs: frozenset[str] = frozenset()
    unresolved: bool = False
    volume_image: str = ""
    pull_secrets: str = ""
    places: holdings.Places = field(default_factory=holdings.Places)
    retry_at: datetime | None = None
    room_missing: str = ""


@dataclass(frozen=True)
class NodeDecision:
    """The node's new entry, and what is to be done.

    Attributes:
        entry: What the status will say.
        wants_job: A Job should be created when the caps let it, with this many failed attempts before it.
        delete_jobs: Names of Jobs to delete.
        finished_jobs: Names of good Jobs to delete once their result is in the status.
        record: Name of a Job to which this report is to be copied first.
        report: The report from which the entry was made Ready, in this cycle.
        active: A Job runs on the node.
        blocked: Nothing moves on this node until someone acts or a long back-off ends.
        again_after_seconds: Look again after this time even if nothing happens.
    """

    entry: NodeStatus
    wants_job: int | None = None
    delete_jobs: tuple[str, ...] = ()
    finished_jobs: tuple[str, ...] = ()
    record: tuple[str, str] | None = None
    report: reports.Report | None = None
    active: bool = False
    blocked: bool = False
    again_after_seconds: float | None = None


def holds(entry: NodeStatus | None, node: Node) -> bool:
    """Whether the node holds a proven checkpoint under its present boot."""
    return entry is not None and bool(entry.manifest_digest) and entry.boot_id == node.boot_id


def is_staged(entry: NodeStatus) -> bool:
    """Whether it was staged as the spec asks and is what most nodes have, be it that its pages were lost since."""
    return entry.state == "Ready" or entry.reason == RESIDENCY_LOST


def has_proof(entry: NodeStatus) -> bool:
    """Whether the entry tells of a proven checkpoint, be it another one than most nodes'."""
    return is_staged(entry) or entry.reason == DIGEST_MISMATCH


def is_proven(entry: NodeStatus | None, node: Node, staging_digest: str) -> bool:
    """Whether what the node holds was staged as the spec now asks. A mismatch with other nodes is no disproof."""
    return entry is not None and holds(entry, node) and entry.staging_digest == staging_digest and has_proof(entry)


def at_rest(entry: NodeStatus | None, node: Node, staging_digest: str) -> NodeDecision | None:
    """What `decide` says of a node without Jobs that is staged as it should be, as most nodes are: it stays as it is."""
    if entry is None or not is_proven(entry, node, staging_digest) or entry.reason == DIGEST_MISMATCH:
        return None
    return NodeDecision(entry)


def decide(context: NodeContext) -> NodeDecision:
    """Decide about one node."""
    stale, current = _split(context)
    decision = _settled(context, current) or _by_job(context, current) or _without_job(context, stale)
    if context.refusal and decision.wants_job is not None:
        decision = _refused(context, decision.wants_job)
    if not stale:
        return decision
    return replace(decision, delete_jobs=(*decision.delete_jobs, *(job.name for job in stale if not job.deleting)))


def _split(context: NodeContext) -> tuple[list[StagingJob], list[StagingJob]]:
    """Jobs of another spec, revision, boot or incarnation of the node, and those that count, the latest round first."""
    if not context.jobs:
        return [], []
    current = [
        job
        for job in context.jobs
        if job.staging_digest == context.staging_digest
        and job.boot_id == context.node.boot_id
        and job.node_uid == context.node.uid
        and job.name not in context.foreign_jobs
    ]
    current.sort(key=lambda job: job.round, reverse=True)
    return [job for job in context.jobs if job not in current], current


def _settled(context: NodeContext, current: list[StagingJob]) -> NodeDecision | None:
    """The status says that it is staged: that stands, whatever became of the Job."""
    entry = context.entry
    if entry is None or not is_proven(entry, context.node, context.staging_digest):
        return None
    due = _mismatch_due(context, entry)
    if due is not None and due <= 0 and _may_start(context) and not context.jobs:
        return NodeDecision(
            _entry(context, "Waiting", QUEUED, attempts=entry.attempts + 1), wants_job=entry.attempts + 1
        )
    over = tuple(job.name for job in current if not job.deleting)
    return NodeDecision(entry, finished_jobs=over, again_after_seconds=_later(due))


def _may_start(context: NodeContext) -> bool:
    return context.node.takes_pods and not context.suspended


def _later(seconds: float | None) -> float | None:
    """When to look again for a time that is to come. What is overdue waits for an event: a change of spec or node."""
    return max(seconds, 1.0) if seconds is not None and seconds > 0 else None


def _mismatch_due(context: NodeContext, entry: NodeStatus) -> float | None:
    """Seconds until a node whose files differ from the others' is staged again; None when they don't differ."""
    if entry.reason != DIGEST_MISMATCH:
        return None
    return _seconds_until(context, entry, failures.LONG_BACKOFF_SECONDS)


def _by_job(context: NodeContext, current: list[StagingJob]) -> NodeDecision | None:
    if not current:
        return None
    job = current[0]
    older = tuple(old.name for old in current[1:] if not old.deleting)
    if job.deleting:
        kept = _entry(context, "Waiting", REPLACING, "the staging Job is being deleted")
        if context.entry is not None and context.entry.state == "Failed":
            kept = context.entry
        return NodeDecision(kept, delete_jobs=older, active=True)
    if context.volume_image and not job.has_image_volume:
        dropped = failures.without_image_volume(context.volume_image)
        return replace(_given_up(context, job, dropped), delete_jobs=(job.name, *older))
    by_state = {"Complete": _completed, "Failed": _failed, "Active": _running}
    # The last step's report is the result; the Job controller says so a second or two later.
    early = reports.parse(failures.final_report(job))
    state = "Complete" if early is not None and early.manifest_digest else job.state
    decision = by_state[state](context, job)
    return replace(decision, delete_jobs=(*decision.delete_jobs, *older))


def _given_up(context: NodeContext, job: StagingJob, failure: failures.Failure) -> NodeDecision:
    """A Job that would run in vain, and may never end by itself, ends here."""
    attempts = job.round + 1
    entry = _entry(context, "Failed", failure.reason, failure.message, attempts=attempts, exit_code=failure.exit_code)
    again = failures.backoff_seconds(failure.exit_code, attempts, failure.reason)
    return NodeDecision(entry, delete_jobs=(job.name,), active=True, blocked=True, again_after_seconds=again)


def _completed(context: NodeContext, job: StagingJob) -> NodeDecision:
    text = job.result or reports.join(failures.final_report(job), failures.step_report(job, steps.FETCH))
    report = reports.parse(text)
    if report is None or not report.manifest_digest or context.unresolved:
        # The pod was collected before its report was read: what is staged is still there, so this costs seconds.
        failure = failures.Failure("ResultLost", "the staging pod went before its report was read", exit_code=10)
        return _failed_with(context, job, failure, text)
    beside = holdings.beside(holdings.held(context.entry, context.node), report.manifest_digest, context.places)
    entry = NodeStatus(
        state="Ready",
        reason=STAGED,
        staging_digest=context.staging_digest,
        manifest_digest=report.manifest_digest,
        other_digests=beside,
        boot_id=job.boot_id,
        resident_bytes=report.resident_bytes or 0,
        prefetch_bytes_per_second=round(report.prefetch_bytes_per_second or 0),
        load_seconds=round(report.load_seconds or 0, 3),
        fetch_seconds=round(report.fetch_seconds or 0, 3),
        fetched_bytes=report.fetched_bytes,
        message=failures.memory_limit_note(job, report),
        last_transition_time=rfc3339(context.now),
    )
    found = leftovers.seen(context.entry, report, (report.manifest_digest, *beside), context.now)
    entry = entry.model_copy(update=found)
    record = None if job.result else (job.name, text)
    return NodeDecision(entry, finished_jobs=(job.name,), record=record, report=report)


def _failed(context: NodeContext, job: StagingJob) -> NodeDecision:
    text = job.result or failures.failed_report(job)
    return _failed_with(context, job, failures.describe(job, text), text)


def _failed_with(context: NodeContext, job: StagingJob, failure: failures.Failure, text: str) -> NodeDecision:
    attempts = job.round + 1
    # In front of it: the loader's words may be as long as a message can be.
    missing = f"{context.room_missing}; " if failure.reason == reports.NO_ROOM and context.room_missing else ""
    entry = _entry(
        context,
        "Failed",
        failure.reason,
        missing + failure.message,
        attempts=attempts,
        exit_code=failure.exit_code,
        # The Job controller's clock may be ahead of ours.
        since=min(job.finished_at or context.now, context.now),
    ).model_copy(update={"disk_free_bytes": reports.disk_free_bytes(text)})
    backoff = failures.backoff_seconds(failure.exit_code, attempts, failure.reason)
    remaining = _seconds_until(context, entry, backoff)
    blocked = failures.needs_someone(failure.exit_code, attempts, failure.reason)
    if remaining <= 0 and not context.suspended:
        return NodeDecision(entry, delete_jobs=(job.name,), active=True, blocked=blocked)
    record = (job.name, text) if text and not job.result else None
    return NodeDecision(entry, record=record, blocked=blocked, again_after_seconds=_later(remaining))


def _running(context: NodeContext, job: StagingJob) -> NodeDecision:
    node, progress = context.node, waits.judge(failures.progress(job), job, context.now)
    evicted = failures.evicted_repeatedly(job)
    if evicted is not None:
        return _given_up(context, job, evicted)
    if progress.reason == failures.IMAGE_PULL_FAILED and (other := _pulled_otherwise(context, job)):
        waiting = _entry(context, "Waiting", REPLACING, other, job.round)
        return NodeDecision(waiting, delete_jobs=(job.name,), active=True)
    if not node.ready:
        waiting = _entry(
            context, "Waiting", NODE_NOT_READY, "the node isn't ready; what it began goes on then", job.round
        )
        return NodeDecision(waiting, active=True)
    hindrance = _hindrance(node)
    if hindrance is not None and not any(pod.scheduled for pod in failures.living_pods(job)):
        reason, text = hindrance
        return NodeDecision(
            _entry(context, "Waiting", reason, f"{text}; what it began goes on after", job.round), active=True
        )
    entry = _entry(context, "Staging", progress.reason, progress.message, attempts=job.round)
    entry = entry.model_copy(update={"progress_percent": job.progress_percent})
    # A Job without a pod, or a pod without a container, tells its trouble by events only: look again for them.
    again = waits.LOOK_AGAIN_SECONDS if progress.silent else _again(progress, job, context.now)
    return NodeDecision(entry, active=True, blocked=progress.blocked, again_after_seconds=again)


def _again(progress: failures.Progress, job: StagingJob, now: datetime) -> float | None:
    return waits.due_seconds(progress, job, now) or percent.again_seconds(job, now)


def _pulled_otherwise(context: NodeContext, job: StagingJob) -> str:
    """What was changed since about how images are pulled, "" for nothing: this pod would ask as before for ever."""
    if job.image not in ("", context.loader_image):
        return f"the image is {context.loader_image} by now"
    if job.pull_secrets != context.pull_secrets:
        return "spec.staging.imagePullSecrets were changed"
    return ""


def _without_job(context: NodeContext, stale: list[StagingJob]) -> NodeDecision:
    entry, node = context.entry, context.node
    failed = entry is not None and entry.state == "Failed" and entry.staging_digest == context.staging_digest
    attempts = entry.attempts if entry is not None and entry.staging_digest == context.staging_digest else 0
    if failed and entry is not None:
        backoff = failures.backoff_seconds(entry.exit_code, attempts, entry.reason)
        remaining = _seconds_until(context, entry, backoff)
        if remaining > 0 or context.suspended:
            refused = entry.reason == JOB_REFUSED
            blocked = refused or failures.needs_someone(entry.exit_code, attempts, entry.reason)
            return NodeDecision(entry, active=refused, blocked=blocked, again_after_seconds=_later(remaining))
    if stale:
        waits = _entry(context, "Waiting", REPLACING, "a Job of the former spec, boot or node ends first", attempts)
        return NodeDecision(waits, active=True)
    if context.suspended:
        return NodeDecision(_entry(context, "Waiting", SUSPENDED, "spec.suspend is true", attempts))
    if not node.ready:
        return NodeDecision(_entry(context, "Waiting", NODE_NOT_READY, "the node isn't ready", attempts))
    hindrance = _hindrance(node)
    if hindrance is not None:
        return NodeDecision(_entry(context, "Waiting", *hindrance, attempts))
    return NodeDecision(_entry(context, "Waiting", QUEUED, "", attempts), wants_job=attempts)


def _hindrance(node: Node) -> tuple[str, str] | None:
    """Reason and words of why a node takes no new pods for a while: what it began may wait for that, and is no failure."""
    if node.cordoned:
        return NODE_CORDONED, "the node is cordoned"
    return (NODE_UNDER_PRESSURE, f"the node has the taint {node.pressure}") if node.pressure else None


def _refused(context: NodeContext, attempt: int) -> NodeDecision:
    """No Job can be made: a quota, a policy, or a field of the spec that isn't what Kubernetes takes.

    The node keeps its place, so that no more nodes than the cap knock at a time.
    """
    attempts, exit_code = attempt + 1, 10
    entry = _entry(context, "Failed", JOB_REFUSED, context.refusal, attempts=attempts, exit_code=exit_code)
    again = failures.backoff_seconds(exit_code, attempts)
    return NodeDecision(entry, active=True, blocked=True, again_after_seconds=again)


def _entry(
    context: NodeContext,
    state: str,
    reason: str,
    message: str = "",
    attempts: int = 0,
    exit_code: int = 0,
    since: datetime | None = None,
) -> NodeStatus:
    """A new entry that keeps what the node holds, and the time of the transition when there was none."""
    before = context.entry
    same = before is not None and before.state == state and before.attempts == attempts
    held = before is not None and holds(before, context.node)
    return NodeStatus.model_validate(
        {
            "state": state,
            "reason": reason,
            "message": message[:1024],
            "attempts": attempts,
            "exit_code": exit_code,
            "staging_digest": context.staging_digest,
            "manifest_digest": before.manifest_digest if held and before else "",
            "other_digests": before.other_digests if held and before else (),
            "cold_digest": before.cold_digest if held and before else "",
            "proven_before": before is not None and not held and _was_proven(before, context.staging_digest),
            **leftovers.kept(before),
            "bootID": before.boot_id if held and before else "",
            "last_transition_time": (before.last_transition_time if same and before else rfc3339(since or context.now)),
        }
    )


def _was_proven(before: NodeStatus, staging_digest: str) -> bool:
    """Whether an entry, of an earlier boot, tells that what is asked for was proven then, or in a boot before that one."""
    return before.staging_digest == staging_digest and (before.proven_before or is_staged(before))


def _seconds_until(context: NodeContext, entry: NodeStatus, seconds: float) -> float:
    """How long a wait that began with the entry's last transition still lasts.

    A time that lies further ahead than the wait is long comes from a wrong clock or hand, and would never end it; nor would
    one that can't be read.
    """
    since = parse_time(entry.last_transition_time)
    if since is None or (context.retry_at is not None and since <= context.retry_at):
        return 0.0
    left = seconds - (context.now - since).total_seconds()
    return left if left <= 2 * seconds else 0.0
