"""What a hub's refusals mean, each with its remedy in one line.

Called by `huggingface` and `hub_listing`. Pure: an answer's status and headers in, an error out. What a server writes
into its answers is never shown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from modelweights_loader.errors import LoaderError, WillNotWorkError
from modelweights_loader.sources.contract import SourceUnavailableError
from modelweights_loader.sources.http_errors import read_retry_after
from modelweights_loader.sources.http_ranges import parse_origin

if TYPE_CHECKING:
    from email.message import Message

    from modelweights_loader.sources.http_ranges import Origin

_TOO_MANY = 429
_SERVER = 500
_PASSING = frozenset({408, 425, _TOO_MANY})
_UNAUTHORIZED = 401
_FORBIDDEN = frozenset({403, 451})
_NOT_FOUND = 404
_PASS_A_TOKEN = "pass a token (tokenSecretRef or --token-file; HF_TOKEN is not used)"  # noqa: S105 - it is advice


class HubRequest(NamedTuple):
    """What was asked for, as messages need it."""

    endpoint: str
    name: str
    revision: str
    token_file: str | None

    @property
    def host(self) -> str:
        """The hub, without path."""
        return parse_origin(self.endpoint).described


def explain_hub_status(
    status: int, headers: Message, request: HubRequest, *, path: str = "", gated: bool = False
) -> LoaderError:
    """Say what a hub's status means.

    Args:
        status: 400 or more; a lower one is an answer that nobody expects here.
        headers: Of the answer; the hub's own word is in X-Error-Code.
        request: What was asked for.
        path: The file that was asked for; "" for a listing.
        gated: The hub said before that the repository is gated.

    Returns:
        The error to raise.
    """
    code = headers.get("X-Error-Code", "")
    if status in _PASSING or status >= _SERVER:
        return _explain_passing(status, headers, request)
    if code == "GatedRepo" or (gated and status in {_UNAUTHORIZED, *_FORBIDDEN} and request.token_file is None):
        return _explain_gated(request)
    if status == _UNAUTHORIZED:
        return _explain_unauthorized(code, request)
    if status in _FORBIDDEN:
        message = (
            f"{request.host} forbids {request.name} (status {status}); give the token the right to read it (a fine-grained"
            " one needs that for each gated or private repository), unless the repository is disabled"
        )
        return WillNotWorkError(message, reason="Forbidden")
    if status == _NOT_FOUND or code:
        return _explain_not_found(code, request, path)
    return WillNotWorkError(f"{request.host} refuses {path or request.name} (status {status})", reason="SourceRefused")


def explain_storage_status(status: int, headers: Message, origin: Origin, path: str) -> LoaderError:
    """Say what the status of the host means that a hub redirects to.

    Args:
        status: None of those that a range is answered with.
        headers: Of the answer.
        origin: The host.
        path: The file.

    Returns:
        The error to raise.
    """
    if status in _PASSING or status >= _SERVER:
        message = f"{path}: {origin.described} is busy or away (status {status})"
        return SourceUnavailableError(message, retry_after_seconds=read_retry_after(headers))
    message = (
        f"{path}: {origin.described} refuses a link that the hub has just given (status {status}); check that no proxy"
        " stands in the way there and that the clocks are right"
    )
    return WillNotWorkError(message, reason="Forbidden")


def _explain_passing(status: int, headers: Message, request: HubRequest) -> LoaderError:
    wait = read_retry_after(headers)
    asks = "" if wait is None else f", and asks to wait {wait:.0f} s"
    if status == _TOO_MANY:
        more = "" if request.token_file else "; its limits are higher with a token"
        message = f"{request.host} limits requests (status 429){asks}{more}"
    else:
        message = f"{request.host} is busy or away (status {status}){asks}"
    return SourceUnavailableError(message, retry_after_seconds=wait)


def _explain_gated(request: HubRequest) -> LoaderError:
    use = "use a token of that account" if request.token_file is None else "make sure that the token is of that account"
    message = f"{request.name} is gated; accept the terms at {request.endpoint}/{request.name}, then {use}"
    return WillNotWorkError(message, reason="Gated")


def _explain_unauthorized(code: str, request: HubRequest) -> LoaderError:
    if request.token_file is not None:
        message = f"{request.host} refuses the token in {request.token_file}; it may have expired: put a new one there"
        return WillNotWorkError(message, reason="Unauthorized")
    if code == "RepoNotFound":
        message = (
            f"{request.host} shows no repository {request.name} to those without a token (it doesn't tell a private one"
            f" from none); check the name, and {_PASS_A_TOKEN} if it is private"
        )
        return WillNotWorkError(message, reason="RepositoryNotFound")
    message = f"{request.host} asks for a token to read {request.name}; {_PASS_A_TOKEN}"
    return WillNotWorkError(message, reason="Unauthorized")


def _explain_not_found(code: str, request: HubRequest, path: str) -> LoaderError:
    if code == "RevisionNotFound":
        message = f"{request.name} has no revision {request.revision!r}; check the branch, tag or commit"
        return WillNotWorkError(message, reason="RevisionNotFound")
    if code == "EntryNotFound" or (path and code != "RepoNotFound"):
        message = f"{request.name} has no file {path!r} at {request.revision}; check the revision, or the mirror"
        return WillNotWorkError(message, reason="NotFound")
    secret = "whether the token may read it" if request.token_file else f"{_PASS_A_TOKEN} if it is private"
    message = f"{request.host} has no repository {request.name}"
    if code != "RepoNotFound":
        # A mirror that doesn't say which of the two it lacks.
        message += f" or no revision {request.revision!r} of it"
    return WillNotWorkError(f"{message}; check the name, and {secret}", reason="RepositoryNotFound")
