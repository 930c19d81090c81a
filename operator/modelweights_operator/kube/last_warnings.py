"""The last warning among the events of a Job or a pod. Called by `gather`, for those that tell their trouble in no other way.

An event wakes nobody, and to look for one the API server goes through all of the namespace. So an answer is kept for some
seconds, the longer the older the object is: one that waited for minutes may wait some seconds more for its reason.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from modelweights_operator.kube import paths
from modelweights_operator.kube.client import Api

MIN_KEPT: Final = timedelta(seconds=4)
MAX_KEPT: Final = timedelta(seconds=60)
_PART_OF_AGE: Final = 4
_FORGOTTEN_AFTER: Final = timedelta(minutes=5)

_Key = tuple[str, str, str]


@dataclass(frozen=True)
class _Answer:
    text: str
    asked_at: datetime


def kept_for(age: timedelta) -> timedelta:
    """How long an answer about an object of this age is good."""
    return min(max(age / _PART_OF_AGE, MIN_KEPT), MAX_KEPT)


class LastWarnings:
    """Asks, and remembers the answers.

    Args:
        api: The connection.
    """

    def __init__(self, api: Api) -> None:
        self._api = api
        self._answers: dict[_Key, _Answer] = {}
        self._forgot_at = datetime.fromtimestamp(0, UTC)

    async def of(self, namespace: str, kind: str, name: str, *, created_at: datetime, now: datetime) -> str:
        """The message of the last warning about an object, "" without one.

        Args:
            namespace: Of the object.
            kind: Job or Pod.
            name: Of the object.
            created_at: When it was made.
            now: The time.
        """
        key = (namespace, kind, name)
        known = self._answers.get(key)
        if known is not None and now - known.asked_at < kept_for(now - created_at):
            return known.text
        text = await self._ask(namespace, kind, name)
        self._answers[key] = _Answer(text, now)
        if now - self._forgot_at >= _FORGOTTEN_AFTER:
            self._forgot_at = now
            self._answers = {
                other: answer for other, answer in self._answers.items() if now - answer.asked_at < _FORGOTTEN_AFTER
            }
        return text

    async def _ask(self, namespace: str, kind: str, name: str) -> str:
        # A pull secret that is missing is none of the reasons: a pull that fails for it says so on the container.
        selector = f"involvedObject.kind={kind},involvedObject.name={name},type=Warning,reason!=FailedToRetrieveImagePullSecret"
        found = (await self._api.get(paths.events(namespace), fieldSelector=selector, limit="50")).get("items") or []
        found.sort(key=lambda event: event.get("lastTimestamp") or event.get("eventTime") or "")
        return str(found[-1].get("message") or "")[:800] if found else ""
