"""The command `verify`: whether all records of what nodes hold say the same. Called by `cli`; pure.

No node is reached from here, so nothing is said of the bytes on its disk: these were hashed by the staging that proved them.
What is compared are the published digest, the status of each node, its label, its boot and the ConfigMap. A label that
promises what the status doesn't know would send pods to a node in vain.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kubectl_modelweights import reading
from kubectl_modelweights.gathered import Records
from kubectl_modelweights.reading import Json
from kubectl_modelweights.table import BAD, FAINT, GOOD, WAITS, Answer, Cell, Line, Table
from modelweights_operator.domain import names

_SAME: Final = "same"
_LIMIT: Final = (
    "compared are records, not the files: their hashes were taken by the staging that proved them on the node "
    "(modelweights-loader validate, run there, takes them again)"
)


@dataclass(frozen=True)
class Check:
    """One comparison; `differs` says that something is wrong, and not just under way."""

    subject: str
    digest: str
    finding: str
    differs: bool = False


def compare(found: Records, expected: str = "") -> list[Check]:
    """Compare the records.

    Args:
        found: What was read.
        expected: The digest that the person knows it to be, "" for none.
    """
    model = found.model
    digest = str(reading.published(model).get("manifestDigest") or "")
    if not digest:
        return [Check("published", "", "nothing is published as yet", differs=True)]
    checks = [_published(digest, expected)]
    seen, generation = (
        int(reading.status(model).get("observedGeneration") or 0),
        int(model["metadata"].get("generation") or 0),
    )
    if seen < generation:
        checks.append(Check("spec", "", f"the operator hasn't looked at generation {generation} yet"))
    if found.config_map is not None:
        named = (found.config_map["metadata"].get("annotations") or {}).get(names.DIGEST_ANNOTATION, "")
        same = named == digest
        checks.append(Check("configmap", named, _SAME if same else "another than is published", differs=not same))
    nodes = None if found.nodes is None else {node["metadata"]["name"]: node for node in found.nodes}
    checks += [_node(model, digest, name, entry, nodes) for name, entry in reading.node_entries(model).items()]
    return checks + _strangers(model, nodes)


def _published(digest: str, expected: str) -> Check:
    if not expected:
        return Check("published", digest, "what pods start with")
    same = digest.removeprefix("sha256:").startswith(expected.removeprefix("sha256:"))
    return Check("published", digest, "as expected" if same else f"not {reading.short(expected)}", differs=not same)


def _node(model: Json, digest: str, name: str, entry: Json, nodes: Mapping[str, Json] | None) -> Check:
    held = reading.held(entry)
    proven = held[0] if held else ""
    if nodes is not None:
        node = nodes.get(name)
        if node is None:
            return Check(f"node {name}", proven, "the node is gone; the status will follow")
        boot = ((node.get("status") or {}).get("nodeInfo") or {}).get("bootID", "")
        if held and boot != entry.get("bootID", ""):
            return Check(f"node {name}", proven, "proven before its last boot: it is staged again")
        label = _label(model, held, node)
        if label:
            return Check(f"node {name}", proven, label, differs=True)
    if digest in held:
        return Check(f"node {name}", digest, _SAME if proven == digest else f"{_SAME}, beside {reading.short(proven)}")
    if entry["state"] == "Ready":
        return Check(f"node {name}", proven, "ready, but with another checkpoint than is published", differs=True)
    return Check(f"node {name}", proven, f"holds another, or none, and is {entry['state']}: {entry.get('reason', '')}")


def _label(model: Json, held: list[str], node: Json) -> str:
    """What is wrong with a node's labels, "" for nothing: they are the ones of what it holds."""
    uid = model["metadata"]["uid"]
    wanted = names.digest_labels(uid, held)
    labels = names.labels_by_owner(node["metadata"].get("labels") or {})
    there = labels.get(names.node_label_owner(uid), {})
    missing, more = wanted.keys() - there.keys(), there.keys() - wanted.keys()
    if more:
        return f"its label promises {', '.join(sorted(there[key][:12] for key in more))}, which the status doesn't know"
    if missing and labels:
        return f"its label for {', '.join(sorted(wanted[key][:12] for key in missing))} is missing"
    return ""


def _strangers(model: Json, nodes: Mapping[str, Json] | None) -> list[Check]:
    """Nodes that the status doesn't have, and whose label says that they hold it."""
    known = reading.node_entries(model)
    return [
        Check(f"node {name}", "", label, differs=True)
        for name, node in (nodes or {}).items()
        if name not in known and (label := _label(model, [], node))
    ]


def answer(found: Records, expected: str = "") -> Answer:
    """For people and programs; exit code 1 when something differs."""
    checks = compare(found, expected)
    differs = sum(check.differs for check in checks)
    rows = tuple(_row(check) for check in checks)
    verdict = f"{differs} of {len(checks)} records differ" if differs else "all records agree"
    blocks: list[Table | Line] = [Table(("RECORD", "DIGEST", "FINDING"), rows), Line("")]
    blocks += [
        Line(f"{reading.name(found.model)}: {verdict}", style=BAD if differs else GOOD),
        Line(_LIMIT, style=FAINT),
    ]
    blocks += [Line(text, "unread", FAINT) for text in found.unread]
    data: dict[str, Any] = {
        "agrees": not differs,
        "records": [
            {"record": each.subject, "digest": each.digest, "finding": each.finding, "differs": each.differs}
            for each in checks
        ],
        "unread": list(found.unread),
    }
    return Answer(tuple(blocks), data, exit_code=1 if differs else 0)


def _row(check: Check) -> tuple[Cell, ...]:
    style = BAD if check.differs else GOOD if check.finding.startswith(_SAME) else WAITS
    return (Cell(check.subject), Cell(reading.short(check.digest) or "-"), Cell(check.finding, style))
