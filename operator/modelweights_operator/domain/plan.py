"""What is to be done about one ModelWeights: a snapshot and `now` in, a plan out. Called by the reconciler; pure.

    gather -> Snapshot -> make_plan -> Plan -> apply

The plan lists effects in the order in which they are safe: results are copied to Jobs before the status says them, the
engine's ConfigMap and the node labels are there before the status says Available, and good Jobs go after that.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from modelweights_operator.api import v1alpha1 as api
from modelweights_operator.domain import (
    admission,
    canary,
    conditions,
    engine,
    holdings,
    leftovers,
    names,
    placement,
    policies,
    refresh,
    resolution,
    retention,
    retry,
    revisions,
    storage,
)
from modelweights_operator.domain.assessment import assess, count_holding, count_ready
from modelweights_operator.domain.conditions import Assessment
from modelweights_operator.domain.events import Event, events_of
from modelweights_operator.domain.host_folders import LocationError
from modelweights_operator.domain.pods import Manifest
from modelweights_operator.domain.resolution import Resolution
from modelweights_operator.domain.sizes import human_bytes
from modelweights_operator.domain.snapshot import Fetch, Node, Snapshot, jobs_by_node

_MESSAGES_BYTES: Final = 320_000
"""Of all nodes together: 2,000 of them leave 160 bytes for each, 300 leave all that a message may have."""


@dataclass(frozen=True)
class Plan:
    """Effects, in the order in which they are applied.

    Attributes:
        delete_jobs: Names of Jobs whose time is over.
        create_jobs: Manifests of Jobs.
        record_results: Per Job name, the report that is copied to its annotation.
        label_nodes: Per node name, the values that labels of ours are to have; None takes one off.
        config_map: The engine's settings, when they are to be written.
        status: The whole status as it is to be.
        finished_jobs: Names of good Jobs, deleted once the status was written.
        events: Events on transitions.
        waits: For which nodes and hosts it waits, that others fetch on and from.
        again_after_seconds: When to look again though nothing happened; None for never.
        stuck: Names of nodes on which nothing moves until someone acts.
        halted: Whether nothing moves anywhere: it is suspended, or has a fault of its own.
    """

    status: api.Status
    delete_jobs: tuple[str, ...] = ()
    create_jobs: tuple[Manifest, ...] = ()
    record_results: Mapping[str, str] = field(default_factory=dict)
    label_nodes: Mapping[str, Mapping[str, str | None]] = field(default_factory=dict)
    config_map: Manifest | None = None
    finished_jobs: tuple[str, ...] = ()
    events: tuple[Event, ...] = ()
    waits: tuple[Fetch, ...] = ()
    again_after_seconds: float | None = None
    stuck: frozenset[str] = frozenset()
    halted: bool = False

    @property
    def begins(self) -> tuple[str, ...]:
        """Names of the nodes on which a Job is made."""
        return tuple(job["metadata"]["annotations"][names.NODE_ANNOTATION] for job in self.create_jobs)


def make_plan(snapshot: Snapshot, now: datetime) -> Plan:
    """Decide everything about one ModelWeights."""
    snapshot = retention.without_cleaned(snapshot)
    targets = _targets(snapshot)
    problem = _problem(snapshot, targets)
    if problem is not None:
        return _stopped(snapshot, problem, now)
    spec = snapshot.owner.spec
    assert spec is not None  # noqa: S101 - a missing spec is a problem, answered above
    resolved = resolution.resolve(spec, snapshot.owner.status, snapshot.jobs)
    digest = names.staging_digest(spec, storage.place(spec, snapshot.policy))
    retried = retry.heed(snapshot.owner.retry, snapshot.owner.status, now)
    staged = _decisions(snapshot, spec, targets, resolved, digest, retried.heeded_at, now)
    refreshes = refresh.follow(snapshot, spec, staged, digest, retried.heeded_at, now)
    decisions = refreshes.decisions
    entries = {name: decision.entry for name, decision in decisions.items()}
    wanted = revisions.wanted_digest(snapshot.owner.status.published, entries.values())
    entries = {name: revisions.compare(entry, wanted, now) for name, entry in entries.items()}
    trial = canary.judge(spec, snapshot.owner.status, snapshot.jobs, decisions, resolved, digest)
    admitted = admission.admit(snapshot, spec, targets, decisions, entries, resolved, trial)
    entries = leftovers.bounded(holdings.bounded(admitted.entries, snapshot.owner.status.published))
    reports = [decision.report for decision in decisions.values() if decision.report]
    holding = _holders(snapshot, entries)
    known = revisions.advance(
        snapshot.owner.status,
        spec,
        wanted=_wanted(snapshot, spec, entries, wanted, resolved, trial),
        holding=holding,
        need=placement.least_available(spec.placement, len(entries)),
        reports=reports,
        now=now,
    )
    published = known.published
    counted = placement.counted_nodes(
        spec.placement,
        desired=len(entries),
        holding=count_holding(holding, published),
        former=snapshot.owner.status.summary.counted,
    )
    stopped = canary.explain(trial, entries)
    facts = assess(snapshot, spec, decisions, entries, published, holding, stopped)
    facts = replace(facts, min_available=_least(snapshot, counted or 0))
    status = _status(snapshot, facts, known, entries, now, counted=counted).model_copy(
        update={
            "source": resolved.source,
            "proven_staging": trial.proven,
            **retried.noted,
        }
    )
    plan = Plan(
        status=status,
        delete_jobs=(*_jobs_to_delete(snapshot, decisions), *refreshes.orphans),
        create_jobs=(
            *admitted.created,
            *refresh.begin(snapshot, spec, refreshes, entries, len(admitted.created)),
        ),
        record_results=dict(decision.record for decision in decisions.values() if decision.record),
        label_nodes=_labels(snapshot, entries),
        config_map=_config_map(snapshot, spec, published, entries),
        finished_jobs=tuple(name for decision in decisions.values() for name in decision.finished_jobs),
        waits=tuple(admitted.waits),
        again_after_seconds=_again(decisions, admitted.again_after_seconds),
        stuck=_stuck(decisions, entries, stopped),
        halted=spec.suspend,
    )
    return replace(plan, events=events_of(snapshot, status))


# --- the object itself ------------------------------------------------------------------------------------------------


def _targets(snapshot: Snapshot) -> tuple[Node, ...]:
    spec = snapshot.owner.spec
    if spec is None:
        return ()
    chosen = [
        node
        for node in snapshot.nodes
        if placement.selects(spec.placement, node) and placement.untolerated(spec.placement, node) is None
    ]
    return tuple(sorted(chosen, key=lambda node: node.name))


def _problem(snapshot: Snapshot, targets: tuple[Node, ...]) -> tuple[str, str] | None:
    """A fault of the object that only a change of it, or of the operator's settings, mends."""
    spec = snapshot.owner.spec
    if spec is None:
        return conditions.INVALID_SPEC, snapshot.owner.invalid
    try:
        storage.locate(snapshot.owner, spec, snapshot.policy)
    except LocationError as error:
        return error.reason, str(error)
    if len(targets) > api.MAX_NODES:
        message = f"{len(targets)} nodes are selected, at most {api.MAX_NODES} fit one object: split it by nodeSelector"
        return conditions.TOO_MANY_NODES, message
    return None


