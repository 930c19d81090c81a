"""Which nodes the gate is told to hold the revision that a pod requires."""

from dataclasses import replace

import pytest

from modelweights_operator.domain import names
from modelweights_operator.domain.gate import StagedModel
from modelweights_operator.domain.required import staged_model
from modelweights_operator.domain.snapshot import Node
from tests.unit.domain.plans import READY_STATUS, A, B
from tests.unit.domain.samples import DIGEST_A, DIGEST_B, OWNER_UID, make_owner, make_revision

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


def in_a_group_that_has(digest: str) -> StagedModel:
    previous = (make_revision(DIGEST_B),)
    status = READY_STATUS.model_copy(update={"previous": previous})
    nodes = (LABELLED, replace(B, labels=names.digest_labels(OWNER_UID, [DIGEST_B])))
    entry = status.nodes["node-b"].model_copy(update={"other_digests": (DIGEST_B,)})
    status = status.model_copy(update={"nodes": {**status.nodes, "node-b": entry}})
    return staged_model(make_owner(status=status), "", nodes, label_nodes=True, group_has=digest)


@pytest.mark.parametrize(
    ("digest", "found", "holders"),
    [("", DIGEST_A, {"node-a"}), (DIGEST_A, DIGEST_A, {"node-a"}), (DIGEST_B, DIGEST_B, {"node-b"})],
)
def test_a_pod_gets_what_its_group_has(digest: str, found: str, holders: set[str]) -> None:
    model = in_a_group_that_has(digest)
    assert (model.digest, set(model.holders), model.missing) == (found, holders, "")


def test_what_a_group_has_and_no_node_holds_any_more_is_told() -> None:
    model = in_a_group_that_has(f"sha256:{'c' * 64}")
    assert (model.digest, model.available) == ("", False)
    assert model.missing.startswith("pods of its group were started with sha256:cccc")
