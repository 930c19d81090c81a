"""Room over all objects: which checkpoints go for a staging that found none, and quotas of namespaces."""

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from modelweights_operator.api import v1alpha1 as api
from modelweights_operator.domain import names, storage
from modelweights_operator.domain.admission import QUOTA_EXCEEDED
from modelweights_operator.domain.clock import rfc3339
from modelweights_operator.domain.plan import make_plan
from modelweights_operator.domain.room import Rooms
from modelweights_operator.domain.snapshot import Node, Snapshot, StorageClass
from tests.unit.domain.samples import (
    NOW,
    POLICY,
    ago,
    make_fetch_spec,
    make_job,
    make_node,
    make_owner,
)

NODE = make_node()
LRU = {"retention": "LeastRecentlyUsed"}


def digest(letter: str) -> str:
    return "sha256:" + letter * 64


def revision(name: str, letter: str, size_bytes: int, superseded: float | None = None) -> api.Revision:
    at = "" if superseded is None else rfc3339(ago(superseded))
    path = f"/data/team/{name}/{letter * 64}"
    return api.Revision(manifest_digest=digest(letter), path=path, size_bytes=size_bytes, superseded_at=at)


def holding(name: str, *previous: tuple[str, int, float], spec: dict[str, Any] | None = None) -> Snapshot:
    """An object that published `f` of 10 bytes, and has what was before it on the node still."""
    entry = api.NodeStatus.model_validate(
        {
            "state": "Ready",
            "manifest_digest": digest("f"),
            "other_digests": tuple(digest(letter) for letter, _, _ in previous),
            "bootID": NODE.boot_id,
        }
    )
    status = api.Status(
        published=revision(name, "f", 10),
        previous=tuple(revision(name, *each) for each in previous),
        nodes={NODE.name: entry},
    )
    owner = make_owner(make_fetch_spec(storage=LRU if spec is None else spec), status, name=name, uid=f"uid-{name}")
    return Snapshot(owner, (NODE,), (), None, POLICY)


def failing(needed: int, free: int = 0, reason: str = "NoRoom") -> Snapshot:
    figures = {"neededBytes": needed, "diskFreeBytes": free, "reserveBytes": 5}
    report = json.dumps({"step": "fetch", "exitCode": 40, "reason": reason, "message": "x", **figures})
    job = make_job(spec=make_fetch_spec(), state="Failed", finished_at=ago(5), result=report)
    return Snapshot(make_owner(make_fetch_spec()), (NODE,), (job,), None, POLICY)


def look(rooms: Rooms, *names: str, stay: str = "") -> None:
    """Tell of all that is asked about whether it has to stay, until nothing more is asked."""
    known: dict[str, Any] = {}
    while True:
        asked = {name: rooms.asked(f"team/{name}") for name in names}
        if asked == known:
            return
        known = asked
        for name, there in asked.items():
            verdicts = {(node, each): each[7] in stay for node, digests in there.items() for each in digests}
            rooms.looked(f"team/{name}", verdicts)


def victims(rooms: Rooms, *names: str, stay: str = "") -> dict[str, list[str]]:
    look(rooms, *names, stay=stay)
    found = {name: rooms.victims(f"team/{name}").get(NODE.name, frozenset()) for name in names}
    return {name: sorted(each[7:8] for each in digests) for name, digests in found.items() if digests}


def test_the_one_superseded_first_goes_first_and_no_more_than_make_room() -> None:
    rooms = Rooms()
    rooms.note("team/one", holding("one", ("a", 50, 100), ("b", 50, 900)))
    rooms.note("team/two", holding("two", ("c", 50, 500)))
    assert victims(rooms, "one", "two") == {}
    assert rooms.note("team/llama", failing(needed=80, free=0)) == {"team/one", "team/two"}
    assert victims(rooms, "one", "two") == {"one": ["b"], "two": ["c"]}
    # Once they know, nobody need be told again.
    assert rooms.note("team/llama", failing(needed=80, free=0)) == set()
    assert rooms.note("team/llama", failing(needed=80, free=40)) == {"team/two"}
    assert victims(rooms, "one", "two") == {"one": ["b"]}


def test_the_status_says_what_is_free_where_there_is_no_room() -> None:
    entry = make_plan(failing(80, free=40), NOW).status.nodes[NODE.name]
    assert (entry.state, entry.reason, entry.exit_code, entry.disk_free_bytes) == ("Failed", "NoRoom", 40, 40)
    assert make_plan(failing(80, free=40, reason="NotWritable"), NOW).status.nodes[NODE.name].disk_free_bytes == 0


@pytest.mark.parametrize("reason", ["NoMemory", "NotResident"])
def test_what_lacked_no_disk_takes_none(reason: str) -> None:
    rooms = Rooms()
    rooms.note("team/one", holding("one", ("a", 50, 100)))
    rooms.note("team/llama", failing(80, reason=reason))
    assert victims(rooms, "one") == {}


