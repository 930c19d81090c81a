"""What has cooled on nodes that are staged: measured again, and warmed. Called by `plan`; pure.

    measured --its time comes--> due --place free--> a Job runs --Complete--> measured anew
                                                         |
                                                         +--Failed: a file is gone or another--> the node is staged again
                                                         +--Failed otherwise--> RETRY_SECONDS later: due

    the API server refuses the Job: due RETRY_SECONDS later

The node stays as it is meanwhile: a refresh takes no proof away. What it leaves cold though the policy is Required the node
holds still, but no pod is sent there for it (`cold_digest`), until a refresh finds it warm or a staging proves it anew.
Each node's time within the interval follows from a hash, so that not all of them read at once. A Job is named by the
measurement that it follows, so that there are never two of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from modelweights_operator.api import v1alpha1 as api
from modelweights_operator.domain import failures, manifests, memory, names, policies, reports, steps
from modelweights_operator.domain.clock import parse_time, rfc3339
from modelweights_operator.domain.pods import Manifest
from modelweights_operator.domain.policies import NodeDecision
from modelweights_operator.domain.snapshot import Node, Snapshot, StagingJob, jobs_by_node

RETRY_SECONDS: Final = 600.0
"""After a refresh that failed for anything but the files, or whose Job was refused."""
STUCK_SECONDS: Final = 600.0
"""A Job that can't begin for so long goes: the next one is made with what the settings say by then."""

_FILES_CHANGED: Final = (20, 30)
_NO_ROOM: Final = 40


@dataclass(frozen=True)
class _Found:
    """One node: its entry as the staging's rules leave it, and the refresh Jobs on it. What failed until `retry_at` waits no longer."""

    node: Node
    entry: api.NodeStatus
    jobs: tuple[StagingJob, ...]
    spec: api.Spec
    staging_digest: str
    owner_uid: str
    now: datetime
    refusal: str = ""
    retry_at: datetime | None = None

    @property
    def is_warm_once(self) -> bool:
        """Whether the node was staged, as the spec now asks, to be kept warm."""
        return policies.is_proven(self.entry, self.node, self.staging_digest) and policies.is_staged(self.entry)


@dataclass(frozen=True)
class _Answer:
    """What becomes of one node; `follows` is the measurement that a Job is wanted after, "" when none is."""

    entry: api.NodeStatus
    follows: str = ""
    delete_jobs: tuple[str, ...] = ()
    finished_jobs: tuple[str, ...] = ()
    active: bool = False
    refused: bool = False
    again_after_seconds: float | None = None


@dataclass(frozen=True)
class Refreshes:
    """The nodes' decisions with what refreshes found, Jobs of nodes that are gone, and what is to be begun.

    Attributes:
        decisions: Per node name.
        orphans: Names of Jobs to delete.
        due: Per node name, the measurement that its refresh follows.
        refused: Number of nodes whose Job the API server refused less than RETRY_SECONDS ago.
    """

    decisions: dict[str, NodeDecision]
    orphans: tuple[str, ...]
    due: Mapping[str, str]
    refused: int = 0


def follow(
    snapshot: Snapshot,
    spec: api.Spec,
    decisions: Mapping[str, NodeDecision],
    staging_digest: str,
    retry_at: datetime | None,
    now: datetime,
) -> Refreshes:
    """Take in what refreshes found, and see which nodes are due.

    Args:
        snapshot: The object and its refresh Jobs.
        spec: Its spec.
        decisions: Of each selected node, by the rules of staging.
        staging_digest: Of what is staged and how.
        retry_at: What failed until then waits no longer.
        now: The time.
    """
    nodes = {node.name: node for node in snapshot.nodes}
    merged, due, refused = dict(decisions), {}, 0
    jobs = jobs_by_node(snapshot.refreshes)
    for name, decision in decisions.items():
        if name not in jobs and _is_untouched(spec, decision.entry):
            continue
        found = _Found(
            node=nodes[name],
            entry=decision.entry,
            jobs=jobs.get(name, ()),
            spec=spec,
            staging_digest=staging_digest,
            owner_uid=snapshot.owner.uid,
            now=now,
            refusal=snapshot.refusals.get(name, ""),
            retry_at=retry_at,
        )
        answer = _answer(found)
        merged[name] = _merge(decision, answer)
        if answer.follows:
            due[name] = answer.follows
        refused += answer.refused
    orphans = tuple(job.name for job in snapshot.refreshes if job.node_name not in decisions and not job.deleting)
    return Refreshes(merged, orphans, due, refused)


