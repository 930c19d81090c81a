"""What the conditions are to be about: the facts of one ModelWeights put together. Called by `plan`; pure."""

from collections.abc import Mapping

from modelweights_operator.api import v1alpha1 as api
from modelweights_operator.domain import canary, holdings, placement, policies
from modelweights_operator.domain.conditions import Assessment, Trouble
from modelweights_operator.domain.snapshot import Snapshot


def assess(
    snapshot: Snapshot,
    spec: api.Spec,
    decisions: Mapping[str, policies.NodeDecision],
    entries: Mapping[str, api.NodeStatus],
    published: api.Revision | None,
    holding: Mapping[str, tuple[str, ...]],
    stopped: str,
) -> Assessment:
    """Put the facts together.

    Args:
        snapshot: The object and the settings.
        spec: Its spec.
        decisions: Of each selected node.
        entries: What the status will say of each.
        published: The published checkpoint.
        holding: Per node, the digests that it holds.
        stopped: Why the trial on a few nodes stopped the rest, "" when it didn't.
    """
    stuck = {name for name, entry in entries.items() if entry.state == "Failed" or decisions[name].blocked}
    waiting = {name for name, entry in entries.items() if entry.state != "Ready"} - stuck
    in_motion = {
        name
        for name, entry in entries.items()
        if not decisions[name].blocked
        and not (stopped and entry.reason == canary.WAITS)
        and entry.reason not in (policies.DIGEST_MISMATCH, policies.RESIDENCY_LOST)
        and entry.state != "Ready"
        and entry.reason != policies.SUSPENDED
        and not (spec.suspend and entry.state == "Failed")
    }
    return Assessment(
        conflict=_conflict(snapshot, published),
        refused=snapshot.write_refusal,
        desired=len(entries),
        ready=count_ready(entries),
        holding=count_holding(holding, published),
        published=published.manifest_digest if published else "",
        moving=bool(in_motion),
        troubles=tuple(Trouble(name, entries[name].reason, entries[name].message) for name in sorted(stuck)),
        waiting=tuple(Trouble(name, entries[name].reason, entries[name].message) for name in sorted(waiting)),
        canary=stopped,
        no_nodes_hint="" if entries else _no_nodes_hint(snapshot, spec),
        suspended=spec.suspend,
    )


def _no_nodes_hint(snapshot: Snapshot, spec: api.Spec) -> str:
    selector = ",".join(f"{key}={value}" for key, value in sorted(spec.placement.node_selector.items())) or "(any)"
    matching = [node for node in snapshot.nodes if placement.selects(spec.placement, node)]
    for node in matching:
        taint = placement.untolerated(spec.placement, node)
        if taint is not None:
            text = f"{taint.key}={taint.value}:{taint.effect}" if taint.value else f"{taint.key}:{taint.effect}"
            return (
                f"{len(matching)} node(s) match spec.placement ({selector}) but have taints that staging doesn't "
                f"tolerate, such as {text} on {node.name}: add it to spec.placement.tolerations"
            )
    hint = f"no node matches spec.placement ({selector}): label the nodes, or change the selector"
    if spec.placement.when_no_room == "Provision":
        return hint
    return f"{hint}; autoscalers skip pods that wait at a gate, see spec.placement.whenNoRoom"


def _conflict(snapshot: Snapshot, published: api.Revision | None) -> str:
    if published is None or snapshot.config_map is None or snapshot.config_map.ours:
        return ""
    owner = snapshot.owner
    return (
        f"ConfigMap {owner.namespace}/{owner.name} exists and isn't the operator's, so the engine's settings can't be "
        "published under that name: rename one of the two, or delete the ConfigMap"
    )


def count_holding(holding: Mapping[str, tuple[str, ...]], published: api.Revision | None) -> int:
    """Nodes that hold the published checkpoint."""
    return holdings.count(holding, published.manifest_digest) if published is not None else 0


def count_ready(entries: Mapping[str, api.NodeStatus]) -> int:
    """Nodes that are ready."""
    return sum(entry.state == "Ready" for entry in entries.values())
