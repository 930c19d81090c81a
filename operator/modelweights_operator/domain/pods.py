"""What all pods of ours have in common, the bounds of what they may do above all. Called by `steps`, `manifests` and `cleanup_jobs`; pure.

They pass Pod Security `restricted` with claims and images, and differ from it only by volumes with a hostPath.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from modelweights_operator.api.v1alpha1 import Placement
from modelweights_operator.domain.placement import tolerations
from modelweights_operator.domain.snapshot import Node, Policy

Manifest = dict[str, Any]

LOADER_GROUP: Final = 65532
"""The group that owns an allowed root (mode 2775), whatever user the loader runs as."""
TERMINATION_LOG: Final = "/dev/termination-log"

_VOLUME_GROUP: Final[Manifest] = {"fsGroup": LOADER_GROUP, "fsGroupChangePolicy": "OnRootMismatch"}
"""Who may read Secrets, which are root's, and write into a claim; the kubelet leaves folders of the node alone."""


def container(
    name: str, words: Iterable[str], mounts: Iterable[Mapping[str, Any]], policy: Policy, resources: Manifest
) -> Manifest:
    """A container that runs one command of the loader.

    Args:
        name: Its name.
        words: The command line, as the loader is to see it.
        mounts: What of the pod's volumes it sees.
        policy: Settings of the operator.
        resources: Requests and limits.
    """
    return {
        "name": name,
        "image": policy.loader_image,
        "imagePullPolicy": policy.image_pull_policy,
        # The kubelet expands $(NAME) and takes $$ for $: a folder may be named like that.
        "args": [word.replace("$", "$$") for word in words],
        "resources": resources,
        "terminationMessagePath": TERMINATION_LOG,
        # A step that dies without a report (a crash of the interpreter) leaves at least the end of its log.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": list(mounts),
    }


def pod_spec(
    node: Node, placement: Placement, uid: int, *, containers: list[Manifest], volumes: list[Manifest], writes: bool
) -> Manifest:
    """The spec of a pod on one node.

    Args:
        node: The node; the pod is pinned to it by its name, and not by the hostname label, which on some clouds is another.
        placement: Whose tolerations it has.
        uid: User and group that it runs as.
        containers: In order; the last one is the pod's container, the others are its init containers.
        volumes: The pod's volumes.
        writes: Whether it writes into a volume, or reads Secrets.
    """
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node.name]}]}
    return {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 5,
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}},
        "tolerations": [
            toleration.model_dump(by_alias=True, exclude_defaults=True) | {"operator": toleration.operator}
            for toleration in tolerations(placement)
        ],
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": uid,
            "runAsGroup": uid,
            "supplementalGroups": [LOADER_GROUP],
            "seccompProfile": {"type": "RuntimeDefault"},
            **(_VOLUME_GROUP if writes else {}),
        },
        **({"initContainers": containers[:-1]} if containers[:-1] else {}),
        "containers": containers[-1:],
        "volumes": volumes,
    }
