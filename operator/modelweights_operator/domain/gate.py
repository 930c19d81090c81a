"""Whether a pod that waits at our scheduling gate may start, and by which patch. Called by the gate's reconciler; pure.

The gate only ever opens towards nodes that hold what the pod requires: after the lift nothing of a pod's affinity can be
changed, so the requirement is a node label (kept true by the operator) and not a list of nodes. A pod that is bound to
one node already, as a DaemonSet's, waits for that very node.
"""

import contextlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from modelweights_operator.domain import names, provision

HOSTNAME_LABEL: Final = "kubernetes.io/hostname"
MAX_REQUIREMENTS: Final = 16

_NAME: Final = re.compile(r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$")
_REVISION: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._/+@#:-]{0,254}", re.ASCII)
"""Whatever a source's revision may be, and digests."""
_LONG_AGO: Final = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True, order=True)
class Requirement:
    """A ModelWeights that a pod requires: a revision of it, or with "" the one that is published when the gate opens."""

    namespace: str
    name: str
    revision: str = ""

    @property
    def model(self) -> tuple[str, str]:
        """Namespace and name of the ModelWeights."""
        return self.namespace, self.name

    def __str__(self) -> str:
        """As people write it."""
        return f"{self.namespace}/{self.name}" + (f"@{self.revision}" if self.revision else "")


@dataclass(frozen=True)
class Group:
    """Pods of one namespace that belong together: those with all of these labels."""

    labels: tuple[tuple[str, str], ...]

    @property
    def selector(self) -> str:
        """As the API server takes it. No pod has such a name."""
        return ",".join(f"{key}={value}" for key, value in self.labels)


@dataclass(frozen=True)
class GatedPod:
    """A pod that has our gate.

    `terms` are the terms of its required node affinity as they stand, None without one; `preferred` those of the preferred
    one. `waits_itself`: an init container of it waits on the node. `group_size` is what its annotation says, "" for nothing.
    """

    namespace: str
    name: str
    uid: str
    resource_version: str
    require: str
    terms: tuple[Mapping[str, Any], ...] | None = None
    preferred: tuple[Mapping[str, Any], ...] = ()
    waits_itself: bool = False
    group: Group | None = None
    group_size: str = ""
    created_at: datetime = _LONG_AGO


@dataclass(frozen=True)
class StagedModel:
    """What the gate needs to know of a ModelWeights, and of the revision of it that is required.

    Attributes:
        uid: Its UID, of which the node label is made.
        available: Whether pods may start with the revision: for the published one, what its Available condition says, as
            written to the API, for its present UID; for a previous one, whether it is there still.
        digest: Digest of the checkpoint, "" for none.
        path: Where it lies, "" where that isn't known.
        holders: Names of the nodes whose label says that they hold it, each with its hostname label.
        missing: Why the revision isn't there, nor going to be; "" when it is, or may soon be.
        provisions: Whether pods that wait on the node themselves start before it is staged.
        selects_none: Whether no node is selected.
    """

    uid: str
    available: bool
    digest: str
    holders: Mapping[str, str]
    path: str = ""
    missing: str = ""
    provisions: bool = False
    selects_none: bool = False


@dataclass(frozen=True)
class Lift:
    """The pod may start: the strategic merge patch that opens the gate, and reason and message of the event."""

    patch: Mapping[str, Any]
    reason: str = "Staged"
    message: str = "the weights are staged: the pod may be scheduled"


@dataclass(frozen=True)
class Wait:
    """The pod waits. With a reason it is told on the pod why that won't end by itself."""

    reason: str = ""
    message: str = ""


Verdict = Lift | Wait


class RequireError(ValueError):
    """The annotation can't be understood; the message says how it is written."""


def parse_require(pod: GatedPod) -> tuple[Requirement, ...]:
    """Read the pod's annotation `modelweights.io/require`, see `parse`."""
    return parse(pod.require, pod.namespace)


