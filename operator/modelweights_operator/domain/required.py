"""What the gate has to know of the revision of a ModelWeights that a pod requires. Called by the reconciler; pure."""

from collections.abc import Iterable, Mapping

from modelweights_operator.api.v1alpha1 import AVAILABLE
from modelweights_operator.domain import access, gate, holdings, names, revisions
from modelweights_operator.domain.snapshot import Node, Owner


def for_pod(
    requirement: gate.Requirement,
    owner: Owner,
    namespace: str,
    known: access.NamespaceLabels | None,
    nodes: Iterable[Node],
    *,
    label_nodes: bool,
    group_has: str,
) -> gate.StagedModel | None:
    """What a pod of a namespace requires, see `staged_model`; None when it is being deleted or isn't for that namespace.

    Args:
        requirement: What the pod asks for.
        owner: The ModelWeights of that name.
        namespace: The pod's.
        known: Its labels, None where they aren't known: then it gets nothing of another namespace.
        nodes: All nodes.
        label_nodes: As for `staged_model`.
        group_has: Likewise.
    """
    if owner.deleting:
        return None
    if requirement.namespace != namespace and not (owner.spec and access.allows(owner.spec.access, known)):
        return None
    return staged_model(owner, requirement.revision, nodes, label_nodes=label_nodes, group_has=group_has)


def staged_model(
    owner: Owner, asked: str, nodes: Iterable[Node], *, label_nodes: bool, group_has: str = ""
) -> gate.StagedModel:
    """Look for the revision in the status, and for the nodes that hold it.

    Args:
        owner: The ModelWeights, as the API server has it.
        asked: What the pod asks for after the `@`, "" for what is published.
        nodes: All nodes.
        label_nodes: Whether the operator may label nodes: then a node counts only once its label is there.
        group_has: The digest with which other pods of the group were let go for the same, "" for none: it is that one then.
    """
    status = owner.status
    if group_has and (status.published is None or status.published.manifest_digest != group_has):
        asked = group_has
    placement = owner.spec.placement if owner.spec is not None else None
    # A node that comes is staged as the spec asks: for another revision a pod would wait there in vain.
    provisions = placement is not None and placement.when_no_room == "Provision" and not asked
    selects_none = status.observed_generation == owner.generation and not status.summary.desired
    found = revisions.find(status, asked)
    if found is None:
        missing = revisions.why_missing(status, owner.spec, asked) if asked else ""
        if missing and asked == group_has:
            missing = f"pods of its group were started with {asked} before; {missing}"
        return gate.StagedModel(
            uid=owner.uid,
            available=False,
            digest="",
            holders={},
            missing=missing,
            provisions=provisions,
            selects_none=selects_none,
        )
    available = any(condition.type == AVAILABLE and condition.status == "True" for condition in status.conditions)
    return gate.StagedModel(
        uid=owner.uid,
        # Available speaks of the published one; for another the nodes are enough that hold it.
        available=available or found != status.published,
        digest=found.manifest_digest,
        holders=_holders(owner, found.manifest_digest, nodes, label_nodes=label_nodes),
        path=found.path,
        provisions=provisions,
        selects_none=selects_none,
    )


def _holders(owner: Owner, digest: str, nodes: Iterable[Node], *, label_nodes: bool) -> Mapping[str, str]:
    """The nodes that hold a checkpoint: by the status, and by their label where we label. Each with its hostname label.

    Those that have to be warm and aren't are left out, be the label there still: the lift would outlast it.
    Without labels a lift names nodes for good, so those that are lost at the moment are left out.
    """
    wanted = names.digest_labels(owner.uid, [digest])
    return {
        node.name: node.labels.get(gate.HOSTNAME_LABEL, "")
        for node in nodes
        if digest in holdings.offered(owner.status.nodes.get(node.name), node)
        and (wanted.items() <= node.labels.items() if label_nodes else node.ready)
    }
