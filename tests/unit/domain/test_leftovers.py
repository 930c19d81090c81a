"""Checkpoints on disk of which the status knows nothing: from the report of `fetch` until they are gone."""

import json
from dataclasses import replace
from typing import Any

import pytest

from modelweights_operator.api import v1alpha1 as api
from modelweights_operator.domain import leftovers, reports, retention
from modelweights_operator.domain.clock import rfc3339
from modelweights_operator.domain.plan import make_plan
from modelweights_operator.domain.snapshot import Owner
from modelweights_operator.domain.usage import PodUse
from tests.unit.domain.plans import A
from tests.unit.domain.samples import (
    COMMIT_A,
    DIGEST_A,
    DIGEST_B,
    NOW,
    ago,
    complete_job,
    failed_job,
    make_fetch_spec,
    make_owner,
    make_snapshot,
    report_text,
)
from tests.unit.domain.test_cleanup import DIGEST_C, SITE, decide, entry, made, revision, world

OLD = rfc3339(ago(601))


def hexadecimal(*digests: str) -> tuple[str, ...]:
    return tuple(digest.removeprefix("sha256:") for digest in digests)


def report(*digests: str) -> reports.Report:
    found = reports.parse(report_text(leftovers=hexadecimal(*digests)))
    assert found is not None
    return found


SEEN = {
    "none": ((), "", (), (), ""),
    "the first": ((), "", (DIGEST_A,), (DIGEST_A,), rfc3339(NOW)),
    "the same": ((DIGEST_A,), OLD, (DIGEST_A,), (DIGEST_A,), OLD),
    "fewer": ((DIGEST_A, DIGEST_B), OLD, (DIGEST_B,), (DIGEST_B,), OLD),
    "one more has all wait": ((DIGEST_A,), OLD, (DIGEST_A, DIGEST_B), (DIGEST_A, DIGEST_B), rfc3339(NOW)),
    "all are gone": ((DIGEST_A,), OLD, (), (), ""),
    "what is held is none": ((), "", (DIGEST_A, DIGEST_C), (DIGEST_A,), rfc3339(NOW)),
}


@pytest.mark.parametrize(("before", "since", "named", "after", "at"), SEEN.values(), ids=SEEN.keys())
def test_what_a_staging_tells(
    before: tuple[str, ...], since: str, named: tuple[str, ...], after: tuple[str, ...], at: str
) -> None:
    former = entry(leftovers=before, leftovers_since=since)
    found = leftovers.seen(former, report(*named), (DIGEST_C,), NOW)
    assert found == {"leftovers": after, "leftovers_since": at}


def test_a_staging_that_does_not_say_changes_nothing() -> None:
    silent = replace_leftovers(report(), None)
    former = entry(leftovers=(DIGEST_A,), leftovers_since=OLD)
    assert leftovers.seen(former, silent, (), NOW) == {"leftovers": (DIGEST_A,), "leftovers_since": OLD}
    assert leftovers.seen(None, silent, (), NOW) == {"leftovers": (), "leftovers_since": ""}


def replace_leftovers(given: reports.Report, value: tuple[str, ...] | None) -> reports.Report:
    return given.model_copy(update={"leftovers": value})


def test_no_more_than_the_status_takes() -> None:
    many = [f"sha256:{number:064x}" for number in range(20)]
    found = leftovers.seen(None, report(*many), (), NOW)["leftovers"]
    assert found == tuple(many[: api.MAX_LEFTOVERS])


@pytest.mark.parametrize(("nodes", "each"), [(1, 6), (333, 6), (1000, 2), (2000, 1)])
def test_those_of_many_nodes_fit_one_object(nodes: int, each: int) -> None:
    six = tuple(f"sha256:{number:064x}" for number in range(6))
    entries = {f"node-{number}": entry(leftovers=six, leftovers_since=OLD) for number in range(nodes)}
    assert {found.leftovers for found in leftovers.bounded(entries).values()} == {six[:each]}


@pytest.mark.parametrize("planted", [["../etc"], ["sha256:" + "a" * 64], ["a" * 64] * 65, "a" * 64, [7]])
def test_a_report_with_anything_else_is_none(planted: Any) -> None:
    assert reports.parse(json.dumps({"step": "fetch", "leftovers": planted})) is None


def test_they_come_from_the_step_fetch_and_stay_in_the_jobs_result() -> None:
    fetched = json.dumps({"step": "fetch", "exitCode": 0, "leftovers": hexadecimal(DIGEST_C)})
    joined = reports.parse(reports.join(report_text(), fetched))
    assert joined is not None
    assert (joined.step, joined.leftovers) == ("report", hexadecimal(DIGEST_C))


