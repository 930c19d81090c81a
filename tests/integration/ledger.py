"""Whether what the API server told, in its order, was right at each step: the invariants of docs/cases.md. Called by tests of faults.

For ModelWeights whose nodes stay as they are while it looks: none boots anew and none goes.
"""

import json
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from modelweights_operator.domain import names
from tests.integration.client import Kube, core_path, job_path, model_path
from tests.integration.conftest import SYSTEM
from tests.integration.job_player import what_is_done
from tests.json_client import Json

_JOB_OF_POD = "batch.kubernetes.io/job-name"


class Ledger:
    """Takes events in their order, and keeps what was wrong in `broken`."""

    def __init__(self) -> None:
        self.broken: list[str] = []
        self.made: dict[str, Json] = {}
        self._active: dict[str, tuple[str, str]] = {}
        self._done: set[tuple[str, ...]] = set()
        self._proven: defaultdict[str, set[str]] = defaultdict(set)
        self._labels: dict[str, dict[str, str]] = {}
        self._gated: set[str] = set()
        self._models: dict[str, Json] = {}

    def take(self, kind: str, event: Json) -> None:
        """Take an event of a watch of `jobs`, `pods`, `nodes` or `modelweights`."""
        body, gone = event["object"], event["type"] == "DELETED"
        {"jobs": self._job, "pods": self._pod, "nodes": self._node, "modelweights": self._model}[kind](body, gone=gone)

    def _job(self, body: Json, *, gone: bool) -> None:
        name, notes = body["metadata"]["name"], body["metadata"]["annotations"]
        labels = body["metadata"]["labels"]
        owner = labels.get(names.OWNER_LABEL, "") or labels.get(names.CLEANUP_LABEL, "")
        place = (owner, notes[names.NODE_ANNOTATION])
        ended = bool(body.get("status", {}).get("conditions"))
        if name not in self._active and not gone and not ended:
            if self.made.get(name, body)["metadata"]["uid"] != body["metadata"]["uid"]:
                self.broken.append(f"Job {name} was made twice")
            if _what(notes) in self._done:
                self.broken.append(f"Job {name} does again what was done on {place[1]}")
            if place in self._active.values():
                self.broken.append(f"Job {name} is beside another one on {place[1]}")
            self._active[name] = place
        if gone or ended:
            self._active.pop(name, None)
        if any(each["type"] == "Complete" for each in body.get("status", {}).get("conditions", [])):
            self._done.add(_what(notes))
        self.made[name] = body

    def _pod(self, body: Json, *, gone: bool) -> None:
        metadata, key = body["metadata"], body["metadata"]["name"]
        job = self.made.get((metadata.get("labels") or {}).get(_JOB_OF_POD, ""))
        if job is not None:
            if body.get("status", {}).get("phase") == "Succeeded":
                notes = job["metadata"]["annotations"]
                report = json.loads(body["status"]["containerStatuses"][0]["state"]["terminated"]["message"])
                self._proven[notes[names.NODE_ANNOTATION]].add(report["manifestDigest"])
                self._done.add(_what(notes))
        elif any(gate["name"] == names.GATE for gate in body["spec"].get("schedulingGates") or []):
            self._gated.add(key)
        elif key in self._gated and not gone:
            self._gated.discard(key)
            self._lifted(body)

    def _lifted(self, body: Json) -> None:
        name, digest = body["metadata"]["name"], body["metadata"]["annotations"][names.DIGEST_ANNOTATION]
        for model in self._models.values():
            uid = model["metadata"]["uid"]
            if not any(names.has_label(labels, uid, digest) for labels in self._labels.values()):
                self.broken.append(f"pod {name} was let go to a checkpoint that no node holds")
            if _published(model) != digest or _condition(model, "Available") != "True":
                self.broken.append(f"pod {name} was let go to what isn't published and available")

    def _node(self, body: Json, *, gone: bool) -> None:
        name = body["metadata"]["name"]
        self._labels[name] = {} if gone else body["metadata"].get("labels") or {}
        proven = {names.label_digest(digest) for digest in self._proven[name]}
        wrong = set(names.staged_labels(self._labels[name]).values()) - proven
        if wrong:
            self.broken.append(f"node {name} is labelled with {sorted(wrong)}, which it never proved")

    def _model(self, body: Json, *, gone: bool) -> None:
        self._models[body["metadata"]["uid"]] = body
        if gone:
            del self._models[body["metadata"]["uid"]]
            return
        if _condition(body, "Available") != "True" or "deletionTimestamp" in body["metadata"]:
            return
        uid, digest = body["metadata"]["uid"], _published(body)
        holding = sum(names.has_label(labels, uid, digest) for labels in self._labels.values())
        if not digest or holding < body["spec"]["placement"]["minAvailableNodes"]:
            self.broken.append(f"{body['metadata']['name']} is Available with {digest} on {holding} nodes")


def _what(notes: dict[str, str]) -> tuple[str, ...]:
    """The same on another node of the name is another thing."""
    return (notes.get(names.NODE_UID_ANNOTATION, ""), *what_is_done(notes))


def _published(model: Json) -> str:
    found: str = (model.get("status", {}).get("published") or {}).get("manifestDigest", "")
    return found


def _condition(model: Json, kind: str) -> str:
    found: list[dict[str, Any]] = model.get("status", {}).get("conditions", [])
    return next((each["status"] for each in found if each["type"] == kind), "")


def history(admin: Kube, namespace: str, version: str) -> list[tuple[str, Json]]:
    """What happened around a team's ModelWeights since a version, cleanups included, in its order."""
    paths = [
        ("jobs", job_path(namespace), {}),
        ("jobs", job_path(SYSTEM), {"labelSelector": names.CLEANUP_LABEL}),
        ("pods", core_path(namespace, "pods"), {}),
        ("nodes", "/api/v1/nodes", {"labelSelector": f"team%3D{namespace}"}),
        ("modelweights", model_path(namespace), {}),
    ]
    with ThreadPoolExecutor(len(paths)) as pool:
        asked = [(kind, pool.submit(admin.history, path, version, **query)) for kind, path, query in paths]
        events = [(kind, event) for kind, answer in asked for event in answer.result()]
    lost = [event["object"] for _, event in events if event["type"] == "ERROR"]
    assert not lost, f"the history is gone: {lost}"
    cleanup_of = f"{namespace}/"
    own = [(kind, event) for kind, event in events if kind != "jobs" or _is_of(event["object"], namespace, cleanup_of)]
    return sorted(own, key=lambda each: int(each[1]["object"]["metadata"]["resourceVersion"]))


def _is_of(job: Json, namespace: str, cleanup_of: str) -> bool:
    notes = job["metadata"].get("annotations") or {}
    return bool(job["metadata"]["namespace"] == namespace) or notes.get(names.CLEANUP_OWNER_ANNOTATION, "").startswith(
        cleanup_of
    )
