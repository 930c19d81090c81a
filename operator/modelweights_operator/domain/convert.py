"""API objects (JSON) to the frozen values that the domain knows. Called by the informers, `gather` and `kubectl modelweights`; pure."""

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import ValidationError

from modelweights_operator.api import v1alpha1 as api
from modelweights_operator.api.quantity import to_bytes
from modelweights_operator.domain import groups, names, provision
from modelweights_operator.domain.clock import parse_time
from modelweights_operator.domain.gate import GatedPod
from modelweights_operator.domain.snapshot import (
    ContainerState,
    EngineConfigMap,
    Node,
    Owner,
    StagingJob,
    StagingPod,
    Taint,
)

Json = dict[str, Any]

_ROUND = re.compile(r"[0-9]{1,9}", re.ASCII)
_RETRY_LENGTH = 256
"""As much as the status takes."""
_EPOCH = datetime.fromtimestamp(0, UTC)
JOB_NAME_LABEL = "batch.kubernetes.io/job-name"


def node(body: Mapping[str, Any]) -> Node:
    """A Node; of its labels all are kept, since any may be selected by."""
    metadata, spec, status = body["metadata"], body.get("spec") or {}, body.get("status") or {}
    conditions = {entry["type"]: entry["status"] for entry in status.get("conditions") or []}
    return Node(
        name=metadata["name"],
        uid=metadata["uid"],
        boot_id=(status.get("nodeInfo") or {}).get("bootID", ""),
        labels=dict(metadata.get("labels") or {}),
        taints=tuple(
            Taint(taint["key"], taint.get("value") or "", taint["effect"]) for taint in spec.get("taints") or []
        ),
        ready=conditions.get("Ready") == "True",
        cordoned=bool(spec.get("unschedulable")),
        memory_bytes=_bytes((status.get("capacity") or {}).get("memory")),
    )


def owner(body: Mapping[str, Any]) -> Owner:
    """A ModelWeights. One that can't be read is no error: it says so in `invalid`."""
    metadata = body["metadata"]
    raw_status = body.get("status") or {}
    spec, invalid = None, ""
    try:
        spec = api.Spec.model_validate(body.get("spec") or {})
    except ValidationError as error:
        first = error.errors()[0]
        invalid = f"spec.{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return Owner(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        generation=metadata.get("generation", 0),
        spec=spec,
        status=_status(raw_status),
        invalid=invalid,
        deleting="deletionTimestamp" in metadata,
        retry=(metadata.get("annotations") or {}).get(names.RETRY_ANNOTATION, "")[:_RETRY_LENGTH],
        raw_status=raw_status,
        resource_version=metadata.get("resourceVersion", ""),
        finalizers=tuple(metadata.get("finalizers") or ()),
        deleted_at=parse_time(metadata.get("deletionTimestamp") or ""),
    )


def _status(raw: Mapping[str, Any]) -> api.Status:
    """The status as far as it can be read: what somebody else spoilt is found out anew."""
    try:
        return api.Status.model_validate(raw)
    except ValidationError:
        return api.Status()


def job(body: Json) -> StagingJob:
    """A staging Job, without its pods. One whose annotations were tampered with counts as one of another staging."""
    metadata, spec, status = body["metadata"], body.get("spec") or {}, body.get("status") or {}
    annotations = metadata.get("annotations") or {}
    holds = {entry["type"]: entry for entry in status.get("conditions") or [] if entry["status"] == "True"}
    end = holds.get("Failed") or holds.get("Complete")
    state: Literal["Active", "Complete", "Failed"] = "Active"
    if end is not None:
        state = "Failed" if "Failed" in holds else "Complete"
    attempt = annotations.get(names.ROUND_ANNOTATION, "0")
    return StagingJob(
        name=metadata["name"],
        node_name=annotations.get(names.NODE_ANNOTATION, ""),
        node_uid=annotations.get(names.NODE_UID_ANNOTATION, ""),
        staging_digest=annotations.get(names.STAGING_DIGEST_ANNOTATION, ""),
        boot_id=annotations.get(names.BOOT_ID_ANNOTATION, ""),
        round=int(attempt) if _ROUND.fullmatch(attempt) else 0,
        created_at=parse_time(metadata["creationTimestamp"]) or _EPOCH,
        state=state,
        finished_at=parse_time(end.get("lastTransitionTime") or "") if end else None,
        failure_reason=end.get("reason") or "" if end and state == "Failed" else "",
        failure_message=end.get("message") or "" if end and state == "Failed" else "",
        result=annotations.get(names.RESULT_ANNOTATION, ""),
        deleting="deletionTimestamp" in metadata,
        suspended=bool(spec.get("suspend")),
        owner_uid=(metadata.get("labels") or {}).get(names.OWNER_LABEL, ""),
        image=annotations.get(names.IMAGE_ANNOTATION, ""),
        namespace=metadata.get("namespace", ""),
        source_digest=annotations.get(names.SOURCE_DIGEST_ANNOTATION, ""),
        source_host=annotations.get(names.SOURCE_HOST_ANNOTATION, ""),
        revision=annotations.get(names.REVISION_ANNOTATION, ""),
        has_image_volume=bool(_volume_image((spec.get("template") or {}).get("spec") or {})),
        pull_secrets=annotations.get(names.PULL_SECRETS_ANNOTATION, ""),
        follows=annotations.get(names.FOLLOWS_ANNOTATION, ""),
        started_at=_started_at(body),
        parallelism=spec.get("parallelism", 1),
    )


