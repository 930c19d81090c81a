"""Which events tell of a change of the status. Called by `plan`; pure."""

from dataclasses import dataclass

from modelweights_operator.api import v1alpha1 as api
from modelweights_operator.domain import names
from modelweights_operator.domain.snapshot import Snapshot


@dataclass(frozen=True)
class Event:
    """An event to be posted on the ModelWeights after the status was written."""

    kind: str
    reason: str
    message: str


def events_of(snapshot: Snapshot, status: api.Status) -> tuple[Event, ...]:
    """One event for each condition that changed its status or reason, and for each node that newly failed."""
    before = {condition.type: condition for condition in snapshot.owner.status.conditions}
    events = []
    for condition in status.conditions:
        former = before.get(condition.type)
        changed = former is None or (former.status, former.reason) != (condition.status, condition.reason)
        bad = condition.type == api.STALLED
        if changed and (bad or (condition.status == "True" and condition.type in (api.READY, api.AVAILABLE))):
            reason = condition.reason if bad else condition.type
            events.append(Event("Warning" if bad else "Normal", reason, condition.message))
    for name, entry in status.nodes.items():
        known = snapshot.owner.status.nodes.get(name)
        if entry.state == "Failed" and (known is None or known.state != "Failed"):
            events.append(Event("Warning", entry.reason, f"{name}: {entry.message}"))
    failed = sum(entry.state == "Failed" for entry in snapshot.owner.status.nodes.values())
    if failed and status.last_handled_retry != snapshot.owner.status.last_handled_retry:
        events.append(
            Event("Normal", "Retrying", f"{failed} failed node(s) are tried again, as {names.RETRY_ANNOTATION} asks")
        )
    return tuple(events)
