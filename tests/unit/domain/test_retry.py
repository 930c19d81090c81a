"""The annotation that ends all back-offs: once for each value, whatever had failed, and for nothing that fails later."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from modelweights_operator.api import v1alpha1 as api
from modelweights_operator.domain import policies, retry
from modelweights_operator.domain.clock import rfc3339
from modelweights_operator.domain.plan import Plan, make_plan
from modelweights_operator.domain.snapshot import Snapshot, StagingJob
from tests.unit.domain.plans import A, B, job_nodes, states
from tests.unit.domain.samples import (
    NOW,
    ago,
    failed_job,
    failure_text,
    make_entry,
    make_owner,
    make_revision,
    make_snapshot,
    make_spec,
    make_status,
)
from tests.unit.domain.world import World

BROKEN = failure_text("BadHeader", 30)


def failed(reason: str = "BadHeader", exit_code: int = 30, **changes: Any) -> api.NodeStatus:
    fields = {
        "state": "Failed",
        "reason": reason,
        "exit_code": exit_code,
        "attempts": 1,
        "manifest_digest": "",
        "boot_id": "",
        "last_transition_time": rfc3339(ago(20)),
    }
    return make_entry(A, **{**fields, **changes})


def asked(entry: api.NodeStatus, *jobs: StagingJob, value: str = "now", **spec: Any) -> Snapshot:
    status = make_status({"node-a": entry}, make_revision())
    return make_snapshot(make_owner(make_spec(**spec), status, retry=value), (A,), jobs)


def noted(plan: Plan) -> tuple[str | None, str | None]:
    return plan.status.last_handled_retry, plan.status.last_retry_time


@pytest.mark.parametrize(
    "entry",
    [
        failed(),
        failed("Unreachable", 10, attempts=9),
        failed("Gated", 20),
        failed(policies.JOB_REFUSED, 10, attempts=5),
        failed(policies.DIGEST_MISMATCH, 0, manifest_digest="sha256:" + "b" * 64, boot_id=A.boot_id),
    ],
    ids=["bad", "often", "mended elsewhere", "refused", "other files"],
)
def test_a_failed_node_is_tried_again_at_once(entry: api.NodeStatus) -> None:
    assert job_nodes(make_plan(asked(entry, value=""), NOW)) == []
    plan = make_plan(asked(entry), NOW)
    assert job_nodes(plan) == ["node-a"]
    assert noted(plan) == ("now", rfc3339(NOW))
    assert [event.reason for event in plan.events if event.kind == "Normal"].count("Retrying") == 1


def test_with_the_failed_job_still_there_it_goes_first() -> None:
    job = failed_job(A, text=BROKEN, finished_seconds_ago=20)
    plan = make_plan(asked(failed(), job), NOW)
    assert (plan.delete_jobs, plan.create_jobs) == ((job.name,), ())
    # The next cycles find the value noted, and the Job on its way or gone.
    later = replace(asked(failed(), replace(job, deleting=True)), owner=make_owner(status=plan.status, retry="now"))
    assert job_nodes(make_plan(later, NOW + timedelta(seconds=3))) == []
    assert job_nodes(make_plan(replace(later, jobs=()), NOW + timedelta(seconds=5))) == ["node-a"]


def test_what_fails_afterwards_waits_as_ever() -> None:
    first = make_plan(asked(failed()), NOW).status
    entry = failed(attempts=2, last_transition_time=rfc3339(NOW + timedelta(seconds=1)))
    status = first.model_copy(update={"nodes": {"node-a": entry}})
    plan = make_plan(make_snapshot(make_owner(status=status, retry="now"), (A,)), NOW + timedelta(seconds=30))
    assert (job_nodes(plan), noted(plan)) == ([], noted(make_plan(asked(failed()), NOW)))
    assert plan.again_after_seconds == 571
    again = make_plan(make_snapshot(make_owner(status=status, retry="again"), (A,)), NOW + timedelta(seconds=30))
    assert job_nodes(again) == ["node-a"]


def test_each_value_is_heeded_once_and_none_asks_for_nothing() -> None:
    status = api.Status(last_handled_retry="now", last_retry_time=rfc3339(ago(60)))
    for value in ("now", ""):
        assert retry.heed(value, status, NOW) == retry.Retry("now", ago(60))
    assert retry.heed("again", status, NOW) == retry.Retry("again", NOW)
    assert retry.heed("", api.Status(), NOW) == retry.Retry()


def test_a_suspended_one_waits_until_it_goes_on() -> None:
    plan = make_plan(asked(failed(), suspend=True), NOW)
    assert (job_nodes(plan), states(plan)["node-a"]) == ([], ("Failed", "BadHeader"))
    resumed = make_owner(status=plan.status, retry="now")
    assert job_nodes(make_plan(make_snapshot(resumed, (A,)), NOW + timedelta(seconds=5))) == ["node-a"]


def test_a_running_staging_and_a_good_node_are_let_be() -> None:
    status = make_status({"node-a": make_entry(A), "node-b": make_entry(B)}, make_revision())
    plan = make_plan(make_snapshot(make_owner(status=status, retry="now"), (A, B)), NOW)
    assert (plan.create_jobs, plan.delete_jobs, noted(plan)) == ((), (), ("now", rfc3339(NOW)))


def test_an_object_that_cannot_be_staged_heeds_it_once_it_can() -> None:
    owner = make_owner(status=make_status({"node-a": failed()}), retry="now")
    stopped = make_plan(make_snapshot(replace(owner, spec=None, invalid="no"), (A,)), NOW)
    assert noted(stopped) == (None, None)
    assert job_nodes(make_plan(make_snapshot(replace(owner, status=stopped.status), (A,)), NOW)) == ["node-a"]


def test_a_back_off_goes_on_where_it_was_when_all_but_the_status_is_lost() -> None:
    """An operator that starts anew, and a failed Job that someone removed meanwhile."""
    world = World()
    world.add_node("node-a")
    world.cycle()
    world.end_job(next(iter(world.jobs)), 30)
    world.cycle()
    world.jobs.clear()
    world.pass_time(500)
    assert world.cycle().create_jobs == ()
    assert world.again_after_seconds == 100
    world.pass_time(100)
    assert len(world.cycle().create_jobs) == 1


def test_after_the_clock_was_set_back_failures_wait_as_ever() -> None:
    """Else every failure of the next hour would have been heeded already, and be tried again at once."""
    world = World(retry="now")
    world.add_node("node-a")
    world.cycle()
    world.pass_time(-3600)
    for _ in range(30):
        for name in list(world.jobs):
            world.end_job(name, 10)
        world.cycle()
        world.collect()
        world.pass_time(1)
    assert world.status.nodes["node-a"].attempts == 2
    assert (world.status.last_handled_retry, world.status.last_retry_time) == ("now", None)


@pytest.mark.parametrize("text", ["2099-01-01T00:00:00Z", "9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00Z"])
def test_a_time_that_a_hand_wrote_is_none(text: str) -> None:
    status = api.Status(last_handled_retry="now", last_retry_time=text)
    found = retry.heed("now", status, NOW)
    assert found == retry.Retry("now", None)
    assert found.noted["last_retry_time"] is None