def _started_at(body: Json) -> datetime | None:
    """When the Job controller began with it, or when it was made if it was never held back."""
    status = body.get("status") or {}
    if any(entry["type"] == "Suspended" for entry in status.get("conditions") or []):
        return parse_time(status.get("startTime") or "")
    return parse_time(status.get("startTime") or body["metadata"]["creationTimestamp"])


def _volume_image(pod_spec: Json) -> str:
    """The reference of the image that a pod mounts as a volume, "" for none."""
    images = (volume.get("image") or {} for volume in pod_spec.get("volumes") or [])
    return next((str(image["reference"]) for image in images if image.get("reference")), "")


def staging_pod(body: Json) -> StagingPod:
    """A pod of a staging Job."""
    metadata, spec, status = body["metadata"], body["spec"], body.get("status") or {}
    scheduled: Json = next((entry for entry in status.get("conditions") or [] if entry["type"] == "PodScheduled"), {})
    unscheduled = scheduled.get("message") or "" if scheduled.get("status") == "False" else ""
    containers = [*(spec.get("initContainers") or []), *spec["containers"]]
    images = {container["name"]: container["image"] for container in containers}
    states = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    return StagingPod(
        name=metadata["name"],
        created_at=parse_time(metadata["creationTimestamp"]) or _EPOCH,
        phase=status.get("phase") or "Pending",
        reason=status.get("reason") or "",
        message=status.get("message") or unscheduled,
        deleting="deletionTimestamp" in metadata,
        scheduled=bool(spec.get("nodeName")),
        containers=tuple(_container(state, images.get(state["name"], "")) for state in states),
        owner_uid=(metadata.get("labels") or {}).get(names.OWNER_LABEL, ""),
        memory_limit_bytes=min(filter(None, map(_memory_limit, containers)), default=0),
        volume_image=_volume_image(spec),
        claims=tuple(
            volume["persistentVolumeClaim"]["claimName"]
            for volume in spec.get("volumes") or []
            if "persistentVolumeClaim" in volume
        ),
    )


def _container(status: Json, image: str) -> ContainerState:
    state = status.get("state") or {}
    waiting, terminated = state.get("waiting") or {}, state.get("terminated") or {}
    return ContainerState(
        name=status["name"],
        image=image,
        waiting_reason=(waiting.get("reason") or "Waiting") if "waiting" in state or not state else "",
        exit_code=terminated.get("exitCode"),
        terminated_reason=terminated.get("reason") or "",
        message=terminated.get("message") or waiting.get("message") or "",
    )


def _memory_limit(container: Json) -> int:
    # Fractions and exponents of limits aren't read; what they would tell is a warning only.
    return _bytes(((container.get("resources") or {}).get("limits") or {}).get("memory"))


def _bytes(quantity: str | int | None) -> int:
    """A quantity in bytes; 0 for none, or one that isn't read."""
    try:
        return to_bytes(quantity) if quantity else 0
    except ValueError:
        return 0


def gated_pod(body: Json) -> GatedPod | None:
    """A pod that waits at our gate, else None."""
    metadata, spec = body["metadata"], body["spec"]
    gates = {gate["name"] for gate in spec.get("schedulingGates") or []}
    if names.GATE not in gates or "deletionTimestamp" in metadata:
        return None
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    return GatedPod(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        resource_version=metadata["resourceVersion"],
        require=(metadata.get("annotations") or {}).get(names.REQUIRE_ANNOTATION, ""),
        terms=tuple(required["nodeSelectorTerms"]) if required else None,
        preferred=tuple(affinity.get("preferredDuringSchedulingIgnoredDuringExecution") or ()),
        waits_itself=any(map(provision.runs_wait, spec.get("initContainers") or [])),
        group=groups.group_of(metadata.get("labels") or {}),
        group_size=(metadata.get("annotations") or {}).get(names.GROUP_SIZE_ANNOTATION, ""),
        created_at=parse_time(metadata["creationTimestamp"]) or _EPOCH,
    )


def group_members(bodies: Iterable[Json]) -> groups.Present:
    """The pods of a group; those that end or have ended are none of it any more."""
    living = [
        body
        for body in bodies
        if "deletionTimestamp" not in body["metadata"]
        and (body.get("status") or {}).get("phase") not in ("Succeeded", "Failed")
    ]
    waiting = tuple(pod for pod in map(gated_pod, living) if pod is not None)
    names_waiting = {pod.name for pod in waiting}
    return groups.Present(
        waiting=waiting,
        started=tuple(_started(body) for body in living if body["metadata"]["name"] not in names_waiting),
        count=len(living),
    )


def _started(body: Json) -> groups.Started:
    notes = body["metadata"].get("annotations") or {}
    return groups.Started(
        name=body["metadata"]["name"],
        require=notes.get(names.REQUIRE_ANNOTATION, ""),
        digests=notes.get(names.DIGEST_ANNOTATION, ""),
    )


def config_map(body: Json, owner_uid: str) -> EngineConfigMap:
    """The ConfigMap of the ModelWeights' name; ours when that very object controls it."""
    references = body["metadata"].get("ownerReferences") or []
    ours = any(reference.get("controller") and reference["uid"] == owner_uid for reference in references)
    return EngineConfigMap(ours=ours, data=body.get("data") or {})
