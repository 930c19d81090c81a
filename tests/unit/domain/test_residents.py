"""What others hold in the page cache of a node, and what is known of one whose size no node has proven yet."""

from datetime import timedelta
from typing import Any

import pytest

from modelweights_operator.domain.clock import rfc3339
from modelweights_operator.domain.residents import UNKNOWN_FOR, Residents, size_told
from modelweights_operator.domain.snapshot import ContainerState, Resident
from tests.unit.domain.plans import A, B
from tests.unit.domain.samples import NOW, ago, make_job, make_pod, report_text

NODES = {"node-a": A, "node-b": B}
STAGING = {"state": "Staging", "bootID": "", "lastTransitionTime": rfc3339(ago(5))}


def beside(residents: Residents, owner: str = "team/llama", seconds: float = 0) -> dict[str, tuple[Resident, ...]]:
    return dict(residents.beside(owner, NODES, NOW + timedelta(seconds=seconds)))


def body(entry: dict[str, Any], **changes: Any) -> dict[str, Any]:
    status = {"nodes": {"node-a": {"bootID": A.boot_id, **entry}}, "published": {"sizeBytes": 7}}
    return {"spec": {}, "status": status, **changes}


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"state": "Ready", "residentBytes": 5}, 5),
        ({"state": "Failed", "reason": "ResidencyLost", "residentBytes": 3}, 3),
        ({"state": "Ready"}, 7),
        ({"state": "Staging"}, 7),
        ({"state": "Staging", "bootID": ""}, 7),
        ({"state": "Failed"}, 0),
        ({"state": "Waiting"}, 0),
        ({"state": "Ready", "residentBytes": 5, "bootID": "another"}, 0),
    ],
)
def test_what_a_status_says_of_a_node(entry: dict[str, Any], expected: int) -> None:
    residents = Residents()
    residents.note("team/other", body(entry))
    found = beside(residents).get("node-a", ())
    assert sum(each.size_bytes for each in found) == expected


def test_a_checkpoint_that_is_not_read_takes_nothing() -> None:
    residents = Residents()
    residents.note("team/other", body({"state": "Staging"}, spec={"prefetch": {"mode": "None"}}))
    assert beside(residents) == {}


def test_an_object_is_not_beside_itself_and_one_that_went_is_forgotten() -> None:
    residents = Residents()
    residents.note("team/llama", body({"state": "Ready", "residentBytes": 5}))
    assert beside(residents) == {}
    assert beside(residents, "team/other") == {"node-a": (Resident("team/llama", 5),)}
    residents.forget("team/llama")
    assert beside(residents, "team/other") == {}


def test_an_object_that_has_no_status_yet_and_a_node_that_is_gone_hold_nothing() -> None:
    residents = Residents()
    residents.note("team/new", {"spec": {}})
    residents.note("team/other", body({"state": "Ready", "residentBytes": 5}))
    assert dict(residents.beside("team/llama", {"node-b": B}, NOW)) == {}


def new(entry: dict[str, Any]) -> dict[str, Any]:
    return body(entry, status={"nodes": {"node-a": entry}})


def test_one_that_is_staged_for_the_first_time_is_of_unknown_size_for_a_while() -> None:
    residents = Residents()
    residents.note("team/new", new(STAGING))
    unknown = {"node-a": (Resident("team/new", 0, unknown=True),)}
    assert beside(residents) == unknown
    assert beside(residents, seconds=UNKNOWN_FOR.total_seconds() - 6) == unknown
    # Its pod may never start.
    assert beside(residents, seconds=UNKNOWN_FOR.total_seconds()) == {}
    residents.note("team/new", new({**STAGING, "state": "Failed"}))
    assert beside(residents) == {}
    residents.note("team/new", {**new(STAGING), "metadata": {"deletionTimestamp": rfc3339(NOW)}})
    assert beside(residents) == {}


def test_a_size_that_was_told_counts_and_those_who_wait_for_it_are_named_once() -> None:
    residents = Residents()
    residents.note("team/new", new(STAGING))
    assert residents.learn("team/new", 0) == set()
    assert beside(residents)["node-a"][0].unknown
    assert residents.learn("team/new", 9) == {"team/llama"}
    assert residents.learn("team/new", 9) == set()
    assert beside(residents) == {"node-a": (Resident("team/new", 9),)}
    # The next event brings a status that doesn't know it yet.
    residents.note("team/new", new(STAGING))
    assert beside(residents) == {"node-a": (Resident("team/new", 9),)}
    residents.forget("team/new")
    assert beside(residents) == {}


@pytest.mark.parametrize(
    ("published", "expected"), [(7, Resident("team/one", 7)), (0, Resident("team/one", 0, unknown=True))]
)
def test_two_that_begin_at_the_same_moment_know_of_each_other(published: int, expected: Resident) -> None:
    """Before any status tells of either, and also where an older status is heard of in between."""
    residents = Residents()
    older = {"spec": {}, "status": {"published": {"sizeBytes": published}, "nodes": {"node-a": {"state": "Waiting"}}}}
    residents.note("team/one", older)
    residents.begin("team/one", ["node-a"], NOW)
    assert beside(residents) == {"node-a": (expected,)}
    residents.note("team/one", older)
    assert beside(residents, seconds=59) == {"node-a": (expected,)}
    assert beside(residents, seconds=60) == {}
    assert beside(residents, "team/one") == {}
    residents.forget("team/one")
    assert beside(residents) == {}


def test_one_that_failed_at_once_and_begins_again_and_again_keeps_nobody_out() -> None:
    """What the status tells of a staging counts, and no longer that it began."""
    residents = Residents()
    residents.begin("team/new", ["node-a"], NOW + timedelta(seconds=0.9))
    residents.note("team/new", new({"state": "Waiting", "lastTransitionTime": rfc3339(NOW)}))
    assert beside(residents)["node-a"][0].unknown
    residents.note("team/new", new({"state": "Failed", "lastTransitionTime": rfc3339(NOW)}))
    assert beside(residents) == {}
    residents.begin("team/new", ["node-a"], NOW + timedelta(seconds=10))
    # The status of the attempt before.
    residents.note("team/new", new({"state": "Failed", "lastTransitionTime": rfc3339(NOW)}))
    assert beside(residents, seconds=10)["node-a"][0].unknown


def ended(step: str, **fields: Any) -> ContainerState:
    return ContainerState(step, exit_code=0, message=report_text(step=step, **fields))


def test_the_size_is_told_by_the_reports_of_steps_and_else_by_the_log() -> None:
    assert size_told([]) == 0
    running = make_job(pods=(make_pod(ContainerState("fetch")),))
    assert size_told([running]) == 0
    assert size_told([make_job(pods=running.pods, total_bytes=50)]) == 50
    fetched = make_pod(ended("fetch", sizeBytes=70), ContainerState("prefetch"))
    assert size_told([running, make_job(pods=(fetched,), total_bytes=50)]) == 70
    assert size_told([make_job(pods=(make_pod(ended("prefetch", sizeBytes=60), ContainerState("validate")),))]) == 60
