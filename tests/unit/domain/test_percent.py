"""How far a staging is: which log is read, and what is made of it."""

from datetime import timedelta
from typing import Any

import pytest

from modelweights_operator.domain import percent, policies
from modelweights_operator.domain.percent import RunningStep
from modelweights_operator.domain.snapshot import ContainerState
from tests.unit.domain.samples import NOW, ago, digest_of, make_job, make_node, make_pod, make_spec

FETCH, PREFETCH = ContainerState("fetch"), ContainerState("prefetch", waiting_reason="PodInitializing")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", None),
        ("fetch: 40 %, 1.2 GiB of 3.0 GiB, 100 MiB/s, 18 s left\n", 40),
        ("fetch: 10 %, a\nfetch: 20 %, b\nfetch: the hub is busy; asked again in 2.0 s\n", 20),
        ("2 %, cut off\nfetch: 100 %", 100),
        ("fetch: 999 %, a", 100),
        ("prefetch: 40 %, a", None),
        ("fetch: 40 % of it", 40),
        ("fetch: 40%", None),
        ("fetch: -4 %, a", None),
        ("fetch: 4000 %, a", None),
        ("fetch: \u0664 %, a", None),
        ("fetch: lists 50 %, a", None),
        ("\0\ufffd\nfetch: 30 %, a\r\n", 30),
    ],
)
def test_what_a_log_tells(text: str, expected: int | None) -> None:
    assert percent.parse(text, "fetch") == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("fetch: 40 %, 1.2 GiB of 3.0 GiB, 100 MiB/s, 18 s left\n", int(3.05 * 2**30)),
        ("fetch: 1 %, 5 B of 500 B, 1 B/s\nfetch: the hub is busy\n", 500),
        ("fetch: 1 %, 5 B of 1.0 TiB\nfetch: 2 %, 5 B of 2.0 TiB\n", int(2.05 * 2**40)),
        ("prefetch: 1 %, 5 B of 500 B", 0),
        ("fetch: 1 %, 5 B of 99999999999 GiB", 0),
        ("fetch: 1 %, 5 B of 3.0 GiBx", 0),
        ("fetch: 1 %, 5 B of -3.0 GiB", 0),
        ("fetch: 1 %, 5 B of 1.2.3 GiB", 0),
        ("fetch: 10 %, a", 0),
    ],
)
def test_the_size_that_a_log_tells(text: str, expected: int) -> None:
    assert percent.parse_total(text, "fetch") == expected


@pytest.mark.parametrize(
    ("job", "pod", "expected"),
    [
        ({}, {}, RunningStep("stage-llama-x", "fetch")),
        ({"state": "Complete"}, {}, None),
        ({"deleting": True}, {}, None),
        ({}, {"created_at": ago(59)}, None),
        ({}, {"deleting": True}, None),
        ({}, {"phase": "Failed"}, None),
        ({}, {"containers": (ContainerState("fetch", exit_code=0), PREFETCH)}, None),
        (
            {},
            {"containers": (ContainerState("fetch", exit_code=0), ContainerState("prefetch"))},
            RunningStep("stage-llama-x", "prefetch"),
        ),
    ],
)
def test_which_step_is_asked(job: dict[str, Any], pod: dict[str, Any], expected: RunningStep | None) -> None:
    pods = (make_pod(**{"containers": (FETCH, PREFETCH), "created_at": ago(60), **pod}),)
    assert percent.running_step(make_job(pods=pods, **job), NOW) == expected


@pytest.mark.parametrize(("age", "again"), [(0, 60.0), (20, 40.0), (50, 30.0), (600, 30.0)])
def test_a_running_step_is_looked_at_again(age: int, again: float) -> None:
    job = make_job(pods=(make_pod(FETCH, created_at=NOW - timedelta(seconds=age)),))
    assert percent.again_seconds(job, NOW) == again


def test_the_status_says_it_while_the_step_runs() -> None:
    job = make_job(pods=(make_pod(FETCH, created_at=ago(90)),), progress_percent=40)
    decision = policies.decide(
        policies.NodeContext(
            node=make_node(), staging_digest=digest_of(make_spec()), entry=None, jobs=(job,), suspended=False, now=NOW
        )
    )
    assert (decision.entry.state, decision.entry.progress_percent) == ("Staging", 40)
    assert decision.again_after_seconds == 30.0
