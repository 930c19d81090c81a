"""Carry out a plan, in the order in which its effects are safe (see `domain.plan`). Called by the reconciler.

Each write can be repeated: names are deterministic, patches touch own fields only, and what is gone already is fine. The
status is written once, as a merge patch that holds just what changed; events follow after it succeeded.
"""

import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from functools import partial
from typing import Any, Final

from modelweights_operator import errors
from modelweights_operator.api import v1alpha1 as model
from modelweights_operator.domain import names
from modelweights_operator.domain.clock import rfc3339
from modelweights_operator.domain.events import Event
from modelweights_operator.domain.plan import Plan
from modelweights_operator.domain.pods import Manifest
from modelweights_operator.domain.snapshot import Owner, Snapshot
from modelweights_operator.kube import paths
from modelweights_operator.kube.client import STRATEGIC_PATCH, Api, Json

_log = logging.getLogger(__name__)


_REFUSALS: Final = (400, 403, 422)
_OWN_LABELS: Final = (names.MANAGED_BY_LABEL, names.OWNER_LABEL)
"""By these the operator finds its Jobs."""


async def change_jobs(api: Api, owner: Owner, plan: Plan, created: Callable[[Json], None]) -> dict[str, str]:
    """Delete and create Jobs, the first part of a plan.

    Args:
        api: The connection.
        owner: The ModelWeights.
        plan: The plan.
        created: Is told of each Job that was created.

    Returns:
        Per node name, why the API server refused its Job: a quota, a policy, a field that isn't what Kubernetes takes.

    Raises:
        errors.ApiError: The API server couldn't do it now; the next cycle does the rest.
    """
    refusals = {}
    for name in plan.delete_jobs:
        await api.delete(f"{paths.jobs(owner.namespace)}/{name}")
    for manifest in plan.create_jobs:
        try:
            created(await api.create(paths.jobs(owner.namespace), manifest))
        except errors.ConflictError as error:
            taken = await _why_taken(api, owner, manifest, error)
            if taken:
                refusals[manifest["metadata"]["annotations"][names.NODE_ANNOTATION]] = taken
        except errors.ApiError as error:
            if error.status not in _REFUSALS:
                raise
            refusals[manifest["metadata"]["annotations"][names.NODE_ANNOTATION]] = str(error)
    return refusals


async def prepare(api: Api, snapshot: Snapshot, plan: Plan) -> str:
    """Write what has to be there before the status says so: notes on Jobs, node labels, the engine's ConfigMap.

    Returns:
        Why the API server refused one of them for good, as a quota or a policy does; "" when it refused none. The
        others are written all the same.

    Raises:
        errors.ApiError: The API server couldn't do it now; the next cycle does the rest.
    """
    owner = snapshot.owner
    writes = [partial(_record, api, owner.namespace, name, text) for name, text in plan.record_results.items()]
    writes += [partial(label_node, api, name, labels) for name, labels in plan.label_nodes.items()]
    if plan.config_map is not None:
        writes.append(partial(_write_config_map, api, snapshot, plan.config_map))
    refusals = [await _refusal(write) for write in writes]
    return next(filter(None, refusals), "")


async def _refusal(write: Callable[[], Awaitable[None]]) -> str:
    try:
        await write()
    except errors.ApiError as error:
        if error.status not in _REFUSALS:
            raise
        return str(error)
    return ""


async def apply(api: Api, snapshot: Snapshot, plan: Plan, now: datetime) -> None:
    """Carry out the rest of the plan, after `change_jobs` and `prepare`.

    Raises:
        errors.ApiError: A write failed; what came before it stands, and the next cycle does the rest.
    """
    owner = snapshot.owner
    await _write_status(api, owner, plan.status)
    for event in plan.events:
        _log.info("%s/%s: %s: %s", owner.namespace, owner.name, event.reason, event.message)
        await post_event(api, reference(owner.namespace, owner.name, owner.uid), event, now)
    for name in plan.finished_jobs:
        await api.delete(f"{paths.jobs(owner.namespace)}/{name}")


async def note_nodes(api: Api, owner: Owner, entries: Mapping[str, model.NodeStatus]) -> None:
    """Add entries of nodes to the status, and change nothing else of it."""
    await _write_status(api, owner, owner.status.model_copy(update={"nodes": {**owner.status.nodes, **entries}}))


async def label_node(api: Api, name: str, labels: Mapping[str, str | None]) -> None:
    """Set or take off labels of ours; a node that is gone needs none."""
    with contextlib.suppress(errors.NotFoundError):
        await api.patch(paths.node(name), {"metadata": {"labels": dict(labels)}})


async def lift(api: Api, namespace: str, name: str, patch: Mapping[str, Any]) -> None:
    """Open the gate of one pod; one that is gone or was changed since is decided anew."""
    await api.patch(paths.pod(namespace, name), patch, STRATEGIC_PATCH)