@pytest.mark.parametrize("spec", [{}, {"retention": "Keep"}])
def test_only_what_is_kept_for_as_long_as_there_is_room_goes(spec: dict[str, Any]) -> None:
    rooms = Rooms()
    rooms.note("team/one", holding("one", ("a", 50, 100), spec=spec))
    rooms.note("team/llama", failing(80))
    assert victims(rooms, "one") == {}


def test_another_node_or_class_frees_nothing_here() -> None:
    rooms = Rooms()
    rooms.note("team/one", holding("one", ("a", 50, 100)))
    elsewhere = replace(failing(80), jobs=(replace(failing(80).jobs[0], node_name="node-z"),))
    rooms.note("team/llama", elsewhere)
    assert victims(rooms, "one") == {}
    other = replace(failing(80), owner=make_owner(make_fetch_spec(storage={"class": "shared"})))
    rooms.note("team/llama", other)
    assert victims(rooms, "one") == {}


def test_a_need_goes_with_its_object() -> None:
    rooms = Rooms()
    rooms.note("team/one", holding("one", ("a", 50, 100)))
    rooms.note("team/llama", failing(80))
    rooms.forget("team/llama")
    assert victims(rooms, "one") == {}


def test_what_has_gone_counts_until_the_staging_says_what_it_lacks_now() -> None:
    rooms = Rooms()
    rooms.note("team/one", holding("one", ("a", 50, 100), ("b", 50, 900), ("c", 50, 50), ("d", 50, 20)))
    rooms.note("team/llama", failing(needed=80))
    assert victims(rooms, "one") == {"one": ["a", "b"]}
    rooms.note("team/one", holding("one", ("a", 50, 100), ("c", 50, 50), ("d", 50, 20)))
    assert victims(rooms, "one") == {"one": ["a"]}
    rooms.note("team/one", holding("one", ("c", 50, 50), ("d", 50, 20)))
    rooms.note("team/llama", failing(needed=80))
    assert victims(rooms, "one") == {}
    # The next attempt, and again it is too little.
    again = failing(needed=80, free=75)
    rooms.note("team/llama", replace(again, jobs=(replace(again.jobs[0], name="stage-llama-next"),)))
    assert victims(rooms, "one") == {"one": ["c"]}


def test_of_what_is_left_over_one_goes_at_a_time_since_nobody_knows_its_size() -> None:
    given = holding("one", ("a", 50, 100), ("b", 50, 900))

    def left(*letters: str) -> Snapshot:
        entry = given.owner.status.nodes[NODE.name]
        found = {"leftovers": tuple(map(digest, letters)), "leftovers_since": rfc3339(ago(500)) if letters else ""}
        status = given.owner.status.model_copy(update={"nodes": {NODE.name: entry.model_copy(update=found)}})
        return replace(given, owner=replace(given.owner, status=status))

    rooms = Rooms()
    rooms.note("team/one", left("d", "e"))
    rooms.note("team/llama", failing(needed=80))
    # The last one isn't needed any more, as far as one can tell.
    assert victims(rooms, "one") == {"one": ["b", "d"]}
    rooms.note("team/one", left("e"))
    assert victims(rooms, "one") == {}
    assert rooms.made_room("team/llama", NOW) == {NODE.name: NOW}


def test_once_room_was_made_the_staging_is_tried_at_once_and_only_once() -> None:
    rooms = Rooms()
    rooms.note("team/one", holding("one", ("a", 50, 100), ("b", 50, 900)))
    waiting = failing(needed=80)
    rooms.note("team/llama", waiting)
    assert rooms.note("team/one", holding("one", ("a", 50, 100))) == set()
    assert rooms.made_room("team/llama", NOW) == {}
    before = make_plan(waiting, NOW)
    assert before.delete_jobs == ()
    assert rooms.note("team/one", holding("one")) == {"team/llama"}
    made = rooms.made_room("team/llama", NOW)
    assert make_plan(replace(waiting, room_made=made), NOW).delete_jobs == (waiting.jobs[0].name,)
    # Then the Job is gone, and the status alone tells of the failure.
    gone = replace(waiting, owner=replace(waiting.owner, status=before.status), jobs=())
    rooms.note("team/llama", gone)
    later = NOW + timedelta(seconds=5)
    made = rooms.made_room("team/llama", later)
    assert len(make_plan(replace(gone, room_made=made), later).create_jobs) == 1
    # What fails after that waits.
    again = replace(waiting.jobs[0], name="stage-llama-next", round=1, finished_at=later)
    waiting = replace(waiting, jobs=(again,))
    rooms.note("team/llama", waiting)
    made = rooms.made_room("team/llama", later)
    assert made == {NODE.name: NOW}
    assert make_plan(replace(waiting, room_made=made), later + timedelta(seconds=9)).delete_jobs == ()