def _stopped(snapshot: Snapshot, problem: tuple[str, str], now: datetime) -> Plan:
    """Nothing further is staged. What nodes hold stays as it is; running Jobs of ours end."""
    status = snapshot.owner.status
    holding = _holders(snapshot, status.nodes)
    published = status.published
    facts = Assessment(
        problem=problem,
        desired=len(status.nodes),
        holding=count_holding(holding, published),
        min_available=_least(snapshot, status.summary.counted or 0),
        published=published.manifest_digest if published else "",
    )
    known = revisions.Revisions(published, status.candidate, revisions.still_held(status.previous, holding))
    kept = {
        "source": status.source,
        "proven_staging": status.proven_staging,
        "last_handled_retry": status.last_handled_retry,
        "last_retry_time": status.last_retry_time,
    }
    new = _status(snapshot, facts, known, status.nodes, now, counted=status.summary.counted).model_copy(update=kept)
    jobs = tuple(job.name for job in (*snapshot.jobs, *snapshot.refreshes) if not job.deleting)
    labels = _labels(snapshot, status.nodes)
    return Plan(status=new, delete_jobs=jobs, label_nodes=labels, events=events_of(snapshot, new), halted=True)


# --- nodes and Jobs ---------------------------------------------------------------------------------------------------


def _decisions(
    snapshot: Snapshot,
    spec: api.Spec,
    targets: tuple[Node, ...],
    resolved: Resolution,
    digest: str,
    retry_at: datetime | None,
    now: datetime,
) -> dict[str, policies.NodeDecision]:
    foreign = frozenset(job.name for job in snapshot.jobs if not resolved.matches(job))
    in_place = "" if spec.is_fetched else _path(snapshot, spec, "", resolved)
    places = holdings.places(snapshot.owner.status, in_place)
    jobs, entries = jobs_by_node(snapshot.jobs), snapshot.owner.status.nodes

    def decide(node: Node) -> policies.NodeDecision:
        context = policies.NodeContext(
            node=node,
            staging_digest=digest,
            entry=entries.get(node.name),
            jobs=jobs.get(node.name, ()),
            suspended=spec.suspend,
            now=now,
            refusal=snapshot.refusals.get(node.name, ""),
            loader_image=snapshot.policy.loader_image,
            foreign_jobs=foreign,
            unresolved=resolved.needed and resolved.source is None,
            volume_image=spec.source.image.reference if spec.source.image else "",
            pull_secrets=names.pull_secrets(spec),
            places=places,
            room_missing=snapshot.room_missing.get(node.name, ""),
            retry_at=max(filter(None, (retry_at, snapshot.room_made.get(node.name))), default=None),
        )
        return policies.decide(context)

    resting = {
        node.name: policies.at_rest(entries.get(node.name), node, digest) for node in targets if node.name not in jobs
    }
    return {node.name: resting.get(node.name) or decide(node) for node in targets}


