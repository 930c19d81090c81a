"""Whether a staging is tried on a few nodes first, and whether these found the checkpoint bad. Called by `plan`; pure.

    untried --step validate ended well on any node--> proven: all nodes, as the caps let
     |   ^
     |   +-- failed otherwise (network, room, the node): the next node is tried
     +-- exit code 30 --> stopped: only the nodes that said so are tried again, the rest is left alone

What is proven once stays so, whatever becomes of the node: the status notes it, also of revisions that were published before, so
that a way back begins on all nodes. That needs a source that names its revision: other files may lie at the same path by now. Files that each node has of its own may be
bad on one and good on the next, so there three nodes have to say so.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from modelweights_operator.api import v1alpha1 as api
from modelweights_operator.domain import failures, names, policies, steps
from modelweights_operator.domain.conditions import list_some
from modelweights_operator.domain.policies import NodeDecision
from modelweights_operator.domain.resolution import Resolution
from modelweights_operator.domain.snapshot import StagingJob

WAITS: Final = "WaitsForCanary"
"""Reason of a node that isn't tried before another one has proven it."""

_BAD_CHECKPOINT: Final = 30
"""The loader's exit code."""
_BAD_ON_OWN_FILES: Final = 3


@dataclass(frozen=True)
class Trial:
    """Where the trial stands.

    Attributes:
        nodes: How many nodes may try at a time; 0 for all.
        proven: Short hash of the staging when a node has proven it; None before.
        bad: Nodes that found the checkpoint bad, once they are enough to stop the rest.
    """

    nodes: int
    proven: str | None = None
    bad: tuple[str, ...] = ()

    def refuse(self, node: str, trying: int) -> str:
        """Why a node has to wait while so many try; "" when it hasn't to."""
        if self.proven or not self.nodes:
            return ""
        if self.bad and node not in self.bad:
            return f"isn't tried while {list_some(list(self.bad))} finds the checkpoint itself bad"
        if trying >= self.nodes:
            return f"waits until a node has proven it: placement.canaryNodes is {self.nodes}"
        return ""


def judge(
    spec: api.Spec,
    status: api.Status,
    jobs: Iterable[StagingJob],
    decisions: Mapping[str, NodeDecision],
    resolution: Resolution,
    digest: str,
) -> Trial:
    """Where the trial stands.

    Args:
        spec: The spec.
        status: The status as it was.
        jobs: All staging Jobs of the object.
        decisions: Of each selected node.
        resolution: What is known of the source's revision.
        digest: The staging digest.
    """
    key = names.short_hash(digest, resolution.revision)
    entries = [decision.entry for decision in decisions.values()]
    if (
        key in (status.proven_staging, *_proven_revisions(status, resolution))
        or any(entry.staging_digest == digest and policies.has_proof(entry) for entry in entries)
        or any(job.staging_digest == digest and resolution.matches(job) and _validated(job) for job in jobs)
    ):
        return Trial(spec.placement.canary_nodes, proven=key)
    bad = [
        name
        for name, decision in sorted(decisions.items())
        if _found_bad(decision.entry, digest)
        # The one whose time has come to try again comes before those that never tried.
        or (decision.wants_job is not None and _found_bad(status.nodes.get(name), digest))
    ]
    enough = _BAD_ON_OWN_FILES if spec.source.host_path is not None else 1
    return Trial(spec.placement.canary_nodes, bad=tuple(bad) if len(bad) >= enough else ())


def _proven_revisions(status: api.Status, resolution: Resolution) -> list[str]:
    """Short hashes of the stagings that proved what is published, or was."""
    if not resolution.revision:
        return []
    known = (status.published, *status.previous)
    return [each.proven_staging for each in known if each is not None and each.revision == resolution.revision]


def explain(trial: Trial, entries: Mapping[str, api.NodeStatus]) -> str:
    """What the condition says of a trial that stopped the rest; "" of any other."""
    held = sum(entry.reason == WAITS for entry in entries.values())
    failed = [name for name in trial.bad if entries[name].state == "Failed"]
    if not (held and failed):
        return ""
    first = entries[failed[0]]
    return (
        f"{list_some(failed)} tried it first and found the checkpoint itself bad: {first.reason}: {first.message}; {held} "
        f"other node(s) aren't tried. Mend the source or the spec; it is tried there again every "
        f"{failures.LONG_BACKOFF_SECONDS // 60} minutes, and at once with the annotation {names.RETRY_ANNOTATION}"
    )


def _validated(job: StagingJob) -> bool:
    """Whether its step `validate` ended well, also when a later one fails."""
    ends = (each for pod in job.pods for each in pod.containers if each.name == steps.VALIDATE)
    return job.state == "Complete" or any(each.exit_code == 0 for each in ends)


def _found_bad(entry: api.NodeStatus | None, digest: str) -> bool:
    return (
        entry is not None
        and entry.state == "Failed"
        and entry.exit_code == _BAD_CHECKPOINT
        and entry.staging_digest == digest
    )
