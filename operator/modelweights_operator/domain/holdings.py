"""Which checkpoints a node holds, and which of them stay there when it is staged anew. Called by `policies`, `plan` and others.

A node *holds* what it proved under its present boot: the checkpoint that it was staged with last, and those of earlier stagings
that are still there. A fetched one has a folder named by its digest, so it stays beside; files used in place are gone once
others were proven at the same path. Pure.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from modelweights_operator.api.v1alpha1 import MAX_DIGESTS_BESIDE, NodeStatus, Revision, Status
from modelweights_operator.domain import names
from modelweights_operator.domain.snapshot import Node

NOTHING: Final[tuple[str, ...]] = ()
_DIGEST_BYTES: Final = 75
_BESIDE_BYTES: Final = 320_000
"""Of all nodes together: 2,000 of them keep two each, 500 keep all that a node may have."""


@dataclass(frozen=True)
class Places:
    """Where checkpoints lie.

    Attributes:
        in_place: Where the spec's files are used in place; "" where they are fetched.
        known: Where the checkpoints lie that the status knows, by their digests.
        published: Digest of the published one, "" for none.
    """

    in_place: str = ""
    known: Mapping[str, str] = field(default_factory=dict)
    published: str = ""

    def stays(self, digest: str) -> bool:
        """Whether a checkpoint is there still after the spec's files were proven to be another one.

        Of one that the status no longer knows nobody can say it where files are used in place: it counts as gone.
        """
        return not self.in_place or self.known.get(digest, self.in_place) != self.in_place


def places(status: Status, in_place: str) -> Places:
    """What the status says about where checkpoints lie."""
    published = (status.published,) if status.published is not None else ()
    candidate = (status.candidate,) if status.candidate is not None else ()
    return Places(
        in_place=in_place,
        known={known.manifest_digest: known.path for known in (*status.previous, *candidate, *published)},
        published=published[0].manifest_digest if published else "",
    )


def held(entry: NodeStatus | None, node: Node) -> tuple[str, ...]:
    """The checkpoints that a node holds under its present boot; the one that it was staged with last comes first."""
    if entry is None or entry.boot_id != node.boot_id:
        return NOTHING
    return tuple(digest for digest in (entry.manifest_digest, *entry.other_digests) if digest)


def beside(before: Iterable[str], proven: str, where: Places) -> tuple[str, ...]:
    """What a node holds beside the checkpoint that it has just proven.

    Args:
        before: What it held.
        proven: The checkpoint.
        where: Where these lie.

    Returns:
        Their digests, the latest first. When there are too many the oldest is forgotten, but never the published one.
    """
    stay = [digest for digest in dict.fromkeys(before) if digest != proven and where.stays(digest)]
    return _latest(stay, MAX_DIGESTS_BESIDE, where.published)


def most_each(all_bytes: int, num_nodes: int) -> int:
    """How many digests each of so many nodes may have, at least one, so that together they take no more than so many bytes."""
    return max(1, all_bytes // (_DIGEST_BYTES * max(num_nodes, 1)))


def bounded(entries: Mapping[str, NodeStatus], published: Revision | None) -> dict[str, NodeStatus]:
    """The entries with what fits one object of all that nodes hold beside: etcd takes 1.5 MiB, and past that no status is written.

    Args:
        entries: Of all nodes.
        published: The published checkpoint, which is never forgotten.
    """
    keep = published.manifest_digest if published is not None else ""
    most = most_each(_BESIDE_BYTES, len(entries))
    return {
        name: entry
        if len(entry.other_digests) <= most
        else entry.model_copy(update={"other_digests": _latest(entry.other_digests, most, keep)})
        for name, entry in entries.items()
    }


def _latest(digests: Iterable[str], most: int, published: str) -> tuple[str, ...]:
    left = list(digests)
    while len(left) > most:
        left.remove(next(digest for digest in reversed(left) if digest != published))
    return tuple(left)


def offered(entry: NodeStatus | None, node: Node) -> tuple[str, ...]:
    """Of what a node holds, that for which pods may be sent there: not what a refresh left cold though it has to be warm."""
    cold = entry.cold_digest if entry is not None else ""
    return tuple(digest for digest in held(entry, node) if digest != cold)


def count(holding: Mapping[str, Iterable[str]], digest: str) -> int:
    """How many nodes hold a checkpoint; none hold "".

    Args:
        holding: What each node holds.
        digest: Of the checkpoint.
    """
    return sum(bool(digest) and digest in held_there for held_there in holding.values())


def label_changes(
    owner_uid: str, nodes: Iterable[Node], holding: Mapping[str, tuple[str, ...]]
) -> dict[str, dict[str, str | None]]:
    """Per node, the differences between what our labels say there and what is true; None takes one off."""
    changes = {}
    # All nodes hold one of a few sets of checkpoints.
    labels_of = {held_there: names.digest_labels(owner_uid, held_there) for held_there in set(holding.values())}
    for node in nodes:
        there, true = node.staged_of(owner_uid), labels_of[holding[node.name]]
        if there == true:
            continue
        off: dict[str, str | None] = {
            key: None for key, value in there.items() if key not in true and not _of_former(owner_uid, key, value, true)
        }
        on = {key: value for key, value in true.items() if there.get(key) != value}
        if off or on:
            changes[node.name] = {**off, **on}
    return changes


def _of_former(owner_uid: str, key: str, value: str, true: Mapping[str, str]) -> bool:
    """Whether it is a label of version 0.1, which had no digest in its key, and still says what is true.

    Pods that were lifted then, and wait for a GPU since, can only go where it is.
    """
    return key == names.node_label_owner(owner_uid) and value in true.values()
