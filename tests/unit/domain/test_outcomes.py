"""Stagings that ended, as two statuses tell: each is told once."""

from dataclasses import replace

import pytest

from modelweights_operator.api.v1alpha1 import NodeStatus
from modelweights_operator.domain.outcomes import Outcome, ended, node_class
from tests.unit.domain.samples import STAGED, make_node

STAGING = NodeStatus(state="Staging", last_transition_time="2026-03-01T12:00:00Z")
READY = NodeStatus(
    state="Ready",
    last_transition_time="2026-03-01T12:01:00Z",
    resident_bytes=1000,
    prefetch_bytes_per_second=500,
    fetched_bytes=900,
    fetch_seconds=3.0,
    load_seconds=0.5,
)
FAILED = NodeStatus(state="Failed", reason="BadHeader", attempts=1, last_transition_time="2026-03-01T12:01:00Z")
GOOD = replace(STAGED, node_class="")
BAD = Outcome("", succeeded=False, reason="BadHeader")


@pytest.mark.parametrize(
    ("before", "after", "outcomes"),
    [
        (STAGING, READY, (GOOD,)),
        (None, READY, (GOOD,)),
        (READY, READY, ()),
        (READY, READY.model_copy(update={"resident_bytes": 990}), ()),
        (STAGING, FAILED, (BAD,)),
        (FAILED, FAILED.model_copy(), ()),
        (FAILED, FAILED.model_copy(update={"attempts": 2}), (BAD,)),
        (FAILED, READY, (GOOD,)),
        (READY, STAGING, ()),
        (READY, FAILED, (BAD,)),
    ],
)
def test_each_end_is_told_once(before: NodeStatus | None, after: NodeStatus, outcomes: tuple[Outcome, ...]) -> None:
    assert ended({} if before is None else {"a": before}, {"a": after}, {}) == outcomes


def test_what_was_not_read_has_no_rate() -> None:
    (found,) = ended({}, {"a": READY.model_copy(update={"prefetch_bytes_per_second": 0})}, {})
    assert (found.prefetched_bytes, found.prefetch_bytes_per_second) == (0, 0)


@pytest.mark.parametrize(
    ("labels", "kind"),
    [
        ({}, ""),
        ({"nvidia.com/gpu.product": "H100"}, "H100"),
        ({"nvidia.com/gpu.product": "H100", "node.kubernetes.io/instance-type": "p5.48xlarge"}, "p5.48xlarge"),
    ],
)
def test_the_kind_of_a_machine_is_what_its_labels_say(labels: dict[str, str], kind: str) -> None:
    assert node_class(make_node(labels=labels)) == kind


def test_a_node_that_is_gone_has_no_kind() -> None:
    assert node_class(None) == ""
