"""Names: within the limits of Kubernetes, the same for the same input, another for another."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelweights_operator.api.v1alpha1 import Spec
from modelweights_operator.domain import names
from tests.unit.domain.samples import DIGEST_A, DIGEST_B, make_claim_spec, make_fetch_spec, make_spec

DNS_LABEL = re.compile(r"^[a-z]([-a-z0-9]*[a-z0-9])?$")
LABEL_VALUE = re.compile(r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$")
IDENTITY = ("owner-uid", "node-uid", "digest", "boot", "0")

object_names = st.from_regex(r"\A[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?\Z").filter(lambda name: ".." not in name)


@given(object_names)
def test_job_name_is_a_label_of_at_most_52_characters(name: str) -> None:
    found = names.job_name(name, *IDENTITY)
    assert DNS_LABEL.match(found)
    assert len(found) <= 52


@pytest.mark.parametrize(
    ("name", "expected_front"),
    [
        ("llama", "stage-llama-"),
        ("llama.3.1-70b", "stage-llama-3-1-70b-"),
        ("a" * 253, "stage-" + "a" * 33 + "-"),
        ("a" * 32 + "." + "b" * 200, "stage-" + "a" * 32 + "-"),
    ],
)
def test_job_name_is_readable_at_its_front(name: str, expected_front: str) -> None:
    found = names.job_name(name, *IDENTITY)
    assert re.fullmatch(re.escape(expected_front) + "[0-9a-f]{12}", found)


def test_job_name_is_the_same_after_a_restart() -> None:
    # Written out: a change of the hash would make a second Job beside each one that runs at the upgrade.
    assert names.job_name("llama", *IDENTITY) == "stage-llama-6152557a6687"


@pytest.mark.parametrize("position", range(len(IDENTITY)))
def test_job_name_differs_with_each_part_of_the_identity(position: int) -> None:
    other = [part + "x" if index == position else part for index, part in enumerate(IDENTITY)]
    assert names.job_name("llama", *IDENTITY) != names.job_name("llama", *other)


@given(st.lists(st.text(max_size=4), min_size=1, max_size=4), st.lists(st.text(max_size=4), min_size=1, max_size=4))
def test_short_hash_tells_apart_where_strings_are_split(first: list[str], second: list[str]) -> None:
    assert (names.short_hash(*first) == names.short_hash(*second)) == (first == second)


@given(st.text(max_size=300))
def test_node_label_key_is_within_bounds(uid: str) -> None:
    prefix, _, name = names.node_label(uid, DIGEST_A).partition("/")
    assert prefix == "staged.modelweights.io"
    assert 0 < len(name) <= 63
    assert LABEL_VALUE.match(name)


def test_label_of_a_digest_is_a_label_value() -> None:
    value = names.label_digest(DIGEST_A)
    assert value == "a" * 40
    assert LABEL_VALUE.match(value)


def test_only_labels_below_our_prefix_are_ours() -> None:
    labels = {"staged.modelweights.io/x": "1", "modelweights.io/x": "2", "x.staged.modelweights.io/y": "3"}
    assert names.staged_labels(labels) == {"staged.modelweights.io/x": "1"}


def test_labels_are_told_apart_by_their_object_and_by_their_digest() -> None:
    mine, others = names.digest_labels("uid-1", [DIGEST_A, DIGEST_B]), names.digest_labels("uid-2", [DIGEST_A])
    assert sorted(mine.values()) == ["a" * 40, "b" * 40]
    assert mine.keys().isdisjoint(others)
    by_owner = names.labels_by_owner({**mine, **others, "x": "y"})
    assert by_owner == {names.node_label_owner("uid-1"): mine, names.node_label_owner("uid-2"): others}
    assert {names.owner_of_label(key) for key in mine} == {names.node_label_owner("uid-1")}


BASE = {"prefetch": {"numThreads": 4}, "validation": {"mode": "Load"}}


@pytest.mark.parametrize(
    "change",
    [
        {"suspend": True},
        {"placement": {"minAvailableNodes": 7, "tolerations": [{"key": "a", "operator": "Exists"}]}},
        {"staging": {"labels": {"team": "x"}, "env": [{"name": "A", "value": "b"}], "uid": 1000}},
        {"validation": {"mode": "Load", "timeoutSeconds": 60}},
        {"prefetch": {"numThreads": 4, "refreshIntervalSeconds": 600}},
    ],
)
def test_what_changes_no_result_stages_nothing_again(change: dict[str, object]) -> None:
    assert names.staging_digest(make_spec(**BASE)) == names.staging_digest(make_spec(**{**BASE, **change}))


@pytest.mark.parametrize(
    "change",
    [
        {"source": {"hostPath": {"path": "/models/other"}}},
        {"prefetch": {"numThreads": 5}},
        {"prefetch": {"numThreads": 4, "mode": "None"}},
        {"prefetch": {"numThreads": 4, "policy": "Required"}},
        {"validation": {"mode": "Structure"}},
        {"validation": {"mode": "Load", "engine": {"queueSize": 2}}},
    ],
)
def test_what_changes_the_result_stages_again(change: dict[str, object]) -> None:
    assert names.staging_digest(make_spec(**BASE)) != names.staging_digest(make_spec(**{**BASE, **change}))


@pytest.mark.parametrize("size", ["16Mi", "16384Ki", 16777216])
def test_a_block_size_written_otherwise_stages_nothing_again(size: int | str) -> None:
    digest = names.staging_digest(make_spec(prefetch={"blockSize": size}))
    assert digest == names.staging_digest(make_spec())


def test_claims_of_another_path_are_another_staging() -> None:
    assert names.staging_digest(make_claim_spec("a")) != names.staging_digest(make_claim_spec("b"))


def test_hashes_of_what_knew_nothing_of_fetching_stay() -> None:
    """Written out: another hash would stage every object again at the upgrade."""
    assert names.staging_digest(make_spec()) == "4a3b6b12f9"
    assert names.staging_digest(make_claim_spec()) == "75409a2892"
    other = make_spec(prefetch={"numThreads": 4}, validation={"mode": "Structure"})
    assert names.staging_digest(other) == "47f72b3bc9"


HUB = {"huggingFace": {"repository": "org/name"}}


@pytest.mark.parametrize(
    "changed",
    [
        make_fetch_spec({"huggingFace": {"repository": "org/other"}}),
        make_fetch_spec({"huggingFace": {"repository": "org/name", "revision": "v2"}}),
        make_fetch_spec({"huggingFace": {"repository": "org/name", "endpoint": "https://mirror"}}),
        make_fetch_spec(files={"exclude": ["x"]}),
        make_fetch_spec(storage={"class": "nvme"}),
        make_fetch_spec(storage={"layout": "HuggingFaceCache"}),
    ],
)
def test_what_changes_what_is_fetched_stages_again(changed: Spec) -> None:
    assert names.staging_digest(changed) != names.staging_digest(make_fetch_spec())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (HUB, {"huggingFace": {"repository": "org/name", "tokenSecretRef": {"name": "t"}}}),
        (HUB, {"huggingFace": {"repository": "org/name", "revision": "main"}}),
        (
            {"objectStore": {"url": "s3://b", "anonymous": True}},
            {"objectStore": {"url": "s3://b", "credentialsSecretRef": {"name": "k"}}},
        ),
    ],
)
def test_how_one_gets_at_a_source_stages_nothing_again(one: dict[str, object], other: dict[str, object]) -> None:
    first, second = make_fetch_spec(one), make_fetch_spec(other)
    assert names.staging_digest(first) == names.staging_digest(second)
    assert names.source_digest(first) == names.source_digest(second)


def test_what_becomes_of_files_later_stages_nothing_again() -> None:
    kept = make_fetch_spec(storage={"retention": "LeastRecentlyUsed", "gracePeriodSeconds": 5}, deletionPolicy="Delete")
    assert names.staging_digest(kept) == names.staging_digest(make_fetch_spec(storage={}))


def test_a_copy_is_another_staging_than_the_use_in_place() -> None:
    assert names.staging_digest(make_claim_spec(storage={})) != names.staging_digest(make_claim_spec())


def test_a_revision_belongs_to_the_source_alone() -> None:
    other = make_fetch_spec(files={"exclude": ["x"]}, storage={"class": "nvme"}, prefetch={"numThreads": 1})
    assert names.source_digest(other) == names.source_digest(make_fetch_spec())
