"""Labels of nodes: what is put on, what goes, and what a former version left."""

from modelweights_operator.domain import holdings, names
from modelweights_operator.domain.snapshot import Node

UID = "11111111-2222-3333-4444-555555555555"
DIGEST, OTHER = "sha256:" + "a" * 64, "sha256:" + "b" * 64
FORMER = names.node_label_owner(UID)


def node(**labels: str) -> Node:
    return Node(name="a", uid="u", boot_id="b", labels=labels)


def test_a_label_of_the_former_version_stays_while_it_says_what_is_true() -> None:
    there = node(**{FORMER: names.label_digest(DIGEST)})
    changes = holdings.label_changes(UID, [there], {"a": (OTHER, DIGEST)})
    assert changes == {"a": names.digest_labels(UID, (OTHER, DIGEST))}
    after = node(**{FORMER: names.label_digest(DIGEST), **names.digest_labels(UID, (OTHER, DIGEST))})
    assert holdings.label_changes(UID, [after], {"a": (OTHER, DIGEST)}) == {}


def test_and_goes_with_the_checkpoint() -> None:
    there = node(**{FORMER: names.label_digest(DIGEST), **names.digest_labels(UID, (OTHER,))})
    assert holdings.label_changes(UID, [there], {"a": (OTHER,)}) == {"a": {FORMER: None}}
