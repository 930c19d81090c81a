"""Checkpoints on a node's disk of which the status knows nothing. Called by `policies`, `retention` and `room`; pure.

After a reboot a node holds only what it proved since, and what was fetched and then failed it never held. Their files are there
still: `fetch` says which folders lie beside the one that it brought. Nobody is sent anywhere for them, and they go like
superseded ones, counted from when they were seen first.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from modelweights_operator.api.v1alpha1 import MAX_LEFTOVERS, NodeStatus
from modelweights_operator.domain import holdings
from modelweights_operator.domain.clock import parse_time, rfc3339
from modelweights_operator.domain.reports import Report
from modelweights_operator.domain.snapshot import StorageClass

_ALL_BYTES: Final = 150_000
"""Of all nodes together: 2,000 of them keep one each, 333 keep all that a report has."""

Fields = dict[str, tuple[str, ...] | str]
"""Of a node's status, for `model_validate` and `model_copy`."""


def kept(entry: NodeStatus | None) -> Fields:
    """What is known so far: of files, whatever the boot."""
    if entry is None:
        return {}
    return {"leftovers": entry.leftovers, "leftovers_since": entry.leftovers_since}


def seen(before: NodeStatus | None, report: Report, held: tuple[str, ...], now: datetime) -> Fields:
    """What lies beside a checkpoint that was staged a moment ago.

    Args:
        before: What is said of the node so far.
        report: Of the staging; `leftovers` is None where it doesn't say, as where nothing was fetched.
        held: What the node holds.
        now: The time.

    Returns:
        The fields. What is new among them has all of them wait from now on.
    """
    former = before.leftovers if before is not None else ()
    named = former if report.leftovers is None else tuple(f"sha256:{each}" for each in report.leftovers)
    found = tuple(digest for digest in dict.fromkeys(named) if digest not in held)[:MAX_LEFTOVERS]
    if before is not None and before.leftovers_since and set(found) <= set(former):
        return _fields(found, before.leftovers_since)
    return _fields(found, rfc3339(now))


def bounded(entries: Mapping[str, NodeStatus]) -> dict[str, NodeStatus]:
    """The entries with what fits one object, see `holdings.bounded`; later stagings tell of the rest again.

    Args:
        entries: Of all nodes.
    """
    most = holdings.most_each(_ALL_BYTES, len(entries))
    return {
        name: entry if len(entry.leftovers) <= most else entry.model_copy(update={"leftovers": entry.leftovers[:most]})
        for name, entry in entries.items()
    }


def without(entry: NodeStatus, gone: frozenset[str]) -> Fields:
    """What is left after a cleanup."""
    return _fields(tuple(digest for digest in entry.leftovers if digest not in gone), entry.leftovers_since)


def since(entry: NodeStatus, digest: str) -> datetime | None:
    """Since when a node is known to have one; None where it is none of them."""
    return parse_time(entry.leftovers_since) if digest in entry.leftovers else None


def may_go(entry: NodeStatus, where: StorageClass, all_entries: tuple[NodeStatus, ...]) -> bool:
    """Whether nobody is about to prove them.

    In a claim all nodes may see the same files, also one that another node has just fetched.
    """
    return entry.state != "Staging" and (not where.claim or all(each.state == "Ready" for each in all_entries))


def _fields(digests: tuple[str, ...], at: str) -> Fields:
    return {"leftovers": digests, "leftovers_since": at if digests else ""}
