"""What was read of the cluster for one answer. Called by `cli`; the values go to the pure modules beside it.

What a person may not read is left out and said in `unread`, so that a viewer gets as much of an answer as the rights allow.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from kubectl_modelweights import refusals
from kubectl_modelweights.client import RESOURCE, Client, Json
from kubectl_modelweights.errors import CommandError
from modelweights_operator.domain import names


@dataclass(frozen=True)
class Surroundings:
    """A ModelWeights and what belongs to it.

    Attributes:
        model: The object.
        jobs: Its staging Jobs.
        pods: Their pods.
        events: All events of its namespace.
        unread: What couldn't be read, and why.
    """

    model: Json
    jobs: tuple[Json, ...] = ()
    pods: tuple[Json, ...] = ()
    events: tuple[Json, ...] = ()
    unread: tuple[str, ...] = ()


@dataclass(frozen=True)
class Records:
    """A ModelWeights and where else it is said what nodes hold; None for what couldn't be read."""

    model: Json
    nodes: tuple[Json, ...] | None = None
    config_map: Json | None = None
    unread: tuple[str, ...] = ()


@dataclass(frozen=True)
class Gate:
    """A pod and what decides whether it starts.

    Attributes:
        pod: The pod.
        members: The pods of its group, itself among them; empty for a pod that is of none.
        models: What they require, by namespace and name; left out where there is none, or none that may be read.
        nodes: All nodes, None where they may not be read.
        namespace_labels: Of the pod's namespace, None where they weren't read.
        unread: What couldn't be read, and why.
    """

    pod: Json
    members: tuple[Json, ...]
    models: dict[tuple[str, str], Json]
    nodes: tuple[Json, ...] | None
    namespace_labels: dict[str, str] | None
    unread: tuple[str, ...]


def model(client: Client, name: str) -> Json:
    """One ModelWeights.

    Raises:
        CommandError: It can't be had; where there is none, with names that are near.
    """
    return _one(client, RESOURCE, name, "ModelWeights")


def models(client: Client, *, everywhere: bool) -> list[Json]:
    """All of a namespace, or of all namespaces."""
    return client.items(RESOURCE, *(["--all-namespaces"] if everywhere else []))


def surroundings(client: Client, name: str) -> Surroundings:
    """A ModelWeights with its Jobs, pods and events."""
    found = model(client, name)
    there = Client(client.options, found["metadata"]["namespace"])
    selector = f"--selector={names.OWNER_LABEL}={found['metadata']['uid']}"
    with ThreadPoolExecutor() as pool:
        work = pool.submit(there.readable, "jobs.batch,pods", selector)
        told = pool.submit(there.readable, "events")
    objects, no_objects = work.result()
    events, no_events = told.result()
    return Surroundings(
        model=found,
        jobs=tuple(each for each in objects if each["kind"] == "Job"),
        pods=tuple(each for each in objects if each["kind"] == "Pod"),
        events=tuple(events),
        unread=tuple(filter(None, (no_objects, no_events))),
    )


def records(client: Client, name: str) -> Records:
    """A ModelWeights with its ConfigMap, and the nodes."""
    found = model(client, name)
    there = Client(client.options, found["metadata"]["namespace"])
    with ThreadPoolExecutor() as pool:
        listing = pool.submit(nodes, there)
        reading = pool.submit(_maybe, there, "configmap", name)
    listed, no_nodes = listing.result()
    config_map, no_settings = reading.result()
    return Records(found, listed, config_map, tuple(filter(None, (no_nodes, no_settings))))


def settings(client: Client, name: str) -> tuple[Json, Json | None]:
    """A ModelWeights and the ConfigMap of its name, None for none.

    Raises:
        CommandError: One of them may not be read.
    """
    found = model(client, name)
    config_map, said = _maybe(Client(client.options, found["metadata"]["namespace"]), "configmap", name)
    if said:
        raise CommandError(said)
    return found, config_map


def nodes(client: Client) -> tuple[tuple[Json, ...] | None, str]:
    """All nodes; None and why, where they may not be read."""
    found, said = client.readable("nodes")
    return (None if said else tuple(found)), said


def pod(client: Client, name: str) -> Json:
    """A pod.

    Raises:
        CommandError: It can't be had; where there is none, with names that are near.
    """
    return _one(client, "pods", name.removeprefix("pod/").removeprefix("pods/"), "pod")


def _one(client: Client, resource: str, name: str, kind: str) -> Json:
    try:
        return client.get(resource, name)
    except CommandError as error:
        if not refusals.is_not_found(str(error)):
            raise
        found, _ = client.readable(resource)
        hint = refusals.near(name, (each["metadata"]["name"] for each in found))
        raise CommandError(f"there is no {kind} {name} here: {hint}") from error


def at_gate(client: Client, name: str) -> Gate:
    """A pod at the gate, its group, what they require, and the nodes."""
    from modelweights_operator.domain import convert, gate, groups  # noqa: PLC0415 - takes its time

    found = pod(client, name)
    namespace = found["metadata"]["namespace"]
    there = Client(client.options, namespace)
    group = groups.group_of(found["metadata"].get("labels") or {})
    members = there.items("pods", f"--selector={group.selector}") if group else []
    waiting = filter(None, map(convert.gated_pod, (found, *members)))
    wanted = dict.fromkeys(item.model for item in gate.requirements(waiting))
    unread = []
    known = {}
    for model_namespace, model_name in wanted:
        body, said = _maybe(Client(client.options, model_namespace), RESOURCE, model_name)
        if body is not None:
            known[model_namespace, model_name] = body
        unread.append(said)
    listed, said = nodes(there)
    unread.append(said)
    labels = None
    if any(model_namespace != namespace for model_namespace, _ in wanted):
        body, said = _maybe(there, "namespace", namespace)
        labels = None if body is None else dict(body["metadata"].get("labels") or {})
        unread.append(said)
    return Gate(found, tuple(members), known, listed, labels, tuple(filter(None, unread)))


def _maybe(client: Client, kind: str, name: str) -> tuple[Json | None, str]:
    """An object, None for none; and why it couldn't be read."""
    try:
        return client.get(kind, name), ""
    except CommandError as error:
        return None, "" if refusals.is_not_found(str(error)) else str(error)
