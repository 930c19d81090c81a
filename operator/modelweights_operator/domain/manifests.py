"""The staging Job, as a plain dictionary. Called by the planner; pure. What runs in its pod stands in `steps`.

What all pods have in common stands in `pods`.
"""

from typing import Final

from modelweights_operator.api.v1alpha1 import API_VERSION, KIND, Revision, Spec
from modelweights_operator.domain import names, steps, storage
from modelweights_operator.domain.memory import Bound
from modelweights_operator.domain.pods import Manifest, pod_spec
from modelweights_operator.domain.snapshot import Node, Owner, Policy

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


def staging_job(
    owner: Owner,
    spec: Spec,
    node: Node,
    *,
    attempt: int,
    policy: Policy,
    revision: str = "",
    bound: Bound | None = None,
) -> Manifest:
    """The Job that stages one ModelWeights on one node.

    Args:
        owner: The ModelWeights.
        spec: Its spec.
        node: The node; the pod is pinned to it by name.
        attempt: How many stagings of this kind failed before: it makes the name of the next one another.
        policy: Settings of the operator.
        revision: The resolved revision of a fetched source; "" to find it out.
        bound: What it may keep in the page cache; None for no bound.

    Raises:
        LocationError: See `storage.locate`.
    """
    digest = names.staging_digest(spec, storage.place(spec, policy))
    identity = [owner.uid, node.uid, digest, node.boot_id, str(attempt), *([revision] if revision else [])]
    plan = steps.Staging(spec, node, storage.locate(owner, spec, policy), policy, revision, bound)
    annotations = {
        **_annotations(spec, node, digest, policy),
        names.ROUND_ANNOTATION: str(attempt),
        **_fetch_annotations(spec, policy, revision),
    }
    pod = _pod_spec(spec, node, steps.containers(plan), steps.volumes(plan))
    return _job(owner, spec, names.job_name(owner.name, *identity), annotations, pod)


def refresh_job(  # noqa: PLR0913 - all that a refresh depends on, each by its name
    owner: Owner,
    spec: Spec,
    node: Node,
    *,
    follows: str,
    digest: str,
    known: Revision | None,
    policy: Policy,
    bound: Bound | None = None,
) -> Manifest:
    """The Job that measures what has cooled on a node that is staged, and warms it.

    Args:
        owner: The ModelWeights.
        spec: Its spec.
        node: The node; the pod is pinned to it by name.
        follows: When it was measured before: it makes the name of each refresh another.
        digest: The checkpoint that the node proved.
        known: What is known of that checkpoint; None for nothing.
        policy: Settings of the operator.
        bound: What it may keep in the page cache; None for no bound.

    Raises:
        LocationError: See `storage.locate`.
    """
    staged = names.staging_digest(spec, storage.place(spec, policy))
    plan = steps.Staging(spec, node, storage.locate(owner, spec, policy), policy, bound=bound)
    name = names.job_name(owner.name, owner.uid, node.uid, staged, node.boot_id, follows, verb="refresh")
    annotations = {**_annotations(spec, node, staged, policy), names.FOLLOWS_ANNOTATION: follows}
    pod = _pod_spec(spec, node, [steps.refresh_container(plan, digest, known)], steps.refresh_volumes(plan))
    return _job(owner, spec, name, annotations, pod)


def _annotations(spec: Spec, node: Node, digest: str, policy: Policy) -> dict[str, str]:
    """By these the operator knows what a Job is about."""
    return {
        names.NODE_ANNOTATION: node.name,
        names.NODE_UID_ANNOTATION: node.uid,
        names.STAGING_DIGEST_ANNOTATION: digest,
        names.BOOT_ID_ANNOTATION: node.boot_id,
        names.IMAGE_ANNOTATION: policy.loader_image,
        **_if_given({names.PULL_SECRETS_ANNOTATION: names.pull_secrets(spec)}),
    }


def _job(owner: Owner, spec: Spec, name: str, annotations: dict[str, str], pod: Manifest) -> Manifest:
    labels = {names.MANAGED_BY_LABEL: names.MANAGED_BY, names.OWNER_LABEL: owner.uid}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "namespace": owner.namespace,
            "labels": {**spec.staging.labels, **labels},
            "annotations": {**spec.staging.annotations, **annotations},
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
                "spec": pod,
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


def _pod_spec(spec: Spec, node: Node, containers: list[Manifest], volumes: list[Manifest]) -> Manifest:
    staging = spec.staging
    optional = {
        "serviceAccountName": staging.service_account_name,
        "priorityClassName": staging.priority_class_name,
        "runtimeClassName": staging.runtime_class_name,
        "imagePullSecrets": [{"name": secret.name} for secret in staging.image_pull_secrets],
    }
    common = pod_spec(node, spec.placement, staging.uid, containers=containers, volumes=volumes, writes=spec.is_fetched)
    return {**common, **{key: value for key, value in optional.items() if value}}
