"""The merge patch (RFC 7396) of the status: it turns the old into the new, and is empty when nothing changed."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from modelweights_operator.api.v1alpha1 import Revision, Status
from modelweights_operator.kube.apply import merge_patch, status_json, status_patch
from tests.unit.domain.samples import DIGEST_A, make_entry, make_owner, make_revision, make_status

Json = dict[str, Any]

# Without null: it can't be written by a merge patch, and no status holds one. Without booleans: 1 == True in Python.
values = st.recursive(
    st.integers() | st.text(max_size=3),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.sampled_from("abc"), below, max_size=3),
    max_leaves=12,
)
documents = st.dictionaries(st.sampled_from("abcd"), values, max_size=4)


def apply_patch(target: Any, patch: Any) -> Any:
    """The algorithm as RFC 7396 gives it (section 2)."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = apply_patch(result.get(name), value)
    return result


@given(documents, documents)
def test_the_patch_turns_the_old_into_the_new(old: Json, new: Json) -> None:
    assert apply_patch(old, merge_patch(old, new)) == new


@given(documents)
def test_nothing_changed_means_an_empty_patch(document: Json) -> None:
    assert merge_patch(document, document) == {}


@given(documents, documents)
def test_applying_twice_changes_nothing_more(old: Json, new: Json) -> None:
    patch = merge_patch(old, new)
    assert merge_patch(apply_patch(old, patch), new) == {}


def test_only_the_nodes_that_changed_are_sent() -> None:
    entries = {f"node-{index}": make_entry() for index in range(3)}
    old = status_json(make_status(entries))
    new = status_json(make_status({"node-0": entries["node-0"], "node-1": make_entry(attempts=2)}))
    assert merge_patch(old, new) == {"nodes": {"node-1": {"attempts": 2}, "node-2": None}}


def test_a_ready_entry_is_slim() -> None:
    entry = status_json(make_status({"node-a": make_entry()}))["nodes"]["node-a"]
    assert entry.keys() == {"state", "reason", "stagingDigest", "manifestDigest", "bootID", "lastTransitionTime"}


def test_a_time_that_is_unknown_is_left_out() -> None:
    revision = Revision(manifest_digest=DIGEST_A)
    written = status_json(Status(published=revision, candidate=revision))
    assert written["published"] == written["candidate"] == {"manifestDigest": DIGEST_A}


def test_a_status_is_written_as_the_crd_knows_it_and_read_back_the_same() -> None:
    status = make_status({"node-a": make_entry(load_seconds=1.5)}, make_revision())
    written = status_json(status)
    assert Status.model_validate(written) == status
    assert written["published"]["manifestDigest"] == DIGEST_A
    assert "published" not in status_json(make_status())


def test_nodes_that_stayed_as_they_were_read_change_nothing_of_the_patch() -> None:
    stays, changes, goes = make_entry(load_seconds=1.5), make_entry(attempts=1), make_entry()
    before = make_status({"node-a": stays, "node-b": changes, "node-c": goes}, make_revision())
    owner = make_owner(status=before, raw_status=status_json(before))
    after = make_status({"node-a": stays, "node-b": make_entry(attempts=2), "node-d": goes}, make_revision())
    assert status_patch(owner, after) == merge_patch(status_json(before), status_json(after))
    assert status_patch(owner, after) == {
        "nodes": {"node-b": {"attempts": 2}, "node-c": None, "node-d": status_json(before)["nodes"]["node-c"]}
    }
    assert status_patch(owner, before) == {}
