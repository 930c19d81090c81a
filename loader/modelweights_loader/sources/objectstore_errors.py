"""Says the errors of obstore as errors of the loader, each with its remedy, and nothing secret.

Called by the object store and https sources for every exception of obstore. Its texts carry whole requests with the
server's answer and signed URLs, so none of them is passed on: only facts that are found in them by name. What it can't
give is Retry-After, which obstore passes on of no answer. Must not import obstore: the text is what there is.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from modelweights_loader.errors import WillNotWorkError
from modelweights_loader.sources.contract import RangesNotSupportedError, SourceChangedError, SourceUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Set as AbstractSet

    from modelweights_loader.errors import LoaderError

# At the end of the text, where the server's answer has no line ends of its own any more.
_STATUS = re.compile(r"\bStatus \{\s*status: ([1-5][0-9]{2}),\s*body:")
# S3, Google's XML interface and Azure answer alike.
_CODE = re.compile(r"<Code>([A-Za-z0-9]{1,64})</Code>")
_REGION = re.compile(r"<Region>([a-z0-9-]{1,32})</Region>|expecting '([a-z0-9-]{1,32})'")
_METADATA_SERVICE = re.compile(r"https?://(?:169\.254\.169\.254|metadata\.google\.internal|metadata)[:/]")
_HTTP_KIND = re.compile(r"\bkind: (Timeout|Interrupted|Connect|Request|Decode)\b")

_BAD_CREDENTIALS = {
    *("InvalidAccessKeyId", "InvalidClientTokenId", "InvalidToken", "SignatureDoesNotMatch"),
    *(
        "AuthenticationFailed",
        "InvalidAuthenticationInfo",
        "NoAuthenticationInformation",
        "UnrecognizedClientException",
    ),
}
_BUSY = {
    "SlowDown",
    "Throttling",
    "ServerBusy",
    "RequestLimitExceeded",
    "TooManyRequests",
    "OperationTimedOut",
    "RequestTimeout",
}
_NO_BUCKET = {"NoSuchBucket", "ContainerNotFound", "InvalidBucketName", "ContainerBeingDeleted", "ContainerDisabled"}
_GIVE_CREDENTIALS = (
    "give a Secret with credentials (--credentials-dir, or AWS_… and the like in the environment) or a service account "
    "with an identity"
)
_OR_ANONYMOUS = f"{_GIVE_CREDENTIALS}, or ask without any (anonymous)"


class Answer(NamedTuple):
    """What the store answered: status, its own code for the error, and obstore's whole text, which is not shown."""

    status: int
    code: str
    text: str

    def __str__(self) -> str:
        return f"({self.status} {self.code}".rstrip() + ")"


class Place(NamedTuple):
    """What was asked, for the words of an error.

    Attributes:
        said: The URL of the store or of the file, without anything secret.
        has_credentials: Whether any were sent.
        listing: Whether the list was asked for, and not a file of it.
        stall_seconds: After which time without a byte it was given up.
    """

    said: str
    has_credentials: bool
    listing: bool
    stall_seconds: float


def convert_error(error: Exception, place: Place) -> LoaderError:
    """Says an exception of obstore as one of the loader.

    Args:
        error: As obstore raised it.
        place: What was asked.

    Returns:
        The error to raise, `from None`: a traceback would show the text of the first.
    """
    text = str(error)
    name = type(error).__name__
    status = _find_status(text, name)
    if _METADATA_SERVICE.search(text):
        return _refuse(
            place,
            "no credentials were given, and the machine's metadata service gave none",
            _OR_ANONYMOUS,
            "Unauthorized",
        )
    if "WebIdentity" in text:
        what = "the identity of the service account was refused"
        return _refuse(place, what, "check the role, and whom it trusts", "Unauthorized")
    if status:
        return explain_answer(status, text, place)
    failure = next((failure for failure in _FAILURES if failure.pattern.search(f"{name}: {text}")), _UNKNOWN)
    message = f"{place.said}: {failure.said.format(seconds=place.stall_seconds, name=name)}"
    return failure.kind(message, reason=failure.reason or None)


def explain_answer(status: int, text: str, place: Place) -> LoaderError:
    """Says what an answer means.

    Args:
        status: Of HTTP.
        text: That has the answer's body in it; it is not shown.
        place: What was asked.

    Returns:
        The error to raise.
    """
    found = _CODE.search(text)
    code = found[1] if found else ""
    explain = next((rule.explain for rule in _ANSWERS if code in rule.codes or status in rule.statuses), _refused)
    return explain(Answer(status, code, text), place)


def _find_status(text: str, name: str) -> int:
    # The last one is obstore's own note of it; before it the server's answer may say anything.
    statuses = _STATUS.findall(text)
    if statuses:
        return int(statuses[-1])
    by_name = {
        "PermissionDeniedError": 403,
        "UnauthenticatedError": 401,
        "FileNotFoundError": 404,
        "PreconditionError": 412,
    }
    return by_name.get(name, 301 if "BareRedirect" in text else 0)


def _refuse(place: Place, what: str, remedy: str, reason: str) -> WillNotWorkError:
    return WillNotWorkError(f"{place.said}: {what}; {remedy}", reason=reason)


def _refused(answer: Answer, place: Place) -> LoaderError:
    what = f"the store refuses the request {answer}"
    return _refuse(place, what, "check URL, endpoint, region and credentials", "Refused")


