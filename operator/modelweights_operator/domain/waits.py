"""How long a staging Job may wait for a pod, a place or a claim until somebody has to act. Called by `policies`; pure.

Such a wait is no failure: it ends by itself, without a new Job, once what was missing is there.
"""

from dataclasses import replace
from datetime import datetime
from typing import Final

from modelweights_operator.domain import failures
from modelweights_operator.domain.failures import Progress
from modelweights_operator.domain.snapshot import StagingJob

STALLED_AFTER_SECONDS: Final = 120.0
LOOK_AGAIN_SECONDS: Final = 5.0
"""What only events tell wakes nobody."""

_UNTOLD: Final = {
    True: "the staging pod isn't scheduled, and nothing says why: look at the scheduler",
    False: "the staging Job got no pod, and no event says why: look at the Job controller",
}


def judge(progress: Progress, job: StagingJob, now: datetime) -> Progress:
    """The same progress; blocked, and with words, once it took too long without a change."""
    left = _left_seconds(progress, job, now)
    if left is None or left > 0:
        return progress
    return replace(progress, message=progress.message or _UNTOLD[bool(failures.living_pods(job))], blocked=True)


def due_seconds(progress: Progress, job: StagingJob, now: datetime) -> float | None:
    """When a wait will have taken too long; None for what is no such wait, or is too long already."""
    left = _left_seconds(progress, job, now)
    return max(left, 1.0) if left is not None and left > 0 else None


def _left_seconds(progress: Progress, job: StagingJob, now: datetime) -> float | None:
    if progress.reason != failures.STARTING and progress.reason not in failures.UNSCHEDULED:
        return None
    pods = failures.living_pods(job)
    # Once scheduled, the kubelet says what lacks; an image of some gigabytes may take longer to be pulled.
    if job.started_at is None or any(pod.scheduled for pod in pods):
        return None
    since = max([job.started_at, *(pod.created_at for pod in pods)])
    return STALLED_AFTER_SECONDS - (now - since).total_seconds()
