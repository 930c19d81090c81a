"""What the annotation `modelweights.io/retry-now` of a ModelWeights asks for. Called by `plan`; pure.

Another value than was heeded last ends every back-off that runs at that moment. The status notes the value and the moment, so
that it is heeded once, whatever the operator was doing: a failure up to then waits no longer, a later one does.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from modelweights_operator.api import v1alpha1 as api
from modelweights_operator.domain.clock import parse_time, rfc3339

_CLOCKS_DIFFER: Final = timedelta(seconds=5)
"""A time further ahead comes from a clock that was set back, or from a hand: until then no failure would wait at all."""


@dataclass(frozen=True)
class Retry:
    """What was asked last, and when it was heeded; None for never."""

    value: str | None = None
    heeded_at: datetime | None = None

    @property
    def noted(self) -> dict[str, str | None]:
        """The status' fields."""
        return {
            "last_handled_retry": self.value,
            "last_retry_time": rfc3339(self.heeded_at) if self.heeded_at is not None else None,
        }


def heed(asked: str, status: api.Status, now: datetime) -> Retry:
    """What holds from now on. An annotation that is taken off changes nothing."""
    if asked and asked != status.last_handled_retry:
        return Retry(asked, now.replace(microsecond=0))
    heeded_at = parse_time(status.last_retry_time or "")
    if heeded_at is not None and heeded_at > now + _CLOCKS_DIFFER:
        heeded_at = None
    return Retry(status.last_handled_retry, heeded_at)
