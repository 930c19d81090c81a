"""Operator and loader never import each other: what one writes into a pod's arguments, the other must understand."""

from dataclasses import replace
from typing import Any

import pytest

from modelweights_loader.cli import build_parser
from modelweights_operator.domain import manifests
from modelweights_operator.domain.snapshot import FetchSettings, Policy, StorageClass
from tests.unit.domain.samples import (
    COMMIT_A,
    POLICY,
    make_claim_spec,
    make_fetch_spec,
    make_node,
    make_owner,
    make_spec,
)

SPECS = {
    "defaults": make_spec(),
    "a claim": make_claim_spec(),
    "no prefetch": make_spec(prefetch={"mode": "None"}),
    "all of the prefetch": make_spec(
        prefetch={
            "numThreads": 1,
            "blockSize": "512k",
            "policy": "Required",
            "minResidentPercent": 1,
            "unknownResidency": "Accept",
            "pages": "Normal",
        }
    ),
    "headers only": make_spec(validation={"mode": "Structure", "timeoutSeconds": 5}),
    "nothing": make_spec(validation={"mode": "None"}),
    "every bit by a group": make_spec(
        validation={"mode": "Full", "engine": {"tensorParallelSize": 2, "queueSize": -1}}
    ),
    "measured": make_spec(validation={"engine": {"selection": "Measured"}}),
    "safetensors": make_spec(validation={"engine": {"loadFormat": "safetensors"}}),
    "a repository": make_fetch_spec(),
    "all of a repository": make_fetch_spec(
        {
            "huggingFace": {
                "repository": "org/name",
                "revision": "refs/pr/1",
                "endpoint": "https://mirror",
                "tokenSecretRef": {"name": "t"},
            }
        },
        files={"include": ["*.safetensors", "-x"], "exclude": ["a b", "--y"]},
        storage={"layout": "HuggingFaceCache"},
        validation={"engine": {"selection": "Measured"}},
    ),
    "all of a bucket": make_fetch_spec(
        {
            "objectStore": {
                "url": "s3://bucket/x",
                "endpoint": "http://minio:9000",
                "region": "eu-west-1",
                "pathStyle": True,
                "credentialsSecretRef": {"name": "keys"},
            }
        }
    ),
    "a bucket of anybody's": make_fetch_spec({"objectStore": {"url": "gs://bucket", "anonymous": True}}),
    "a web server": make_fetch_spec({"objectStore": {"url": "https://x/y/", "credentialsSecretRef": {"name": "t"}}}),
    "a copy of a claim": make_claim_spec(storage={"class": "shared"}),
    "a copy of a host path": make_spec(storage={}),
}
SITE = replace(
    POLICY,
    storage_classes=(*POLICY.storage_classes, StorageClass("bytes", root="/b", reserve="1000")),
    fetch=FetchSettings(num_connections=64, max_bytes_per_second=500_000_000, extra_ca="x"),
)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())
def test_the_loader_takes_the_arguments_of_every_step(spec: Any) -> None:
    accepts(spec, POLICY, "")


@pytest.mark.parametrize(
    "spec",
    [make_fetch_spec(), make_fetch_spec(storage={"class": "bytes"}), make_spec()],
    ids=["percent", "bytes", "in place"],
)
@pytest.mark.parametrize("revision", ["", COMMIT_A, f"sha256:{'a' * 64}"])
def test_the_loader_takes_the_administrators_settings_and_a_resolved_revision(spec: Any, revision: str) -> None:
    accepts(spec, SITE, revision)


def accepts(spec: Any, policy: Policy, revision: str) -> None:
    owner, node = make_owner(spec), make_node()
    job = manifests.staging_job(owner, spec, node, attempt=0, policy=policy, revision=revision)
    pod = job["spec"]["template"]["spec"]
    for container in [*pod["initContainers"], *pod["containers"]]:
        parsed = build_parser().parse_args(container["args"])
        assert (parsed.command, parsed.path) == (container["name"], container["args"][1])
