"""Cleanup Jobs, their pods and the pods that use files, read from the API server, and what is written about them.

Called by the cleaner. The objects become the domain's values at once.
"""

import contextlib
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final, Literal

from modelweights_operator import errors
from modelweights_operator.domain import convert, names, reports
from modelweights_operator.domain.cleanup_jobs import CleanupJob
from modelweights_operator.domain.pods import Manifest
from modelweights_operator.domain.snapshot import Owner, StagingPod
from modelweights_operator.domain.usage import PodUse
from modelweights_operator.kube import paths
from modelweights_operator.kube.client import Api, Json

PAGE: Final = "500"
_REFUSALS: Final = (400, 403, 404, 422)
"""404: the namespace, as where the operator's own isn't what it was told."""
_NOT_ENDED: Final = "status.phase!=Succeeded,status.phase!=Failed"
_PREPARES_NODES: Final = "modelweights-prepare-nodes"


def cleanup_job(body: Json) -> CleanupJob:
    """A cleanup Job, without what its pod tells."""
    job = convert.job(body)
    metadata = body["metadata"]
    annotations = metadata.get("annotations") or {}
    digests = annotations.get(names.CLEANUP_DIGESTS_ANNOTATION, "")
    return CleanupJob(
        name=job.name,
        namespace=job.namespace,
        owner_uid=(metadata.get("labels") or {}).get(names.CLEANUP_LABEL, ""),
        node_name=job.node_name,
        node_uid=job.node_uid,
        class_name=annotations.get(names.CLEANUP_CLASS_ANNOTATION, ""),
        digests=frozenset(filter(None, digests.split(","))),
        round=job.round,
        created_at=job.created_at,
        state=job.state,
        finished_at=job.finished_at,
        deleting=job.deleting,
        reason=job.failure_reason,
        message=job.failure_message,
    )


def with_pods(job: CleanupJob, pods: Iterable[StagingPod]) -> CleanupJob:
    """The Job with what its pods tell: whether it runs, what the loader said, why it can't start; and how it ended.

    The pod's report comes a second or two before the Job controller says the same.
    """
    state: Literal["Active", "Complete", "Failed"] = job.state
    running, reason, message = False, job.reason, job.message
    for pod in pods:
        message = pod.message or message
        for container in pod.containers:
            running = running or (container.exit_code is None and not container.waiting_reason)
            report = reports.parse(container.message)
            if report is not None and report.step == "clean":
                reason, message = report.reason, report.message
                state = "Complete" if container.exit_code == 0 and state == "Active" else state
            elif container.waiting_reason or container.exit_code:
                message = container.message or container.waiting_reason or message
    changes: dict[str, Any] = {"state": state, "running": running, "reason": reason, "message": message[:500]}
    return CleanupJob(**{**vars(job), **changes})


def pod_use(body: Json) -> PodUse:
    """What of a pod tells which files it uses."""
    metadata, spec = body["metadata"], body["spec"]
    labels = metadata.get("labels") or {}
    volumes = spec.get("volumes") or []
    return PodUse(
        namespace=metadata["namespace"],
        name=metadata["name"],
        node=spec.get("nodeName") or "",
        digests=(metadata.get("annotations") or {}).get(names.DIGEST_ANNOTATION, ""),
        require=(metadata.get("annotations") or {}).get(names.REQUIRE_ANNOTATION, ""),
        host_paths=tuple(volume["hostPath"]["path"] for volume in volumes if volume.get("hostPath")),
        claims=tuple(
            volume["persistentVolumeClaim"]["claimName"] for volume in volumes if volume.get("persistentVolumeClaim")
        ),
        ours=labels.get(names.MANAGED_BY_LABEL) == names.MANAGED_BY
        or labels.get("app.kubernetes.io/name") == _PREPARES_NODES,
    )


async def pods_of(api: Api, node: str) -> tuple[PodUse, ...]:
    """The pods of a node that haven't ended.

    Args:
        api: The connection.
        node: Its name; "" for those that are bound to none as yet, of which only those count that our gate has let go.
    """
    selector = f"spec.nodeName={node},{_NOT_ENDED}" if node else "spec.nodeName=,status.phase=Pending"
    found = [pod_use(body) for body in await _list(api, paths.PODS, selector)]
    return tuple(pod for pod in found if node or pod.digests)


async def _list(api: Api, path: str, selector: str) -> list[Json]:
    items: list[Json] = []
    token = ""
    while True:
        listed = await api.get(path, fieldSelector=selector, limit=PAGE, **({"continue": token} if token else {}))
        items += listed.get("items") or []
        token = (listed.get("metadata") or {}).get("continue") or ""
        if not token:
            return items


async def hold(api: Api, owner: Owner, finalizers: tuple[str, ...]) -> Owner:
    """Set the object's finalizers, unless it was changed since it was read; the object as it is then."""
    body = {"metadata": {"resourceVersion": owner.resource_version, "finalizers": list(finalizers)}}
    with contextlib.suppress(errors.NotFoundError):
        answer = await api.patch(paths.modelweights(owner.namespace, owner.name), body)
        return replace(owner, finalizers=finalizers, resource_version=answer["metadata"]["resourceVersion"])
    return owner


async def create(api: Api, manifest: Manifest) -> tuple[Json | None, str]:
    """Make a cleanup Job.

    Returns:
        It, None where it is there already; and why the API server refused it, "" where it didn't.
    """
    try:
        return await api.create(paths.jobs(manifest["metadata"]["namespace"]), manifest), ""
    except errors.ConflictError:
        return None, ""
    except errors.ApiError as error:
        if error.status not in _REFUSALS:
            raise
        return None, str(error)


async def delete(api: Api, jobs: Iterable[tuple[str, str]]) -> None:
    """Delete Jobs with their pods; what is gone is fine."""
    for namespace, name in jobs:
        await api.delete(f"{paths.jobs(namespace)}/{name}", propagation="Background")