def test_an_operator_that_starts_anew_takes_nothing_more_before_the_staging_was_tried_again() -> None:
    """What had gone for it before, and that it may be tried at once, nobody knows any more."""
    rooms = Rooms(started_at=ago(2))
    rooms.note("team/one", holding("one", ("a", 50, 100), ("b", 50, 900)))
    waiting = failing(needed=80)
    rooms.note("team/llama", waiting)
    assert victims(rooms, "one") == {}
    made = rooms.made_room("team/llama", NOW)
    assert make_plan(replace(waiting, room_made=made), NOW).delete_jobs == (waiting.jobs[0].name,)
    # It lacks room still: that is told after the start, and so it counts.
    again = replace(waiting.jobs[0], name="stage-llama-next", round=1, finished_at=ago(1))
    waiting = replace(waiting, jobs=(again,))
    assert rooms.note("team/llama", waiting) == {"team/one"}
    assert victims(rooms, "one") == {"one": ["a", "b"]}
    made = rooms.made_room("team/llama", NOW)
    assert make_plan(replace(waiting, room_made=made), NOW).delete_jobs == ()


def test_an_operator_that_starts_anew_tries_again_what_the_status_alone_tells_of() -> None:
    """The failed Job was deleted since room had been made, and the operator died before it made the next one."""
    before = make_plan(failing(needed=80), NOW)
    gone = replace(failing(80), owner=replace(failing(80).owner, status=before.status), jobs=())
    for started_at, tried in ((ago(2), 1), (ago(9), 0)):
        rooms = Rooms(started_at=started_at)
        rooms.note("team/llama", gone)
        made = rooms.made_room("team/llama", NOW)
        assert len(make_plan(replace(gone, room_made=made), NOW).create_jobs) == tried


def test_an_operator_that_starts_anew_leaves_other_failures_their_back_off() -> None:
    waiting = failing(80, reason="NotWritable")
    rooms = Rooms(started_at=ago(2))
    rooms.note("team/llama", waiting)
    assert rooms.made_room("team/llama", NOW) == {}


def test_of_two_that_lack_room_in_one_place_the_larger_need_counts() -> None:
    rooms = Rooms()
    rooms.note("team/one", holding("one", ("a", 50, 100), ("b", 50, 900)))
    assert rooms.note("team/llama", failing(needed=80)) == {"team/one"}
    assert rooms.note("team/other", failing(needed=20)) == set()
    assert victims(rooms, "one") == {"one": ["a", "b"]}
    rooms.forget("team/llama")
    assert victims(rooms, "one") == {"one": ["b"]}


def test_nothing_goes_before_it_is_known_of_all_that_is_to_go() -> None:
    rooms = Rooms()
    rooms.note("team/one", holding("one", ("b", 50, 900)))
    rooms.note("team/two", holding("two", ("c", 50, 500)))
    rooms.note("team/llama", failing(needed=80))
    assert rooms.looked("team/one", {(NODE.name, digest("b")): False}) == set()
    assert rooms.victims("team/one") == {}
    assert rooms.looked("team/two", {(NODE.name, digest("c")): False}) == {"uid-one"}
    assert rooms.victims("team/one") == {NODE.name: {digest("b")}}


def test_the_next_one_goes_for_one_that_a_pod_uses() -> None:
    rooms = Rooms()
    rooms.note("team/one", holding("one", ("a", 50, 900), ("b", 50, 500)))
    rooms.note("team/two", holding("two", ("c", 50, 100)))
    rooms.note("team/llama", failing(needed=80))
    assert victims(rooms, "one", "two", stay="a") == {"one": ["b"], "two": ["c"]}
    # It is looked on whether it still has to stay, and when it hasn't, its turn is before the others'.
    assert rooms.asked("team/one")[NODE.name] >= {digest("a")}
    rooms.looked("team/one", {(NODE.name, digest("a")): False})
    assert victims(rooms, "one", "two") == {"one": ["a", "b"]}


def test_where_all_that_may_go_is_too_little_nothing_goes_and_the_status_says_how_much_is_missing() -> None:
    rooms = Rooms()
    rooms.note("team/one", holding("one", ("a", 50, 900), ("b", 20, 500)))
    waiting = failing(needed=80)
    assert rooms.note("team/llama", waiting) == set()
    assert (victims(rooms, "one"), rooms.asked("team/one")) == ({}, {})
    assert "take 15 less than is lacking" in rooms.missing("team/llama")[NODE.name]
    plan = make_plan(replace(waiting, room_missing=rooms.missing("team/llama")), NOW)
    assert "none is removed" in plan.status.nodes[NODE.name].message
    # One more, and it is enough; unless a pod uses it.
    assert "team/llama" in rooms.note("team/two", holding("two", ("c", 20, 100)))
    assert victims(rooms, "one", "two", stay="c") == {}
    assert "take 15 less" in rooms.missing("team/llama")[NODE.name]
    rooms.looked("team/two", {(NODE.name, digest("c")): False})
    assert victims(rooms, "one", "two") == {"one": ["a", "b"], "two": ["c"]}
    assert rooms.missing("team/llama") == {}