async def post_event(api: Api, involved: Json, event: Event, now: datetime, *, again: bool = True) -> None:
    """Post an event. An event that can't be posted is logged: it is no state.

    Args:
        api: The connection.
        involved: What it is about.
        event: The event.
        now: The time.
        again: Whether one that is there already is counted once more; else it stays as it is.
    """
    namespace = involved["namespace"]
    name = f"{involved['name'][:200].rstrip('-.')}.{names.short_hash(involved['uid'], event.reason, event.message)}"
    body = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": namespace},
        "involvedObject": involved,
        "type": event.kind,
        "reason": event.reason,
        "message": event.message[:1024],
        "source": {"component": names.MANAGED_BY},
        "reportingComponent": f"{names.PREFIX}/operator",
        "firstTimestamp": rfc3339(now),
        "lastTimestamp": rfc3339(now),
        "count": 1,
    }
    try:
        await api.create(paths.events(namespace), body)
    except errors.ConflictError:
        if again:
            await _count(api, f"{paths.events(namespace)}/{name}", now)
    except (errors.ForbiddenError, errors.NotFoundError, errors.InvalidError) as error:
        # A terminating namespace takes no events.
        _log.info("event %s on %s/%s not posted: %s", event.reason, namespace, involved["name"], error)


async def _count(api: Api, path: str, now: datetime) -> None:
    known = await api.get(path)
    await api.patch(path, {"count": int(known.get("count") or 1) + 1, "lastTimestamp": rfc3339(now)})


async def _why_taken(api: Api, owner: Owner, manifest: Manifest, error: errors.ConflictError) -> str:
    """What is to be said of a Job that couldn't be made for a conflict; "" when it is there as it should be."""
    metadata = manifest["metadata"]
    found = (await api.get(paths.jobs(owner.namespace), fieldSelector=f"metadata.name={metadata['name']}")).get("items")
    if not found:
        # A conflict of another kind, as that of two Jobs at a quota's door; or it went meanwhile.
        raise error
    labels = found[0]["metadata"].get("labels") or {}
    if any(labels.get(key) != metadata["labels"][key] for key in _OWN_LABELS):
        return f"Job {owner.namespace}/{metadata['name']} exists without the operator's labels: delete it"
    # Made by an earlier cycle whose answer got lost: the name says that it is the same.
    _log.debug("Job %s exists already", metadata["name"])
    return ""


async def _record(api: Api, namespace: str, job: str, text: str) -> None:
    with contextlib.suppress(errors.NotFoundError):
        patch = {"metadata": {"annotations": {names.RESULT_ANNOTATION: text}}}
        await api.patch(f"{paths.jobs(namespace)}/{job}", patch)


async def _write_config_map(api: Api, snapshot: Snapshot, manifest: Manifest) -> None:
    owner, existing = snapshot.owner, snapshot.config_map
    if existing is None:
        with contextlib.suppress(errors.ConflictError):
            # Somebody was faster; whose it is, the next cycle sees.
            await api.create(f"/api/v1/namespaces/{owner.namespace}/configmaps", manifest)
        return
    data = {**dict.fromkeys(existing.data), **manifest["data"]}
    patch = {"metadata": {"annotations": manifest["metadata"]["annotations"]}, "data": data}
    await api.patch(paths.config_map(owner.namespace, owner.name), patch)


async def _write_status(api: Api, owner: Owner, status: model.Status) -> None:
    patch = status_patch(owner, status)
    if not patch:
        return
    # For the version that it was made from, of this very object: another one of its name has another UID, and one that was held up
    # on its way, as by an operator that was stopped right before the first byte, doesn't undo what was written since.
    body = {"metadata": {"uid": owner.uid, "resourceVersion": owner.resource_version}, "status": patch}
    with contextlib.suppress(errors.NotFoundError):
        await api.patch(f"{paths.modelweights(owner.namespace, owner.name)}/status", body)


def status_patch(owner: Owner, status: model.Status) -> Json:
    """The merge patch that brings the status about; empty when it is there.

    Entries of nodes that the plan left as they were read are as they were written, so only the others are looked at.
    """
    same = {name for name, entry in status.nodes.items() if entry is owner.status.nodes.get(name)}
    before, raw_nodes = dict(owner.raw_status), owner.raw_status.get("nodes") or {}
    before["nodes"] = {name: entry for name, entry in raw_nodes.items() if name not in same}
    changed = {name: entry for name, entry in status.nodes.items() if name not in same}
    return merge_patch(before, status_json(status.model_copy(update={"nodes": changed})))


def status_json(status: model.Status) -> Json:
    """The status as it is written.

    Entries of nodes go without their defaults, since there may be thousands; revisions too, since an unknown time would
    be "", which is no time and has the API server reject the whole status.
    """
    body = status.model_dump(
        mode="json", by_alias=True, exclude_none=True, exclude={"nodes", "published", "candidate", "previous"}
    )
    for name, revision in (("published", status.published), ("candidate", status.candidate)):
        if revision is not None:
            body[name] = _dump(revision)
    if status.previous:
        body["previous"] = [_dump(revision) for revision in status.previous]
    body["nodes"] = {name: _dump(entry) for name, entry in status.nodes.items()}
    return body


def _dump(value: model.Revision | model.NodeStatus) -> Json:
    return value.model_dump(mode="json", by_alias=True, exclude_defaults=True)


def merge_patch(old: Json, new: Json) -> Json:
    """The RFC 7396 patch that turns `old` into `new`; empty when they are equal."""
    patch: Json = {key: None for key in old if key not in new}
    for key, value in new.items():
        before = old.get(key)
        if isinstance(before, dict) and isinstance(value, dict):
            below = merge_patch(before, value)
            if below:
                patch[key] = below
        elif before != value or key not in old:
            patch[key] = value
    return patch


def reference(namespace: str, name: str, uid: str) -> Json:
    """A ModelWeights as events name it."""
    return {"apiVersion": model.API_VERSION, "kind": model.KIND, "namespace": namespace, "name": name, "uid": uid}
