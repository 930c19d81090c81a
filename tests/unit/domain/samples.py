"""Values that the domain's tests start from: small, valid and frozen. Imported by tests below tests/unit only."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from modelweights_operator.api import v1alpha1 as api
from modelweights_operator.domain import names, storage
from modelweights_operator.domain.clock import rfc3339
from modelweights_operator.domain.host_folders import LocationError
from modelweights_operator.domain.outcomes import Outcome
from modelweights_operator.domain.snapshot import (
    ContainerState,
    EngineConfigMap,
    Node,
    Owner,
    Policy,
    Snapshot,
    StagingJob,
    StagingPod,
    StorageClass,
    Taint,
)

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
OWNER_UID = "5b5c1e0e-0000-4000-8000-000000000001"
DIGEST_A = "sha256:" + "a" * 64
DIGEST_B = "sha256:" + "b" * 64
COMMIT_A = "a" * 39 + "1"
COMMIT_B = "b" * 39 + "2"
POLICY = Policy(
    loader_image="loader:1",
    image_pull_policy="IfNotPresent",
    host_path_roots=("/models",),
    storage_classes=(StorageClass("nvme", root="/data", is_default=True), StorageClass("shared", claim="models")),
)
GPU_LABELS = {"nvidia.com/gpu.present": "true"}


STAGED = Outcome(
    "p5",
    succeeded=True,
    fetched_bytes=900,
    fetch_seconds=3.0,
    prefetched_bytes=1000,
    prefetch_bytes_per_second=500,
    load_seconds=0.5,
)
"""A staging that ended well."""


def ago(seconds: float) -> datetime:
    """A moment before NOW."""
    return NOW - timedelta(seconds=seconds)


def without_canary(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a spec, with all nodes staged at once where they don't say otherwise."""
    return {**fields, "placement": {"canaryNodes": 0, **fields.get("placement", {})}}


def make_spec(**fields: Any) -> api.Spec:
    """A spec with a hostPath source, without a canary, and other fields as they stand in YAML."""
    return api.Spec.model_validate({"source": {"hostPath": {"path": "/models/llama"}}, **without_canary(fields)})


def make_claim_spec(path: str = "llama", **fields: Any) -> api.Spec:
    """A spec with a claim as its source."""
    claim = {"claimName": "weights", "path": path}
    return api.Spec.model_validate({"source": {"persistentVolumeClaim": claim}, **without_canary(fields)})


def make_fetch_spec(source: Mapping[str, Any] | None = None, **fields: Any) -> api.Spec:
    """A spec with a repository of the hub as its source, or another one that is fetched."""
    hub = {"huggingFace": {"repository": "org/name"}}
    return api.Spec.model_validate({"source": source or hub, **without_canary(fields)})


def make_node(name: str = "node-a", **changes: Any) -> Node:
    """A ready GPU node; its boot and UID follow from its name."""
    fields: dict[str, Any] = {
        "name": name,
        "uid": f"uid-{name}",
        "boot_id": f"boot-{name}",
        "labels": {**GPU_LABELS, "kubernetes.io/hostname": f"host-{name}"},
        **changes,
    }
    return Node(**fields)


def make_owner(spec: api.Spec | None = None, status: api.Status | None = None, **changes: Any) -> Owner:
    """A ModelWeights team/llama of generation 3."""
    fields: dict[str, Any] = {
        "namespace": "team",
        "name": "llama",
        "uid": OWNER_UID,
        "generation": 3,
        "spec": spec or make_spec(),
        "status": status or api.Status(),
        **changes,
    }
    return Owner(**fields)


def digest_of(spec: api.Spec) -> str:
    """The staging digest under POLICY; with a class that it hasn't, one of a time when it was there."""
    try:
        return names.staging_digest(spec, storage.place(spec, POLICY))
    except LocationError:
        return names.staging_digest(spec, "/gone")


def make_job(node: Node | None = None, spec: api.Spec | None = None, **changes: Any) -> StagingJob:
    """The staging Job of a node under the spec, as the operator would have made it."""
    node, spec = node or make_node(), spec or make_spec()
    digest = digest_of(spec)
    attempt = changes.get("round", 0)
    fields: dict[str, Any] = {
        "name": names.job_name("llama", OWNER_UID, node.uid, digest, node.boot_id, str(attempt)),
        "node_name": node.name,
        "node_uid": node.uid,
        "staging_digest": digest,
        "boot_id": node.boot_id,
        "round": attempt,
        "created_at": ago(60),
        "namespace": "team",
        "owner_uid": OWNER_UID,
        "source_digest": names.source_digest(spec) if spec.is_fetched else "",
        **changes,
    }
    return StagingJob(**fields)


