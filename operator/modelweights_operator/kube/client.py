"""Requests to the API server as plain JSON, on the connection, TLS and token handling of `kubernetes.aio`.

Called by the rest of `kube`, and by `__main__`. The generated models are left aside: parsing thousands of pods into them costs more memory
and time than all else that the operator does. Every request has a time-out; errors become those of `errors`.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any, Final, Self

import aiohttp
from kubernetes.aio import client as aio_client
from kubernetes.aio import config as aio_config

from modelweights_operator import errors

Json = dict[str, Any]

REQUEST_SECONDS: Final = 30.0
WATCH_SECONDS: Final = 120
"""The server ends each watch after this long."""
SILENCE_SECONDS: Final = 90.0
"""A watch of which nothing is heard for so long counts as dead: the server sends a bookmark about every minute."""
MAX_RETRY_AFTER_SECONDS: Final = 300.0
"""Whatever the server asks for; a proxy before it may ask for a day."""

MERGE_PATCH: Final = "application/merge-patch+json"
STRATEGIC_PATCH: Final = "application/strategic-merge-patch+json"
APPLY_PATCH: Final = "application/apply-patch+yaml"
METADATA_ONLY: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
FIELD_MANAGER: Final = "modelweights-operator"

_READS: Final = ("GET", "HEAD")
_ERRORS: Final[dict[int, type[errors.ApiError]]] = {
    403: errors.ForbiddenError,
    404: errors.NotFoundError,
    409: errors.ConflictError,
    410: errors.GoneError,
    422: errors.InvalidError,
}


class Fence:
    """What stands before writes.

    Args:
        may_write: Asked before each write: whether nobody else acts at this moment.
    """

    def __init__(self, may_write: Callable[[], bool] = lambda: True) -> None:
        self._may_write, self._shut, self._at_hand = may_write, False, 0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def trace(self) -> aiohttp.TraceConfig:
        """Refuses a write, at last when its connection is there, right before the first byte: it may have waited for that long."""

        async def begin(
            session: aiohttp.ClientSession, context: SimpleNamespace, what: aiohttp.TraceRequestStartParams
        ) -> None:
            context.reads = what.method in _READS
            # Here too, since a connection that was only just made isn't used again when it is refused below.
            await refuse(session, context, what)

        async def refuse(_: aiohttp.ClientSession, context: SimpleNamespace, what: object) -> None:
            del what
            if not context.reads and (self._shut or not self._may_write()):
                raise errors.NotLeadingError

        trace = aiohttp.TraceConfig()
        trace.on_request_start.append(begin)
        trace.on_connection_reuseconn.append(refuse)
        trace.on_connection_create_end.append(refuse)
        return trace

    @contextlib.contextmanager
    def counted(self, method: str) -> Iterator[None]:
        """Around each request, so that those at hand are known."""
        if method in _READS:
            yield
            return
        self._at_hand += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._at_hand -= 1
            if not self._at_hand:
                self._idle.set()

    async def shut(self, seconds: float) -> bool:
        """Let no further write begin, and wait for the answers to those at hand; whether all have come."""
        self._shut = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        return self._idle.is_set()


class Api:
    """One connection pool to the API server. Close it, or use it as an asynchronous context manager."""

    def __init__(self, client: aio_client.ApiClient, fence: Fence | None = None) -> None:
        self._client, self._fence = client, fence or Fence()

    @classmethod
    async def connect(cls, fence: Fence | None = None, traces: Iterable[aiohttp.TraceConfig] = ()) -> "Api":
        """Connect as the pod's service account, else as KUBECONFIG says.

        Args:
            fence: What stands before writes, if anything does.
            traces: Who else is told of each request.

        Raises:
            errors.SettingsError: There is neither.
        """
        configuration = aio_client.Configuration()
        try:
            aio_config.load_incluster_config(client_configuration=configuration)
        except aio_config.ConfigException:
            try:
                await aio_config.load_kube_config(client_configuration=configuration)
            except aio_config.ConfigException as error:
                raise errors.SettingsError(f"neither in a pod nor with a usable KUBECONFIG: {error}") from error
        # Python 3.13 refuses authorities without certain extensions, as many clusters' are (see `login`).
        configuration.disable_strict_ssl_verification = True
        return cls.over(configuration, fence, traces)

    @classmethod
    def over(
        cls,
        configuration: aio_client.Configuration,
        fence: Fence | None = None,
        traces: Iterable[aiohttp.TraceConfig] = (),
    ) -> "Api":
        """Connect as a configuration says."""
        configuration.trace_configs = [*traces, *([fence.trace] if fence is not None else ())]
        return cls(aio_client.ApiClient(configuration), fence)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def finish(self, seconds: float) -> bool:
        """Begin no further write, and wait for the answers to those at hand; whether all have come."""
        return await self._fence.shut(seconds)

    async def get(self, path: str, *, accept: str = "application/json", **query: str) -> Json:
        """Read an object or a list."""
        return await self._request("GET", path, query=query, accept=accept)

    async def get_text(self, path: str, **query: str) -> str:
        """Read what is no object, as a log."""
        return await self._request_text("GET", path, query=query, accept="text/plain, */*")

    async def create(self, path: str, body: Json) -> Json:
        """Create an object below the collection `path`."""
        return await self._request("POST", path, query={"fieldManager": FIELD_MANAGER}, body=body)

    async def patch(self, path: str, body: Mapping[str, Any], content_type: str = MERGE_PATCH, **query: str) -> Json:
        """Patch an object."""
        query = {"fieldManager": FIELD_MANAGER, **query}
        return await self._request("PATCH", path, query=query, body=dict(body), content_type=content_type)

    async def delete(self, path: str, *, propagation: str = "Foreground") -> None:
        """Delete an object; one that is gone already is fine."""
        try:
            await self._request("DELETE", path, body={"propagationPolicy": propagation})
        except errors.NotFoundError:
            return

    async def watch(self, path: str, **query: str) -> AsyncIterator[Json]:
        """Yield the events of one watch until the server ends it.

        Raises:
            errors.GoneError: The resourceVersion is too old.
            errors.ApiError: Anything else.
        """
        query = {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(WATCH_SECONDS), **query}
        timeout = aiohttp.ClientTimeout(total=WATCH_SECONDS + REQUEST_SECONDS, sock_read=SILENCE_SECONDS)
        headers = {"Accept": "application/json"}
        response = await self._send("GET", path, query=query, headers=headers, timeout=timeout)
        try:
            if response.status != 200:  # noqa: PLR2004 - HTTP's OK
                raise _error(response, await response.text(), "GET", path)
            async for line in response.content:
                event = _parsed(line, f"watch {path}")
                if event.get("type") == "ERROR":
                    raise _status_error(event.get("object") or {}, f"watch {path}")
                yield event
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise errors.ApiError(f"watch {path}: {error!r}", status=0) from error
        finally:
            response.close()

    async def _request(self, method: str, path: str, **options: Any) -> Json:
        return _parsed(await self._request_text(method, path, **options), f"{method} {path}")

    async def _request_text(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
        accept: str = "application/json",
    ) -> str:
        timeout = aiohttp.ClientTimeout(total=REQUEST_SECONDS)
        headers = {"Accept": accept, "Content-Type": content_type}
        with self._fence.counted(method):
            response = await self._send(method, path, query=query, body=body, headers=headers, timeout=timeout)
            try:
                text = await response.text()
            except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
                raise errors.ApiError(f"{method} {path}: {error!r}", status=0) from error
        if response.status >= 400:  # noqa: PLR2004 - HTTP's errors
            raise _error(response, text, method, path)
        return text

    async def _send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        headers: Mapping[str, str],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - handed to aiohttp, which keeps it
    ) -> aiohttp.ClientResponse:
        try:
            method, url, own_headers, body, _ = await self._client.param_serialize(
                method,
                path,
                query_params=list((query or {}).items()),
                header_params=dict(headers),
                body=body,
                auth_settings=["BearerToken"],
            )
            answer = await self._client.call_api(method, url, own_headers, body, _request_timeout=timeout)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise errors.ApiError(f"{method} {path}: no answer from the API server: {error!r}", status=0) from error
        response: aiohttp.ClientResponse = answer.response
        return response


def _parsed(text: str | bytes, what: str) -> Json:
    """An object of JSON. A proxy before the API server may answer with a page of its own."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise errors.ApiError(f"{what}: the answer is no JSON: {error}", status=0) from error
    if not isinstance(found, dict):
        raise errors.ApiError(f"{what}: the answer is no object: {str(found)[:100]}", status=0)
    return found


def _error(response: aiohttp.ClientResponse, text: str, method: str, path: str) -> errors.ApiError:
    try:
        status = json.loads(text)
    except ValueError:
        status = {}
    status = status if isinstance(status, dict) else {}
    status.setdefault("code", response.status)
    error = _status_error(status, f"{method} {path}")
    retry_after = response.headers.get("Retry-After", "")
    if retry_after.isascii() and retry_after.isdigit():
        error.retry_after_seconds = min(float(retry_after), MAX_RETRY_AFTER_SECONDS)
    return error


def _status_error(status: Mapping[str, Any], what: str) -> errors.ApiError:
    code = int(status.get("code") or 0)
    kind = _ERRORS.get(code, errors.ApiError)
    reason = str(status.get("reason") or "")
    return kind(f"{what}: {code} {reason}: {status.get('message') or 'no message'}", status=code, reason=reason)
