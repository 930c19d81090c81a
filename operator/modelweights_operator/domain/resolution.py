"""Which revision of a fetched source all nodes are given. Called by `plan`; pure.

    unknown --a Job's step resolve ended well--> learned --status written--> recorded --other source--> unknown
                                                                                  +--no good, nobody has it--> unknown

A branch moves, and an object store has no revisions, so the first node's Job finds out and the others are told. While it is
unknown one Job at a time looks; others are made only when the status holds the answer, so that an operator which dies in
between finds it again. Jobs of earlier versions have no step `resolve`: there `fetch` says it. A Job that fetched anything else
than the recorded revision counts as one of another staging, however it came to it: with that nothing is ever mixed.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from modelweights_operator.api import v1alpha1 as api
from modelweights_operator.domain import failures, names, reports, steps, storage
from modelweights_operator.domain.snapshot import StagingJob

_COMMIT: Final = re.compile(r"[0-9a-f]{40}", re.ASCII)
_REVISION: Final = re.compile(r"[0-9a-f]{40}|(sha256:)?[0-9a-f]{64}", re.ASCII)
_BAD_CHECKPOINT: Final = 30
"""The loader's exit code."""


@dataclass(frozen=True)
class Resolution:
    """What is known of the source's revision.

    Attributes:
        needed: Whether all nodes must have one and the same revision.
        source: What the status is to say; None while nothing is known, or nothing is to be.
        recorded: Whether the status says it already, or the spec itself.
    """

    needed: bool
    source: api.SourceStatus | None = None
    recorded: bool = False

    @property
    def revision(self) -> str:
        """What Jobs are given; "" while it isn't known, and where there is none."""
        return self.source.revision if self.source else ""

    @property
    def may_create(self) -> bool:
        """Whether as many Jobs may be made as the caps let."""
        return not self.needed or self.recorded

    def matches(self, job: StagingJob) -> bool:
        """Whether a Job fetches, or fetched, this revision; so does any while nothing is known.

        One that failed makes nothing ready: it stays with its logs until the next attempt, which is given the revision.
        """
        if not self.needed or self.source is None or job.state == "Failed":
            return True
        return self.revision in (job.revision, _found_revision(job))


def resolve(spec: api.Spec, status: api.Status, jobs: Sequence[StagingJob]) -> Resolution:
    """What is known by the spec, by the status, else by the Jobs that are there."""
    if not steps.needs_revision(spec):
        return Resolution(needed=False)
    digest = names.source_digest(spec)
    known = status.source if status.source is not None and status.source.digest == digest else None
    if known is not None and _REVISION.fullmatch(known.revision) and not _is_no_good(known, status, jobs):
        return Resolution(needed=True, source=known, recorded=True)
    asked = spec.source.hugging_face.revision if spec.source.hugging_face else ""
    if _COMMIT.fullmatch(asked):
        described = f"{storage.source_url(spec)} at {asked}"
        return Resolution(needed=True, source=_source(digest, asked, described), recorded=True)
    return Resolution(needed=True, source=_learn(digest, jobs))


def _is_no_good(known: api.SourceStatus, status: api.Status, jobs: Sequence[StagingJob]) -> bool:
    """Whether the revision is to be found out anew: a node failed for what the source holds, and none has got it.

    It is pinned before anything of it was read: a repository or bucket that somebody was still filling would else be asked for
    its first listing for ever.
    """
    published = status.published
    if published is not None and published.revision == known.revision:
        return False
    # What is published, and what was before, is of another source, and nodes may hold it still.
    former = (published, *status.previous)
    of_others = {"", *(revision.manifest_digest for revision in former if revision is not None)}
    if any(entry.manifest_digest not in of_others for entry in status.nodes.values()):
        return False
    tried = (job for job in jobs if job.state != "Failed" and job.source_digest == known.digest)
    if any(known.revision in (job.revision, _found_revision(job)) for job in tried):
        return False
    failed = (entry for entry in status.nodes.values() if entry.state == "Failed")
    return any(entry.exit_code == _BAD_CHECKPOINT or entry.reason == failures.SOURCE_CHANGED for entry in failed)


def _learn(digest: str, jobs: Sequence[StagingJob]) -> api.SourceStatus | None:
    """What a Job was given counts more than what one found: a status that got lost was right. Failed ones teach nothing."""
    alive = (job for job in jobs if job.source_digest == digest and job.state != "Failed")
    of_this = sorted(alive, key=lambda job: (job.created_at, job.name))
    given = next((job.revision for job in of_this if _REVISION.fullmatch(job.revision)), "")
    if given:
        return _source(digest, given, "")
    for job in of_this:
        report = _report(job)
        if report is not None and _REVISION.fullmatch(report.revision):
            return _source(digest, report.revision, report.described)
    return None


def _source(digest: str, revision: str, described: str) -> api.SourceStatus:
    return api.SourceStatus(digest=digest, revision=revision, described=described[:512])


def _report(job: StagingJob) -> reports.Report | None:
    """What `fetch` said when it ended well, before that what `resolve` said: of the youngest pod, else noted on the Job."""
    if not job.pods:
        return reports.parse(job.result)
    return reports.parse(failures.step_report(job, steps.FETCH) or failures.step_report(job, steps.RESOLVE))


def _found_revision(job: StagingJob) -> str:
    """The revision that a Job fetched, or is going to fetch; "" while it doesn't know."""
    report = _report(job)
    return report.revision if report is not None else ""