def _jobs_to_delete(snapshot: Snapshot, decisions: Mapping[str, policies.NodeDecision]) -> tuple[str, ...]:
    """What the nodes' decisions say, and Jobs of nodes that are gone or no longer selected."""
    orphans = [job.name for job in snapshot.jobs if job.node_name not in decisions and not job.deleting]
    decided = [name for decision in decisions.values() for name in decision.delete_jobs]
    return (*decided, *orphans)


def _again(decisions: Mapping[str, policies.NodeDecision], admission_seconds: float | None) -> float | None:
    """The next time at which a node, or one that waits for its turn, wants to be looked at."""
    times = [admission_seconds, *(decision.again_after_seconds for decision in decisions.values())]
    return min((seconds for seconds in times if seconds), default=None)


def _wanted(
    snapshot: Snapshot,
    spec: api.Spec,
    entries: Mapping[str, api.NodeStatus],
    wanted: str,
    resolved: Resolution,
    trial: canary.Trial,
) -> revisions.Wanted:
    path = _path(snapshot, spec, wanted, resolved)
    everywhere = count_ready(entries) == len(entries)
    # Without a revision nothing says that the files at that path are the same the next time.
    proven = (trial.proven or "") if resolved.revision else ""
    return revisions.Wanted(wanted, path, resolved.revision, everywhere=everywhere, proven_staging=proven)


def _path(snapshot: Snapshot, spec: api.Spec, digest: str, resolved: Resolution) -> str:
    return storage.published_path(
        snapshot.owner, spec, snapshot.policy, manifest_digest=digest, revision=resolved.revision
    )


def _holders(snapshot: Snapshot, entries: Mapping[str, api.NodeStatus]) -> dict[str, tuple[str, ...]]:
    """Per node the checkpoints that it holds proven under its present boot."""
    return {node.name: holdings.held(entries.get(node.name), node) for node in snapshot.nodes}


def _least(snapshot: Snapshot, counted: int) -> int:
    spec = snapshot.owner.spec
    return placement.least_available(spec.placement, counted) if spec else 1


# --- the outcome ------------------------------------------------------------------------------------------------------


def _stuck(
    decisions: Mapping[str, policies.NodeDecision], entries: Mapping[str, api.NodeStatus], stopped: str
) -> frozenset[str]:
    return frozenset(
        name for name, entry in entries.items() if decisions[name].blocked or (stopped and entry.reason == canary.WAITS)
    )


def _config_map(
    snapshot: Snapshot,
    spec: api.Spec,
    published: api.Revision | None,
    entries: Mapping[str, api.NodeStatus],
) -> Manifest | None:
    """Written once the present spec's settings were proven on a node; never taken back."""
    proven = published is not None and any(
        policies.is_staged(entry) and entry.manifest_digest == published.manifest_digest for entry in entries.values()
    )
    existing = snapshot.config_map
    if published is None or not proven or (existing is not None and not existing.ours):
        return None
    manifest = engine.config_map(snapshot.owner, spec, published)
    return None if existing is not None and dict(existing.data) == manifest["data"] else manifest


def _labels(snapshot: Snapshot, entries: Mapping[str, api.NodeStatus]) -> dict[str, dict[str, str | None]]:
    if not snapshot.policy.label_nodes:
        return {}
    offered = {node.name: holdings.offered(entries.get(node.name), node) for node in snapshot.nodes}
    return holdings.label_changes(snapshot.owner.uid, snapshot.nodes, retention.staying(snapshot, offered))


def _status(
    snapshot: Snapshot,
    facts: Assessment,
    known: revisions.Revisions,
    entries: Mapping[str, api.NodeStatus],
    now: datetime,
    *,
    counted: int | None,
) -> api.Status:
    owner, published = snapshot.owner, known.published
    evaluated = conditions.evaluate(facts, owner.status.conditions, generation=owner.generation, now=now)
    ready = count_ready(entries)
    return api.Status(
        observed_generation=owner.generation,
        published=published,
        candidate=known.candidate,
        previous=known.previous,
        summary=api.Summary(
            desired=len(entries),
            ready=ready,
            staging=sum(entry.state == "Staging" for entry in entries.values()),
            failed=sum(entry.state == "Failed" for entry in entries.values()),
            ready_ratio=f"{ready}/{len(entries)}",
            size=human_bytes(published.size_bytes) if published else "",
            counted=counted,
        ),
        nodes=_bounded(entries),
        conditions=evaluated,
    )


def _bounded(entries: Mapping[str, api.NodeStatus]) -> dict[str, api.NodeStatus]:
    """With messages that fit one object together: etcd takes 1.5 MiB of it, and past that no status is written at all."""
    limit = _MESSAGES_BYTES // max(len(entries), 1)
    return {
        name: entry
        if len(entry.message.encode()) <= limit
        else entry.model_copy(update={"message": entry.message.encode()[: limit - 3].decode(errors="ignore") + "…"})
        for name, entry in entries.items()
    }
