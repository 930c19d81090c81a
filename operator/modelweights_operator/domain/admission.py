"""Which of the nodes that want a staging Job get one now. Called by `plan`; pure.

Caps: the object's own (`maxConcurrentNodes`, and `canaryNodes` until a node has proven it), one Job while the source's revision is unknown, and the administrator's for
all objects together: fetches from one host, and on one node. Who waits for one of the latter says so and for whom.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from modelweights_operator.api import v1alpha1 as api
from modelweights_operator.domain import canary, failures, manifests, memory, storage
from modelweights_operator.domain.conditions import list_some
from modelweights_operator.domain.pods import Manifest
from modelweights_operator.domain.policies import NODE_CORDONED, NODE_UNDER_PRESSURE, QUEUED, NodeDecision
from modelweights_operator.domain.resolution import Resolution
from modelweights_operator.domain.snapshot import Fetch, Node, Snapshot

QUOTA_EXCEEDED: Final = "QuotaExceeded"
"""Of a node that waits since its namespace's files would take more than the administrator lets them."""
QUEUED_AGAIN_SECONDS: Final = 10.0
"""The end of another object's fetch wakes nobody here."""
MAX_FAILED_RESOLVERS: Final = 3
"""So many nodes had a refusal from the source before it was known: the rest need not ask it too."""

_REFUSED_BY_SOURCE: Final = (2, 20, 30)
_TAKES_NO_PODS: Final = (NODE_CORDONED, NODE_UNDER_PRESSURE)
_OF_THE_NODE: Final = frozenset({"NotWritable", "LocksNotSupported", "ClockSkew"})
"""Reasons with these exit codes that say nothing of the source: the next node may do better."""


@dataclass
class Admission:
    """The Jobs to be made, the entries with who waits for what, for which node or host, and when to look again."""

    entries: dict[str, api.NodeStatus]
    created: list[Manifest] = field(default_factory=list)
    waits: list[Fetch] = field(default_factory=list)
    again_after_seconds: float | None = None

    def add(self, node: Node, attempt: int, snapshot: Snapshot, spec: api.Spec, revision: str) -> None:
        """Make the node's Job, and say so."""
        owner, policy = snapshot.owner, snapshot.policy
        bound = memory.bound(node, snapshot)
        job = manifests.staging_job(owner, spec, node, attempt=attempt, policy=policy, revision=revision, bound=bound)
        self.created.append(job)
        started = {"state": "Staging", "reason": "Starting"}
        self.entries[node.name] = self.entries[node.name].model_copy(update=started)


def admit(
    snapshot: Snapshot,
    spec: api.Spec,
    targets: Iterable[Node],
    decisions: Mapping[str, NodeDecision],
    entries: Mapping[str, api.NodeStatus],
    resolution: Resolution,
    trial: canary.Trial,
) -> Admission:
    """Give the free places to the nodes that want one: those that failed least often, then in the order of their names.

    What a node that was lost had begun takes no place, nor what a drained one had or one under pressure: it may never end.

    Args:
        snapshot: The object and the settings, and who fetches in the cluster.
        spec: Its spec.
        targets: The selected nodes.
        decisions: Of each of them.
        entries: What the status would say of each.
        resolution: What is known of the source's revision.
        trial: Whether a few nodes have to try it first.
    """
    outcome = Admission(dict(entries))
    nodes = sorted(targets, key=lambda node: (decisions[node.name].wants_job or 0, node.name))
    alive = [node.name for node in nodes if node.ready and entries[node.name].reason not in _TAKES_NO_PODS]
    free = spec.placement.max_concurrent_nodes - sum(decisions[name].active for name in alive)
    trying = _tries(alive, decisions, entries)
    looking = 0 if resolution.may_create else trying
    refusal = _unsupported(entries) or ("" if resolution.may_create else _unresolved(entries, resolution))
    caps = _Caps(snapshot, spec)
    for node in nodes:
        attempt = decisions[node.name].wants_job
        if attempt is None:
            continue
        reason, why = QUEUED, ""
        if held_back := _held_back(snapshot, node):
            reason, why = held_back
        elif unknown := memory.waits_for(node, spec, snapshot):
            why, outcome.again_after_seconds = unknown, QUEUED_AGAIN_SECONDS
        elif untried := trial.refuse(node.name, trying):
            reason, why = canary.WAITS, untried
        elif free <= 0:
            why = f"waits for its turn: maxConcurrentNodes is {spec.placement.max_concurrent_nodes}"
        elif refusal or looking:
            why = refusal or "waits until the first node has found out which revision the source has"
        elif refused := caps.refuse(node):
            why, wait = refused
            outcome.waits.append(wait)
            outcome.again_after_seconds = QUEUED_AGAIN_SECONDS
        if why:
            outcome.entries[node.name] = entries[node.name].model_copy(update={"reason": reason, "message": why})
            continue
        free, trying, looking = free - 1, trying + 1, looking + (not resolution.may_create)
        caps.take(node)
        outcome.add(node, attempt, snapshot, spec, resolution.revision)
    return outcome