def begin(
    snapshot: Snapshot, spec: api.Spec, refreshes: Refreshes, entries: Mapping[str, api.NodeStatus], created: int
) -> list[Manifest]:
    """Make the Jobs for which there is a place: stagings come first, then who was measured longest ago.

    Args:
        snapshot: The object and the settings.
        spec: Its spec.
        refreshes: From `follow`.
        entries: What the status will say of each node.
        created: Number of stagings that begin.
    """
    nodes = {node.name: node for node in snapshot.nodes}
    # As stagings, what was begun on a node that was lost takes no place.
    running = sum(decision.active and nodes[name].ready for name, decision in refreshes.decisions.items())
    # One that was refused keeps its place among refreshes: no more nodes than the cap knock at a time.
    free = max(0, spec.placement.max_concurrent_nodes - running - created - refreshes.refused)
    # One that turned out to hold other files than the rest isn't refreshed.
    due = {
        name: follows
        for name, follows in refreshes.due.items()
        if policies.is_staged(entries[name]) and not memory.waits_for(nodes[name], spec, snapshot)
    }
    chosen = sorted(due, key=lambda name: (due[name], name))[:free]
    status = snapshot.owner.status
    known = {revision.manifest_digest: revision for revision in (status.candidate, status.published) if revision}
    return [
        manifests.refresh_job(
            snapshot.owner,
            spec,
            nodes[name],
            follows=due[name],
            digest=entries[name].manifest_digest,
            known=known.get(entries[name].manifest_digest),
            policy=snapshot.policy,
            bound=memory.bound(nodes[name], snapshot),
        )
        for name in chosen
    ]


def _is_untouched(spec: api.Spec, entry: api.NodeStatus) -> bool:
    """Whether nothing is refreshed, and nothing of a refresh is left: so it is on most nodes of most objects."""
    left = entry.measured_at or entry.refresh_refused_at or entry.cold_digest
    return not (spec.prefetch.refresh_interval_seconds or left or entry.reason == policies.RESIDENCY_LOST)


def _merge(decision: NodeDecision, answer: _Answer) -> NodeDecision:
    if answer.active and decision.wants_job is not None:
        # The staging waits for the refresh to go: never two Jobs on one node.
        decision = replace(decision, wants_job=None)
    times = [seconds for seconds in (decision.again_after_seconds, answer.again_after_seconds) if seconds]
    return replace(
        decision,
        entry=answer.entry,
        delete_jobs=(*decision.delete_jobs, *answer.delete_jobs),
        finished_jobs=(*decision.finished_jobs, *answer.finished_jobs),
        active=decision.active or answer.active,
        blocked=decision.blocked or answer.entry.reason == policies.RESIDENCY_LOST,
        again_after_seconds=min(times, default=None),
    )


# --- one node ---------------------------------------------------------------------------------------------------------


def _answer(found: _Found) -> _Answer:
    """The rules in their order."""
    if found.entry.cold_digest and found.spec.prefetch.policy != "Required":
        found = replace(found, entry=found.entry.model_copy(update={"cold_digest": ""}))
    is_on = found.spec.prefetch.refresh_interval_seconds > 0
    if not is_on or not found.is_warm_once:
        entry = found.entry if is_on else _without_refresh(found)
        return _Answer(entry, delete_jobs=_names(found.jobs), active=bool(found.jobs))
    if parse_time(found.entry.measured_at) is None:
        # The staging measured last, and its report made the node ready.
        found = replace(found, entry=found.entry.model_copy(update={"measured_at": found.entry.last_transition_time}))
    current = [job for job in found.jobs if _counts(found, job)]
    stale = _names(job for job in found.jobs if job not in current)
    answer = _by_job(found, current[0]) if current else _without_job(found)
    return replace(answer, delete_jobs=(*answer.delete_jobs, *stale))


