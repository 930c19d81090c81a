"""Times as the API writes them. Called by the domain and by `kube.gather`; reads no clock itself."""

from datetime import UTC, datetime


def rfc3339(moment: datetime) -> str:
    """A moment as `metav1.Time`: UTC, whole seconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time(text: str) -> datetime | None:
    """A `metav1.Time` or `MicroTime`; None for an empty or malformed one. Without a zone it counts as UTC."""
    try:
        moment = datetime.fromisoformat(text) if text else None
    except ValueError:
        return None
    return moment.replace(tzinfo=UTC) if moment is not None and moment.tzinfo is None else moment