def quota(size_bytes: int) -> Snapshot:
    """An object of the team whose candidate of 30 bytes another node has proven."""
    policy = replace(
        POLICY, storage_classes=(StorageClass("nvme", root="/data", is_default=True, namespace_quota=size_bytes),)
    )
    status = api.Status(candidate=revision("llama", "e", 30))
    return Snapshot(make_owner(make_fetch_spec(), status), (NODE,), (), None, policy)


@pytest.mark.parametrize(("size_bytes", "refused"), [(0, False), (89, True), (90, False)])
def test_what_a_namespace_may_take_on_a_node(size_bytes: int, refused: bool) -> None:  # noqa: FBT001
    rooms = Rooms()
    rooms.note("team/one", holding("one", ("a", 50, 100)))
    assert bool(rooms.over_quota(quota(size_bytes))) == refused


def test_a_node_that_has_it_on_its_disk_is_warmed_again_after_a_reboot_though_the_namespace_is_over() -> None:
    rooms = Rooms()
    policy = replace(POLICY, storage_classes=(StorageClass("nvme", root="/data", is_default=True, namespace_quota=40),))
    there = replace(holding("one", ("a", 50, 100)), policy=policy)
    spec, status = there.owner.spec, there.owner.status
    assert spec is not None
    of_this = names.staging_digest(spec, storage.place(spec, policy))

    def at(owner_status: api.Status, staged: str = of_this, node: Node = NODE) -> dict[str, str]:
        entries = {
            name: each.model_copy(update={"staging_digest": staged}) for name, each in owner_status.nodes.items()
        }
        owner = replace(there.owner, status=owner_status.model_copy(update={"nodes": entries}))
        snapshot = replace(there, owner=owner, nodes=(node,))
        rooms.note("team/one", snapshot)
        return rooms.over_quota(snapshot)

    blank = status.model_copy(update={"nodes": {NODE.name: api.NodeStatus(state="Waiting")}})
    assert at(status) == {}
    assert at(blank) == {}
    # What another object has there still refuses what isn't there.
    rooms.note("team/two", holding("two", ("b", 90, 100)))
    assert at(blank) == {}
    assert list(at(blank, node=replace(NODE, uid="another"))) == [NODE.name]
    rooms.forget("team/one")
    assert list(at(blank)) == [NODE.name]
    # An operator that started after the reboot has the status alone.
    before = status.model_copy(update={"nodes": {NODE.name: api.NodeStatus(state="Waiting", proven_before=True)}})
    assert at(before) == {}
    assert list(at(before, staged="of another spec")) == [NODE.name]
    assert list(at(status, staged="of another spec")) == [NODE.name]


def test_the_way_back_to_what_the_node_has_is_open_though_the_namespace_is_over() -> None:
    rooms = Rooms()
    policy = replace(POLICY, storage_classes=(StorageClass("nvme", root="/data", is_default=True, namespace_quota=40),))
    there = replace(holding("one", ("a", 50, 100)), policy=policy)
    spec = there.owner.spec
    assert spec is not None
    former = there.owner.status.previous[0].model_copy(update={"revision": "c" * 40})

    def asking(revision: str) -> dict[str, str]:
        source = api.SourceStatus(digest=names.source_digest(spec), revision=revision, described="x")
        status = there.owner.status.model_copy(update={"source": source, "previous": (former,)})
        snapshot = replace(there, owner=replace(there.owner, status=status))
        rooms.note("team/one", snapshot)
        return rooms.over_quota(snapshot)

    assert asking("c" * 40) == {}
    assert list(asking("d" * 40)) == [NODE.name]


def test_files_of_another_namespace_count_there_alone() -> None:
    rooms = Rooms()
    other = holding("one", ("a", 50, 100))
    rooms.note("other/one", replace(other, owner=replace(other.owner, namespace="other")))
    assert rooms.over_quota(quota(40)) == {}


def test_a_node_over_the_quota_waits_and_says_why() -> None:
    rooms = Rooms()
    rooms.note("team/one", holding("one", ("a", 50, 100)))
    snapshot = quota(60)
    plan = make_plan(replace(snapshot, over_quota=rooms.over_quota(snapshot)), NOW)
    entry = plan.status.nodes[NODE.name]
    assert (plan.create_jobs, entry.state, entry.reason) == ((), "Waiting", QUOTA_EXCEEDED)
    assert "namespaceQuota of storage class nvme" in entry.message
