"""The command `top`: what all ModelWeights that one may read hold on each node. Called by `cli`; pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kubectl_modelweights import reading
from kubectl_modelweights.reading import Json
from kubectl_modelweights.table import BAD, FAINT, GOOD, WAITS, Answer, Cell, Line, Table
from modelweights_operator.api.quantity import to_bytes

_WHOLE: Final = 100


@dataclass
class _Usage:
    models: int = 0
    ready: int = 0
    failed: int = 0
    resident: int = 0
    fetched: int = 0
    unknown: int = 0
    free: int | None = None


def answer(models: Sequence[Json], nodes: Sequence[Json] | None, unread: str) -> Answer:
    """One row for each node.

    Args:
        models: Those that may be read.
        nodes: All nodes, None where they may not be read.
        unread: Why not, "" if they are.
    """
    used: dict[str, _Usage] = {}
    for model in models:
        for name, entry in reading.node_entries(model).items():
            _add(used.setdefault(name, _Usage()), model, entry)
    memory = {node["metadata"]["name"]: _memory_bytes(node) for node in nodes or ()}
    rows = tuple(_row(name, usage, memory.get(name, 0)) for name, usage in sorted(used.items()))
    headings = ("NODE", "MODELS", "READY", "FAILED", "RESIDENT", "MEMORY", "FETCHED", "DISK FREE")
    blocks: list[Table | Line] = [Table(headings, rows) if rows else Line("no ModelWeights is on any node")]
    if any(usage.unknown for usage in used.values()):
        blocks.append(Line("+: and checkpoints of which only the digest is known, not the size", style=FAINT))
    if unread:
        blocks.append(Line(unread, "unread", FAINT))
    data = [
        {
            "node": name,
            "models": usage.models,
            "ready": usage.ready,
            "failed": usage.failed,
            "residentBytes": usage.resident,
            "memoryBytes": memory.get(name),
            "fetchedBytes": usage.fetched,
            "checkpointsOfUnknownSize": usage.unknown,
            "diskFreeBytes": usage.free,
        }
        for name, usage in sorted(used.items())
    ]
    return Answer(tuple(blocks), {"nodes": data, "unread": [unread] if unread else []})


def _add(usage: _Usage, model: Json, entry: Json) -> None:
    usage.models += 1
    usage.ready += entry["state"] == "Ready"
    usage.failed += entry["state"] == "Failed"
    usage.resident += int(entry.get("residentBytes") or 0)
    if "diskFreeBytes" in entry:
        free = int(entry["diskFreeBytes"])
        usage.free = free if usage.free is None else min(usage.free, free)
    if not _is_fetched(model["spec"]):
        return
    sizes = reading.sizes(model)
    for digest in [*reading.held(entry), *(entry.get("leftovers") or [])]:
        usage.fetched += sizes.get(digest, 0)
        usage.unknown += not sizes.get(digest)


def _is_fetched(spec: Json) -> bool:
    """Whether its files lie on the node because the operator brought them there."""
    source = spec.get("source") or {}
    return "storage" in spec or "huggingFace" in source or "objectStore" in source


def _memory_bytes(node: Json) -> int:
    text = str(((node.get("status") or {}).get("capacity") or {}).get("memory") or "")
    try:
        return to_bytes(text)
    except ValueError:
        return 0


def _row(name: str, usage: _Usage, memory: int) -> tuple[Cell, ...]:
    part = usage.resident / memory if memory else None
    percent = f" {int(part * _WHOLE)} %" if part is not None else ""
    return (
        Cell(name),
        Cell(str(usage.models)),
        Cell(str(usage.ready), GOOD if usage.ready == usage.models else WAITS),
        Cell(str(usage.failed), BAD if usage.failed else FAINT),
        Cell(f"{reading.size(usage.resident)}{percent}", "", part),
        Cell(reading.size(memory)),
        Cell(reading.size(usage.fetched) + ("+" if usage.unknown else "")),
        # The status has it only while there is no room.
        Cell(
            "-" if usage.free is None else (reading.size(usage.free) if usage.free else "0"),
            "" if usage.free is None else BAD,
        ),
    )
