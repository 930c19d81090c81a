"""What the audit log says of the operator: requests by kind, and how long after a pod's end its staging was written down.

Called by `run`. The log is the API server's: the operator measures nothing of it.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from modelweights_operator.domain import failures

Json = dict[str, Any]

WRITES: Final = ("create", "patch", "update", "delete")
_JOB: Final = re.compile(r"(?:stage|refresh)-(.+)-[0-9a-f]{12}")


@dataclass(frozen=True)
class Request:
    """One request that was answered.

    Attributes:
        user: Who asked.
        verb: As the API server calls it.
        resource: Kind, with the subresource.
        namespace: Of the object.
        name: Of the object; "" of a list.
        asked: When it came, as seconds since the epoch.
        answered: When the answer was complete.
        status: The answer's code.
    """

    user: str
    verb: str
    resource: str
    namespace: str
    name: str
    asked: float
    answered: float
    status: int

    @property
    def what(self) -> str:
        """Verb and kind."""
        return f"{self.verb} {self.resource}"


def read(log: Path) -> list[Request]:
    """All requests, in the order of their answers."""
    with log.open() as lines:
        return sorted(_requests(lines), key=lambda request: request.answered)


def _requests(lines: Iterable[str]) -> Iterator[Request]:
    for line in lines:
        if not line.endswith("\n"):
            # The last one is being written.
            continue
        event: Json = json.loads(line)
        about: Json = event.get("objectRef") or {}
        kind = about.get("resource", event["requestURI"].partition("?")[0])
        yield Request(
            user=event["user"]["username"],
            verb=event["verb"],
            resource=f"{kind}/{about['subresource']}" if about.get("subresource") else kind,
            namespace=about.get("namespace", ""),
            name=about.get("name", ""),
            asked=_seconds(event["requestReceivedTimestamp"]),
            answered=_seconds(event["stageTimestamp"]),
            status=(event.get("responseStatus") or {}).get("code", 0),
        )


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def count(requests: Iterable[Request]) -> dict[str, int]:
    """Requests by verb and kind, the most first; watches aren't counted, since they end when they end."""
    return dict(Counter(request.what for request in requests if request.verb != "watch").most_common())


def seconds_to_status(requests: Iterable[Request], operator: str, kubelets: str) -> list[float]:
    """For each good staging: from the moment at which the API server had the pod's end, to the answer to the write of the status.

    That write is the object's first one after the report was noted on the Job, and the good Job is deleted right after it: a cycle
    does the three in this order. So what the event takes to come to the operator, and what it waits there, is within. Where a
    pod failed, the operator waits for the Job controller, and the Job stays until the back-off is over.

    Args:
        requests: In the order of their answers.
        operator: The operator's user.
        kubelets: Who writes what pods do.
    """
    ended: dict[tuple[str, str], float] = {}
    noted: dict[tuple[str, str], list[str]] = {}
    written: dict[tuple[str, str], float] = {}
    found = []
    for request in requests:
        if request.status >= 400:
            continue
        if request.user == kubelets:
            ended[request.namespace, request.name.rpartition("-")[0]] = request.answered
        elif request.user == operator and request.what == "patch jobs":
            owner = _JOB.fullmatch(request.name)
            if owner is not None:
                noted.setdefault((request.namespace, owner[1]), []).append(request.name)
        elif request.user == operator and request.what == "patch modelweights/status":
            jobs = noted.pop((request.namespace, request.name), [])
            written |= {(request.namespace, job): request.answered for job in jobs}
        elif request.user == operator and request.what == "delete jobs":
            key = (request.namespace, request.name)
            status, end = written.pop(key, None), ended.get(key)
            if status is not None and end is not None and request.answered - status < failures.FIRST_BACKOFF_SECONDS:
                found.append(status - end)
    return found


def most_jobs(requests: Iterable[Request], user: str) -> int:
    """The most Jobs of a user that were made and not yet deleted at a time.

    Args:
        requests: In the order of their answers.
        user: Who makes and deletes them.
    """
    living: set[tuple[str, str]] = set()
    most = 0
    for request in requests:
        if request.user == user and request.what in ("create jobs", "delete jobs") and request.status < 400:
            (living.add if request.verb == "create" else living.discard)((request.namespace, request.name))
            most = max(most, len(living))
    return most


def percentile(values: list[float], percent: float) -> float:
    """The value below which so many percent lie; 0 without values."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * percent / 100), len(ordered) - 1)] if ordered else 0.0
