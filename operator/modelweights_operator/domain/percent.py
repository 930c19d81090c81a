"""How far a staging is, by the end of its pod's log. Called by `policies` and `kube.progress`; pure.

The loader writes lines such as `fetch: 40 %, 1.2 GiB of 3.0 GiB, …`. The log is a pod's: nothing in it is believed to be
well-formed, and what doesn't read so says nothing.
"""

import re
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from modelweights_operator.domain import failures
from modelweights_operator.domain.snapshot import StagingJob, StagingPod

AFTER: Final = timedelta(minutes=1)
"""Shorter stagings are over before anybody looks."""
EVERY: Final = timedelta(seconds=30)
"""So often the log of one Job is read at most."""
_LINE: Final = re.compile(r"^([a-z]{1,16}): ([0-9]{1,3}) %(?:[ ,]|$)", re.MULTILINE)
_TOTAL: Final = re.compile(
    r"^([a-z]{1,16}): [0-9]{1,3} %, [0-9.]{1,8} (?:[KMGT]i)?B of ([0-9]{1,7}(?:\.[0-9])?) ((?:[KMGT]i)?)B\b",
    re.MULTILINE,
)
_UNITS: Final = ("", "Ki", "Mi", "Gi", "Ti")
_ROUNDED: Final = 0.05
"""At most so much of the unit was cut off."""
_WHOLE: Final = 100


class RunningStep(NamedTuple):
    """A container that is under way, and its pod."""

    pod: str
    step: str


def running_step(job: StagingJob, now: datetime) -> RunningStep | None:
    """The step whose progress is worth knowing; None where none runs, or not for long enough."""
    found = _running(job)
    return RunningStep(found[0].name, found[1]) if found and now - found[0].created_at >= AFTER else None


def again_seconds(job: StagingJob, now: datetime) -> float | None:
    """When to look at a running step again; None where none runs."""
    found = _running(job)
    return max(AFTER - (now - found[0].created_at), EVERY).total_seconds() if found else None


def _running(job: StagingJob) -> tuple[StagingPod, str] | None:
    if job.state != "Active" or job.deleting:
        return None
    for pod in sorted(failures.living_pods(job), key=lambda each: each.created_at, reverse=True):
        for container in pod.containers:
            if container.exit_code is None and not container.waiting_reason:
                return pod, container.name
    return None


def parse(text: str, step: str) -> int | None:
    """What the last line that tells progress says.

    Args:
        text: The end of a container's log.
        step: The container's name.

    Returns:
        Percent, at most 100; None where no line tells it.
    """
    found = [int(percent) for name, percent in _LINE.findall(text) if name == step]
    return min(found[-1], _WHOLE) if found else None


def parse_total(text: str, step: str) -> int:
    """Of how many bytes the last line that tells so speaks, rather a few too many since it is rounded; 0 where none tells."""
    found = [(amount, unit) for name, amount, unit in _TOTAL.findall(text) if name == step]
    if not found:
        return 0
    amount, unit = found[-1]
    return int(float(amount)) if not unit else int((float(amount) + _ROUNDED) * 1024 ** _UNITS.index(unit))
