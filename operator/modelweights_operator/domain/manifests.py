"""The staging Job, as a plain dictionary. Called by the planner; pure. What runs in its pod stands in `steps`.

The staging pod passes Pod Security `restricted` with claims and images, and differs from it only by its volumes with a hostPath.
"""

from typing import Any, Final

from modelweights_operator.api.v1alpha1 import API_VERSION, KIND, Spec
from modelweights_operator.domain import names, steps, storage
from modelweights_operator.domain.placement import tolerations
from modelweights_operator.domain.snapshot import Node, Owner, Policy

Manifest = dict[str, Any]

LOADER_GROUP: Final = 65532
"""The group that owns an allowed root (mode 2775), whatever user the loader runs as."""

_FETCH_GROUP: Final[Manifest] = {"fsGroup": LOADER_GROUP, "fsGroupChangePolicy": "OnRootMismatch"}
"""Who may read Secrets, which are root's, and write into a claim; the kubelet leaves folders of the node alone."""

PERMANENT_EXIT_CODES: Final = (2, 20, 30, 40)
"""The loader's exit codes after which trying again at once is in vain: usage, impossible, bad checkpoint, no room."""


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


def staging_job(owner: Owner, spec: Spec, node: Node, *, attempt: int, policy: Policy, revision: str = "") -> Manifest:
    """The Job that stages one ModelWeights on one node.

    Args:
        owner: The ModelWeights.
        spec: Its spec.
        node: The node; the pod is pinned to it by name.
        attempt: How many stagings of this kind failed before: it makes the name of the next one another.
        policy: Settings of the operator.
        revision: The resolved revision of a fetched source; "" to find it out.

    Raises:
        LocationError: See `storage.locate`.
    """
    digest = names.staging_digest(spec, storage.place(spec, policy))
    identity = [owner.uid, node.uid, digest, node.boot_id, str(attempt), *([revision] if revision else [])]
    labels = {names.MANAGED_BY_LABEL: names.MANAGED_BY, names.OWNER_LABEL: owner.uid}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": names.job_name(owner.name, *identity),
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
                **_if_given({names.PULL_SECRETS_ANNOTATION: names.pull_secrets(spec)}),
                **_fetch_annotations(spec, policy, revision),
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
                "spec": _pod_spec(owner, spec, node, policy, revision),
            },
        },
    }


def _fetch_annotations(spec: Spec, policy: Policy, revision: str) -> dict[str, str]:
    """By these the operator counts who fetches, and from where, and knows which revision was asked for."""
    if not spec.is_fetched:
        return {}
    return _if_given(
        {
            names.SOURCE_DIGEST_ANNOTATION: names.source_digest(spec),
            names.SOURCE_HOST_ANNOTATION: storage.source_host(spec, policy),
            names.REVISION_ANNOTATION: revision,
        }
    )


def _if_given(values: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in values.items() if value}


def _pod_spec(owner: Owner, spec: Spec, node: Node, policy: Policy, revision: str) -> Manifest:
    location = storage.locate(owner, spec, policy)
    plan = steps.Staging(spec, node, location, policy, revision)
    containers, staging = steps.containers(plan), spec.staging
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
            **(_FETCH_GROUP if spec.is_fetched else {}),
        },
        "initContainers": containers[:-1],
        "containers": containers[-1:],
        "volumes": steps.volumes(plan),
        **{key: value for key, value in optional.items() if value},
    }


def _pinned_to(node_name: str) -> Manifest:
    """By field and not by the hostname label, which on some clouds isn't the node's name."""
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node_name]}]}
    return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