def requirements(pods: Iterable[GatedPod]) -> list[Requirement]:
    """What several pods require, each once; a pod whose annotation can't be read requires nothing."""
    found: dict[Requirement, None] = {}
    for pod in pods:
        with contextlib.suppress(RequireError):
            found |= dict.fromkeys(parse_require(pod))
    return list(found)


def parse(require: str, namespace: str) -> tuple[Requirement, ...]:
    """Read what a pod of a namespace requires.

    Returns:
        The requirements in the order in which they stand, each once.

    Raises:
        RequireError: It is empty or malformed.
    """
    if len(require) > names.MAX_REQUIRE_LENGTH:
        raise RequireError(
            f"annotation {names.REQUIRE_ANNOTATION} is longer than {names.MAX_REQUIRE_LENGTH} characters: shorten it"
        )
    parts = [part.strip() for part in require.split(",") if part.strip()]
    if not parts:
        raise RequireError(f"annotation {names.REQUIRE_ANNOTATION} is missing or empty: name a ModelWeights in it")
    if len(parts) > MAX_REQUIREMENTS:
        raise RequireError(f"annotation {names.REQUIRE_ANNOTATION} names more than {MAX_REQUIREMENTS}")
    return tuple(dict.fromkeys(_parse_one(part, namespace) for part in parts))


def requires(require: str, namespace: str, model: tuple[str, str]) -> bool:
    """Whether a pod of a namespace requires a ModelWeights, by its namespace and name; what can't be read requires none."""
    try:
        return any(requirement.model == model for requirement in parse(require, namespace))
    except RequireError:
        return False


def _parse_one(text: str, namespace: str) -> Requirement:
    model, at, revision = text.partition("@")
    before, slash, name = model.rpartition("/")
    found = Requirement(before if slash else namespace, name, revision)
    fits = _NAME.match(found.namespace) and _NAME.match(found.name)
    if not fits or (at and not _REVISION.fullmatch(revision)):
        raise RequireError(f"{text!r} is not [namespace/]name[@revision] of a ModelWeights")
    return found


def decide(
    pod: GatedPod,
    models: Mapping[Requirement, StagedModel | None],
    *,
    label_nodes: bool,
) -> Verdict:
    """Decide about one pod.

    Args:
        pod: The pod.
        models: Each ModelWeights that it requires, with the revision that is; None for one that doesn't exist, or that is
            of another namespace and not for this one.
        label_nodes: Whether the operator may label nodes; else the lift names the nodes that are ready now.
    """
    try:
        required = parse_require(pod)
    except RequireError as error:
        return Wait("RequireInvalid", str(error))
    for requirement in required:
        refusal = _refuse(pod, requirement, models.get(requirement))
        if refusal is not None:
            return refusal
    found = {item: model for item in required if (model := models[item]) is not None}
    needed = {item: model for item, model in found.items() if not (model.provisions and pod.waits_itself)}
    for item, model in needed.items():
        if not (model.available and model.digest and model.holders):
            return _explain(item, model)
    return _open(pod, list(found.values()), list(needed.values()), label_nodes=label_nodes)


def _explain(requirement: Requirement, model: StagedModel) -> Wait:
    if not (model.provisions or model.selects_none):
        return Wait()
    return Wait(*provision.why_not("/".join(requirement.model), provisions=model.provisions))


def _open(pod: GatedPod, found: list[StagedModel], needed: list[StagedModel], *, label_nodes: bool) -> Verdict:
    """Towards nodes that hold what is needed; for the rest the pod waits itself, preferably where it needn't."""
    if pod.terms is not None and not all(_is_filled(term) for term in pod.terms):
        return Wait(
            "AffinityUnsupported", "the pod's node affinity has an empty term, which can't be narrowed: remove it"
        )
    if not _pinned_nodes_hold(pod, needed):
        return Wait()
    expressions = _by_label(needed) if label_nodes else _by_hostname(needed)
    if needed and not expressions:
        return Wait()
    others = [model for model in found if model not in needed and model.digest]
    preferred = provision.preferences(_by_label(others)) if label_nodes else []
    patch = _patch(pod, found, expressions, preferred)
    return Lift(patch, *provision.EVENT) if len(needed) < len(found) else Lift(patch)


