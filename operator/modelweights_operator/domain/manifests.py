"""The objects that the operator makes, as plain dictionaries. Called by the planner; pure.

The staging pod passes Pod Security `restricted` with a claim, and differs from it only by its volume with a hostPath.
"""

import posixpath
from dataclasses import dataclass
from typing import Any, Final

from modelweights_operator.api.v1alpha1 import API_VERSION, KIND, Spec
from modelweights_operator.domain import names
from modelweights_operator.domain.placement import tolerations
from modelweights_operator.domain.snapshot import Node, Owner, Policy

Manifest = dict[str, Any]

MARKER_FOLDER: Final = ".modelweights"
"""Below an allowed root: where the loader writes what `modelweights-loader wait` reads."""

_CLAIM_MOUNT: Final = "/mnt/model"
_MARKER_MOUNT: Final = "/run/modelweights/markers"
_RESULTS_MOUNT: Final = "/run/modelweights/results"
_TERMINATION_LOG: Final = "/dev/termination-log"

LOADER_GROUP: Final = 65532
"""The group that owns an allowed root (mode 2775), whatever user the loader runs as."""

PERMANENT_EXIT_CODES: Final = (2, 20, 30, 40)
"""The loader's exit codes after which trying again at once is in vain: usage, impossible, bad checkpoint, no room."""


@dataclass(frozen=True)
class ModelLocation:
    """Where the checkpoint is inside a staging pod.

    Attributes:
        root: Where the volume is mounted; for a hostPath the allowed root at its own path.
        path: The checkpoint's folder, at or below root.
        marked: Whether a marker for `modelweights-loader wait` can be written beside it.
    """

    root: str
    path: str
    marked: bool


def allowed_root(path: str, roots: tuple[str, ...]) -> str | None:
    """The longest of the allowed roots that holds `path`, or None. A root itself is no checkpoint."""
    normal = posixpath.normpath(path)
    holding = [root for root in map(posixpath.normpath, roots) if normal.startswith(root.rstrip("/") + "/")]
    return max(holding, key=len, default=None)


def locate(spec: Spec, policy: Policy) -> ModelLocation:
    """Where the staging pod finds the checkpoint.

    Raises:
        ValueError: The path lies below no allowed root; the message says which there are.
    """
    if spec.source.persistent_volume_claim is not None:
        path = posixpath.join(_CLAIM_MOUNT, spec.source.persistent_volume_claim.path).rstrip("/")
        return ModelLocation(_CLAIM_MOUNT, path, marked=False)
    assert spec.source.host_path is not None  # noqa: S101 - exactly one source: the model holds it
    path = posixpath.normpath(spec.source.host_path.path)
    root = allowed_root(path, policy.host_path_roots)
    if root is None:
        allowed = ", ".join(policy.host_path_roots) or "none"
        raise ValueError(
            f"spec.source.hostPath.path {path} lies below none of the allowed roots ({allowed}): "
            "move the checkpoint, or let the administrator add its root to the chart's value hostPathRoots",
        )
    return ModelLocation(root, path, marked=True)


def published_path(spec: Spec) -> str:
    """Where an engine finds the checkpoint: a path on the node, or inside the claim."""
    if spec.source.persistent_volume_claim is not None:
        return f"claim:{spec.source.persistent_volume_claim.claim_name}/{spec.source.persistent_volume_claim.path}"
    assert spec.source.host_path is not None  # noqa: S101 - exactly one source: the model holds it
    return posixpath.normpath(spec.source.host_path.path)


