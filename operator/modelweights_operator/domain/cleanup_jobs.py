"""The Job that removes fetched files from one node, as a plain dictionary. Called by `cleanup`; pure.

It runs the loader's command `clean` as the user that fetched. For a storage class with a root it is in the operator's
namespace, since a terminating one takes none, and sees the folder of the object's namespace, in which the home lies.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal

from modelweights_operator.api import v1alpha1 as api
from modelweights_operator.domain import names, storage
from modelweights_operator.domain.pods import TERMINATION_LOG, Manifest, container, pod_spec
from modelweights_operator.domain.snapshot import Node, Owner, Policy, StorageClass

ACTIVE_SECONDS: Final = 900
KEPT_SECONDS: Final = 86_400
"""A Job that nobody removes, as where the operator is away, goes after this; one that failed for good is tried again then."""

_MARKER_MOUNT: Final = "/run/modelweights/markers"


@dataclass(frozen=True)
class CleanupJob:
    """A cleanup Job. `owner_uid` is the ModelWeights'; `digests` is empty where all goes.

    `running`: its pod's container runs. `message` is what the loader said at the end, or why there is no pod.
    """

    name: str
    namespace: str
    owner_uid: str
    node_name: str
    node_uid: str
    class_name: str
    digests: frozenset[str]
    round: int
    created_at: datetime
    state: Literal["Active", "Complete", "Failed"] = "Active"
    finished_at: datetime | None = None
    deleting: bool = False
    running: bool = False
    reason: str = ""
    message: str = ""


@dataclass(frozen=True)
class Target:
    """What is to go from a node: checkpoints of a storage class, none for all of them."""

    node: Node
    where: StorageClass
    digests: frozenset[str] = field(default_factory=frozenset)


def namespace_of(owner: Owner, where: StorageClass, policy: Policy) -> str:
    """Where the Job runs."""
    return owner.namespace if where.claim else policy.namespace


def cleanup_job(owner: Owner, target: Target, *, attempt: int, policy: Policy) -> Manifest:
    """The Job that removes what a target says.

    Args:
        owner: The ModelWeights.
        target: What, and where.
        attempt: How many failed before; it makes the name of the next one another.
        policy: Settings of the operator.
    """
    node, where = target.node, target.where
    digests = ",".join(sorted(target.digests))
    labels = {names.MANAGED_BY_LABEL: names.MANAGED_BY, names.CLEANUP_LABEL: owner.uid}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": names.job_name(owner.name, owner.uid, node.uid, where.name, digests, str(attempt), verb="clean"),
            "namespace": namespace_of(owner, where, policy),
            "labels": labels,
            "annotations": {
                names.CLEANUP_OWNER_ANNOTATION: owner.full_name,
                names.NODE_ANNOTATION: node.name,
                names.NODE_UID_ANNOTATION: node.uid,
                names.CLEANUP_CLASS_ANNOTATION: where.name,
                names.CLEANUP_DIGESTS_ANNOTATION: digests,
                names.ROUND_ANNOTATION: str(attempt),
            },
        },
        "spec": {
            "backoffLimit": 0,
            "activeDeadlineSeconds": ACTIVE_SECONDS,
            "ttlSecondsAfterFinished": KEPT_SECONDS,
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": {
                "rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
            },
            "template": {
                "metadata": {"labels": {**labels, "sidecar.istio.io/inject": "false"}},
                "spec": _pod_spec(owner, target, policy),
            },
        },
    }


def _pod_spec(owner: Owner, target: Target, policy: Policy) -> Manifest:
    staging = owner.spec.staging if owner.spec else api.Staging()
    placement = owner.spec.placement if owner.spec else api.Placement()
    secrets = policy.pull_secrets if target.where.root else [each.name for each in staging.image_pull_secrets]
    containers, volumes = [_container(owner, target, policy)], [_volume(target.where)]
    common = pod_spec(target.node, placement, staging.uid, containers=containers, volumes=volumes, writes=True)
    return {
        **common,
        # A cordoned node, or one whose disk is full, is to be cleaned all the more.
        "tolerations": [*common["tolerations"], {"operator": "Exists", "effect": "NoSchedule"}],
        "imagePullSecrets": [{"name": name} for name in secrets],
    }


def _volume(where: StorageClass) -> Manifest:
    if where.claim:
        return {"name": "model", "persistentVolumeClaim": {"claimName": where.claim}}
    return {"name": "model", "hostPath": {"path": where.root, "type": "Directory"}}


def _container(owner: Owner, target: Target, policy: Policy) -> Manifest:
    where = target.where
    what = [word for digest in sorted(target.digests) for word in ("--digest", digest)] or ["--all"]
    root, mounts = _mounts(owner, where)
    markers = ["--marker-dir", _MARKER_MOUNT, "--marker-root", where.root] if where.root else []
    home = storage.home(owner, where).path
    words = ["clean", home, "--root", root, "--report", TERMINATION_LOG, *markers, *what]
    return container("clean", words, mounts, policy, {"requests": {"cpu": "10m", "memory": "64Mi"}})


def _mounts(owner: Owner, where: StorageClass) -> tuple[str, list[Mapping[str, Any]]]:
    """The folder that holds the home, since the home itself is to go; and that of the markers."""
    if where.claim:
        return storage.VOLUME_MOUNT, [{"name": "model", "mountPath": storage.VOLUME_MOUNT}]
    return where.root, [
        {"name": "model", "mountPath": f"{where.root}/{owner.namespace}", "subPath": owner.namespace},
        {"name": "model", "mountPath": _MARKER_MOUNT, "subPath": storage.MARKER_FOLDER},
    ]
