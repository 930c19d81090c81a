"""Everybody gets a turn: who had its last place longest ago goes before who had one just now."""

from dataclasses import replace
from datetime import timedelta

from modelweights_operator.api import v1alpha1 as api
from modelweights_operator.domain import names
from modelweights_operator.domain.snapshot import Fetch, FetchSettings
from modelweights_operator.domain.turns import FORGOTTEN_AFTER, Turns
from tests.unit.domain.plans import A, B, C, job_nodes, plan_of, with_spec
from tests.unit.domain.samples import COMMIT_A, NOW, POLICY, make_fetch_spec

SPEC = make_fetch_spec()
PIN = api.Status(source=api.SourceStatus(digest=names.source_digest(SPEC), revision=COMMIT_A))
HUB = "huggingface.co"


def wait(owner: str, *, host: str = "", node: str = "") -> Fetch:
    return Fetch("", owner, host, node)


def test_who_was_served_goes_behind_all_that_wait() -> None:
    turns = Turns()
    for owner in ("large", "small"):
        turns.note(owner, [wait(owner, host=HUB)], served=owner == "large", now=NOW)
    assert turns.ahead("small", NOW) == (wait("large", host=HUB),)
    turns.note("large", [wait("large", host=HUB)], served=True, now=NOW)
    assert turns.ahead("large", NOW) == (wait("small", host=HUB),)
    assert turns.ahead("small", NOW) == ()


def test_the_first_of_those_that_wait_waits_for_none_of_them() -> None:
    """Or all would wait for each other."""
    turns = Turns()
    owners = [f"o{number}" for number in range(5)]
    for owner in owners:
        turns.note(owner, [wait(owner, node="node-a")], served=False, now=NOW)
    assert [len(turns.ahead(owner, NOW)) for owner in owners] == [0, 1, 2, 3, 4]


def test_who_waits_no_longer_is_ahead_of_nobody() -> None:
    turns = Turns()
    turns.note("gone", [wait("gone", host=HUB)], served=False, now=NOW)
    assert turns.ahead("other", NOW) != ()
    assert turns.ahead("other", NOW + FORGOTTEN_AFTER) == ()
    assert turns.ahead("other", NOW + FORGOTTEN_AFTER - timedelta(seconds=1)) != ()
    turns.note("gone", [], served=False, now=NOW)
    assert turns.ahead("other", NOW) == ()
    turns.note("gone", [wait("gone", host=HUB)], served=False, now=NOW)
    turns.forget("gone")
    assert turns.ahead("other", NOW) == ()


def test_a_place_is_left_for_each_that_is_ahead() -> None:
    settings = FetchSettings(max_concurrent_per_host=3, max_concurrent_per_node=1)
    snapshot = replace(with_spec(SPEC, A, B, C, status=PIN), policy=replace(POLICY, fetch=settings))
    ahead = (wait("team/bert", host=HUB), wait("team/bert", host=HUB), wait("team/qwen", node="node-a"))
    plan = plan_of(replace(snapshot, ahead=ahead))
    assert job_nodes(plan) == ["node-b", "node-c"]
    assert plan.waits == (wait("team/llama", node="node-a"),)
    assert plan.status.nodes["node-a"].message == (
        "waits for its turn: fetch.maxConcurrentPerNode is 1, and team/qwen waited longer"
    )
    busy = plan_of(replace(snapshot, ahead=ahead, fetching=(Fetch("x", "team/t5", HUB, "other"),)))
    assert job_nodes(busy) == ["node-b"]
    assert busy.status.nodes["node-c"].message == (
        "waits for its turn: fetch.maxConcurrentPerHost is 3, and team/llama on node-b, team/t5 on other fetch(es) from "
        "huggingface.co; team/bert waited longer"
    )
    assert busy.waits == (wait("team/llama", node="node-a"), wait("team/llama", host=HUB))