def owner_reference(owner: Owner) -> Manifest:
    """The reference by which the garbage collector removes what belongs to a deleted ModelWeights."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": owner.name,
        "uid": owner.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def staging_job(owner: Owner, spec: Spec, node: Node, *, attempt: int, policy: Policy) -> Manifest:
    """The Job that stages one ModelWeights on one node.

    Args:
        owner: The ModelWeights.
        spec: Its spec.
        node: The node; the pod is pinned to it by name.
        attempt: How many stagings of this kind failed before: it makes the name of the next one another.
        policy: Settings of the operator.

    Raises:
        ValueError: See `locate`.
    """
    digest = names.staging_digest(spec)
    labels = {names.MANAGED_BY_LABEL: names.MANAGED_BY, names.OWNER_LABEL: owner.uid}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": names.job_name(owner.name, owner.uid, node.uid, digest, node.boot_id, str(attempt)),
            "namespace": owner.namespace,
            "labels": {**spec.staging.labels, **labels},
            "annotations": {
                **spec.staging.annotations,
                names.NODE_ANNOTATION: node.name,
                names.NODE_UID_ANNOTATION: node.uid,
                names.STAGING_DIGEST_ANNOTATION: digest,
                names.BOOT_ID_ANNOTATION: node.boot_id,
                names.ROUND_ANNOTATION: str(attempt),
                names.IMAGE_ANNOTATION: policy.loader_image,
            },
            "ownerReferences": [owner_reference(owner)],
        },
        "spec": {
            # The operator counts the rounds, so that the back-off survives restarts and is seen in the status.
            "backoffLimit": 0,
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": {
                "rules": [
                    {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                    {
                        "action": "FailJob",
                        "onExitCodes": {"operator": "In", "values": list(PERMANENT_EXIT_CODES)},
                    },
                ],
            },
            "template": {
                "metadata": {
                    "labels": {**spec.staging.labels, **labels, "sidecar.istio.io/inject": "false"},
                    "annotations": dict(spec.staging.annotations),
                },
                "spec": _pod_spec(spec, node, policy),
            },
        },
    }


def _pod_spec(spec: Spec, node: Node, policy: Policy) -> Manifest:
    location = locate(spec, policy)
    staging = spec.staging
    steps = _steps(spec, node, location)
    containers = [_container(step, arguments, spec, location, policy) for step, arguments in steps]
    optional = {
        "serviceAccountName": staging.service_account_name,
        "priorityClassName": staging.priority_class_name,
        "runtimeClassName": staging.runtime_class_name,
        "imagePullSecrets": [{"name": secret.name} for secret in staging.image_pull_secrets],
    }
    return {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 5,
        "affinity": {"nodeAffinity": _pinned_to(node.name)},
        "tolerations": [
            toleration.model_dump(by_alias=True, exclude_defaults=True) | {"operator": toleration.operator}
            for toleration in tolerations(spec.placement)
        ],
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": staging.uid,
            "runAsGroup": staging.uid,
            "supplementalGroups": [LOADER_GROUP],
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "initContainers": containers[:-1],
        "containers": containers[-1:],
        "volumes": [
            _model_volume(spec, location),
            {"name": "results", "emptyDir": {"sizeLimit": "64Mi"}},
            {"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}},
        ],
        **{key: value for key, value in optional.items() if value},
    }


def _pinned_to(node_name: str) -> Manifest:
    """By field and not by the hostname label, which on some clouds isn't the node's name."""
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node_name]}]}
    return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}


def _steps(spec: Spec, node: Node, location: ModelLocation) -> list[tuple[str, list[str]]]:
    """The loader's steps in order, each with its arguments; the last one runs as the container."""
    prefetch, validation = spec.prefetch, spec.validation
    warm = [
        *("--policy", prefetch.policy if prefetch.mode == "PageCache" else "BestEffort"),
        *("--min-resident-percent", str(prefetch.min_resident_percent)),
        *("--unknown-residency", prefetch.unknown_residency),
    ]
    read = ["--num-threads", str(prefetch.num_threads), "--block-size", str(prefetch.block_bytes), *warm]
    check = [
        *("--mode", validation.mode),
        *("--load-format", validation.engine.load_format),
        *("--queue-size", str(validation.engine.queue_size)),
        *("--world-size", str(validation.engine.tensor_parallel_size)),
        *("--timeout-seconds", str(validation.timeout_seconds)),
    ]
    publish = ["--node-boot-id", node.boot_id, *warm]
    if location.marked:
        publish += ["--marker-dir", _MARKER_MOUNT, "--marker-root", location.root]
    steps = [("prefetch", read)] if prefetch.mode == "PageCache" else []
    steps.append(("validate", check))
    if validation.engine.selection == "Measured":
        steps.append(("tune", []))
    return [*steps, ("report", [*publish, "--pages", prefetch.pages])]


def _container(step: str, arguments: list[str], spec: Spec, location: ModelLocation, policy: Policy) -> Manifest:
    mounts: list[Manifest] = [
        {"name": "model", "mountPath": location.root, "readOnly": True},
        {"name": "results", "mountPath": _RESULTS_MOUNT},
        {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - the pod's own emptyDir
    ]
    if step == "report" and location.marked:
        # subPath, because the kubelet refuses a planted link there and makes the folder with the root's group.
        mounts.append({"name": "model", "mountPath": _MARKER_MOUNT, "subPath": MARKER_FOLDER})
    own = ["--root", location.root, "--report", _TERMINATION_LOG, "--results", _RESULTS_MOUNT]
    resources = spec.staging.resources
    return {
        "name": step,
        "image": policy.loader_image,
        "imagePullPolicy": policy.image_pull_policy,
        # The kubelet expands $(NAME) and takes $$ for $: a folder may be named like that.
        "args": [word.replace("$", "$$") for word in (step, location.path, *own, *arguments)],
        "env": [{"name": variable.name, "value": variable.value} for variable in spec.staging.env],
        "resources": {"requests": dict(resources.requests), "limits": dict(resources.limits)},
        "terminationMessagePath": _TERMINATION_LOG,
        # A step that dies without a report (a crash of the interpreter) leaves at least the end of its log.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": mounts,
    }


def _model_volume(spec: Spec, location: ModelLocation) -> Manifest:
    claim = spec.source.persistent_volume_claim
    if claim is not None:
        return {"name": "model", "persistentVolumeClaim": {"claimName": claim.claim_name, "readOnly": True}}
    return {"name": "model", "hostPath": {"path": location.root, "type": "Directory"}}
