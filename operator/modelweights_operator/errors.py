"""The operator's errors: one hierarchy, each with whether trying again makes sense. Imported by every layer."""

from typing import ClassVar


class OperatorError(Exception):
    """Something that the operator reports instead of crashing."""

    retry: ClassVar[bool] = False


class MissingRightsError(OperatorError):
    """The service account lacks rights without which the operator can't work."""


class SettingsError(OperatorError):
    """A setting of the operator itself is missing or wrong."""


class ApiError(OperatorError):
    """The API server answered a request with an error, or didn't answer.

    Attributes:
        status: HTTP status; 0 when there was no answer.
        reason: The Status object's reason, such as NotFound.
        retry_after_seconds: What the server asked for, else None.
    """

    retry: ClassVar[bool] = True

    def __init__(
        self,
        message: str,
        *,
        status: int,
        reason: str = "",
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.retry_after_seconds = retry_after_seconds


class NotFoundError(ApiError):
    """The object isn't there (404)."""


class ConflictError(ApiError):
    """The object exists already, or was changed since it was read (409)."""


class GoneError(ApiError):
    """A watch's resourceVersion is too old (410): list again."""


class ForbiddenError(ApiError):
    """RBAC or an admission policy refused (403)."""


class InvalidError(ApiError):
    """The API server or an admission policy rejected the object (422)."""


class NotLeadingError(ApiError):
    """A write wasn't sent: another operator may be the one that acts, or this one is about to end."""

    def __init__(self) -> None:
        super().__init__("not sent: this operator isn't known to be the one that acts", status=0)
