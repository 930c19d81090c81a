"""What a ModelWeights' JSON says, in the pieces that answers are made of. Called by the pure modules beside it.

Read as it comes over the wire and not through the API's models: these take half a second to import.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from modelweights_operator.domain.sizes import human_bytes

Json = Mapping[str, Any]


def name(model: Json) -> str:
    """Namespace and name, as people write it."""
    return f"{model['metadata']['namespace']}/{model['metadata']['name']}"


def status(model: Json) -> Json:
    """Its status, empty before the first."""
    return model.get("status") or {}


def node_entries(model: Json) -> dict[str, Json]:
    """What is known of each node, by its name and in that order."""
    return dict(sorted((status(model).get("nodes") or {}).items()))


def condition(model: Json, kind: str) -> Json:
    """A condition, empty when it isn't there."""
    return next((each for each in status(model).get("conditions") or [] if each.get("type") == kind), {})


def holds(model: Json, kind: str) -> bool:
    """Whether a condition is true."""
    return condition(model, kind).get("status") == "True"


def published(model: Json) -> Json:
    """The checkpoint that pods may start with, empty before the first."""
    return status(model).get("published") or {}


def summary(model: Json) -> Json:
    """Counts of nodes."""
    return status(model).get("summary") or {}


def sizes(model: Json) -> dict[str, int]:
    """Bytes of each checkpoint that is known, by its digest."""
    found = status(model)
    known = [*(found.get("previous") or []), found.get("candidate") or {}, found.get("published") or {}]
    return {each["manifestDigest"]: int(each.get("sizeBytes") or 0) for each in known if each.get("manifestDigest")}


def held(entry: Json) -> list[str]:
    """The digests that a node proved and has, the latest first."""
    return [digest for digest in (entry.get("manifestDigest"), *(entry.get("otherDigests") or [])) if digest]


def short(digest: str) -> str:
    """A digest for people."""
    return digest.removeprefix("sha256:")[:12]


def size(size_bytes: int) -> str:
    """Bytes for people, - for none."""
    return human_bytes(size_bytes) or "-"


def some(items: Sequence[str], most: int = 3) -> str:
    """The first few names, and how many more there are."""
    more = len(items) - most
    return ", ".join(items[:most]) + (f" and {more} more" if more > 0 else "")