def test_after_a_reboot_what_was_held_is_left_over_and_nobody_is_sent_for_it() -> None:
    before = entry(DIGEST_C, digest=DIGEST_A, bootID="an-earlier-boot")
    status = api.Status(published=revision(DIGEST_A), previous=(revision(DIGEST_C, 50),), nodes={A.name: before})
    job = complete_job(A, make_fetch_spec(), leftovers=hexadecimal(DIGEST_C))
    job = replace(job, revision=COMMIT_A, result=job.pods[0].containers[0].message)
    plan = make_plan(make_snapshot(make_owner(make_fetch_spec(), status), (A,), (job,)), NOW)
    after = plan.status.nodes[A.name]
    assert (after.state, after.manifest_digest, after.other_digests) == ("Ready", DIGEST_A, ())
    assert (after.leftovers, after.leftovers_since) == ((DIGEST_C,), rfc3339(NOW))
    assert len(plan.label_nodes[A.name]) == 1


def test_a_staging_that_fails_keeps_them() -> None:
    before = entry(leftovers=(DIGEST_C,), leftovers_since=OLD, bootID="an-earlier-boot")
    spec = make_fetch_spec(source={"huggingFace": {"repository": "org/name", "revision": COMMIT_A}})
    job = failed_job(A, spec=spec, revision=COMMIT_A)
    owner = make_owner(spec, api.Status(published=revision(DIGEST_B), nodes={A.name: before}))
    after = make_plan(make_snapshot(owner, (A,), (job,)), NOW).status.nodes[A.name]
    assert (after.state, after.manifest_digest) == ("Failed", "")
    assert (after.leftovers, after.leftovers_since) == ((DIGEST_C,), OLD)


# --- when they go -----------------------------------------------------------------------------------------------------


def left(since: str = OLD, **spec: Any) -> Owner:
    """B is published and on the node, and C is left over."""
    nodes = {A.name: entry(leftovers=(DIGEST_C,), leftovers_since=since)}
    return make_owner(make_fetch_spec(**spec), api.Status(published=revision(DIGEST_B), nodes=nodes))


GOES = {
    "after the grace period from when it was seen": (left(), {}, True),
    "not before": (left(rfc3339(ago(599))), {}, False),
    "not with Keep": (left(storage={"retention": "Keep"}), {}, False),
    "not for nothing with LeastRecentlyUsed": (left(storage={"retention": "LeastRecentlyUsed"}), {}, False),
    "for room with LeastRecentlyUsed": (
        left(storage={"retention": "LeastRecentlyUsed"}),
        {"victims": {A.name: frozenset({DIGEST_C})}},
        True,
    ),
    "not while a waiting pod asks for any revision by name": (left(), {"asked": True}, False),
    "not while it is suspended": (left(suspend=True), {}, False),
}


@pytest.mark.parametrize(("owner", "around", "goes"), GOES.values(), ids=GOES.keys())
def test_when_it_goes(owner: Owner, around: dict[str, Any], goes: bool) -> None:  # noqa: FBT001
    assert made(decide(world(owner, **around))) == ([(A.name, DIGEST_C)] if goes else [])


def test_it_is_looked_again_when_its_time_comes() -> None:
    assert retention.due(world(left(rfc3339(ago(500)))), NOW) == ((), 100)


@pytest.mark.parametrize("field", ["published", "candidate"])
def test_what_is_needed_is_not_removed_though_it_was_left_over(field: str) -> None:
    owner = left()
    status = owner.status.model_copy(update={field: revision(DIGEST_C)})
    assert made(decide(world(replace(owner, status=status)))) == []


def test_it_stays_while_a_pod_mounts_it() -> None:
    pod = PodUse("team", "engine", A.name, host_paths=(f"/data/team/llama/{DIGEST_C.removeprefix('sha256:')}",))
    assert made(decide(world(left()), pod)) == []


def test_in_a_claim_it_stays_while_any_node_is_being_staged() -> None:
    owner = left(storage={"class": "shared"})
    assert [where.claim for where in SITE.storage_classes if where.name == "shared"] != [""]
    assert made(decide(world(owner))) == [(A.name, DIGEST_C)]
    nodes = {**owner.status.nodes, "node-b": entry(state="Failed")}
    assert made(decide(world(replace(owner, status=owner.status.model_copy(update={"nodes": nodes}))))) == []


def test_it_is_out_of_the_status_once_it_is_gone() -> None:
    given = make_snapshot(left(), (A,), ())
    plan = make_plan(replace(given, cleaned={A.name: frozenset({DIGEST_C})}), NOW)
    after = plan.status.nodes[A.name]
    assert (after.leftovers, after.leftovers_since) == ((), "")