def _busy(answer: Answer, place: Place) -> LoaderError:
    return SourceUnavailableError(f"{place.said}: the store is busy or down {answer}; try again later")


def _wrong_region(answer: Answer, place: Place) -> LoaderError:
    found = _REGION.search(answer.text)
    region = f" {found[1] or found[2]}" if found else " of the bucket"
    return _refuse(place, f"the bucket is in another region {answer}", f"set the region{region}", "WrongRegion")


def _skewed(answer: Answer, place: Place) -> LoaderError:
    return _refuse(place, f"this node's clock is wrong {answer}", "set it, for example by NTP", "ClockSkew")


def _expired(answer: Answer, place: Place) -> LoaderError:
    what = f"the credentials have expired {answer}"
    return _refuse(place, what, "put new ones into the Secret", "CredentialsExpired")


def _bad_credentials(answer: Answer, place: Place) -> LoaderError:
    remedy = "check the Secret's values" if place.has_credentials else _OR_ANONYMOUS
    return _refuse(place, f"the store refuses the credentials {answer}", remedy, "Unauthorized")


def _forbidden(answer: Answer, place: Place) -> LoaderError:
    what = "list the bucket" if place.listing else "read it"
    if place.has_credentials:
        remedy = "permit these credentials to list and read (s3:ListBucket, s3:GetObject or the store's own)"
        return _refuse(place, f"the credentials may not {what} {answer}", remedy, "Forbidden")
    return _refuse(place, f"nobody without credentials may {what} {answer}", _GIVE_CREDENTIALS, "Unauthorized")


def _missing(answer: Answer, place: Place) -> LoaderError:
    if answer.code in _NO_BUCKET or place.listing:
        what = f"there is no such bucket {answer}"
        return _refuse(place, what, "check its name, the endpoint and the region", "BucketNotFound")
    return SourceChangedError(f"{place.said} was listed and is gone {answer}; list it again")


def _changed(answer: Answer, place: Place) -> LoaderError:
    return SourceChangedError(f"{place.said} has changed since it was listed {answer}; list it again")


def _proxy(answer: Answer, place: Place) -> LoaderError:
    return _refuse(place, f"the proxy wants a password {answer}", "set it in the proxy's URL", "ProxyRefused")


class _Rule(NamedTuple):
    """Which codes or statuses of an answer are explained how."""

    codes: AbstractSet[str]
    statuses: AbstractSet[int]
    explain: Callable[[Answer, Place], LoaderError]


# The first that fits counts: a store's own code says more than the status.
_ANSWERS = (
    _Rule(_BUSY, {408, 425, 429, *range(500, 501), *range(502, 600)}, _busy),
    _Rule(
        {"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"},
        {301, 307},
        _wrong_region,
    ),
    _Rule({"RequestTimeTooSkewed", "RequestInTheFuture"}, set(), _skewed),
    _Rule({"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired"}, set(), _expired),
    _Rule(_BAD_CREDENTIALS, {401}, _bad_credentials),
    _Rule({"AccessDenied", "PublicAccessNotPermitted"}, {403, 409}, _forbidden),
    _Rule(_NO_BUCKET, {404}, _missing),
    _Rule({"PreconditionFailed", "InvalidRange"}, {412, 416}, _changed),
    _Rule(set(), {407}, _proxy),
)


class _Failure(NamedTuple):
    """What is searched in obstore's text where no answer came, and what it means."""

    pattern: re.Pattern[str]
    kind: type[SourceUnavailableError | WillNotWorkError]
    said: str
    reason: str = ""


_FAILURES = (
    _Failure(
        re.compile("NotPartial|NoContentRange|UnexpectedRange"),
        *(RangesNotSupportedError, "the server gives no ranges; it is read in one piece"),
    ),
    _Failure(
        re.compile("InvalidPath|BadSegment|EmptySegment"),
        WillNotWorkError,
        "the list has a name with '..', '.', '//' or a control character in it; remove or rename that object",
        "UnsafePath",
    ),
    _Failure(
        re.compile("dns error"),
        *(SourceUnavailableError, "the host's name can't be resolved; check endpoint, region and DNS"),
    ),
    _Failure(
        re.compile("InvalidCertificate|invalid peer certificate|UnknownIssuer|NotValidForName"),
        *(WillNotWorkError, "its certificate isn't trusted; name the authority with --ca-file", "TlsNotTrusted"),
    ),
    _Failure(
        re.compile("InvalidMessage|AlertReceived|PeerIncompatible|PeerMisbehaved|InvalidContentType"),
        *(WillNotWorkError, "TLS failed; check scheme and port of the endpoint", "TlsFailed"),
    ),
    _Failure(
        re.compile("TooManyRedirects|URL scheme is not allowed|BadScheme"),
        *(WillNotWorkError, "it leads elsewhere, in circles or without encryption; check the endpoint", "Refused"),
    ),
    _Failure(
        re.compile(r"\bkind: Timeout\b"),
        *(SourceUnavailableError, "no byte came for {seconds:g} s; try again later"),
    ),
    _Failure(
        re.compile(r"ConnectionRefused|\bkind: Connect\b"),
        *(SourceUnavailableError, "no connection; check the endpoint, then try again"),
    ),
    _Failure(
        re.compile(r"\bkind: (?:Interrupted|Request|Decode)\b"),
        *(SourceUnavailableError, "the connection broke; try again"),
    ),
)
_UNKNOWN = _Failure(re.compile(""), SourceUnavailableError, "the store's answer was not understood ({name}); try again")
