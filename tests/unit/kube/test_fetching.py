"""Who counts as fetching: by Jobs and pods as the API server has them."""

from typing import Any

import pytest

from modelweights_operator.domain.snapshot import ContainerState, Fetch, StagingJob, StagingPod
from modelweights_operator.kube.gather import fetching
from modelweights_operator.kube.informer import Informer, Item
from tests.unit.domain.samples import (
    OWNER_UID,
    failure_text,
    fetch_ended,
    make_fetch_spec,
    make_job,
    make_node,
    make_pod,
)

RUNS = ContainerState("fetch")
FAILED = ContainerState("fetch", exit_code=10, message=failure_text())
NEXT = ContainerState("prefetch")


def counted(*pods: StagingPod, **changes: Any) -> tuple[Fetch, ...]:
    """With one Job, which has these pods."""
    job = make_job(make_node("node-a"), make_fetch_spec(), source_host="hub", **changes)
    # No request is made: the connection isn't there.
    jobs: Informer[StagingJob] = Informer(None, "", {}, lambda _: None, lambda _: None)  # type: ignore[arg-type]
    found: Informer[StagingPod] = Informer(None, "", {}, lambda _: None, lambda _: None)  # type: ignore[arg-type]
    jobs._put(("team", job.name), Item(f"team/{OWNER_UID}", job))
    for number, pod in enumerate(pods):
        found._put(("team", f"{job.name}-{number}"), Item(f"team/{job.name}", pod))
    return fetching(jobs, found, {OWNER_UID: ("team", "llama")})


def test_a_fetch_is_told_with_whose_where_and_from_where() -> None:
    (fetch,) = counted(make_pod(RUNS))
    assert (fetch.owner, fetch.host, fetch.node) == ("team/llama", "hub", "node-a")


@pytest.mark.parametrize(
    ("pods", "changes", "expected"),
    [
        ((), {}, 1),
        ((make_pod(RUNS),), {}, 1),
        ((make_pod(fetch_ended(), NEXT),), {}, 0),
        ((make_pod(FAILED),), {}, 0),
        ((make_pod(fetch_ended(), NEXT, phase="Failed"),), {}, 1),
        ((make_pod(fetch_ended(), NEXT, phase="Failed"), make_pod(RUNS)), {}, 1),
        ((make_pod(phase="Succeeded"),), {}, 0),
        ((make_pod(RUNS),), {"deleting": True}, 1),
        ((make_pod(RUNS),), {"state": "Failed"}, 0),
        ((), {"state": "Complete"}, 0),
        ((make_pod(RUNS),), {"source_digest": ""}, 0),
    ],
    ids=[
        "no pod yet", "runs", "ended", "failed", "evicted", "evicted and again", "done", "is being deleted", "failed Job",
        "good Job", "fetches nothing",
    ],
)  # fmt: skip
def test_only_a_step_that_has_not_ended_counts(
    pods: tuple[StagingPod, ...], changes: dict[str, Any], expected: int
) -> None:
    assert len(counted(*pods, **changes)) == expected
