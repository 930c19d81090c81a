"""A new revision is staged beside the old one; what follows it, what stays, what pods may ask for, and the way back."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from modelweights_operator.api import v1alpha1 as api
from modelweights_operator.domain import gate, holdings, names, revisions
from modelweights_operator.domain.clock import rfc3339
from modelweights_operator.domain.plan import Plan
from modelweights_operator.domain.required import staged_model
from modelweights_operator.domain.snapshot import Node, StagingJob
from tests.unit.domain.plans import LABEL, LABEL_B, A, B, C, is_true, plan_of, with_spec
from tests.unit.domain.samples import (
    COMMIT_A,
    COMMIT_B,
    DIGEST_A,
    DIGEST_B,
    NOW,
    OWNER_UID,
    ago,
    complete_job,
    failed_job,
    failure_text,
    fetch_ended,
    make_entry,
    make_fetch_spec,
    make_node,
    make_owner,
    make_pod,
    make_revision,
    make_spec,
)

DIGEST_C = "sha256:" + "c" * 64
V1, V2 = (
    make_fetch_spec({"huggingFace": {"repository": "org/name", "revision": revision}}) for revision in ("v1", "v2")
)
PATH_A, PATH_B = (f"/data/team/llama/{digest.removeprefix('sha256:')}" for digest in (DIGEST_A, DIGEST_B))
FIRST = make_revision(DIGEST_A, PATH_A, revision=COMMIT_A, requested="v1")
SECOND = make_revision(DIGEST_B, PATH_B, revision=COMMIT_B, requested="v2")


def source_of(spec: api.Spec, commit: str) -> api.SourceStatus:
    return api.SourceStatus(digest=names.source_digest(spec), revision=commit)


def status_of(spec: api.Spec, commit: str, entries: dict[str, api.NodeStatus], **fields: Any) -> api.Status:
    return api.Status(nodes=entries, source=source_of(spec, commit), **fields)


def fetched(node: Node, spec: api.Spec, commit: str, digest: str) -> StagingJob:
    """A Job that fetched a commit and proved it."""
    job = complete_job(node, spec, manifestDigest=digest)
    containers = (fetch_ended(commit), *job.pods[0].containers)
    return replace(job, pods=(make_pod(*containers, phase="Succeeded"),), revision=commit)


RUNNING = {"node-a": make_entry(A, V1), "node-b": make_entry(B, V1)}
BEFORE = status_of(V1, COMMIT_A, RUNNING, published=FIRST)


def on_nodes(*digests: str) -> dict[str, str | None]:
    return {**names.digest_labels(OWNER_UID, digests)}


# --- rolling out --------------------------------------------------------------------------------------------------


def test_the_new_revision_is_staged_beside_the_old_and_published_when_enough_nodes_hold_it() -> None:
    jobs = (fetched(A, V2, COMMIT_B, DIGEST_B),)
    status = BEFORE.model_copy(update={"source": source_of(V2, COMMIT_B)})
    plan = plan_of(with_spec(V2, A, B, status=status, jobs=jobs))
    published = plan.status.published
    assert published is not None
    assert (published.manifest_digest, published.path) == (DIGEST_B, PATH_B)
    assert (published.requested, published.revision) == ("v2", COMMIT_B)
    assert plan.status.previous == (FIRST.model_copy(update={"superseded_at": rfc3339(NOW)}),)
    assert plan.status.nodes["node-a"].other_digests == (DIGEST_A,)
    assert plan.label_nodes == {"node-a": on_nodes(DIGEST_B, DIGEST_A), "node-b": on_nodes(DIGEST_A)}
    assert is_true(plan, "Available")
    assert not is_true(plan, "Ready")


@pytest.mark.parametrize("need", [2, 3])
def test_until_then_everything_speaks_of_the_old_one(need: int) -> None:
    spec = V2.model_copy(update={"placement": api.Placement(min_available_nodes=need)})
    entries = {node.name: make_entry(node, V1) for node in (A, B, C)}
    status = status_of(V2, COMMIT_B, entries, published=FIRST)
    plan = plan_of(with_spec(spec, A, B, C, status=status, jobs=(fetched(A, spec, COMMIT_B, DIGEST_B),)))
    assert plan.status.published == FIRST
    assert plan.status.candidate is not None
    assert plan.status.candidate.manifest_digest == DIGEST_B
    assert plan.status.previous == ()
    assert is_true(plan, "Available"), "all three hold the old one"
    assert plan.config_map is None
    assert plan.label_nodes["node-b"] == on_nodes(DIGEST_A)


def test_a_bad_revision_never_becomes_available_and_the_old_one_stays() -> None:
    text = failure_text("MissingShard", 30)
    jobs = tuple(failed_job(node, spec=V2, text=text, revision=COMMIT_B) for node in (A, B))
    status = BEFORE.model_copy(update={"source": source_of(V2, COMMIT_B)})
    labelled = tuple(make_node(node.name, labels={**node.labels, LABEL: "a" * 40}) for node in (A, B))
    plan = plan_of(with_spec(V2, *labelled, status=status, jobs=jobs))
    assert (plan.status.published, plan.status.candidate, plan.status.previous) == (FIRST, None, ())
    assert is_true(plan, "Available")
    assert is_true(plan, "Stalled")
    assert plan.label_nodes == {}
    assert all(entry.manifest_digest == DIGEST_A for entry in plan.status.nodes.values())


# --- rolling back -------------------------------------------------------------------------------------------------


def rolled_out(**fields: Any) -> api.Status:
    """Both nodes hold both, the second one is published."""
    entries = {node.name: make_entry(node, V2, manifest_digest=DIGEST_B, other_digests=(DIGEST_A,)) for node in (A, B)}
    previous = (FIRST.model_copy(update={"superseded_at": rfc3339(ago(600))}),)
    return status_of(V1, COMMIT_A, entries, published=SECOND, previous=previous, **fields)


def test_the_first_node_that_proved_the_old_one_again_publishes_it_for_all_that_have_it_still() -> None:
    spec = V1.model_copy(update={"placement": api.Placement(min_available_nodes=2)})
    plan = plan_of(with_spec(spec, A, B, status=rolled_out(), jobs=(fetched(A, spec, COMMIT_A, DIGEST_A),)))
    proven = {"since": rfc3339(NOW), "proven_staging": plan.status.proven_staging}
    assert plan.status.published == FIRST.model_copy(update=proven)
    assert plan.status.previous == (SECOND.model_copy(update={"superseded_at": rfc3339(NOW)}),)
    assert plan.status.nodes["node-a"].other_digests == (DIGEST_B,)
    assert is_true(plan, "Available")


def test_the_way_back_leaves_the_figures_of_what_was_known() -> None:
    plan = plan_of(with_spec(V1, A, B, status=rolled_out(), jobs=(fetched(A, V1, COMMIT_A, DIGEST_A),)))
    assert plan.status.published is not None
    assert plan.status.published.size_bytes == FIRST.size_bytes


def test_a_fault_of_the_object_forgets_nothing() -> None:
    """The storage class is gone: nothing is staged, and what nodes hold stays as it is."""
    spec = make_fetch_spec(storage={"class": "gold"})
    status = rolled_out(candidate=make_revision(DIGEST_C, "/data/team/llama/c"))
    plan = plan_of(with_spec(spec, A, B, status=status))
    assert (plan.status.published, plan.status.candidate, plan.status.previous) == (
        status.published,
        status.candidate,
        status.previous,
    )
    assert plan.label_nodes == dict.fromkeys(("node-a", "node-b"), on_nodes(DIGEST_A, DIGEST_B))


# --- what stays beside, and what doesn't --------------------------------------------------------------------------


def in_place(path: str, entry: api.NodeStatus, node: Node = A, **known: Any) -> Plan:
    """The plan after files at a path proved to be another checkpoint."""
    spec = make_spec(source={"hostPath": {"path": path}}, prefetch={"numThreads": 2})
    status = api.Status(nodes={node.name: entry}, published=make_revision(), **known)
    return plan_of(with_spec(spec, node, status=status, jobs=(complete_job(node, spec, manifestDigest=DIGEST_B),)))


def test_files_in_place_that_changed_at_their_path_are_no_longer_there() -> None:
    plan = in_place("/models/llama", make_entry(A))
    assert plan.status.nodes["node-a"].other_digests == ()
    assert plan.status.previous == ()
    assert plan.label_nodes == {"node-a": {LABEL_B: "b" * 40}}


def test_files_at_another_path_stay() -> None:
    plan = in_place("/models/next", make_entry(A))
    assert plan.status.nodes["node-a"].other_digests == (DIGEST_A,)
    assert [known.manifest_digest for known in plan.status.previous] == [DIGEST_A]


def test_of_files_in_place_that_the_status_does_not_know_nothing_is_said() -> None:
    plan = in_place("/models/next", make_entry(A, other_digests=(DIGEST_C,)))
    assert plan.status.nodes["node-a"].other_digests == (DIGEST_A,)


def test_a_reboot_leaves_nothing_until_it_is_proven_again() -> None:
    rebooted = make_node("node-a", boot_id="boot-2", labels={**A.labels, **names.digest_labels(OWNER_UID, [DIGEST_A])})
    status = rolled_out()
    alone = status.model_copy(update={"nodes": {"node-a": status.nodes["node-a"]}})
    plan = plan_of(with_spec(V1, rebooted, status=alone))
    assert plan.label_nodes == {"node-a": {LABEL: None}}
    assert plan.status.nodes["node-a"].other_digests == ()
    assert plan.status.previous == ()
    assert not is_true(plan, "Available")
    assert plan.status.published == SECOND


@pytest.mark.parametrize("nodes", [(B,), (make_node("node-a", labels={}), B)], ids=["gone", "deselected"])
def test_what_a_node_held_that_goes_is_known_by_the_others(nodes: tuple[Node, ...]) -> None:
    plan = plan_of(with_spec(V2, *nodes, status=rolled_out()))
    assert plan.status.nodes.keys() == {"node-b"}
    assert [known.manifest_digest for known in plan.status.previous] == [DIGEST_A]


def test_the_oldest_is_forgotten_when_there_are_too_many_but_never_the_published_one() -> None:
    many = tuple(f"sha256:{number:064x}" for number in range(api.MAX_DIGESTS_BESIDE))
    entry = make_entry(A, V1, manifest_digest=DIGEST_C, other_digests=(*many[1:], DIGEST_A))
    spec = V2.model_copy(update={"placement": api.Placement(min_available_nodes=2)})
    status = status_of(V2, COMMIT_B, {"node-a": entry}, published=FIRST)
    plan = plan_of(with_spec(spec, A, status=status, jobs=(fetched(A, spec, COMMIT_B, DIGEST_B),)))
    assert plan.status.published == FIRST
    assert plan.status.nodes["node-a"].other_digests == (DIGEST_C, *many[1:-1], DIGEST_A)


@pytest.mark.parametrize(("number", "most"), [(500, 8), (2000, 2)])
def test_what_many_nodes_hold_beside_fits_one_object(number: int, most: int) -> None:
    """The store takes 1.5 MiB: with eight digests on each of 2,000 nodes no status at all could be written."""
    nodes = tuple(make_node(f"node-{index:04}") for index in range(number))
    others = (*(f"sha256:{number:064x}" for number in range(api.MAX_DIGESTS_BESIDE - 1)), DIGEST_A)
    entries = {node.name: make_entry(node, V2, manifest_digest=DIGEST_B, other_digests=others) for node in nodes}
    plan = plan_of(with_spec(V2, *nodes, status=status_of(V2, COMMIT_B, entries, published=SECOND)))
    assert {entry.other_digests for entry in plan.status.nodes.values()} == {others[:most]}
    again = plan_of(with_spec(V2, *nodes, status=plan.status))
    assert again.status.nodes == plan.status.nodes
    kept = holdings.bounded(entries, FIRST)
    assert {entry.other_digests for entry in kept.values()} == {(*others[: most - 1], DIGEST_A)}


# --- what pods may ask for ----------------------------------------------------------------------------------------


ROLLED_OUT = api.Status(
    published=SECOND,
    previous=(FIRST, make_revision(DIGEST_C, revision=f"sha256:{'d' * 64}")),
    source=source_of(V2, COMMIT_B),
)


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("", DIGEST_B),
        ("v2", DIGEST_B),
        (COMMIT_B, DIGEST_B),
        (COMMIT_B[:7], DIGEST_B),
        (DIGEST_B, DIGEST_B),
        ("b" * 12, DIGEST_B),
        (f"sha256:{'b' * 12}", DIGEST_B),
        ("v1", DIGEST_A),
        (COMMIT_A[:7], DIGEST_A),
        (DIGEST_A, DIGEST_A),
        ("d" * 7, DIGEST_C),
        (f"sha256:{'d' * 64}", DIGEST_C),
        ("c" * 12, DIGEST_C),
        ("c" * 11, ""),
        (COMMIT_B[:6], ""),
        ("v3", ""),
        ("sha256:", ""),
        (COMMIT_B + "0", ""),
    ],
)
def test_a_revision_is_found_as_it_was_asked_for_or_by_its_commit_or_digest(asked: str, found: str) -> None:
    revision = revisions.find(ROLLED_OUT, asked)
    assert (revision.manifest_digest if revision else "") == found


@pytest.mark.parametrize("asked", ["", "v1", DIGEST_A])
def test_nothing_is_found_before_the_first_is_published(asked: str) -> None:
    assert revisions.find(api.Status(candidate=FIRST), asked) is None


def test_what_two_were_asked_for_is_the_published_one() -> None:
    status = ROLLED_OUT.model_copy(update={"previous": (FIRST.model_copy(update={"requested": "v2"}),)})
    found = revisions.find(status, "v2")
    assert found is not None
    assert found.manifest_digest == DIGEST_B


@pytest.mark.parametrize(
    ("status", "asked", "told"),
    [
        (BEFORE, "v2", False),
        (BEFORE.model_copy(update={"source": source_of(V2, COMMIT_B)}), COMMIT_B[:9], False),
        (BEFORE.model_copy(update={"candidate": SECOND}), DIGEST_B, False),
        (BEFORE, "v3", True),
        (BEFORE, DIGEST_C, True),
        (api.Status(), DIGEST_C, False),
    ],
)
def test_a_revision_that_is_being_staged_is_waited_for_in_silence(status: api.Status, asked: str, told: bool) -> None:  # noqa: FBT001
    assert bool(revisions.why_missing(status, V2, asked)) == told


def test_what_is_there_is_named_for_one_that_is_not() -> None:
    message = revisions.why_missing(ROLLED_OUT, V2, "v9")
    assert "there: v2 (sha256:bbbbbbbbbbbb), v1 (sha256:aaaaaaaaaaaa), sha256:cccccccccccc" in message


def labelled(node: Node, *digests: str) -> Node:
    return make_node(node.name, labels={**node.labels, **names.digest_labels(OWNER_UID, digests)})


def asked_of(status: api.Status, asked: str, nodes: Iterable[Node], *, label_nodes: bool = True) -> gate.StagedModel:
    return staged_model(make_owner(V2, status), asked, nodes, label_nodes=label_nodes)


def test_the_gate_leads_to_nodes_that_hold_what_is_asked_for_by_status_and_label() -> None:
    nodes = (labelled(A, DIGEST_A, DIGEST_B), labelled(B, DIGEST_B), labelled(C, DIGEST_A))
    old = asked_of(rolled_out(), "v1", nodes)
    assert (old.available, old.digest, old.path, old.holders) == (True, DIGEST_A, PATH_A, {"node-a": "host-node-a"})
    new = asked_of(rolled_out(), "", nodes)
    assert new.digest == DIGEST_B
    assert new.holders.keys() == {"node-a", "node-b"}
    assert not new.available, "the status doesn't say so yet"


def test_without_labels_the_status_alone_counts() -> None:
    assert asked_of(rolled_out(), "v1", (A, B, C), label_nodes=False).holders.keys() == {"node-a", "node-b"}
