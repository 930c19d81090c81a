"""The commands `retry`, `pause` and `resume`: the only ones that write. Called by `cli`.

What is written is decided by pure functions of the object; the call at the end sends it.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from kubectl_modelweights import gathered, reading
from kubectl_modelweights.client import Client
from kubectl_modelweights.errors import CommandError
from kubectl_modelweights.reading import Json
from kubectl_modelweights.table import FAINT, Answer, Line
from modelweights_operator.domain import names

_GITOPS: Final = (
    ("argocd.argoproj.io/", "Argo CD"),
    ("kustomize.toolkit.fluxcd.io/", "Flux"),
    ("helm.toolkit.fluxcd.io/", "Flux"),
    ("meta.helm.sh/", "Helm"),
)
"""Marks that tools leave on what they apply, in labels or annotations."""


def retry(client: Client, name: str, node: str, now: datetime) -> Answer:
    """Have all failed nodes tried again at once.

    Raises:
        CommandError: That node isn't one that failed; or it can't be written.
    """
    model = gathered.model(client, name)
    failed = failed_nodes(model, node)
    if not failed:
        text = f"nothing of {reading.name(model)} has failed: nothing was asked for"
        return Answer((Line(text),), {"asked": False, "nodes": []})
    value = now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    client.patch(name, {"metadata": {"annotations": {names.RETRY_ANNOTATION: value}}})
    text = f"{reading.name(model)} is tried again at once on {reading.some(failed)}"
    others = len(failed) - 1
    if node and others:
        text += f": the annotation asks for all nodes that failed, so for {others} more than {node}"
    return Answer((Line(text),), {"asked": True, "nodes": failed})


def failed_nodes(model: Json, node: str) -> list[str]:
    """The nodes that failed, that one first.

    Raises:
        CommandError: That one, where one is named, isn't among them.
    """
    entries = reading.node_entries(model)
    failed = [name for name, entry in entries.items() if entry["state"] == "Failed"]
    if node and node not in failed:
        if node not in entries:
            raise CommandError(
                f"{reading.name(model)} isn't staged on a node {node}; its nodes: {reading.some(list(entries)) or 'none'}"
            )
        entry = entries[node]
        raise CommandError(
            f"{node} has not failed, it is {entry['state']} ({entry.get('reason') or 'no reason given'})"
        )
    return sorted(failed, key=lambda name: name != node)


def suspend(client: Client, name: str, *, suspend: bool) -> Answer:
    """Set `spec.suspend`."""
    before = gathered.model(client, name)
    full, word = reading.name(before), "paused" if suspend else "resumed"
    if bool(before["spec"].get("suspend")) == suspend:
        return Answer((Line(f"{full} is {word} already"),), {"suspend": suspend, "changed": False})
    client.patch(name, {"spec": {"suspend": suspend}})
    what = "nothing further is staged; what runs and what is staged stays" if suspend else "staging goes on"
    lines = (Line(f"{full} is {word}: {what}"), Line(gitops_note(before["metadata"], suspend=suspend), style=FAINT))
    return Answer(lines, {"suspend": suspend, "changed": True, "managedBy": managed_by(before["metadata"])})


def managed_by(metadata: Mapping[str, Any]) -> str:
    """The tool whose marks the object bears, "" for none."""
    keys = [*(metadata.get("labels") or {}), *(metadata.get("annotations") or {})]
    return next((tool for prefix, tool in _GITOPS if any(key.startswith(prefix) for key in keys)), "")


def gitops_note(metadata: Mapping[str, Any], *, suspend: bool) -> str:
    """That a tool which keeps the object will undo this."""
    tool = managed_by(metadata)
    where = f"set spec.suspend: {str(suspend).lower()} where the manifest is kept"
    if tool:
        return f"{tool} applies this object and will put spec.suspend back: {where}"
    return f"a GitOps tool that applies this object will put spec.suspend back: then {where}"
