"""The command `why`: what keeps a ModelWeights from being ready, in the order in which to mend it. Called by `cli`; pure.

    object (being deleted, unseen, stalled by itself) -> nodes that failed -> nodes that wait -> nodes at work

The operator's messages are repeated, not told anew: they name the file, the quota or the node.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from kubectl_modelweights import reading, remedies
from kubectl_modelweights.gathered import Surroundings
from kubectl_modelweights.reading import Json
from kubectl_modelweights.table import BAD, FAINT, GOOD, WAITS, Answer, Block, Line
from modelweights_operator.domain import names

_OF_THE_OBJECT: Final = frozenset(
    {
        "InvalidSpec",
        "PathNotAllowed",
        "StorageClassNotFound",
        "NoNodes",
        "TooManyNodes",
        "ConfigMapConflict",
        "WriteRefused",
        "Suspended",
        "CanaryFailed",
    }
)
"""Reasons of Ready that no node has alone."""
_ORDER: Final = ("Failed", "Waiting", "Staging")
_FOLLOW: Final = frozenset({"WaitsForCanary", "Suspended"})
"""Reasons of nodes that another cause, told before, has."""
_NUMBERS: Final = re.compile(r"\d+")


@dataclass(frozen=True)
class Cause:
    """One thing that stands in the way.

    Attributes:
        reason: In one word.
        message: The operator's words.
        remedy: What to do.
        nodes: Where; empty for all of it.
        look: Commands that show more.
        state: Of these nodes.
    """

    reason: str
    message: str
    remedy: str
    nodes: tuple[str, ...] = ()
    look: tuple[str, ...] = ()
    state: str = ""


@dataclass(frozen=True)
class Explanation:
    """Why a ModelWeights is as it is: one sentence, causes with the most pressing first, and events that say more."""

    verdict: str
    is_ready: bool
    causes: tuple[Cause, ...] = ()
    events: tuple[str, ...] = ()
    unread: tuple[str, ...] = field(default=())


def why(found: Surroundings) -> Explanation:
    """Explain it."""
    model = found.model
    causes = _object_causes(model)
    if not any(cause.reason == "NotSeenYet" for cause in causes):
        causes += _node_causes(found, told={cause.reason for cause in causes})
    said = " ".join(cause.message for cause in causes)
    return Explanation(
        verdict=_verdict(model),
        is_ready=reading.holds(model, "Ready") and not causes,
        causes=tuple(_named(cause, model["metadata"]["name"]) for cause in causes),
        events=tuple(_events(found, said)) if causes else (),
        unread=found.unread,
    )


def _verdict(model: Json) -> str:
    available, ready = reading.condition(model, "Available"), reading.condition(model, "Ready")
    if not ready:
        return f"{reading.name(model)} has no status yet"
    word = (
        "is ready"
        if reading.holds(model, "Ready")
        else "is stalled"
        if reading.holds(model, "Stalled")
        else "isn't ready"
    )
    ratio = f" ({reading.summary(model).get('readyRatio', '0/0')} nodes)"
    return f"{reading.name(model)} {word}{ratio}; {available.get('message') or 'pods wait'}"


def _object_causes(model: Json) -> list[Cause]:
    causes = []
    metadata, ready = model["metadata"], reading.condition(model, "Ready")
    if "deletionTimestamp" in metadata:
        kept = ", ".join(metadata.get("finalizers") or []) or "nothing"
        message = f"it is being deleted since {metadata['deletionTimestamp']}; kept by: {kept}"
        causes.append(
            Cause("Deleting", message, "wait until the files are gone from the nodes; its events say how far that is")
        )
    seen = int(reading.status(model).get("observedGeneration") or 0)
    if not ready or seen < int(metadata.get("generation") or 0):
        message = f"the operator hasn't looked at the present spec yet (generation {metadata.get('generation', 0)}, seen {seen})"
        look = ("kubectl get pods -A -l app.kubernetes.io/name=modelweights-operator",)
        return [
            *causes,
            Cause(
                "NotSeenYet", message, "if that lasts for more than seconds, see whether the operator runs", look=look
            ),
        ]
    if ready.get("reason") in _OF_THE_OBJECT and not reading.holds(model, "Ready"):
        reason = str(ready["reason"])
        causes.append(Cause(reason, str(ready.get("message", "")), remedies.remedy(reason)))
    return causes


def _node_causes(found: Surroundings, told: set[str]) -> list[Cause]:
    """Nodes with the same trouble are told together; numbers in a message, as of bytes, make no other trouble."""
    alike: dict[tuple[str, str, str], list[str]] = {}
    entries = reading.node_entries(found.model)
    for name, entry in entries.items():
        if entry["state"] == "Ready" and not entry.get("message"):
            continue
        reason = entry.get("reason") or entry["state"]
        if reason in _FOLLOW and told & {reason, "CanaryFailed"}:
            continue
        pattern = _NUMBERS.sub("#", _without(name, str(entry.get("message") or "")))
        alike.setdefault((entry["state"], reason, pattern), []).append(name)
    groups = sorted(alike.items(), key=lambda each: (_rank(each[0][0]), -len(each[1]), each[1]))
    return [_node_cause(found, state, reason, nodes, entries) for (state, reason, _), nodes in groups]


def _without(name: str, message: str) -> str:
    """A message without the node's name, where that stands for itself."""
    return re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])", "", message)


