"""Where things lie: in the staging pod, on the node, for the engine; and what of the source is told to whom."""

from dataclasses import replace
from typing import Any

import pytest

from modelweights_operator.domain import storage
from modelweights_operator.domain.host_folders import HostFolder
from modelweights_operator.domain.snapshot import FetchSettings, Policy
from modelweights_operator.domain.storage import ModelLocation
from tests.unit.domain.plans import A, is_true, message, plan_of, reasons, with_spec
from tests.unit.domain.samples import (
    COMMIT_A,
    DIGEST_A,
    POLICY,
    make_claim_spec,
    make_fetch_spec,
    make_job,
    make_owner,
    make_snapshot,
    make_spec,
)

S3 = {"objectStore": {"url": "s3://bucket/llama"}}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (make_spec(), ModelLocation("/models", "/models/llama", marked=True, marker_root="/models")),
        (make_claim_spec("a/b"), ModelLocation("/mnt/model", "/mnt/model/a/b", marked=False)),
        (make_claim_spec(""), ModelLocation("/mnt/model", "/mnt/model", marked=False)),
        (make_claim_spec("a/"), ModelLocation("/mnt/model", "/mnt/model/a", marked=False)),
        (
            make_fetch_spec(),
            ModelLocation(
                "/data/team/llama", "/data/team/llama", marked=True, marker_root="/data", sub_path="team/llama"
            ),
        ),
        (
            make_fetch_spec(storage={"class": "shared"}),
            ModelLocation("/mnt/model/llama", "/mnt/model/llama", marked=False, sub_path="llama"),
        ),
        (
            make_spec(storage={}),
            ModelLocation(
                "/data/team/llama",
                "/data/team/llama",
                marked=True,
                marker_root="/data",
                sub_path="team/llama",
                source=HostFolder("/models", "/models", "/models/llama"),
            ),
        ),
    ],
)
def test_where_the_pod_finds_the_checkpoint(spec: Any, expected: ModelLocation) -> None:
    assert storage.locate(make_owner(), spec, POLICY) == expected


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (make_spec(), "/models/llama"),
        (make_claim_spec("a/b"), "claim:weights/a/b"),
        (make_claim_spec(""), "claim:weights/"),
        (make_fetch_spec(), f"/data/team/llama/{'a' * 64}"),
        (make_claim_spec(storage={"class": "shared"}), f"claim:models/llama/{'a' * 64}"),
        (
            make_fetch_spec(storage={"layout": "HuggingFaceCache"}),
            f"/data/team/llama/{'a' * 64}/models--org--name/snapshots/{COMMIT_A}",
        ),
    ],
)
def test_the_published_path_says_where_engines_look(spec: Any, expected: str) -> None:
    found = storage.published_path(make_owner(), spec, POLICY, manifest_digest=DIGEST_A, revision=COMMIT_A)
    assert found == expected


# --- storage classes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "policy", "expected"),
    [
        ("none-such", POLICY, "spec.storage.class none-such isn't among the administrator's storage classes (nvme, shared)"),
        ("", replace(POLICY, storage_classes=POLICY.storage_classes[1:]), "spec.storage.class is empty, and no default is among"),
        ("", replace(POLICY, storage_classes=()), "the administrator's storage classes (none)"),
    ],
)  # fmt: skip
def test_a_storage_class_that_is_not_there_stops_it_and_names_those_that_are(
    wanted: str, policy: Policy, expected: str
) -> None:
    spec = make_fetch_spec(storage={"class": wanted})
    plan = plan_of(make_snapshot(make_owner(spec), (A,), (make_job(A, spec),), policy=policy))
    assert reasons(plan)["Stalled"] == "StorageClassNotFound"
    assert expected in message(plan)
    assert plan.create_jobs == ()
    assert len(plan.delete_jobs) == 1


def test_a_local_copy_is_made_of_allowed_folders_only() -> None:
    plan = plan_of(with_spec(make_spec(source={"hostPath": {"path": "/etc/x"}}, storage={}), A))
    assert reasons(plan)["Ready"] == "PathNotAllowed"
    assert not is_true(plan, "Ready")


# --- sources ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (make_fetch_spec(), "hf://org/name"),
        (make_fetch_spec(S3), "s3://bucket/llama"),
        (make_claim_spec("a b/c", storage={}), "file:///mnt/source/a%20b/c"),
        (make_claim_spec("", storage={}), "file:///mnt/source"),
        (make_spec(storage={}), "file:///models/llama"),
    ],
)
def test_the_source_as_the_loader_is_told_it(spec: Any, expected: str) -> None:
    assert storage.source_url(spec) == expected


MIRROR = replace(POLICY, fetch=FetchSettings(hugging_face_endpoint="https://Mirror.example:8443/hf"))


@pytest.mark.parametrize(
    ("source", "policy", "endpoint", "host"),
    [
        ({"huggingFace": {"repository": "o/n"}}, POLICY, "", "huggingface.co"),
        ({"huggingFace": {"repository": "o/n"}}, MIRROR, "https://Mirror.example:8443/hf", "mirror.example:8443"),
        ({"huggingFace": {"repository": "o/n", "endpoint": "http://own"}}, MIRROR, "http://own", "own"),
        (S3, MIRROR, "", "amazonaws.com"),
        ({"objectStore": {"url": "gs://b"}}, POLICY, "", "storage.googleapis.com"),
        ({"objectStore": {"url": "az://b/x"}}, POLICY, "", "blob.core.windows.net"),
        ({"objectStore": {"url": "https://Files.example/x/"}}, POLICY, "", "files.example"),
        ({"objectStore": {"url": "s3://b", "endpoint": "http://minio:9000"}}, POLICY, "http://minio:9000", "minio:9000"),
    ],
)  # fmt: skip
def test_the_mirror_of_the_site_is_taken_unless_the_spec_names_one(
    source: dict[str, Any], policy: Policy, endpoint: str, host: str
) -> None:
    spec = make_fetch_spec(source)
    assert (storage.source_endpoint(spec, policy), storage.source_host(spec, policy)) == (endpoint, host)


def test_a_copy_of_what_the_node_mounts_spares_no_host() -> None:
    assert storage.source_host(make_claim_spec(storage={}), POLICY) == ""


@pytest.mark.parametrize("endpoint", ["https://[mirror", "https://exa\u2100mple.com/x", "https://[::::]:1"])
def test_a_host_is_told_of_whatever_stands_in_its_place(endpoint: str) -> None:
    policy = replace(POLICY, fetch=FetchSettings(hugging_face_endpoint=endpoint))
    assert storage.source_host(make_fetch_spec(), policy) == endpoint.removeprefix("https://").removesuffix("/x")
