"""API objects as the informers keep them: what of them is known, and by what they are grouped. Called by the reconciler."""

from modelweights_operator.domain import convert, gate
from modelweights_operator.domain.access import NamespaceLabels
from modelweights_operator.domain.snapshot import Node, StagingJob, StagingPod
from modelweights_operator.kube.client import Json
from modelweights_operator.kube.informer import Item


def node_item(body: Json) -> Item[Node]:
    """All in one group."""
    return Item("", convert.node(body))


def job_item(body: Json) -> Item[StagingJob] | None:
    """Grouped by namespace too: a Job that someone made elsewhere with the label of ours proves nothing."""
    job = convert.job(body)
    return Item(f"{body['metadata']['namespace']}/{job.owner_uid}", job) if job.owner_uid else None


def pod_item(body: Json) -> Item[StagingPod] | None:
    """Grouped by its Job."""
    job_name = (body["metadata"].get("labels") or {}).get(convert.JOB_NAME_LABEL)
    return Item(f"{body['metadata']['namespace']}/{job_name}", convert.staging_pod(body)) if job_name else None


def namespace_item(body: Json) -> Item[NamespaceLabels] | None:
    """Its labels, all in one group."""
    return Item("", NamespaceLabels(body["metadata"]["name"], body["metadata"].get("labels") or {}))


def gated_item(body: Json) -> Item[gate.GatedPod] | None:
    """Those that wait at our gate. Grouped as they belong together; all that belong to none are in one group."""
    pod = convert.gated_pod(body)
    return Item(f"{pod.namespace}/{pod.group.selector}" if pod.group else "", pod) if pod else None
