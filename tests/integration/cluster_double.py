"""What the tests play themselves: nodes that come and go, and the Job controller and kubelets by writing their statuses.

A stand-in: no container runs here, and what a kubelet really writes is seen in the end-to-end tests.
"""

import http.client
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from modelweights_operator.domain import names
from tests.integration.client import Kube, core_path, job_path, model_path
from tests.json_client import Json, RefusedError
from tests.polling import poll

DIGEST = "sha256:" + "a" * 64
OTHER_DIGEST = "sha256:" + "b" * 64
NODE = "modelweights.io/node"


def report(digest: str = DIGEST, **fields: Any) -> str:
    """The report of a staging that ended well."""
    figures = {"sizeBytes": 1000, "fileCount": 3, "tensorCount": 7, "residentBytes": 1000, "loadSeconds": 0.5}
    engine = {"loadFormat": "fastsafetensors", "queueSize": 0, "odirect": False, "nogds": True, "ranks": 1}
    head = {"step": "report", "exitCode": 0, "manifestDigest": digest}
    return json.dumps({**head, **figures, "engine": {**engine, "tuned": False}, **fields})


def resolve_report(revision: str) -> str:
    """The report of a step `resolve` that ended well."""
    figures = {"revision": revision, "described": f"hub at {revision}"}
    return json.dumps({"step": "resolve", "exitCode": 0, **figures})


def fetch_report(revision: str) -> str:
    """The report of a fetch that ended well."""
    figures = {"revision": revision, "described": f"hub at {revision}", "fetchedBytes": 900, "fetchSeconds": 2.5}
    return json.dumps({"step": "fetch", "exitCode": 0, **figures})


def failure(reason: str = "BadHeader", exit_code: int = 30) -> str:
    """The report of a staging that failed."""
    return json.dumps({"step": "validate", "exitCode": exit_code, "reason": reason, "message": "a.safetensors: short"})