def _refuse(pod: GatedPod, requirement: Requirement, model: StagedModel | None) -> Wait | None:
    if model is None and requirement.namespace != pod.namespace:
        # One answer to both questions: who may not require it isn't told whether it is there.
        return Wait(
            "RequireNotAllowed",
            f"ModelWeights {'/'.join(requirement.model)} is of another namespace, which has none of that name, or none whose "
            f"spec.access lets the namespace {pod.namespace} require it (this needs the chart's access.enabled, too)",
        )
    if model is None:
        return Wait(
            "RequireNotFound",
            f"ModelWeights {'/'.join(requirement.model)} doesn't exist: create it, or correct the annotation",
        )
    if model.missing:
        return Wait("RevisionNotFound", f"ModelWeights {requirement}: {model.missing}; the pod waits until it is")
    return None


def _is_filled(term: Mapping[str, Any]) -> bool:
    return bool(term.get("matchExpressions") or term.get("matchFields"))


def _pinned_nodes_hold(pod: GatedPod, staged: list[StagedModel]) -> bool:
    """The nodes to which the pod's terms bind it must each hold everything."""
    pinned = {node for term in pod.terms or () for node in _pinned_to(term)}
    return all(node in model.holders for node in pinned for model in staged)


def _pinned_to(term: Mapping[str, Any]) -> list[str]:
    """The nodes to which a term binds the pod by name. One that only keeps it away from a node binds it to none."""
    return [
        value
        for requirement in term.get("matchFields") or ()
        if requirement.get("operator") == "In"
        for value in requirement.get("values") or ()
    ]


def _by_label(staged: list[StagedModel]) -> list[dict[str, Any]]:
    return [
        {"key": key, "operator": "In", "values": [value]}
        for model in staged
        for key, value in names.digest_labels(model.uid, [model.digest]).items()
    ]


def _by_hostname(staged: list[StagedModel]) -> list[dict[str, Any]]:
    """The price of the fallback: the pod stays bound to the nodes that are ready now, even when these vanish."""
    if not staged:
        return []
    common = set.intersection(*(set(model.holders.values()) for model in staged)) - {""}
    return [{"key": HOSTNAME_LABEL, "operator": "In", "values": sorted(common)}] if common else []


def _patch(
    pod: GatedPod, staged: list[StagedModel], expressions: list[dict[str, Any]], preferred: list[dict[str, Any]]
) -> dict[str, Any]:
    """Gate, affinity and annotations in one, bound to the version of the pod on which it was decided.

    The gate goes by its name: an index could be another controller's by now.
    """
    terms = [_narrow(term, expressions) for term in pod.terms or ({},)] if expressions else list(pod.terms or ())
    spec: dict[str, Any] = {"schedulingGates": [{"$patch": "delete", "name": names.GATE}]}
    affinity: dict[str, Any] = {}
    if terms != list(pod.terms or ()):
        affinity["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": terms}
    if preferred:
        affinity["preferredDuringSchedulingIgnoredDuringExecution"] = [*pod.preferred, *preferred]
    if affinity:
        spec["affinity"] = {"nodeAffinity": affinity}
    return {
        "metadata": {
            "uid": pod.uid,
            "resourceVersion": pod.resource_version,
            "annotations": {
                names.DIGEST_ANNOTATION: ",".join(model.digest for model in staged),
                names.PATH_ANNOTATION: ",".join(model.path for model in staged),
            },
        },
        "spec": spec,
    }


def _narrow(term: Mapping[str, Any], expressions: list[dict[str, Any]]) -> dict[str, Any]:
    if _pinned_to(term):
        return dict(term)
    return {**term, "matchExpressions": [*(term.get("matchExpressions") or ()), *expressions]}
