"""When a node loses the startup taint: staged for all, wanted by none, or waited for long enough."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from modelweights_operator.domain.clock import rfc3339
from modelweights_operator.domain.plan import make_plan
from modelweights_operator.domain.startup_taint import (
    Outcome,
    Selector,
    decide,
    is_tainted,
    look_again_seconds,
    overdue,
    selector_of,
    since,
    with_halted,
)
from tests.unit.domain.samples import (
    NOW,
    ago,
    make_entry,
    make_node,
    make_owner,
    make_revision,
    make_snapshot,
    make_spec,
    make_status,
    make_taint,
)

STARTUP = make_taint("modelweights.io/unstaged")
NODE = make_node(taints=(STARTUP, make_taint("nvidia.com/gpu")))
GPU = make_spec().placement
ELSEWHERE = make_spec(placement={"nodeSelector": {"pool": "other"}}).placement
READY = {NODE.name: NODE.boot_id}


def model(name: str = "llama", **changes: Any) -> Selector:
    fields: dict[str, Any] = {
        "uid": f"uid-{name}",
        "namespace": "team",
        "name": name,
        "generation": 1,
        "placement": GPU,
    }
    return Selector(**{**fields, **changes})


def after(seconds: float, *models: Selector, first: Outcome, node: Any = NODE) -> Outcome:
    return decide([node], models, first.clocks, NOW + timedelta(seconds=seconds))


@pytest.mark.parametrize(
    ("models", "freed"),
    [
        ([model(ready=READY)], True),
        ([model(ready=READY), model("qwen", ready=READY)], True),
        ([model(ready=READY), model("qwen")], False),
        ([model(ready=READY), model("qwen", placement=ELSEWHERE)], True),
        ([model(ready=READY), model("broken", placement=None, halted=True)], True),
        ([model(ready={NODE.name: "an earlier boot"})], False),
        ([model()], False),
        ([model(stuck=frozenset({NODE.name}))], False),
        ([model(halted=True)], False),
        ([model(stuck=frozenset({"another"}))], False),
    ],
    ids=["ready", "both ready", "one of two", "one elsewhere", "one unreadable", "before a reboot", "not ready", "stuck",
         "suspended", "stuck elsewhere"],
)  # fmt: skip
def test_it_goes_once_all_that_select_the_node_are_ready_there(models: list[Selector], freed: bool) -> None:  # noqa: FBT001 - a column
    found = decide([NODE, make_node("untainted")], models, {}, NOW)
    assert found.free == ({NODE.name: ()} if freed else {})


def test_a_node_that_none_selects_keeps_it_for_a_minute() -> None:
    """Labels such as nvidia.com/gpu.present come a little after the node."""
    bare = replace(NODE, labels={})
    first = decide([bare], [model()], {}, NOW)
    assert (first.free, first.again_after_seconds) == ({}, 60)
    assert after(59, model(), first=first, node=bare).free == {}
    assert after(60, model(), first=first, node=bare).free == {NODE.name: ()}
    # The label came in time: now it is waited for.
    assert after(60, model(), first=first).free == {}
    # A node that isn't ready has its labels yet to come.
    assert after(600, first=decide([replace(bare, ready=False)], [], {}, NOW), node=bare).free == {}


@pytest.mark.parametrize("change", [{"stuck": frozenset({NODE.name})}, {"halted": True}], ids=["stuck", "suspended"])
def test_who_gets_nowhere_holds_it_for_ten_minutes(change: dict[str, Any]) -> None:
    stuck = model(**change)
    first = decide([NODE], [stuck], {}, NOW)
    assert first.again_after_seconds == 600
    assert after(599, stuck, first=first).free == {}
    assert after(600, stuck, first=first).free == {NODE.name: (stuck,)}
    # A try in between is no progress, another one that is being staged there is.
    again = after(300, model(), first=first)
    assert after(600, stuck, first=again).free == {NODE.name: (stuck,)}
    assert after(600, stuck, model("qwen"), first=first).free == {}


def test_the_clock_of_another_node_of_the_same_name_or_of_a_ready_one_counts_for_nothing() -> None:
    stuck = model(stuck=frozenset({NODE.name}))
    first = decide([NODE], [stuck], {}, NOW)
    assert after(600, stuck, first=first, node=replace(NODE, uid="another")).free == {}
    ready = after(300, model(ready=READY), first=first)
    assert ready.clocks == {}


def test_who_has_no_plan_for_ten_minutes_counts_as_halted_and_is_looked_at_ever_more_seldom() -> None:
    unplanned = since({}, ["uid-llama"], NOW)
    looks = {0: 2, 8: 2, 40: 10, 240: 60, 10**6: 60}
    assert {age: look_again_seconds(unplanned, NOW + timedelta(seconds=age)) for age in looks} == looks
    # A young one is looked at soon.
    assert (
        look_again_seconds({**unplanned, "uid-qwen": NOW + timedelta(seconds=600)}, NOW + timedelta(seconds=600)) == 2
    )
    assert look_again_seconds({}, NOW) is None
    assert overdue(unplanned, NOW + timedelta(seconds=599)) == frozenset()
    assert overdue(unplanned, NOW + timedelta(seconds=600)) == {"uid-llama"}
    assert since(unplanned, ["uid-qwen"], NOW + timedelta(seconds=9)) == {"uid-qwen": NOW + timedelta(seconds=9)}


def test_its_clock_began_with_that_and_not_before_the_node_did() -> None:
    now = NOW + timedelta(seconds=600)
    halted = model(halted=True)
    young = make_node("node-b", taints=NODE.taints)
    tainted = {NODE.uid: ago(5), young.uid: NOW + timedelta(seconds=500)}
    clocks = with_halted({}, [halted], {halted.uid: NOW}, [NODE, young], tainted)
    found = decide([NODE, young], [halted], clocks, now)
    assert (found.free, found.again_after_seconds) == ({NODE.name: (halted,)}, 500)
    elsewhere = model(halted=True, placement=ELSEWHERE)
    assert with_halted({}, [elsewhere], {halted.uid: NOW}, [NODE], tainted) == {}


@pytest.mark.parametrize("effect", ["NoSchedule", "NoExecute", "PreferNoSchedule"])
def test_the_taint_is_known_by_its_key(effect: str) -> None:
    assert is_tainted(make_node(taints=(make_taint("modelweights.io/unstaged", "x", effect),)))
    assert not is_tainted(make_node(taints=(make_taint("modelweights.io/staged"),)))


def seen(snapshot: Any) -> Selector:
    return selector_of(snapshot.owner, make_plan(snapshot, NOW))


def test_what_a_plan_says_of_its_model() -> None:
    other = make_node("node-b")
    failed = make_entry(other, state="Failed", reason="BadHeader", exit_code=30, attempts=1, manifest_digest="",
                        boot_id="", last_transition_time=rfc3339(ago(5)))  # fmt: skip
    status = make_status({NODE.name: make_entry(NODE), "node-b": failed}, make_revision())
    found = seen(make_snapshot(make_owner(status=status), (NODE, other)))
    assert (dict(found.ready), set(found.stuck), found.halted) == (READY, {"node-b"}, False)
    assert (found.uid, found.generation, found.placement) == (make_owner().uid, 3, GPU)
    assert seen(make_snapshot(make_owner(make_spec(suspend=True)), (NODE,))).halted
    assert seen(make_snapshot(make_owner(make_spec(storage={"class": "gone"})), (NODE,))).halted
    unreadable = replace(make_owner(), spec=None, invalid="no")
    assert seen(make_snapshot(unreadable, (NODE,))).placement is None


def test_who_is_left_alone_for_a_failed_canary_is_stuck() -> None:
    spec = make_spec(source={"persistentVolumeClaim": {"claimName": "c"}}, placement={"canaryNodes": 1})
    bad = make_entry(NODE, spec, state="Failed", reason="BadHeader", exit_code=30, attempts=1, manifest_digest="",
                     boot_id="", last_transition_time=rfc3339(ago(5)))  # fmt: skip
    nodes = (NODE, make_node("node-b"))
    found = seen(make_snapshot(make_owner(spec, make_status({NODE.name: bad})), nodes))
    assert found.stuck == {NODE.name, "node-b"}