def _names(jobs: Any) -> tuple[str, ...]:
    return tuple(job.name for job in jobs if not job.deleting)


def _without_refresh(found: _Found) -> api.NodeStatus:
    """Where nothing is refreshed any more, nobody would ever see that lost pages are back: it is staged again."""
    if found.entry.reason == policies.RESIDENCY_LOST:
        return _staged_again(found, "prefetch.refreshIntervalSeconds is 0, and this node had lost what was warm")
    return found.entry.model_copy(update={"measured_at": "", "refresh_refused_at": ""})


def _counts(found: _Found, job: StagingJob) -> bool:
    """Whether it follows the last measurement, of this spec, boot and node."""
    is_of = (job.staging_digest, job.boot_id, job.node_uid, job.follows)
    return is_of == (found.staging_digest, found.node.boot_id, found.node.uid, found.entry.measured_at)


def _without_job(found: _Found) -> _Answer:
    left = _seconds_until_due(found)
    if left > 0:
        return _Answer(found.entry, again_after_seconds=max(left, 1.0))
    if not found.node.takes_pods or found.spec.suspend:
        return _Answer(found.entry)
    if found.refusal:
        entry = _saying(found, f"the page cache wasn't refreshed: {found.refusal}")
        entry = entry.model_copy(update={"refresh_refused_at": rfc3339(found.now)})
        return _Answer(entry, refused=True, again_after_seconds=RETRY_SECONDS)
    refused_at = parse_time(found.entry.refresh_refused_at)
    if refused_at is not None and (left := _seconds_to_retry(found, refused_at)) > 0:
        return _Answer(found.entry, refused=True, again_after_seconds=max(left, 1.0))
    return _Answer(found.entry, follows=found.entry.measured_at)


def _seconds_to_retry(found: _Found, failed_at: datetime) -> float:
    since = min(failed_at, found.now)
    return 0.0 if _is_retried(found, since) else RETRY_SECONDS - (found.now - since).total_seconds()


def _seconds_until_due(found: _Found) -> float:
    """Until the node's own time in the interval comes, at least half an interval after the last measurement."""
    interval = found.spec.prefetch.refresh_interval_seconds
    since = min(parse_time(found.entry.measured_at) or found.now, found.now)
    if found.entry.reason == policies.RESIDENCY_LOST and _is_retried(found, since):
        return 0.0
    phase = int(names.short_hash(found.owner_uid, found.node.uid), 16) % interval
    earliest = since.timestamp() + interval / 2
    return earliest + (phase - earliest) % interval - found.now.timestamp()


def _is_retried(found: _Found, since: datetime) -> bool:
    return found.retry_at is not None and since <= found.retry_at


def _by_job(found: _Found, job: StagingJob) -> _Answer:
    if job.deleting:
        return _Answer(found.entry, active=True)
    report = reports.parse(failures.step_report(job, steps.REFRESH))
    if report is not None:
        # The Job controller says that it is complete a second or two later.
        return _Answer(_measured(found, job, report), finished_jobs=(job.name,))
    if job.state == "Active":
        return _running(found, job)
    failure = failures.describe(job, failures.failed_report(job))
    if job.state == "Complete":
        failure = failures.Failure("ResultLost", "the pod went before its report was read", exit_code=10)
    if failure.exit_code in _FILES_CHANGED:
        entry = _staged_again(found, f"{failure.reason}: {failure.message}")
        return _Answer(entry, finished_jobs=(job.name,))
    left = _seconds_to_retry(found, job.finished_at or found.now)
    entry = _saying(found, f"the page cache wasn't refreshed: {failure.reason}: {failure.message}")
    if left > 0:
        return _Answer(entry, again_after_seconds=max(left, 1.0))
    return _Answer(entry, delete_jobs=(job.name,), active=True)


