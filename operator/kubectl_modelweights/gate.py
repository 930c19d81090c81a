"""The command `gate`: why a pod waits at the gate, decided as the operator decides it. Called by `cli`; pure.

The operator's own rules are asked, with what the person may read in the place of what the operator knows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from kubectl_modelweights import reading
from kubectl_modelweights.gathered import Gate
from kubectl_modelweights.reading import Json
from kubectl_modelweights.table import BUSY, FAINT, GOOD, WAITS, Answer, Cell, Line, Table
from modelweights_operator.domain import access, convert, gate, groups, names, required
from modelweights_operator.domain.gate import GatedPod, Lift, Requirement, StagedModel, Verdict
from modelweights_operator.domain.snapshot import Node


@dataclass(frozen=True)
class _Judgement:
    """The verdict, and what was known of each requirement."""

    verdict: Verdict
    models: dict[Requirement, StagedModel | None]


def answer(found: Gate, now: datetime) -> Answer:
    """Why a pod waits, or that it doesn't."""
    waiting = convert.gated_pod(found.pod)
    if waiting is None:
        return _not_at_gate(found.pod)
    judged = _judge(found, waiting, now)
    reason, text, style = _told(waiting, judged)
    rows = tuple(_row(item, model, found) for item, model in judged.models.items())
    blocks: list[Line | Table] = [Line(text, style=style)]
    if rows:
        blocks += [Line(""), Table(("REQUIRES", "AVAILABLE", "DIGEST", "NODES THAT HOLD IT", "WHY NOT"), rows)]
    others = _other_gates(found.pod)
    if others:
        blocks.append(Line(f"it has other gates too, which others open: {', '.join(others)}", style=FAINT))
    blocks += [Line(text, "unread", FAINT) for text in found.unread]
    return Answer(
        tuple(blocks),
        {
            "pod": f"{waiting.namespace}/{waiting.name}",
            "gated": True,
            "opens": isinstance(judged.verdict, Lift),
            "reason": reason,
            "message": text,
            "otherGates": others,
            "requires": [_as_data(item, model) for item, model in judged.models.items()],
            "unread": list(found.unread),
        },
    )


def _not_at_gate(pod: Json) -> Answer:
    metadata = pod["metadata"]
    name = f"{metadata['namespace']}/{metadata['name']}"
    digest = (metadata.get("annotations") or {}).get(names.DIGEST_ANNOTATION, "")
    require = (metadata.get("annotations") or {}).get(names.REQUIRE_ANNOTATION, "")
    others = _other_gates(pod)
    if "deletionTimestamp" in metadata:
        text = f"{name} is being deleted: the gate stays shut"
    elif digest:
        text = f"{name} went through the gate, with {digest}"
    elif require:
        text = (
            f"{name} has the annotation {names.REQUIRE_ANNOTATION} but not the gate {names.GATE}: it waits for nothing"
        )
    else:
        text = f"{name} has no gate {names.GATE}: it doesn't wait for a ModelWeights"
    if others:
        text += f"; other gates hold it: {', '.join(others)}"
    data = {"pod": name, "gated": False, "opens": False, "reason": "", "message": text, "otherGates": others}
    return Answer((Line(text),), {**data, "requires": [], "unread": []})


def _other_gates(pod: Json) -> list[str]:
    return [each["name"] for each in pod["spec"].get("schedulingGates") or [] if each["name"] != names.GATE]


def _judge(found: Gate, waiting: GatedPod, now: datetime) -> _Judgement:
    """As the operator's gatekeeper does it: the pod, and where it is of a group and might go, the group."""
    present = convert.group_members(found.members)
    own, models = _judge_pods(found, [waiting], {})
    verdict = own[0][1]
    if waiting.group is not None and isinstance(verdict, Lift):
        kept = groups.kept(present, waiting.namespace)
        verdicts, _ = _judge_pods(found, present.waiting, kept)
        of_pod = {pod.uid: each for pod, each in groups.together(groups.whole(present, verdicts, now))}
        verdict = of_pod.get(waiting.uid, verdict)
    return _Judgement(verdict, models)


