"""Everything that the plan of one ModelWeights depends on, read from the API server and the informers.

Called by the reconciler. The object itself is read afresh each time, so that no decision rests on an old status; Jobs
and pods come from the informers, whose lag is harmless since Jobs have deterministic names.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from modelweights_operator import errors
from modelweights_operator.domain import convert, failures, steps
from modelweights_operator.domain.snapshot import (
    EngineConfigMap,
    Fetch,
    Node,
    Owner,
    Policy,
    Snapshot,
    StagingJob,
    StagingPod,
)
from modelweights_operator.kube import paths
from modelweights_operator.kube.client import Api
from modelweights_operator.kube.informer import Informer

_STARTS_WITHIN: Final = timedelta(minutes=5)
"""A Job whose step `fetch` doesn't run after this holds no place any longer: nobody knows when it will, if ever."""
_POD_WITHIN: Final = timedelta(seconds=30)
"""Likewise a Job that has no pod yet, unless a queue holds it back: a quota or a policy refuses it."""
_EVENTS_AFTER: Final = timedelta(seconds=4)
"""A Job without a pod, or a pod without a container, for longer than this has its reason in events only."""


async def gather(
    api: Api,
    key: tuple[str, str],
    *,
    nodes: Iterable[Node],
    jobs: Informer[StagingJob],
    pods: Informer[StagingPod],
    policy: Policy,
    now: datetime,
) -> Snapshot | None:
    """Make the snapshot, or None when the object is gone."""
    try:
        owner = convert.owner(await api.get(paths.modelweights(*key)))
    except errors.NotFoundError:
        return None
    found = [
        await _with_events(api, owner.namespace, replace(job, pods=tuple(pods.group(f"{key[0]}/{job.name}"))), now)
        for job in jobs.group(f"{owner.namespace}/{owner.uid}")
    ]
    return Snapshot(
        owner=owner,
        nodes=tuple(nodes),
        jobs=tuple(job for job in found if not job.follows),
        refreshes=tuple(job for job in found if job.follows),
        config_map=await _config_map(api, owner),
        policy=policy,
    )


def fetching(
    jobs: Informer[StagingJob],
    pods: Informer[StagingPod],
    owners: Mapping[str, tuple[str, str]],
    *,
    nodes: Iterable[Node],
    stuck: Collection[str],
    now: datetime,
) -> tuple[Fetch, ...]:
    """Who fetches at the moment, in the whole cluster: Jobs that do it, or are about to. No I/O.

    Args:
        jobs: All staging Jobs.
        pods: Their pods.
        owners: Namespace and name of each ModelWeights by its UID.
        nodes: All nodes. What runs on one that isn't ready ends by nobody's report, so it holds no place.
        stuck: Namespace and name of Jobs of which events tell that they can't begin.
        now: The time.
    """
    alive = {node.name for node in nodes if node.ready}
    candidates = (job for job in jobs.known() if job.source_digest and job.state == "Active" and job.node_name in alive)
    return tuple(
        Fetch(
            job=f"{job.namespace}/{job.name}",
            owner="/".join(owners.get(job.owner_uid, (job.namespace, job.name))),
            host=job.source_host,
            node=job.node_name,
        )
        for job in candidates
        if _fetches(
            replace(job, pods=tuple(pods.group(f"{job.namespace}/{job.name}"))),
            stuck=f"{job.namespace}/{job.name}" in stuck,
            now=now,
        )
    )


def _fetches(job: StagingJob, *, stuck: bool, now: datetime) -> bool:
    """Whether its step `fetch`, or `resolve` before it, runs or is about to.

    One that can't begin (no image, no volume, no room on the node, a quota, a queue) would else keep all others from the
    node for ever. A running Job whose pods all failed, as by eviction, gets another one, which fetches.
    """
    living = [pod for pod in job.pods if pod.phase != "Failed"]
    if any(_is_running(pod) for pod in living):
        return True
    if living and all(pod.phase == "Succeeded" or _fetch_ended(pod) for pod in living):
        return False
    begun = max([job.created_at, *(pod.created_at for pod in job.pods)])
    allowed = _STARTS_WITHIN if job.pods or job.suspended else _POD_WITHIN
    return not stuck and not failures.is_stuck(job) and now - begun < allowed


def _is_running(pod: StagingPod) -> bool:
    return any(
        container.name in (steps.RESOLVE, steps.FETCH) and container.exit_code is None and not container.waiting_reason
        for container in pod.containers
    )


def _fetch_ended(pod: StagingPod) -> bool:
    """Also when `resolve` failed: nothing comes after that."""
    return any(
        (container.name == steps.FETCH and container.exit_code is not None)
        or (container.name == steps.RESOLVE and bool(container.exit_code))
        for container in pod.containers
    )


async def _config_map(api: Api, owner: Owner) -> EngineConfigMap | None:
    try:
        return convert.config_map(await api.get(paths.config_map(owner.namespace, owner.name)), owner.uid)
    except errors.NotFoundError:
        return None


async def _with_events(api: Api, namespace: str, job: StagingJob, now: datetime) -> StagingJob:
    """Add what only events tell: why a Job gets no pod, why a pod gets no container."""
    if job.state != "Active" or job.deleting or now - job.created_at < _EVENTS_AFTER:
        return job
    if not job.pods:
        return replace(job, rejection=await _last_warning(api, namespace, "Job", job.name))
    pods = [
        replace(pod, message=await _last_warning(api, namespace, "Pod", pod.name))
        if _is_stuck(pod) and now - pod.created_at >= _EVENTS_AFTER
        else pod
        for pod in job.pods
    ]
    return replace(job, pods=tuple(pods))


def _is_stuck(pod: StagingPod) -> bool:
    """Scheduled, but its first container waits without a reason of its own: a volume that can't be mounted."""
    return (
        pod.scheduled
        and not pod.message
        and pod.phase == "Pending"
        and all(state.waiting_reason in ("PodInitializing", "ContainerCreating", "Waiting") for state in pod.containers)
    )


async def _last_warning(api: Api, namespace: str, kind: str, name: str) -> str:
    # A pull secret that is missing is none of the reasons: a pull that fails for it says so on the container.
    selector = (
        f"involvedObject.kind={kind},involvedObject.name={name},type=Warning,reason!=FailedToRetrieveImagePullSecret"
    )
    found = (await api.get(paths.events(namespace), fieldSelector=selector, limit="50")).get("items") or []
    found.sort(key=lambda event: event.get("lastTimestamp") or event.get("eventTime") or "")
    return str(found[-1].get("message") or "")[:800] if found else ""
