"""Stands between the operator and the API server: counts what is written, spoils answers, and ends the operator at a chosen write.

    with ApiProxy(kubeconfig, folder) as proxy:
        proxy.faults = [ApiFault("refuse", status=429, retry_after=1, every=3)]
        ... a client with proxy.kubeconfig ...
        assert proxy.faults[0].served

The client's side is plain HTTP on loopback, without credentials: the proxy has those of the kubeconfig that it was given.
"""

import asyncio
import base64
import contextlib
import http
import json
import re
import ssl
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, NamedTuple, Self

import aiohttp
from aiohttp import web
from yarl import URL

from tests.servers.turns import Turns

Kind = Literal["refuse", "lose", "cut", "slow", "silence", "expire"]
When = Literal["before", "after"]

_LINE_BYTES = 1 << 22
_LOOK_SECONDS = 0.1
_MIDWAY = ("cut", "silence", "expire")
_PASSED_ON = ("Content-Type", "Accept")
_PATH = re.compile(
    r"^/(?:api/v1|apis/[^/]+/[^/]+)(?:/namespaces/[^/]+(?=/))?/(?P<resource>[^/]+)(?:/[^/]+)?(?P<below>/[^/]+)?$"
)
# Questions about rights change nothing, and how often a Lease is renewed depends on the time.
_NO_WRITES = ("selfsubjectaccessreviews", "leases")


class Seen(NamedTuple):
    """A request. `write` is as "PATCH nodes" or "PATCH modelweights/status"; "" for reads."""

    method: str
    path: str
    resource: str
    watch: bool
    write: str


@dataclass
class ApiFault(Turns):
    """What is done to the requests that it fits, when it is its turn. A watch that runs is asked ten times a second, and each time counts.

    Attributes:
        kind: `refuse` (an error in place of the answer; the API server sees nothing), `lose` (it is done, and no answer comes),
            `cut` (half of the answer comes), `slow`, and for watches `silence` (open, and nothing comes any more) and `expire`
            (the event that says 410 Gone).
        only: Which requests.
        status: Of a refusal.
        retry_after: Of a refusal, in seconds.
        seconds: Of `slow`.
    """

    kind: Kind
    only: Callable[[Seen], bool] = lambda _: True
    status: int = 500
    retry_after: int | None = None
    seconds: float = 1.0

    def is_due(self, seen: Seen) -> bool:
        """Count the request if it fits; tell whether it is its turn."""
        return (seen.watch or self.kind not in ("silence", "expire")) and self.only(seen) and self.take()


class Moment(NamedTuple):
    """Before a write reaches the API server, or after it was done and before its answer comes.

    Attributes:
        number: Which write, counted from 1.
        when: Before or after.
        write: Of those of a kind only, as in `ApiProxy.writes`; "" for all.
    """

    number: int
    when: When
    write: str = ""


class _Answer(NamedTuple):
    status: int
    content_type: str
    body: bytes