@dataclass(frozen=True)
class Team:
    """One namespace with nodes of its own, which its ModelWeights selects by a label."""

    admin: Kube
    namespace: str

    # --- nodes ----------------------------------------------------------------------------------------------------

    def node_name(self, name: str) -> str:
        return f"{self.namespace}-{name}"

    def add_node(self, name: str, boot: str = "boot-1", taints: Sequence[Json] = ()) -> str:
        """A ready node; its name."""
        full = self.node_name(name)
        labels = {"team": self.namespace, "kubernetes.io/hostname": f"host-{full}"}
        self.admin.create(
            "/api/v1/nodes", {"metadata": {"name": full, "labels": labels}, "spec": {"taints": list(taints)}}
        )
        self.boot_node(name, boot)
        return full

    def boot_node(self, name: str, boot: str) -> None:
        """Give a node another boot ID."""
        boot_node(self.admin, self.node_name(name), boot)

    def label_node(self, name: str, labels: dict[str, str | None]) -> None:
        self.admin.patch(f"/api/v1/nodes/{self.node_name(name)}", {"metadata": {"labels": labels}})

    def delete_node(self, name: str) -> None:
        self.admin.delete(f"/api/v1/nodes/{self.node_name(name)}")

    def staged_labels(self, name: str) -> dict[str, str]:
        labels = self.admin.get(f"/api/v1/nodes/{self.node_name(name)}")["metadata"]["labels"]
        return {key: value for key, value in labels.items() if key.startswith("staged.modelweights.io/")}

    # --- the ModelWeights -----------------------------------------------------------------------------------------

    def manifest(self, name: str = "llama", **spec: Any) -> Json:
        own = {
            "source": {"hostPath": {"path": "/models/llama"}},
            "placement": {"nodeSelector": {"team": self.namespace}, "canaryNodes": 0},
        }
        metadata = {"name": name, "namespace": self.namespace}
        return {
            "apiVersion": "modelweights.io/v1alpha1",
            "kind": "ModelWeights",
            "metadata": metadata,
            "spec": {**own, **spec},
        }

    def create_model(self, name: str = "llama", **spec: Any) -> Json:
        return self.admin.create(model_path(self.namespace), self.manifest(name, **spec))

    def model(self, name: str = "llama") -> Json:
        return self.admin.get(model_path(self.namespace, name))

    def conditions(self, name: str = "llama") -> dict[str, tuple[str, str]]:
        found = self.model(name).get("status", {}).get("conditions", [])
        return {each["type"]: (each["status"], each["reason"]) for each in found}

    def wait_for(self, kind: str, status: str, reason: str = "", name: str = "llama", seconds: float = 20) -> str:
        """Wait for a condition; its message."""

        def probe() -> str:
            found = self.model(name).get("status", {}).get("conditions", [])
            return next(
                (
                    each["message"] or " "
                    for each in found
                    if (each["type"], each["status"]) == (kind, status) and reason in ("", each["reason"])
                ),
                "",
            )

        return poll(f"{kind}={status} {reason}", probe, seconds=seconds)

    def state(self, node: str, name: str = "llama") -> str:
        entry = self.model(name).get("status", {}).get("nodes", {}).get(self.node_name(node), {})
        return f"{entry.get('state', '')} {entry.get('reason', '')}".strip()

    # --- Jobs -----------------------------------------------------------------------------------------------------

    def jobs(self) -> list[Json]:
        return [job for job in self.admin.items(job_path(self.namespace)) if "deletionTimestamp" not in job["metadata"]]

    def job_of(self, node: str) -> Json | None:
        """The Job that is under way for a node."""
        full = self.node_name(node)
        for job in self.jobs():
            if job["metadata"]["annotations"].get(NODE) == full and not job.get("status", {}).get("conditions"):
                return job
        return None

    def wait_for_job(self, node: str) -> Json:
        return poll(f"a Job for {node}", lambda: self.job_of(node))

    def end(self, job: Json, text: str) -> None:
        """Play kubelet and Job controller: the pod's last step says `text`, and the Job ends as its exit code says."""
        code = json.loads(text)["exitCode"]
        self._pod(job, text, code)
        try:
            end_job(self.admin, job, good=code == 0)
        except RefusedError as error:
            # As soon as the pod says that all is well, the operator takes its word and deletes the Job.
            if code or error.status != http.client.NOT_FOUND:
                raise

    def end_resolve(self, job: Json, revision: str) -> None:
        """Play the kubelet: the pod's step `resolve` ends well, and `fetch` runs."""
        self._end_step(job, "resolve", resolve_report(revision), "fetch")

    def end_validate(self, job: Json) -> None:
        """Play the kubelet: the pod's step `validate` ends well, and `report` runs."""
        self._end_step(job, "validate", report(), "report")

    def end_fetch(self, job: Json, revision: str) -> None:
        """Play the kubelet: the pod's step `fetch` ends well, and the next one runs."""
        self._end_step(job, "fetch", fetch_report(revision), "prefetch")

    def end_prefetch(self, job: Json, size_bytes: int) -> None:
        """Play the kubelet: the pod's step `prefetch` ends well, and `validate` runs."""
        text = json.dumps({"step": "prefetch", "exitCode": 0, "sizeBytes": size_bytes})
        self._end_step(job, "prefetch", text, "validate")

    def _end_step(self, job: Json, step: str, text: str, following: str) -> None:
        name = self._make_pod(job)
        ended = {"exitCode": 0, "message": text, "startedAt": now(), "finishedAt": now()}
        common = {"image": "x", "imageID": "x", "ready": False, "restartCount": 0}
        statuses = [
            {"name": step, "state": {"terminated": ended}, **common},
            {"name": following, "state": {"running": {"startedAt": now()}}, **common},
        ]
        status = {"phase": "Running", "initContainerStatuses": statuses}
        self.admin.patch(f"{core_path(self.namespace, 'pods', name)}/status", {"status": status})

    def cannot_schedule(self, job: Json, why: str) -> None:
        """Play the scheduler that finds no node for the Job's pod."""
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": why}
        status = {"phase": "Pending", "conditions": [condition]}
        self.admin.patch(f"{core_path(self.namespace, 'pods', self._make_pod(job))}/status", {"status": status})

    def warn(self, job: Json, why: str) -> None:
        """Play the Job controller that can't make the Job's pod."""
        metadata = job["metadata"]
        involved = {"apiVersion": "batch/v1", "kind": "Job", "namespace": self.namespace}
        event = {
            "metadata": {"name": f"{metadata['name']}.refused"},
            "involvedObject": {**involved, "name": metadata["name"], "uid": metadata["uid"]},
            "type": "Warning",
            "reason": "FailedCreate",
            "message": why,
            "lastTimestamp": metadata["creationTimestamp"],
        }
        self.admin.create(core_path(self.namespace, "events"), event)

    def _make_pod(self, job: Json) -> str:
        """The Job's pod, unless it is there; its name."""
        metadata, template = job["metadata"], job["spec"]["template"]
        reference = {"apiVersion": "batch/v1", "kind": "Job", "name": metadata["name"], "uid": metadata["uid"]}
        pod = {
            "metadata": {
                "name": f"{metadata['name']}-x",
                "labels": template["metadata"]["labels"],
                "ownerReferences": [{**reference, "controller": True, "blockOwnerDeletion": True}],
            },
            "spec": template["spec"],
        }
        name = f"{metadata['name']}-x"
        if self.admin.find(core_path(self.namespace, "pods", name)) is None:
            self.admin.create(core_path(self.namespace, "pods"), pod)
        return name

    def _pod(self, job: Json, text: str, code: int) -> None:
        name = self._make_pod(job)
        ended = {"exitCode": code, "message": text, "startedAt": now(), "finishedAt": now()}
        step = job["spec"]["template"]["spec"]["containers"][0]["name"]
        container = {"name": step, "image": "x", "imageID": "x", "ready": False, "restartCount": 0}
        status = {
            "phase": "Failed" if code else "Succeeded",
            "containerStatuses": [{**container, "state": {"terminated": ended}}],
        }
        self.admin.patch(f"{core_path(self.namespace, 'pods', name)}/status", {"status": status})

    def stage(self, *nodes: str, digest: str = DIGEST) -> None:
        """Let the staging of nodes end well."""
        for node in nodes:
            self.end(self.wait_for_job(node), report(digest))