def make_pod(*containers: ContainerState, **changes: Any) -> StagingPod:
    """A scheduled pod of a staging Job."""
    fields: dict[str, Any] = {
        "name": "stage-llama-x",
        "created_at": ago(50),
        "phase": "Running",
        "scheduled": True,
        "containers": containers,
        **changes,
    }
    return StagingPod(**fields)


def report_text(**fields: Any) -> str:
    """A termination message of the container `report` that ended well, with changes."""
    report = {
        "step": "report",
        "exitCode": 0,
        "manifestDigest": DIGEST_A,
        "fileCount": 4,
        "sizeBytes": 1000,
        "tensorCount": 20,
        "residentBytes": 990,
        "prefetchBytesPerSecond": 123.4,
        "loadSeconds": 1.23456,
    }
    return json.dumps({**report, **fields})


def fetch_ended(revision: str = COMMIT_A, **fields: Any) -> ContainerState:
    """The container `fetch` that ended well, with its report."""
    report = {"step": "fetch", "exitCode": 0, "revision": revision, "described": f"hf://org/name at {revision}"}
    return ContainerState(
        "fetch", exit_code=0, message=json.dumps({**report, "fetchSeconds": 2.5, "fetchedBytes": 900, **fields})
    )


def resolve_ended(revision: str = COMMIT_A) -> ContainerState:
    """The container `resolve` that ended well, with its report."""
    report = {"step": "resolve", "exitCode": 0, "revision": revision, "described": f"hf://org/name at {revision}"}
    return ContainerState("resolve", exit_code=0, message=json.dumps(report))


def failure_text(reason: str = "Unreachable", exit_code: int = 10, message: str = "it failed") -> str:
    """A termination message of a step that failed."""
    return json.dumps({"step": "validate", "exitCode": exit_code, "reason": reason, "message": message})


def complete_job(node: Node | None = None, spec: api.Spec | None = None, **report: Any) -> StagingJob:
    """A Job that ended well, with its pod."""
    end = ContainerState("report", exit_code=0, message=report_text(**report))
    return make_job(node, spec, state="Complete", finished_at=ago(1), pods=(make_pod(end, phase="Succeeded"),))


def failed_job(
    node: Node | None = None,
    *,
    text: str = "",
    finished_seconds_ago: float = 1,
    **changes: Any,
) -> StagingJob:
    """A Job whose step validate failed."""
    code = json.loads(text)["exitCode"] if text else 1
    end = ContainerState("validate", exit_code=code, message=text)
    fields = {
        "state": "Failed",
        "finished_at": ago(finished_seconds_ago),
        "pods": (make_pod(end, phase="Failed"),),
        **changes,
    }
    return make_job(node, **fields)


def make_entry(node: Node | None = None, spec: api.Spec | None = None, **changes: Any) -> api.NodeStatus:
    """The entry of a node that is ready under the spec."""
    node, spec = node or make_node(), spec or make_spec()
    fields = {
        "state": "Ready",
        "reason": "Staged",
        "staging_digest": digest_of(spec),
        "manifest_digest": DIGEST_A,
        "boot_id": node.boot_id,
        "last_transition_time": rfc3339(ago(3600)),
        **changes,
    }
    return api.NodeStatus.model_validate(fields)


def make_revision(digest: str = DIGEST_A, path: str = "/models/llama", **changes: Any) -> api.Revision:
    """A published checkpoint."""
    fields = {"manifest_digest": digest, "path": path, "since": rfc3339(ago(3600)), "size_bytes": 1000, **changes}
    return api.Revision.model_validate(fields)


def make_status(
    entries: Mapping[str, api.NodeStatus] | None = None,
    published: api.Revision | None = None,
    conditions: tuple[api.Condition, ...] = (),
) -> api.Status:
    """A status with these parts."""
    return api.Status(nodes=dict(entries or {}), published=published, conditions=conditions)


def make_snapshot(
    owner: Owner | None = None,
    nodes: tuple[Node, ...] = (),
    jobs: tuple[StagingJob, ...] = (),
    config_map: EngineConfigMap | None = None,
    policy: Policy = POLICY,
) -> Snapshot:
    """A snapshot with these parts."""
    return Snapshot(owner=owner or make_owner(), nodes=nodes, jobs=jobs, config_map=config_map, policy=policy)


def make_taint(key: str, value: str = "", effect: str = "NoSchedule") -> Taint:
    """A taint."""
    return Taint(key, value, effect)
