"""Times as the API writes them. Called by the domain and by `kube.gather`; reads no clock itself."""

from datetime import UTC, datetime
from typing import Final

_FIRST_YEAR: Final = 1970
_LAST_YEAR: Final = 9000


def rfc3339(moment: datetime) -> str:
    """A moment as `metav1.Time`: UTC, whole seconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time(text: str) -> datetime | None:
    """A `metav1.Time` or `MicroTime`; None for an empty or malformed one. Without a zone it counts as UTC.

    Nor is there one before 1970, as Go's zero time, or so far ahead that no clock can be added to it: hands write such.
    """
    try:
        moment = datetime.fromisoformat(text) if text else None
        if moment is None:
            return None
        moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    return moment if _FIRST_YEAR <= moment.year <= _LAST_YEAR else None
