"""Pods that belong together, as the group of a LeaderWorkerSet: their gates open together. Called by the gatekeeper; pure.

    each one that waits may go --and as many are there as are said to be--> all go, in one pass
    one may not                --------------------------------------------> all wait

So no half of a group takes GPUs and waits for the other. Pods that come when others have gone already (a worker that is made
once its leader is ready, one in the place of another) start with what these were started with, or wait: never a mix.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from modelweights_operator.domain import gate, names
from modelweights_operator.domain.gate import GatedPod, Group, Lift, Requirement, Verdict, Wait

MAX_SIZE: Final = 10_000
_TOLD_AFTER: Final = timedelta(seconds=30)
"""Pods of a group are made one after the other: it is nothing to speak of before."""

_LEADER_WORKER_SET: Final = "leaderworkerset.sigs.k8s.io"
_KINDS: Final = (
    ((names.GROUP_LABEL,), ()),
    # A template that was changed makes another group of the same index; the former one is gone a moment later.
    (
        (f"{_LEADER_WORKER_SET}/name", f"{_LEADER_WORKER_SET}/group-index"),
        (f"{_LEADER_WORKER_SET}/template-revision-hash",),
    ),
    (("kueue.x-k8s.io/pod-group-name",), ()),
    (("scheduling.x-k8s.io/pod-group",), ()),
)
"""By which labels pods are of one group: those that they must have, and those that count where they have them. The first that fits."""
_SIZE: Final = re.compile(r"[1-9][0-9]{0,4}", re.ASCII)


@dataclass(frozen=True)
class Started:
    """A pod of a group that was let go: what it required and which digests it got."""

    name: str
    require: str
    digests: str


@dataclass(frozen=True)
class Present:
    """The pods of a group that are there and haven't ended.

    Attributes:
        waiting: Those at the gate.
        started: Those that were let go.
        count: All of them, also those that never had a gate.
    """

    waiting: tuple[GatedPod, ...]
    started: tuple[Started, ...]
    count: int


def group_of(labels: Mapping[str, str]) -> Group | None:
    """The group that a pod's labels say it is of."""
    for needed, further in _KINDS:
        if all(labels.get(key) for key in needed):
            return Group(tuple((key, labels[key]) for key in (*needed, *further) if labels.get(key)))
    return None


def kept(present: Present, namespace: str) -> dict[Requirement, str]:
    """Per requirement, the digest that the pods which were let go got for it: those that come later get the same."""
    found: dict[Requirement, str] = {}
    for pod in sorted(present.started, key=lambda each: each.name):
        try:
            required = gate.parse(pod.require, namespace)
        except gate.RequireError:
            continue
        digests = pod.digests.split(",")
        if len(digests) == len(required):
            for requirement, digest in zip(required, digests, strict=True):
                found.setdefault(requirement, digest)
    return {requirement: digest for requirement, digest in found.items() if digest}


def incomplete(present: Present, now: datetime) -> Wait | None:
    """Why the group isn't whole as yet; None when it is, or nobody says how many it has."""
    said = {pod.group_size for pod in present.waiting if pod.group_size}
    wrong = sorted(size for size in said if not _SIZE.fullmatch(size) or int(size) > MAX_SIZE)
    if wrong:
        return Wait(
            "GroupSizeInvalid",
            f"annotation {names.GROUP_SIZE_ANNOTATION} is {wrong[0][:40]!r}: a number from 1 to {MAX_SIZE}",
        )
    size = max(map(int, said), default=0)
    if present.count >= size:
        return None
    if now - max(pod.created_at for pod in present.waiting) < _TOLD_AFTER:
        return Wait()
    return Wait(
        "GroupIncomplete",
        f"{present.count} of {size} pods of its group are there ({names.GROUP_SIZE_ANNOTATION}): they start once all are",
    )


def whole(
    present: Present, verdicts: Sequence[tuple[GatedPod, Verdict]], now: datetime
) -> list[tuple[GatedPod, Verdict]]:
    """The verdicts about the pods at the gate, of which none may go before the group is whole."""
    missing = incomplete(present, now) if present.waiting else None
    return [(pod, missing if missing and isinstance(verdict, Lift) else verdict) for pod, verdict in verdicts]


def together(verdicts: Sequence[tuple[GatedPod, Verdict]]) -> list[tuple[GatedPod, Verdict]]:
    """The same verdicts when all pods may go; else all wait, and those that might go say for whom."""
    waits = sorted(
        ((pod.name, verdict) for pod, verdict in verdicts if isinstance(verdict, Wait)), key=lambda each: each[0]
    )
    if not waits:
        return list(verdicts)
    told = next((f"{name} of its group: {wait.reason}: {wait.message}" for name, wait in waits if wait.reason), "")
    others = Wait("GroupWaits", f"waits for pod {told}"[:1000]) if told else Wait()
    return [(pod, others if isinstance(verdict, Lift) else verdict) for pod, verdict in verdicts]