def _running(found: _Found, job: StagingJob) -> _Answer:
    left = STUCK_SECONDS - (found.now - job.created_at).total_seconds()
    if not failures.is_stuck(job):
        return _Answer(found.entry, active=True)
    progress = failures.progress(job)
    entry = _saying(found, f"the page cache isn't refreshed: {progress.reason}: {progress.message}")
    if left > 0:
        return _Answer(entry, active=True, again_after_seconds=max(left, 1.0))
    return _Answer(entry, delete_jobs=(job.name,), active=True)


# --- entries ----------------------------------------------------------------------------------------------------------


def _saying(found: _Found, message: str) -> api.NodeStatus:
    """A node that is as it was, with what went wrong; one that lost its pages has something more important to say."""
    if found.entry.state != "Ready":
        return found.entry
    return found.entry.model_copy(update={"message": message[:1024]})


def _staged_again(found: _Found, message: str) -> api.NodeStatus:
    """What was proven is no longer there as it was: staging proves it anew, or says what is wrong with it.

    The node holds it as far as is known until then: it keeps its label, so that Available doesn't flap for a file that
    comes back in seconds.
    """
    update = {
        "state": "Waiting",
        "reason": policies.QUEUED,
        "message": message[:1024],
        "attempts": 0,
        "exit_code": 0,
        "measured_at": "",
        "refresh_refused_at": "",
        "last_transition_time": rfc3339(found.now),
    }
    return found.entry.model_copy(update=update)


def _measured(found: _Found, job: StagingJob, report: reports.Report) -> api.NodeStatus:
    lost = _why_lost(found.spec.prefetch, report)
    required = found.spec.prefetch.policy == "Required"
    state, reason = ("Failed", policies.RESIDENCY_LOST) if lost and required else ("Ready", policies.STAGED)
    update: dict[str, Any] = {
        "state": state,
        "reason": reason,
        "message": (lost or failures.memory_limit_note(job, report))[:1024],
        "exit_code": _NO_ROOM if state == "Failed" else 0,
        "attempts": 0,
        "resident_bytes": report.resident_bytes or 0,
        "measured_at": _measured_at(found, report),
        "cold_digest": found.entry.manifest_digest if state == "Failed" else "",
        "refresh_refused_at": "",
    }
    if state != found.entry.state:
        update["last_transition_time"] = rfc3339(found.now)
    return found.entry.model_copy(update=update)


def _measured_at(found: _Found, report: reports.Report) -> str:
    """The node's clock, as long as it is plausible: not ahead of ours, and after the former measurement."""
    said = parse_time(report.residency_measured_at)
    before = parse_time(found.entry.measured_at) or datetime.fromtimestamp(0, UTC)
    plausible = said is not None and before < said <= found.now + timedelta(seconds=1)
    return rfc3339(said if said is not None and plausible else found.now)


def _why_lost(prefetch: api.Prefetch, report: reports.Report) -> str:
    """Why less is warm than is asked for, and what to do; "" when it isn't."""
    required = prefetch.policy == "Required"
    if report.resident_percent is None:
        if not required or prefetch.unknown_residency == "Accept":
            return ""
        return f"nobody may measure what is in the page cache, and the policy is Required: {report.message}"
    if report.resident_percent >= prefetch.min_resident_percent:
        return ""
    return (
        f"{report.resident_percent:.1f} % of the weights are in the page cache after a refresh, "
        f"{prefetch.min_resident_percent} % are asked for: free memory on the node, raise the memory limit of the staging pods or "
        f"the chart's nodeMemory.budget, or stage fewer models here ({report.message})"
    )