def _judge_pods(
    found: Gate, pods: Sequence[GatedPod], kept: dict[Requirement, str]
) -> tuple[list[tuple[GatedPod, Verdict]], dict[Requirement, StagedModel | None]]:
    models = {item: _staged(found, item, kept.get(item, "")) for item in gate.requirements(pods)}
    return [(pod, gate.decide(pod, models, label_nodes=_labels_nodes(found))) for pod in pods], models


def _staged(found: Gate, item: Requirement, group_has: str) -> StagedModel | None:
    body, namespace = found.models.get(item.model), found.pod["metadata"]["namespace"]
    if body is None:
        return None
    known = access.NamespaceLabels(namespace, found.namespace_labels) if found.namespace_labels is not None else None
    return required.for_pod(
        item,
        convert.owner(dict(body)),
        namespace,
        known,
        _nodes(found, body),
        label_nodes=_labels_nodes(found),
        group_has=group_has,
    )


def _labels_nodes(found: Gate) -> bool:
    """Whether the operator labels nodes: it does unless no node has any label of it."""
    return (
        found.nodes is None
        or any(names.staged_labels(node["metadata"].get("labels") or {}) for node in found.nodes)
        or not any(reading.node_entries(model) for model in found.models.values())
    )


def _nodes(found: Gate, model: Json) -> list[Node]:
    """The nodes; where they may not be read, those of the status, as if their labels were as they should be."""
    if found.nodes is not None:
        return [convert.node(node) for node in found.nodes]
    uid = model["metadata"]["uid"]
    return [
        Node(name, "", entry.get("bootID") or "", names.digest_labels(uid, reading.held(entry)))
        for name, entry in reading.node_entries(model).items()
    ]


def _told(pod: GatedPod, judged: _Judgement) -> tuple[str, str, str]:
    """Reason, sentence and style."""
    name = f"{pod.namespace}/{pod.name}"
    if isinstance(judged.verdict, Lift):
        text = (
            "may start: the operator opens the gate within seconds; if it doesn't, see whether it runs and may patch pods "
            "(kubectl get pods -A -l app.kubernetes.io/name=modelweights-operator)"
        )
        return judged.verdict.reason, f"{name} {text}", GOOD
    if judged.verdict.reason:
        return judged.verdict.reason, f"{name} waits: {judged.verdict.reason}: {judged.verdict.message}", WAITS
    unfit = [str(item) for item, model in judged.models.items() if model is None or not _offers(model)]
    if unfit:
        text = f"waits until it is staged: {', '.join(unfit)} (kubectl modelweights why NAME says what that waits for)"
        return "NotStaged", f"{name} {text}", BUSY
    return "NodeNotStaged", f"{name} waits: all is staged, but not on the node to which the pod is bound", WAITS


def _offers(model: StagedModel) -> bool:
    return bool(model.available and model.digest and model.holders)


def _row(item: Requirement, model: StagedModel | None, found: Gate) -> tuple[Cell, ...]:
    if model is None:
        return (
            Cell(str(item)),
            Cell("-"),
            Cell("-"),
            Cell("-"),
            Cell("it isn't there, or isn't for this namespace", WAITS),
        )
    offers = _offers(model)
    ready = reading.condition(found.models[item.model], "Ready")
    why = "" if offers else model.missing or f"{ready.get('reason', 'NotSeenYet')}: {ready.get('message', '')}"
    return (
        Cell(str(item)),
        Cell("True" if model.available else "False", GOOD if model.available else WAITS),
        Cell(reading.short(model.digest) or "-"),
        Cell(reading.some(sorted(model.holders)) or "none"),
        Cell(why, WAITS),
    )


def _as_data(item: Requirement, model: StagedModel | None) -> dict[str, Any]:
    if model is None:
        return {
            "model": str(item),
            "available": False,
            "digest": "",
            "nodes": [],
            "missing": "not found, or not allowed",
        }
    return {
        "model": str(item),
        "available": model.available,
        "digest": model.digest,
        "nodes": sorted(model.holders),
        "missing": model.missing,
    }