class ApiProxy:
    """The proxy; a context manager, with an event loop in a thread of its own.

    Attributes:
        faults: Settable while it runs; of several that are due the first one is done.
        writes: Those since the last `begin` that count, as they came.
        counts: Which writes count; settable while it runs.
        kubeconfig: Leads to it.
    """

    def __init__(self, upstream: Path, folder: Path) -> None:
        config = json.loads(upstream.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self._server: str = cluster["server"]
        self._tls = _tls(cluster, user)
        self.faults: Sequence[ApiFault] = ()
        self.writes: list[str] = []
        self.counts: Callable[[Seen], bool] = lambda _: True
        self._written = time.monotonic()
        self.kubeconfig = folder / "through-proxy.kubeconfig"
        self._moment: Moment | None = None
        self._action: Callable[[], object] = lambda: None
        self._deaf = False
        self.reached = threading.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(30)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(30)

    def begin(self, moment: Moment | None = None, action: Callable[[], object] = lambda: None) -> None:
        """Count writes anew.

        Args:
            moment: When that comes, the action is called, `reached` is set, and nothing is passed on until `go_on`.
            action: Ends the client.
        """
        self.reached.clear()
        self.writes, self._moment, self._action = [], moment, action

    @property
    def quiet_seconds(self) -> float:
        """Time since the last write that counts."""
        return time.monotonic() - self._written

    def go_on(self) -> None:
        """Pass on again, after a moment came."""
        self._deaf = False

    # --- the server -----------------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        application = web.Application(client_max_size=1 << 26)
        application.router.add_route("*", "/{path:.*}", self._handle)
        connector = aiohttp.TCPConnector(ssl=self._tls, limit=0)
        async with aiohttp.ClientSession(connector=connector, read_bufsize=_LINE_BYTES) as self._session:
            runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self._write_kubeconfig(runner.addresses[0][1])
            self._ready.set()
            await self._stopping.wait()
            await runner.cleanup()

    def _write_kubeconfig(self, port: int) -> None:
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "proxy",
            "clusters": [{"name": "proxy", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
            "users": [{"name": "proxy", "user": {}}],
            "contexts": [{"name": "proxy", "context": {"cluster": "proxy", "user": "proxy"}}],
        }
        self.kubeconfig.write_text(json.dumps(content))

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        seen, body = _seen(request), await request.read()
        if self._deaf:
            return _abort(request)
        moment = None
        if seen.write and self.counts(seen):
            self.writes.append(seen.write)
            self._written = time.monotonic()
            moment = self._moment if self._has_come(seen.write) else None
        if moment and moment.when == "before":
            return await self._end(request)
        fault = next((each for each in self.faults if each.is_due(seen)), None)
        if fault and fault.kind == "refuse":
            return _refusal(fault)
        if fault and fault.kind == "slow":
            await asyncio.sleep(fault.seconds)
        try:
            if seen.watch:
                return await self._watch(request, seen, fault)
            answer = await self._ask(request, body)
        except (aiohttp.ClientError, OSError):
            # The API server is away: so are we.
            return _abort(request)
        return await (self._end(request) if moment else _answer(request, answer, fault))

    def _has_come(self, write: str) -> bool:
        moment = self._moment
        if moment is None or moment.write not in ("", write):
            return False
        return moment.number == (self.writes.count(write) if moment.write else len(self.writes))

    async def _end(self, request: web.Request) -> web.StreamResponse:
        self._deaf, self._moment = True, None
        await asyncio.get_running_loop().run_in_executor(None, self._action)
        self.reached.set()
        return _abort(request)

    def _upstream(self, request: web.Request, body: bytes | None = None) -> Awaitable[aiohttp.ClientResponse]:
        headers = {name: request.headers[name] for name in _PASSED_ON if name in request.headers}
        url = URL(f"{self._server}{request.raw_path}", encoded=True)
        timeout = aiohttp.ClientTimeout(total=None)
        return self._session.request(request.method, url, data=body or None, headers=headers, timeout=timeout)

    async def _ask(self, request: web.Request, body: bytes) -> _Answer:
        async with await self._upstream(request, body) as response:
            content = response.headers.get("Content-Type", "application/json")
            return _Answer(response.status, content, await response.read())

    async def _watch(self, request: web.Request, seen: Seen, fault: ApiFault | None) -> web.StreamResponse:
        async with await self._upstream(request) as response:
            answer = web.StreamResponse(status=response.status, headers={"Content-Type": "application/json"})
            await answer.prepare(request)
            with contextlib.suppress(ConnectionError):
                await self._stream(request, response.content, answer, seen, fault)
            return answer

    async def _stream(
        self,
        request: web.Request,
        source: aiohttp.StreamReader,
        answer: web.StreamResponse,
        seen: Seen,
        fault: ApiFault | None,
    ) -> None:
        reading: asyncio.Task[bytes] | None = None
        try:
            while not _is_closed(request):
                reading = reading or asyncio.ensure_future(source.readline())
                await asyncio.wait({reading}, timeout=_LOOK_SECONDS)
                fault = fault or next(
                    (each for each in self.faults if each.kind in _MIDWAY and each.is_due(seen)), None
                )
                if self._deaf or (fault and fault.kind == "lose"):
                    _abort(request)
                elif fault and fault.kind == "cut":
                    await answer.write(reading.result()[:20] if reading.done() else b'{"type":')
                    _abort(request)
                elif fault and fault.kind == "expire":
                    await answer.write(_EXPIRED)
                    return
                elif reading.done():
                    line, reading = reading.result(), None
                    if fault and fault.kind == "silence":
                        continue
                    if not line:
                        return
                    await answer.write(line)
        except aiohttp.ClientError:
            _abort(request)
        finally:
            if reading is not None:
                reading.cancel()


def _tls(cluster: dict[str, str], user: dict[str, str]) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
    with tempfile.NamedTemporaryFile() as pem:
        pem.write(base64.b64decode(user["client-certificate-data"]))
        pem.write(base64.b64decode(user["client-key-data"]))
        pem.flush()
        context.load_cert_chain(pem.name)
    return context


def _seen(request: web.Request) -> Seen:
    found = _PATH.match(request.path)
    resource = f"{found['resource']}{found['below'] or ''}" if found else request.path
    watch = request.query.get("watch") == "true"
    writes = request.method != "GET" and not resource.startswith(_NO_WRITES)
    return Seen(request.method, request.path, resource, watch, f"{request.method} {resource}" if writes else "")


def _is_closed(request: web.Request) -> bool:
    return request.transport is None or request.transport.is_closing()


def _abort(request: web.Request) -> web.Response:
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


def _status(code: int, reason: str) -> bytes:
    message = f"the proxy says {code}"
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "reason": reason,
        "message": message,
        "code": code,
    }
    return json.dumps(body).encode()


def _refusal(fault: ApiFault) -> web.Response:
    headers = {"Content-Type": "application/json"}
    if fault.retry_after is not None:
        headers["Retry-After"] = str(fault.retry_after)
    return web.Response(
        status=fault.status, body=_status(fault.status, http.HTTPStatus(fault.status).name), headers=headers
    )


async def _answer(request: web.Request, answer: _Answer, fault: ApiFault | None) -> web.StreamResponse:
    """Pass an answer on, or what the fault leaves of it."""
    headers = {"Content-Type": answer.content_type}
    if fault and fault.kind == "lose":
        return _abort(request)
    if fault and fault.kind == "cut":
        half = web.StreamResponse(status=answer.status, headers={**headers, "Content-Length": str(len(answer.body))})
        await half.prepare(request)
        await half.write(answer.body[: len(answer.body) // 2])
        _abort(request)
        return half
    return web.Response(status=answer.status, body=answer.body, headers=headers)


_EXPIRED = b'{"type":"ERROR","object":' + _status(410, "Expired") + b"}\n"
