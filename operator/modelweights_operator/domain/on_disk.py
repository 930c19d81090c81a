"""What nodes have on their disks though they no longer hold it proven, as after a reboot. Kept by `room`; no I/O.

The status forgets it with the boot; here it is kept as long as the node's entry has nothing new. What outlives the operator is
`provenBefore` in that entry: whether the node had what the spec asks for.
"""

from dataclasses import dataclass

from modelweights_operator.api import v1alpha1 as api
from modelweights_operator.domain import names, storage
from modelweights_operator.domain.snapshot import Node, Snapshot, StorageClass


@dataclass(frozen=True)
class Staged:
    """What a node was staged with last, and all checkpoints that it had then."""

    node_uid: str
    staging_digest: str
    digests: frozenset[str]


class OnDisk:
    """Per object and node what was staged there last."""

    def __init__(self) -> None:
        self._staged: dict[str, dict[str, Staged]] = {}

    def note(self, owner: str, snapshot: Snapshot) -> None:
        """What the status says now; of nodes that it says nothing of any more nothing is kept."""
        before, uids = self._staged.get(owner, {}), {node.name: node.uid for node in snapshot.nodes}
        found = {
            name: _staged(entry, uids.get(name, "")) or before.get(name)
            for name, entry in snapshot.owner.status.nodes.items()
        }
        self._staged[owner] = {name: staged for name, staged in found.items() if staged is not None}

    def forget(self, owner: str) -> None:
        """An object went."""
        self._staged.pop(owner, None)

    def writes_nothing(self, owner: str, snapshot: Snapshot, where: StorageClass, node: Node) -> bool:
        """Whether a node has already all that the spec asks for.

        Args:
            owner: The object.
            snapshot: It, with a spec that is fetched.
            where: The storage class of the spec.
            node: The node.
        """
        staged, spec = self._staged.get(owner, {}).get(node.name), snapshot.owner.spec
        if spec is None or (staged is not None and staged.node_uid != node.uid):
            return False
        wanted = names.staging_digest(spec, storage.place(spec, snapshot.policy))
        entry = snapshot.owner.status.nodes.get(node.name)
        if entry is not None and entry.proven_before and entry.staging_digest == wanted:
            return True
        if staged is None:
            return False
        if staged.staging_digest == wanted:
            return True
        known = _asked_for(snapshot.owner.status, names.source_digest(spec))
        if known is None or known.manifest_digest not in staged.digests:
            return False
        there = storage.class_of(snapshot.owner, known.path, known.manifest_digest, snapshot.policy)
        return there is not None and there.name == where.name


def _staged(entry: api.NodeStatus, node_uid: str) -> Staged | None:
    """None where the entry knows of nothing: the first one after a reboot."""
    digests = frozenset(filter(None, (entry.manifest_digest, *entry.other_digests)))
    if not digests:
        return None
    return Staged(node_uid, entry.staging_digest if entry.state == "Ready" else "", digests.union(entry.leftovers))


def _asked_for(status: api.Status, source_digest: str) -> api.Revision | None:
    """The known checkpoint that is of the revision which the spec asks for."""
    source = status.source
    if source is None or source.digest != source_digest or not source.revision:
        return None
    known = (status.candidate, status.published, *status.previous)
    return next((each for each in known if each is not None and each.revision == source.revision), None)
