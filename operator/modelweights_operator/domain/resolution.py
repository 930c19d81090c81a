"""Which revision of a fetched source all nodes are given. Called by `plan`; pure.

    unknown --a Job's step fetch ended well--> learned --status written--> recorded --other source--> unknown

A branch moves, and an object store has no revisions, so the first node's Job finds out and the others are told. While it is
unknown one Job at a time looks; others are made only when the status holds the answer, so that an operator which dies in
between finds it again. A Job that fetched anything else than the recorded revision counts as one of another staging,
however it came to it: with that nothing is ever mixed.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from modelweights_operator.api import v1alpha1 as api
from modelweights_operator.domain import failures, names, reports, steps, storage
from modelweights_operator.domain.snapshot import StagingJob

_COMMIT: Final = re.compile(r"[0-9a-f]{40}", re.ASCII)
_REVISION: Final = re.compile(r"[0-9a-f]{40}|(sha256:)?[0-9a-f]{64}", re.ASCII)


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
        return self.revision in (job.revision, fetched_revision(job))


def is_needed(spec: api.Spec) -> bool:
    """Whether the nodes must agree on a revision beforehand.

    Not for hostPath: each node has its own folder, whose files have times of their own. As with those that are used in
    place, the digests of the contents tell the nodes apart.
    """
    return spec.is_fetched and spec.source.host_path is None


def resolve(spec: api.Spec, status: api.Status, jobs: Iterable[StagingJob]) -> Resolution:
    """What is known by the spec, by the status, else by the Jobs that are there."""
    if not is_needed(spec):
        return Resolution(needed=False)
    digest = names.source_digest(spec)
    known = status.source if status.source is not None and status.source.digest == digest else None
    if known is not None and _REVISION.fullmatch(known.revision):
        return Resolution(needed=True, source=known, recorded=True)
    asked = spec.source.hugging_face.revision if spec.source.hugging_face else ""
    if _COMMIT.fullmatch(asked):
        described = f"{storage.source_url(spec)} at {asked}"
        return Resolution(needed=True, source=_source(digest, asked, described), recorded=True)
    return Resolution(needed=True, source=_learn(digest, jobs))


def _learn(digest: str, jobs: Iterable[StagingJob]) -> api.SourceStatus | None:
    """What a Job was given counts more than what one found: a status that got lost was right."""
    of_this = sorted((job for job in jobs if job.source_digest == digest), key=lambda job: (job.created_at, job.name))
    given = next((job.revision for job in of_this if _REVISION.fullmatch(job.revision)), "")
    if given:
        return _source(digest, given, "")
    for job in of_this:
        report = fetch_report(job)
        if report is not None and _REVISION.fullmatch(report.revision):
            return _source(digest, report.revision, report.described)
    return None


def _source(digest: str, revision: str, described: str) -> api.SourceStatus:
    return api.SourceStatus(digest=digest, revision=revision, described=described[:512])


def fetch_report(job: StagingJob) -> reports.Report | None:
    """What the step `fetch` said when it ended well: of the youngest pod, else what was noted on the Job."""
    return reports.parse(failures.step_report(job, steps.FETCH) if job.pods else job.result)


def fetched_revision(job: StagingJob) -> str:
    """The revision that a Job fetched, "" while it hasn't."""
    report = fetch_report(job)
    return report.revision if report is not None else ""
