"""Pods that belong together start together, and later ones with what the first ones got."""

from dataclasses import replace
from datetime import timedelta

import pytest

from modelweights_operator.domain import groups, names
from modelweights_operator.domain.gate import GatedPod, Group, Lift, Requirement, Verdict, Wait
from modelweights_operator.domain.groups import Present, Started
from tests.unit.domain.samples import DIGEST_A, DIGEST_B, NOW, ago

LLAMA, QWEN = Requirement("team", "llama"), Requirement("team", "qwen")
LWS = {"leaderworkerset.sigs.k8s.io/name": "llm", "leaderworkerset.sigs.k8s.io/group-index": "0"}
HASH = {"leaderworkerset.sigs.k8s.io/template-revision-hash": "abc"}


@pytest.mark.parametrize(
    ("labels", "selector"),
    [
        ({}, None),
        ({"app": "llm"}, None),
        ({names.GROUP_LABEL: ""}, None),
        ({names.GROUP_LABEL: "gang-1", **LWS}, "modelweights.io/group=gang-1"),
        ({"leaderworkerset.sigs.k8s.io/name": "llm"}, None),
        (LWS, "leaderworkerset.sigs.k8s.io/name=llm,leaderworkerset.sigs.k8s.io/group-index=0"),
        (
            {**LWS, **HASH, "leaderworkerset.sigs.k8s.io/worker-index": "3"},
            ",".join(f"{key}={value}" for key, value in (LWS | HASH).items()),
        ),
        ({"kueue.x-k8s.io/pod-group-name": "g"}, "kueue.x-k8s.io/pod-group-name=g"),
        ({"scheduling.x-k8s.io/pod-group": "g"}, "scheduling.x-k8s.io/pod-group=g"),
    ],
)
def test_which_pods_belong_together(labels: dict[str, str], selector: str | None) -> None:
    found = groups.group_of(labels)
    assert (found.selector if found else None) == selector


def pod(name: str, size: str = "", created: float = 100) -> GatedPod:
    group = Group(((names.GROUP_LABEL, "g"),))
    return GatedPod("team", name, f"uid-{name}", "1", "llama", group=group, group_size=size, created_at=ago(created))


LIFT = Lift({})


def test_all_go_or_none() -> None:
    both: list[tuple[GatedPod, Verdict]] = [(pod("a"), LIFT), (pod("b"), LIFT)]
    assert groups.together(both) == both
    waits: list[tuple[GatedPod, Verdict]] = [(pod("a"), LIFT), (pod("b"), Wait())]
    assert groups.together(waits) == [(pod("a"), Wait()), (pod("b"), Wait())]
    assert groups.together([]) == []


def test_the_others_say_for_whom_they_wait() -> None:
    stuck = Wait("RequireNotFound", "ModelWeights team/qwen doesn't exist")
    given: list[tuple[GatedPod, Verdict]] = [(pod("a"), LIFT), (pod("c"), Wait()), (pod("b"), stuck)]
    first, quiet, same = (verdict for _, verdict in groups.together(given))
    message = "waits for pod b of its group: RequireNotFound: ModelWeights team/qwen doesn't exist"
    assert first == Wait("GroupWaits", message)
    assert (quiet, same) == (Wait(), stuck)


def present(*waiting: GatedPod, count: int, started: tuple[Started, ...] = ()) -> Present:
    return Present(waiting, started, count)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (present(pod("a"), count=1), None),
        (present(pod("a", size="2"), pod("b", size="2"), count=2), None),
        # The rest has started long ago, or never had a gate.
        (present(pod("a", size="4"), count=4), None),
        (present(pod("a", size="2"), count=1), "GroupIncomplete"),
        (present(pod("a", size="2"), pod("b", size="3"), count=2), "GroupIncomplete"),
        (present(pod("a"), pod("b", size="3"), count=2), "GroupIncomplete"),
        # They are made one after the other.
        (present(pod("a", size="3"), pod("b", size="3", created=29), count=2), ""),
        (present(pod("a", size="0"), count=1), "GroupSizeInvalid"),
        (present(pod("a", size="two"), count=1), "GroupSizeInvalid"),
        (present(pod("a", size="99999"), count=1), "GroupSizeInvalid"),
        (present(pod("a", size="2" * 5000), count=1), "GroupSizeInvalid"),
    ],
)
def test_a_group_is_whole_once_as_many_are_there_as_it_says(given: Present, reason: str | None) -> None:
    found = groups.incomplete(given, NOW)
    assert (found.reason if found else None) == reason


def test_how_many_are_there_is_told() -> None:
    found = groups.incomplete(present(pod("a", size="3"), count=2), NOW + timedelta(minutes=1))
    assert found is not None
    assert "2 of 3 pods" in found.message


def test_those_that_come_later_get_what_the_others_got() -> None:
    leader = Started("llm-0", "llama, qwen", f"{DIGEST_A},{DIGEST_B}")
    assert groups.kept(present(count=1, started=(leader,)), "team") == {LLAMA: DIGEST_A, QWEN: DIGEST_B}
    # By hand, or before groups were known: then as the first one by name.
    other = replace(leader, name="llm-0-1", require="llama", digests=DIGEST_B)
    assert groups.kept(present(count=2, started=(other, leader)), "team")[LLAMA] == DIGEST_A


@pytest.mark.parametrize(
    ("require", "digests"), [("", ""), ("", DIGEST_A), ("llama", ""), ("llama@", DIGEST_A), ("llama", f"{DIGEST_A},x")]
)
def test_pods_that_got_nothing_keep_nothing(require: str, digests: str) -> None:
    assert groups.kept(present(count=1, started=(Started("llm-0", require, digests),)), "team") == {}


def test_who_asks_for_another_revision_isnt_bound_by_the_others() -> None:
    started = Started("old-0", "llama@v1", DIGEST_A)
    assert groups.kept(present(count=1, started=(started,)), "team") == {Requirement("team", "llama", "v1"): DIGEST_A}
