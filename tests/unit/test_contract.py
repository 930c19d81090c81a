"""Operator and loader never import each other: what one writes into a pod's arguments, the other must understand."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from modelweights_loader.cli import build_parser
from modelweights_operator.domain import manifests, reports, storage
from modelweights_operator.domain.memory import Bound
from modelweights_operator.domain.snapshot import FetchSettings, Policy, StorageClass
from tests.checkpoints.synthetic import make_synthetic
from tests.unit.domain.samples import (
    COMMIT_A,
    DIGEST_A,
    POLICY,
    make_claim_spec,
    make_fetch_spec,
    make_node,
    make_owner,
    make_revision,
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
BOUND = Bound(5, "nodeMemory.budget is 5, of which team/other holds 3")
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


@pytest.mark.parametrize(
    "spec",
    [make_spec(), make_claim_spec(), make_fetch_spec(), make_spec(prefetch={"policy": "Required"})],
    ids=["path", "claim", "fetched", "marked"],
)
@pytest.mark.parametrize("known", [None, make_revision(size_bytes=7, file_count=2)], ids=["unknown", "known"])
def test_the_loader_takes_the_arguments_of_a_refresh(spec: Any, known: Any) -> None:
    job = manifests.refresh_job(
        *(make_owner(spec), spec, make_node()),
        follows="2026-03-01T12:00:00Z",
        digest=DIGEST_A,
        known=known,
        policy=POLICY,
        bound=BOUND,
    )
    (container,) = job["spec"]["template"]["spec"]["containers"]
    parsed = build_parser().parse_args(container["args"])
    assert (parsed.command, parsed.path, parsed.max_resident) == ("refresh", container["args"][1], 5)
    assert parsed.max_resident_because == BOUND.because
    assert (parsed.marker_dir is not None) == (spec.prefetch.policy == "Required")


def accepts(spec: Any, policy: Policy, revision: str) -> None:
    owner, node = make_owner(spec), make_node()
    job = manifests.staging_job(owner, spec, node, attempt=0, policy=policy, revision=revision, bound=BOUND)
    pod = job["spec"]["template"]["spec"]
    for container in [*pod["initContainers"], *pod["containers"]]:
        parsed = build_parser().parse_args(container["args"])
        assert (parsed.command, parsed.path) == (container["name"], container["args"][1])


@pytest.mark.parametrize("claim", [False, True], ids=["host path", "claim"])
def test_the_steps_of_a_local_copy_run_as_they_stand_and_end_where_the_operator_says(
    tmp_path: Path, request: pytest.FixtureRequest, *, claim: bool
) -> None:
    """In the kubelet's place: folders made, mounts replaced by paths; the loader is the real one."""
    make_synthetic(tmp_path / "models" / "llama", 2**20, 2)
    policy = replace(
        POLICY,
        host_path_roots=(str(tmp_path / "models"),),
        storage_classes=(StorageClass("disk", root=str(tmp_path / "data"), is_default=True),),
    )
    spec = make_spec(source={"hostPath": {"path": str(tmp_path / "models" / "llama")}}, storage={})
    if claim:
        spec = make_claim_spec(storage={})
    owner, places = make_owner(spec), {"results": tmp_path / "results", "markers": tmp_path / "data" / ".modelweights"}
    for place in (tmp_path / "data" / "team" / "llama", *places.values()):
        place.mkdir(parents=True)
    job = manifests.staging_job(owner, spec, make_node(), attempt=0, policy=policy)
    pod, report = job["spec"]["template"]["spec"], tmp_path / "report"
    containers = [*pod["initContainers"], *pod["containers"]]
    assert (containers[0]["name"] == "resolve") == claim
    home = tmp_path / "data" / "team" / "llama"
    # As the kubelet does; the loader looks whether it is its part that is mounted there.
    subprocess.run(["mount", "--bind", home, home], check=True)
    request.addfinalizer(lambda: subprocess.run(["umount", home], check=True))
    for container in containers:
        arguments = [word.replace("/dev/termination-log", str(report)) for word in container["args"]]
        arguments = [word.replace("file:///mnt/source", f"file://{tmp_path / 'models'}") for word in arguments]
        for name, place in places.items():
            arguments = [word.replace(f"/run/modelweights/{name}", str(place)) for word in arguments]
        ran = subprocess.run(
            [sys.executable, "-m", "modelweights_loader", *arguments], capture_output=True, text=True, check=False, timeout=120
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr
    found = reports.parse(report.read_text())
    assert found is not None
    expected = storage.published_path(owner, spec, policy, manifest_digest=found.manifest_digest, revision="")
    assert sorted(path.name for path in Path(expected).glob("*.safetensors")) == sorted(
        path.name for path in (tmp_path / "models" / "llama").glob("*.safetensors")
    )
    waits = [sys.executable, "-m", "modelweights_loader", "wait", expected, "--timeout-seconds", "5"]
    waited = subprocess.run(waits, capture_output=True, text=True, check=False, timeout=60)
    assert waited.returncode == 0, waited.stderr
