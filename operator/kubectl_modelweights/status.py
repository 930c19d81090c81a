"""The command `status`: each model, and where each node stands. Called by `cli` and `watching`; pure."""

from collections.abc import Sequence
from typing import Any, Final

from kubectl_modelweights import reading
from kubectl_modelweights.reading import Json
from kubectl_modelweights.table import BAD, BUSY, FAINT, GOOD, WAITS, Answer, Cell, Line, Table

_STYLES: Final = {"Ready": GOOD, "Staging": BUSY, "Waiting": WAITS, "Failed": BAD}
_ORDER: Final = {"Failed": 0, "Staging": 1, "Waiting": 2, "Ready": 3}
_WHOLE: Final = 100


def one(model: Json) -> Answer:
    """A model with all its nodes."""
    blocks: list[Table | Line] = [_models_table([model], everywhere=False), Line("")]
    reason = reading.condition(model, "Ready")
    if reason.get("message") and not reading.holds(model, "Ready"):
        blocks += [Line(str(reason["message"]), style=WAITS), Line("")]
    nodes = _rows(model)
    blocks.append(Table(_NODE_HEADINGS, tuple(nodes)) if nodes else Line("no node is known as yet"))
    return Answer(tuple(blocks), _as_data(model))


def many(models: Sequence[Json], *, everywhere: bool) -> Answer:
    """All models, and below them the nodes that aren't ready."""
    if not models:
        where = "in any namespace" if everywhere else "in this namespace: -A shows those of all"
        return Answer((Line(f"there is no ModelWeights {where}"),), {"models": []})
    ordered = sorted(models, key=reading.name)
    blocks: list[Table | Line] = [_models_table(ordered, everywhere=everywhere)]
    unready = tuple(
        (Cell(reading.name(model) if everywhere else model["metadata"]["name"]), *row)
        for model in ordered
        for row in _rows(model, unready_only=True)
    )
    if unready:
        blocks += [Line(""), Table(("MODEL", *_NODE_HEADINGS), unready)]
    return Answer(tuple(blocks), {"models": [_as_data(model) for model in ordered]})


_NODE_HEADINGS: Final = ("NODE", "STATE", "PROGRESS", "RESIDENT", "WAITS FOR")


def _models_table(models: Sequence[Json], *, everywhere: bool) -> Table:
    headings = ("NAME", "AVAILABLE", "READY", "NODES", "SIZE", "STATUS")
    return Table(
        (("NAMESPACE", *headings) if everywhere else headings),
        tuple((Cell(m["metadata"]["namespace"]), *_model_row(m)) if everywhere else _model_row(m) for m in models),
    )


def _model_row(model: Json) -> tuple[Cell, ...]:
    counts = reading.summary(model)
    ready, desired = int(counts.get("ready") or 0), int(counts.get("desired") or 0)
    stalled = reading.holds(model, "Stalled")
    is_ready = reading.holds(model, "Ready")
    style = GOOD if is_ready else BAD if stalled else BUSY
    size = int(reading.published(model).get("sizeBytes") or 0)
    return (
        Cell(model["metadata"]["name"]),
        _truth(model, "Available"),
        _truth(model, "Ready"),
        Cell(f"{ready}/{desired}", style, ready / desired if desired else 0.0),
        Cell(reading.size(size)),
        Cell(_status_word(model, stalled=stalled), style),
    )


def _status_word(model: Json, *, stalled: bool) -> str:
    if "deletionTimestamp" in model["metadata"]:
        return "Deleting"
    reason = str(reading.condition(model, "Ready").get("reason") or "NotSeenYet")
    return f"{reason} (stalled)" if stalled else reason


def _truth(model: Json, kind: str) -> Cell:
    status = str(reading.condition(model, kind).get("status") or "Unknown")
    return Cell(status, GOOD if status == "True" else WAITS)


def _rows(model: Json, *, unready_only: bool = False) -> list[tuple[Cell, ...]]:
    entries = reading.node_entries(model)
    ordered = sorted(entries.items(), key=lambda each: (_ORDER.get(each[1]["state"], 0), each[0]))
    sizes = reading.sizes(model)
    return [
        _node_row(name, entry, sizes) for name, entry in ordered if not (unready_only and entry["state"] == "Ready")
    ]


def _node_row(name: str, entry: Json, sizes: dict[str, int]) -> tuple[Cell, ...]:
    style = _STYLES.get(entry["state"], "")
    return (Cell(name), Cell(entry["state"], style), _progress(entry, style), _residency(entry, sizes), _why(entry))


def _progress(entry: Json, style: str) -> Cell:
    if entry["state"] == "Ready":
        return Cell("100 %", style, 1.0)
    percent = entry.get("progressPercent")
    if percent is None:
        # Steps of less than a minute tell none.
        return Cell("-", FAINT)
    return Cell(f"{percent} %", style, percent / _WHOLE)


def _residency(entry: Json, sizes: dict[str, int]) -> Cell:
    resident, of = int(entry.get("residentBytes") or 0), sizes.get(entry.get("manifestDigest") or "", 0)
    if not resident:
        return Cell("-", FAINT)
    if not of:
        return Cell(reading.size(resident))
    part = min(resident / of, 1.0)
    return Cell(f"{reading.size(resident)} {int(part * _WHOLE)} %", GOOD if part >= _WARM else WAITS, part)


_WARM: Final = 0.95
"""The default of prefetch.minResidentPercent; here only a colour."""


def _why(entry: Json) -> Cell:
    if entry["state"] == "Ready" and not entry.get("message"):
        return Cell("")
    reason, message = entry.get("reason") or "", entry.get("message") or ""
    attempts = int(entry.get("attempts") or 0)
    again = f" (failed {attempts} time{'s' if attempts > 1 else ''})" if attempts else ""
    return Cell(": ".join(filter(None, (reason, message))) + again, BAD if entry["state"] == "Failed" else "")


def _as_data(model: Json) -> dict[str, Any]:
    """For programs: what is shown, and no more; the object itself has the rest."""
    sizes = reading.sizes(model)
    conditions = {
        each["type"]: {"status": each["status"], "reason": each["reason"], "message": each.get("message", "")}
        for each in reading.status(model).get("conditions") or []
    }
    return {
        "namespace": model["metadata"]["namespace"],
        "name": model["metadata"]["name"],
        "conditions": conditions,
        "publishedDigest": reading.published(model).get("manifestDigest", ""),
        "sizeBytes": int(reading.published(model).get("sizeBytes") or 0),
        "nodes": {
            name: {
                "state": entry["state"],
                "reason": entry.get("reason", ""),
                "message": entry.get("message", ""),
                "progressPercent": entry.get("progressPercent"),
                "residentBytes": int(entry.get("residentBytes") or 0),
                "sizeBytes": sizes.get(entry.get("manifestDigest") or "", 0),
                "attempts": int(entry.get("attempts") or 0),
            }
            for name, entry in reading.node_entries(model).items()
        },
    }