def boot_node(admin: Kube, full_name: str, boot: str) -> None:
    """Play the kubelet: a node is ready, with a boot ID."""
    ready = {"type": "Ready", "status": "True", "reason": "Test", "message": ""}
    status = {"nodeInfo": {"bootID": boot}, "conditions": [ready]}
    content = "application/strategic-merge-patch+json"
    admin.patch(f"/api/v1/nodes/{full_name}/status", {"status": status}, content)


def gated_pod(name: str, require: str, **spec: Any) -> Json:
    """A pod that waits at the gate."""
    return {
        "metadata": {"name": name, "annotations": {names.REQUIRE_ANNOTATION: require}},
        "spec": {"schedulingGates": [{"name": names.GATE}], "containers": [{"name": "c", "image": "x"}], **spec},
    }


def end_job(admin: Kube, job: Json, *, good: bool) -> None:
    """Play the Job controller that sees a Job's pod end."""
    kinds = ("SuccessCriteriaMet", "Complete") if good else ("FailureTarget", "Failed")
    moments = {"lastTransitionTime": now(), "lastProbeTime": now()}
    conditions = [{"type": kind, "status": "True", "reason": "Test", "message": "", **moments} for kind in kinds]
    ends = {"succeeded": 1, "completionTime": now()} if good else {"failed": 1}
    status = {"startTime": "2026-03-01T12:00:00Z", "conditions": conditions, **ends}
    metadata = job["metadata"]
    admin.patch(f"{job_path(metadata['namespace'], metadata['name'])}/status", {"status": status})


def now() -> str:
    """The time as the API writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