def _held_back(snapshot: Snapshot, node: Node) -> tuple[str, str] | None:
    """Reason and message of what files keep a node from being staged; None where they don't."""
    if node.name in snapshot.cleaning:
        return QUEUED, "waits until files of this object are removed there"
    over = snapshot.over_quota.get(node.name, "")
    return (QUOTA_EXCEEDED, over) if over else None


def _tries(alive: Iterable[str], decisions: Mapping[str, NodeDecision], entries: Mapping[str, api.NodeStatus]) -> int:
    """Jobs that may yet prove it, or find the revision. One that gets nowhere on its node doesn't keep the others from trying."""
    return sum(
        decisions[name].active and not decisions[name].blocked and entries[name].reason not in failures.UNSCHEDULED
        for name in alive
    )


def _unsupported(entries: Mapping[str, api.NodeStatus]) -> str:
    """Why no further node is to try while the API server takes image volumes out; "" when it doesn't, as far as is known."""
    reason = failures.IMAGE_VOLUMES_NOT_SUPPORTED
    met = sorted(name for name, entry in entries.items() if entry.state == "Failed" and entry.reason == reason)
    return f"waits until {list_some(met)} got past {reason}" if met else ""


def _unresolved(entries: Mapping[str, api.NodeStatus], resolution: Resolution) -> str:
    """Why nobody is to look for the revision now, "" when somebody may."""
    if resolution.source is not None:
        # Learned in this very cycle: the next one, which the write of the status brings, finds it there.
        return "waits until the source's revision is noted"
    failed = sorted(name for name, entry in entries.items() if entry.state == "Failed" and _is_refusal(entry))
    if len(failed) < MAX_FAILED_RESOLVERS:
        return ""
    return f"waits until one of {list_some(failed)} has found out which revision the source has: {entries[failed[0]].reason}"


def _is_refusal(entry: api.NodeStatus) -> bool:
    return entry.exit_code in _REFUSED_BY_SOURCE and entry.reason not in _OF_THE_NODE


class _Caps:
    """The administrator's caps, and what this plan takes of them."""

    def __init__(self, snapshot: Snapshot, spec: api.Spec) -> None:
        self._settings = snapshot.policy.fetch
        self._fetches = spec.is_fetched
        self._host = storage.source_host(spec, snapshot.policy) if self._fetches else ""
        self._owner = snapshot.owner.full_name
        self._fetching = list(snapshot.fetching)
        self._ahead = snapshot.ahead

    def refuse(self, node: Node) -> tuple[str, Fetch] | None:
        """Why the node has to wait, and for what; None when it hasn't to."""
        if not self._fetches:
            return None
        here = [fetch for fetch in self._fetching if fetch.node == node.name]
        before = _owners(fetch for fetch in self._ahead if fetch.node == node.name)
        if len(here) + len(before) >= self._settings.max_concurrent_per_node:
            cap = f"fetch.maxConcurrentPerNode is {self._settings.max_concurrent_per_node}"
            return _waits(cap, here, "here", before), Fetch("", self._owner, "", node.name)
        there = [fetch for fetch in self._fetching if fetch.host == self._host]
        before = _owners(fetch for fetch in self._ahead if fetch.host == self._host)
        if self._host and 0 < self._settings.max_concurrent_per_host <= len(there) + len(before):
            cap = f"fetch.maxConcurrentPerHost is {self._settings.max_concurrent_per_host}"
            return _waits(cap, there, f"from {self._host}", before), Fetch("", self._owner, self._host, "")
        return None

    def take(self, node: Node) -> None:
        """Count a Job that this plan makes."""
        if self._fetches:
            self._fetching.append(Fetch("", self._owner, self._host, node.name))


def _owners(fetching: Iterable[Fetch]) -> list[str]:
    return sorted({fetch.owner for fetch in fetching})


def _waits(cap: str, fetching: list[Fetch], where: str, before: list[str]) -> str:
    why = [f"{_who(fetching)} fetch(es) {where}"] if fetching else []
    why += [f"{list_some(before)} waited longer"] if before else []
    return f"waits for its turn: {cap}, and {'; '.join(why)}"


def _who(fetching: Iterable[Fetch]) -> str:
    return list_some(sorted({f"{fetch.owner} on {fetch.node}" for fetch in fetching}))
