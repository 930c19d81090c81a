"""Manifests for the tests: ModelWeights, and pods that stand in an engine's place."""

from typing import Any, Final

from modelweights_operator.domain import names
from tests.json_client import Json

GPU_TOLERATION: Final = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
STARTUP_TAINT: Final = "modelweights.io/unstaged"
OTHER_GATE: Final = "example.com/quota"
RESTRICTED: Final = {
    "runAsNonRoot": True,
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
QUICK: Final[Json] = {"prefetch": {"mode": "None"}, "validation": {"mode": "Structure"}}
"""Staged in half of the time: neither warmed nor loaded. For tests of what comes before and after."""
NOT_LOADED: Final[Json] = {"validation": {"mode": "Structure"}}
"""Warmed, but not loaded: for tests that hold the prefetch, or look at the page cache."""
STAND_IN: Final = 'echo "digest=${DIGEST:-}"; env | sort; exec sleep 3600'
"""What runs in an engine's place: it says what it was given, and goes on."""


def model_weights(namespace: str, name: str, path: str, node: str = "", **spec: Any) -> Json:
    """A ModelWeights with a hostPath source, on all GPU nodes at once or on one."""
    selector = {"nodeSelector": {"kubernetes.io/hostname": node}} if node else {}
    placement = {"placement": {"canaryNodes": 0, **selector}}
    return {
        "apiVersion": "modelweights.io/v1alpha1",
        "kind": "ModelWeights",
        "metadata": {"namespace": namespace, "name": name},
        "spec": {"source": {"hostPath": {"path": path}}, **placement, **spec},
    }


def stand_in_pod(
    namespace: str,
    name: str,
    image: str,
    require: str = "",
    *,
    gates: tuple[str, ...] = (),
    container: Json | None = None,
    **spec: Any,
) -> Json:
    """A pod in an engine's place, on the loader's image because the nodes have it; gated when it requires something."""
    annotations = {names.REQUIRE_ANNOTATION: require} if require else {}
    gates = (names.GATE, *gates) if require else gates
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"namespace": namespace, "name": name, "annotations": annotations},
        "spec": {
            **({"schedulingGates": [{"name": gate} for gate in gates]} if gates else {}),
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "tolerations": [GPU_TOLERATION],
            "containers": [{**_stand_in_container(image), **(container or {})}],
            **spec,
        },
    }


def _stand_in_container(image: str) -> Json:
    digest = {"fieldRef": {"fieldPath": f"metadata.annotations['{names.DIGEST_ANNOTATION}']"}}
    return {
        "name": "stand-in-for-engine",
        "image": image,
        "command": ["sh", "-c", STAND_IN],
        "env": [{"name": "DIGEST", "valueFrom": digest}],
    }


def models_volume(root: str = "/models") -> Json:
    """The spec's part that has the models' root, as a pod's volume."""
    return {"volumes": [{"name": "models", "hostPath": {"path": root, "type": "Directory"}}]}


def models_mount(root: str = "/models") -> Json:
    """The container's part that mounts it at its own path."""
    return {"volumeMounts": [{"name": "models", "mountPath": root, "readOnly": True}]}


def bound_volume(namespace: str, claim: str, access_mode: str, **place: Any) -> tuple[Json, Json]:
    """A volume of the namespace's name, made by hand for one claim, and that claim.

    Args:
        namespace: The claim's.
        claim: Its name.
        access_mode: Of both.
        place: Where it lies, as in the volume's spec.
    """
    shape = {"accessModes": [access_mode], "storageClassName": "", "volumeMode": "Filesystem"}
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": namespace},
        "spec": {
            **shape,
            **place,
            "capacity": {"storage": "1Gi"},
            "persistentVolumeReclaimPolicy": "Retain",
            "claimRef": {"namespace": namespace, "name": claim},
        },
    }
    bound = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"namespace": namespace, "name": claim},
        "spec": {**shape, "volumeName": namespace, "resources": {"requests": {"storage": "1Gi"}}},
    }
    return volume, bound


def waiting_step(image: str, path: str) -> Json:
    """The init container that waits until a checkpoint is staged on the pod's node, below the models' root."""
    return {"name": "wait", "image": image, "args": ["wait", path], "securityContext": RESTRICTED, **models_mount()}


def controller(kind: str, pod: Json, **spec: Any) -> Json:
    """A Deployment, StatefulSet, DaemonSet or Job whose pods are like `pod`."""
    name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
    labels = {"app": name}
    template = {
        "metadata": {"labels": labels, "annotations": pod["metadata"]["annotations"]},
        "spec": {**pod["spec"], "restartPolicy": "Never" if kind == "Job" else "Always"},
    }
    selector = {} if kind == "Job" else {"selector": {"matchLabels": labels}}
    return {
        "apiVersion": "batch/v1" if kind == "Job" else "apps/v1",
        "kind": kind,
        "metadata": {"namespace": namespace, "name": name},
        "spec": {"template": template, **selector, **spec},
    }
