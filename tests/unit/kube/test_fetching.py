"""Who counts as fetching: by Jobs and pods as the API server has them."""

from dataclasses import replace
from typing import Any

import pytest

from modelweights_operator.domain.snapshot import ContainerState, Fetch, Node, StagingJob, StagingPod
from modelweights_operator.kube.gather import fetching
from modelweights_operator.kube.informer import Informer, Item
from tests.unit.domain.samples import (
    NOW,
    OWNER_UID,
    ago,
    failure_text,
    fetch_ended,
    make_fetch_spec,
    make_job,
    make_node,
    make_pod,
    resolve_ended,
)

RUNS = ContainerState("fetch")
FAILED = ContainerState("fetch", exit_code=10, message=failure_text())
RESOLVES = ContainerState("resolve")
NOT_RESOLVED = ContainerState("resolve", exit_code=10, message=failure_text())
NEXT = ContainerState("prefetch")
WAITS = ContainerState("fetch", waiting_reason="PodInitializing")
HERE = make_node("node-a")


def counted(
    *pods: StagingPod, nodes: tuple[Node, ...] = (HERE,), stuck: bool = False, **changes: Any
) -> tuple[Fetch, ...]:
    """With one Job, which has these pods."""
    job = make_job(HERE, make_fetch_spec(), source_host="hub", **changes)
    # No request is made: the connection isn't there.
    jobs: Informer[StagingJob] = Informer(None, "", {}, lambda _: None, lambda _: None)  # type: ignore[arg-type]
    found: Informer[StagingPod] = Informer(None, "", {}, lambda _: None, lambda _: None)  # type: ignore[arg-type]
    jobs._put(("team", job.name), Item(f"team/{OWNER_UID}", job))
    for number, pod in enumerate(pods):
        found._put(("team", f"{job.name}-{number}"), Item(f"team/{job.name}", pod))
    return fetching(
        jobs, found, {OWNER_UID: ("team", "llama")}, nodes=nodes, stuck={f"team/{job.name}"} if stuck else (), now=NOW
    )


def test_a_fetch_is_told_with_whose_where_and_from_where() -> None:
    (fetch,) = counted(make_pod(RUNS))
    assert (fetch.owner, fetch.host, fetch.node) == ("team/llama", "hub", "node-a")


@pytest.mark.parametrize(
    ("pods", "changes", "expected"),
    [
        ((), {"created_at": ago(1)}, 1),
        ((make_pod(RUNS),), {}, 1),
        ((make_pod(fetch_ended(), NEXT),), {}, 0),
        ((make_pod(FAILED),), {}, 0),
        ((make_pod(fetch_ended(), NEXT, phase="Failed"),), {}, 1),
        ((make_pod(fetch_ended(), NEXT, phase="Failed"), make_pod(RUNS)), {}, 1),
        ((make_pod(phase="Succeeded"),), {}, 0),
        ((make_pod(RUNS),), {"deleting": True}, 1),
        ((make_pod(RUNS),), {"state": "Failed"}, 0),
        ((), {"state": "Complete"}, 0),
        ((make_pod(RESOLVES, WAITS),), {}, 1),
        ((make_pod(NOT_RESOLVED, WAITS),), {}, 0),
        ((make_pod(resolve_ended(), RUNS, created_at=ago(9999)),), {"created_at": ago(9999)}, 1),
        ((make_pod(RESOLVES, WAITS, created_at=ago(9999)),), {"created_at": ago(9999)}, 1),
        ((make_pod(resolve_ended(), WAITS),), {}, 1),
        ((make_pod(resolve_ended(), fetch_ended(), NEXT),), {}, 0),
        ((make_pod(RUNS),), {"source_digest": ""}, 0),
    ],
    ids=[
        "no pod yet", "runs", "ended", "failed", "evicted", "evicted and again", "done", "is being deleted", "failed Job",
        "good Job", "resolves", "failed to resolve", "runs for long", "resolves for long", "resolved",
        "resolved and ended", "fetches nothing",
    ],
)  # fmt: skip
def test_only_a_step_that_has_not_ended_counts(
    pods: tuple[StagingPod, ...], changes: dict[str, Any], expected: int
) -> None:
    assert len(counted(*pods, **changes)) == expected


@pytest.mark.parametrize(
    ("pods", "changes", "expected"),
    [
        ((), {"created_at": ago(29)}, 1),
        ((), {"created_at": ago(31)}, 0),
        ((make_pod(WAITS, created_at=ago(299)),), {"created_at": ago(400)}, 1),
        ((make_pod(WAITS, created_at=ago(301)),), {"created_at": ago(400)}, 0),
        ((make_pod(RUNS, created_at=ago(9999)),), {"created_at": ago(9999)}, 1),
        ((make_pod(scheduled=False, message="claim not found"),), {}, 0),
        ((make_pod(scheduled=False),), {}, 1),
        ((make_pod(ContainerState("fetch", waiting_reason="ImagePullBackOff")),), {}, 0),
        ((make_pod(ContainerState("fetch", waiting_reason="CreateContainerConfigError")),), {}, 0),
        ((), {"suspended": True, "created_at": ago(299)}, 1),
        ((), {"suspended": True, "created_at": ago(301)}, 0),
    ],
    ids=[
        "no pod", "no pod for long", "starts", "starts for long", "runs for long", "unschedulable", "not yet scheduled",
        "no image", "no container", "in a queue", "in a queue for long",
    ],
)  # fmt: skip
def test_what_cannot_begin_holds_no_place(pods: tuple[StagingPod, ...], changes: dict[str, Any], expected: int) -> None:
    assert len(counted(*pods, **changes)) == expected


@pytest.mark.parametrize("nodes", [(), (replace(HERE, ready=False),)], ids=["gone", "not ready"])
def test_a_node_that_is_lost_holds_no_place(nodes: tuple[Node, ...]) -> None:
    assert counted(make_pod(RUNS), nodes=nodes) == ()


def test_what_events_say_of_one_that_cannot_begin_counts_until_it_runs() -> None:
    assert len(counted(make_pod(WAITS))) == 1
    assert counted(make_pod(WAITS), stuck=True) == ()
    assert len(counted(make_pod(RUNS), stuck=True)) == 1