def _rank(state: str) -> int:
    return _ORDER.index(state) if state in _ORDER else len(_ORDER)


def _node_cause(
    found: Surroundings, state: str, reason: str, nodes: Sequence[str], entries: Mapping[str, Json]
) -> Cause:
    entry = entries[nodes[0]]
    attempts = max(int(entries[name].get("attempts") or 0) for name in nodes)
    message = str(entry.get("message") or _WORDS.get(state, ""))
    percent = entry.get("progressPercent")
    if percent is not None:
        message += f" ({percent} % of this step)"
    if attempts:
        message += f" (failed {attempts} time{'s' if attempts > 1 else ''})"
    return Cause(
        reason=reason,
        message=message,
        remedy=remedies.remedy(reason, int(entry.get("exitCode") or 0)),
        nodes=tuple(nodes),
        look=tuple(_look(found, nodes[0])),
        state=state,
    )


_WORDS: Final = {"Staging": "the staging Job runs", "Waiting": "it waits for its turn", "Failed": "the staging failed"}


def _look(found: Surroundings, node: str) -> list[str]:
    """The log of the step that failed, or runs."""
    jobs = {
        job["metadata"]["uid"]
        for job in found.jobs
        if (job["metadata"].get("annotations") or {}).get(names.NODE_ANNOTATION) == node
    }
    pods = [
        pod for pod in found.pods if jobs & {owner["uid"] for owner in pod["metadata"].get("ownerReferences") or []}
    ]
    commands = []
    for pod in sorted(pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp")), reverse=True)[:1]:
        metadata = pod["metadata"]
        step = _telling_step(pod)
        what = f"logs {metadata['name']} -c {step}" if step else f"describe pod {metadata['name']}"
        commands.append(f"kubectl -n {metadata['namespace']} {what}")
    return commands


def _telling_step(pod: Json) -> str:
    """The container that failed, or else the one that runs; "" for none."""
    status = pod.get("status") or {}
    states = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    for kind in ("terminated", "running"):
        for each in states:
            state = (each.get("state") or {}).get(kind)
            if state is not None and (kind == "running" or state.get("exitCode")):
                return str(each["name"])
    return ""


def _events(found: Surroundings, said: str) -> list[str]:
    """The latest warnings about it, its Jobs and pods that say something else than the causes do."""
    ours = {each["metadata"]["uid"] for each in (found.model, *found.jobs, *found.pods)}
    warnings = [
        event
        for event in found.events
        if event.get("type") == "Warning" and (event.get("involvedObject") or {}).get("uid") in ours
    ]
    texts: dict[str, None] = {}
    for event in sorted(warnings, key=_moment, reverse=True):
        message = " ".join(str(event.get("message") or "").split())
        if message and not _repeats(message, said):
            about = event["involvedObject"]
            texts[f"{about['kind']} {about['name']}: {event.get('reason')}: {message}"] = None
    return list(texts)[:3]


def _repeats(message: str, said: str) -> bool:
    # The operator's events begin with the node's name.
    return message in said or (message.partition(": ")[2] or message) in said


def _moment(event: Json) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or event["metadata"].get("creationTimestamp") or "")


def _named(cause: Cause, name: str) -> Cause:
    filled = cause.remedy.replace("NAME", name).replace("NODE", cause.nodes[0] if cause.nodes else "NODE")
    return replace(cause, remedy=filled)


def answer(explanation: Explanation) -> Answer:
    """For people and programs."""
    style = GOOD if explanation.is_ready else WAITS
    blocks: list[Block] = [Line(explanation.verdict, style=style)]
    for cause in explanation.causes:
        blocks += [Line(""), *_cause_lines(cause)]
    blocks += [Line(text, "event", FAINT) for text in explanation.events]
    blocks += [Line(text, "unread", FAINT) for text in explanation.unread]
    data: dict[str, Any] = {key: _listed(value) for key, value in asdict(explanation).items() if key != "is_ready"}
    return Answer(tuple(blocks), {"ready": explanation.is_ready, **data})


def _cause_lines(cause: Cause) -> list[Line]:
    where = f"{reading.some(cause.nodes)}: " if cause.nodes else ""
    lines = [
        Line(f"{where}{cause.reason}: {cause.message}", "cause", BAD if cause.state == "Failed" else ""),
        Line(cause.remedy, "remedy"),
    ]
    return lines + [Line(command, "look at", FAINT) for command in cause.look]


def _listed(value: Any) -> Any:
    """Tuples as lists, which every format has."""
    if isinstance(value, dict):
        return {key: _listed(each) for key, each in value.items()}
    return [_listed(each) for each in value] if isinstance(value, (list, tuple)) else value
