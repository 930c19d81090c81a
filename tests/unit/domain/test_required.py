"""Which nodes the gate is told to hold the revision that a pod requires."""

from dataclasses import replace

import pytest

from modelweights_operator.domain import names
from modelweights_operator.domain.required import staged_model
from modelweights_operator.domain.snapshot import Node
from tests.unit.domain.plans import READY_STATUS, A, B
from tests.unit.domain.samples import DIGEST_A, OWNER_UID, make_owner

LABELLED = replace(A, labels={**A.labels, **names.digest_labels(OWNER_UID, [DIGEST_A])})
LOST = replace(B, ready=False)


@pytest.mark.parametrize(
    ("nodes", "label_nodes", "holders"),
    [
        ((LABELLED, B), True, {"node-a"}),
        ((replace(LABELLED, ready=False),), True, {"node-a"}),
        ((A, B), False, {"node-a", "node-b"}),
        ((A, LOST), False, {"node-a"}),
        ((LOST,), False, set()),
        ((replace(A, boot_id="boot-2"), B), False, {"node-b"}),
    ],
    ids=[
        "by the label where there is one",
        "a label leads to another node when this one stays lost",
        "without labels by the status",
        "a lift that names nodes names no lost one",
        "and waits rather than that",
        "a rebooted one holds nothing",
    ],
)
def test_who_holds_it(nodes: tuple[Node, ...], label_nodes: bool, holders: set[str]) -> None:  # noqa: FBT001
    found = staged_model(make_owner(status=READY_STATUS), "", nodes, label_nodes=label_nodes)
    assert set(found.holders) == holders
