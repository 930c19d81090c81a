"""Which checkpoint is wanted, which is published, which were before. Called by `plan` and the reconciler; pure.

proven on a first node -> candidate --on minAvailableNodes--> published --another one is--> previous --no node holds it--> (gone)
                              ^                                                                |
                              +------------------------- proven under this spec ---------------+
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from modelweights_operator.api import v1alpha1 as api
from modelweights_operator.domain import engine, failures, holdings, names, policies
from modelweights_operator.domain.clock import rfc3339
from modelweights_operator.domain.reports import Report

_COMMIT_PREFIX: Final = re.compile(r"[0-9a-f]{7,64}", re.ASCII)
_STILL_COLD: Final = (
    "too little of it was in the page cache when that was last measured; the next refresh measures it again"
)
_DIGEST_PREFIX: Final = re.compile(r"[0-9a-f]{12,64}", re.ASCII)


@dataclass(frozen=True)
class Revisions:
    """What the status says of checkpoints: the published one, the one to be, and those that were before it."""

    published: api.Revision | None = None
    candidate: api.Revision | None = None
    previous: tuple[api.Revision, ...] = ()


@dataclass(frozen=True)
class Wanted:
    """The wanted checkpoint: its digest, "" when no node proved any, where it lies, and of which revision it is.

    `proven_staging`: short hash of what is staged and how once a node has proven it, "" before.
    `everywhere`: each node is ready under the present spec. Until then a checkpoint that is published already keeps its
    path, since nodes that aren't staged anew have the same bytes at the former one only.
    """

    digest: str
    path: str
    revision: str
    everywhere: bool
    proven_staging: str = ""


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
        if policies.is_staged(entry):
            return entry
        update: dict[str, Any] = {"state": "Ready", "reason": policies.STAGED, "message": "", "attempts": 0}
        if entry.cold_digest == wanted:
            update |= {"state": "Failed", "reason": policies.RESIDENCY_LOST, "message": _STILL_COLD}
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
    wanted: Wanted,
    holding: Mapping[str, tuple[str, ...]],
    need: int,
    reports: Iterable[Report],
    now: datetime,
) -> Revisions:
    """Publish the wanted checkpoint once enough nodes hold it.

    Those that hold it of old count: after a rollback the first node that proved it under the present spec is enough for all
    whose files are there still.

    Args:
        status: The status as it was.
        spec: The spec.
        wanted: The checkpoint that most nodes proved under it.
        holding: Per node the checkpoints that it holds.
        need: How many nodes have to hold the wanted one.
        reports: Reports of this cycle, for its figures.
        now: The time.
    """
    published, candidate = status.published, status.candidate
    if not wanted.digest:
        return Revisions(published, candidate, still_held(status.previous, holding))
    revision = _revision(status, spec, wanted, reports, now)
    enough = holdings.count(holding, wanted.digest) >= need
    if published is not None and published.manifest_digest == wanted.digest:
        return Revisions(revision if enough else published, None, still_held(status.previous, holding))
    if not enough:
        return Revisions(published, revision, still_held(status.previous, holding))
    previous = status.previous
    if published is not None:
        previous = (published.model_copy(update={"superseded_at": rfc3339(now)}), *previous)
    others = tuple(known for known in previous if known.manifest_digest != wanted.digest)
    return Revisions(revision, None, still_held(others, holding))


def still_held(previous: Iterable[api.Revision], holding: Mapping[str, tuple[str, ...]]) -> tuple[api.Revision, ...]:
    """Of what was published before, that which a node still holds; no more than the status can say."""
    held = [known for known in previous if holdings.count(holding, known.manifest_digest)]
    return tuple(held[: api.MAX_PREVIOUS])


def _revision(
    status: api.Status,
    spec: api.Spec,
    wanted: Wanted,
    reports: Iterable[Report],
    now: datetime,
) -> api.Revision:
    """What is known of a checkpoint: from the status, else from a report; its files are the same, or so is not its digest."""
    report = next((report for report in reports if report.manifest_digest == wanted.digest), None)
    requested = requested_revision(spec)
    current = [known for known in (status.published, status.candidate) if known is not None]
    for known in (*current, *status.previous):
        if known.manifest_digest == wanted.digest:
            update: dict[str, Any] = {"requested": requested, "engine": engine.advance(known.engine, spec, report)}
            if wanted.proven_staging:
                update |= {"proven_staging": wanted.proven_staging}
            if wanted.everywhere or not known.path:
                update |= {"path": wanted.path, "revision": wanted.revision}
            if known.superseded_at:
                update |= {"superseded_at": "", "since": rfc3339(now)}
            return known.model_copy(update=update)
    report = report or Report()
    return api.Revision(
        manifest_digest=wanted.digest,
        path=wanted.path,
        revision=wanted.revision,
        requested=requested,
        proven_staging=wanted.proven_staging,
        since=rfc3339(now),
        file_count=report.file_count,
        size_bytes=report.size_bytes,
        tensor_count=report.tensor_count,
        engine=engine.advance(None, spec, report),
    )


def requested_revision(spec: api.Spec) -> str:
    """The revision as the spec asks for it, "" for sources that have none."""
    return spec.source.hugging_face.revision if spec.source.hugging_face is not None else ""


# --- what pods ask for ------------------------------------------------------------------------------------------------


def find(status: api.Status, asked: str) -> api.Revision | None:
    """The revision that a pod may start with: the published one, else one that was before.

    Args:
        status: Of the ModelWeights. What it lists in `previous`, a node holds.
        asked: What the pod asks for after the `@`; "" for what is published.
    """
    published = (status.published,) if status.published is not None else ()
    if not asked:
        return published[0] if published else None
    return next((known for known in (*published, *status.previous) if matches(known, asked)), None)


def matches(known: api.Revision, asked: str) -> bool:
    """Whether a revision is what was asked for: as the spec did, or by its commit or digest, in full or by its first digits."""
    if asked in (known.requested, known.revision, known.manifest_digest):
        return True
    digits = asked.removeprefix("sha256:")
    by_commit = _COMMIT_PREFIX.fullmatch(digits) and known.revision.removeprefix("sha256:").startswith(digits)
    by_digest = _DIGEST_PREFIX.fullmatch(digits) and known.manifest_digest.removeprefix("sha256:").startswith(digits)
    return bool(by_commit or by_digest)


def why_missing(status: api.Status, spec: api.Spec | None, asked: str) -> str:
    """Why no revision that a pod asks for is there, "" while it may be on its way: the pod then simply waits."""
    if status.candidate is not None and matches(status.candidate, asked):
        return ""
    wanted = status.source.revision if status.source is not None else ""
    if spec is not None and asked == requested_revision(spec):
        return ""
    if wanted and matches(api.Revision(manifest_digest="", revision=wanted), asked):
        return ""
    if status.published is None:
        return ""
    there = ", ".join(describe(known) for known in (status.published, *status.previous))
    return f"revision {asked} is neither published nor being staged, and no node holds it of old (there: {there})"


def describe(known: api.Revision) -> str:
    """A revision as people and pods name it."""
    digest = f"sha256:{names.label_digest(known.manifest_digest)[:12]}"
    return f"{known.requested} ({digest})" if known.requested else digest
