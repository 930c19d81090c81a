"""Which checkpoint is wanted, which is published. Called by `plan`; pure.

proven on a first node -> candidate --on minAvailableNodes--> published (and stays so until another one is)
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from modelweights_operator.api import v1alpha1 as api
from modelweights_operator.domain import engine, failures, names, policies
from modelweights_operator.domain.clock import rfc3339
from modelweights_operator.domain.reports import Report


@dataclass(frozen=True)
class Place:
    """Where the wanted checkpoint lies, and of which revision it is.

    `everywhere`: each node is ready under the present spec. Until then a checkpoint that is published already keeps its
    path, since nodes that aren't staged anew have the same bytes at the former one only.
    """

    path: str
    revision: str
    everywhere: bool


def wanted_digest(published: api.Revision | None, entries: Iterable[api.NodeStatus]) -> str:
    """The checkpoint that most nodes proved under this spec; the published one, then the greater digest, breaks a tie."""
    counts = Counter(entry.manifest_digest for entry in entries if policies.has_proof(entry))
    return max(
        counts,
        key=lambda digest: (counts[digest], published is not None and digest == published.manifest_digest, digest),
        default="",
    )


def compare(entry: api.NodeStatus, wanted: str, now: datetime) -> api.NodeStatus:
    """A node that proved another checkpoint than most is not ready, and says so."""
    if not policies.has_proof(entry):
        return entry
    if entry.manifest_digest == wanted:
        if entry.state == "Ready":
            return entry
        update: dict[str, Any] = {"state": "Ready", "reason": policies.STAGED, "message": "", "attempts": 0}
        return entry.model_copy(update={**update, "last_transition_time": rfc3339(now)})
    if entry.reason == policies.DIGEST_MISMATCH:
        return entry
    message = (
        f"the files here give {names.label_digest(entry.manifest_digest)[:12]}, those of the other nodes "
        f"{names.label_digest(wanted)[:12]}: copy the same checkpoint to all nodes; it is looked at again in "
        f"{failures.LONG_BACKOFF_SECONDS // 60} minutes"
    )
    update = {"state": "Failed", "reason": policies.DIGEST_MISMATCH, "message": message}
    return entry.model_copy(update={**update, "last_transition_time": rfc3339(now)})


def advance(
    status: api.Status,
    spec: api.Spec,
    *,
    where: Place,
    enough: bool,
    wanted: str,
    reports: Iterable[Report],
    now: datetime,
) -> tuple[api.Revision | None, api.Revision | None]:
    """Publish the wanted checkpoint once enough nodes hold it.

    Args:
        status: The status as it was.
        spec: The spec.
        where: Where the present spec puts it.
        enough: Whether as many nodes hold the wanted checkpoint as have to.
        wanted: Its digest, "" when no node proved any.
        reports: Reports of this cycle, for its figures.
        now: The time.

    Returns:
        The published checkpoint and the candidate, each None when there is none.
    """
    if not wanted:
        return status.published, status.candidate
    revision = _revision(status, spec, wanted, where, reports, now)
    if enough:
        return revision, None
    published = status.published
    is_published = published is not None and published.manifest_digest == wanted
    return published, None if is_published else revision


def _revision(
    status: api.Status,
    spec: api.Spec,
    digest: str,
    where: Place,
    reports: Iterable[Report],
    now: datetime,
) -> api.Revision:
    """What is known of a checkpoint: from the status, else from a report; its files are the same, or so is not its digest."""
    report = next((report for report in reports if report.manifest_digest == digest), None)
    for known in (status.published, status.candidate):
        if known is not None and known.manifest_digest == digest:
            proven = engine.advance(known.engine, spec, report)
            moved = {"path": where.path, "revision": where.revision} if where.everywhere or not known.path else {}
            return known.model_copy(update={**moved, "engine": proven})
    report = report or Report()
    return api.Revision(
        manifest_digest=digest,
        path=where.path,
        revision=where.revision,
        since=rfc3339(now),
        file_count=report.file_count,
        size_bytes=report.size_bytes,
        tensor_count=report.tensor_count,
        engine=engine.advance(None, spec, report),
    )
