"""`/healthz` and `/readyz` for the kubelet, `/metrics` for Prometheus. Served by `__main__` for as long as the process lives."""

from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Protocol, Self

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from modelweights_operator import errors


class Watched(Protocol):
    """What can be asked how it is."""

    @property
    def ready_text(self) -> str:
        """What is answered when it is ready."""
        ...

    def is_ready(self) -> bool:
        """Whether it has its first picture of the cluster."""
        ...

    def is_alive(self) -> str:
        """Why the process should be restarted; "" when it shouldn't."""
        ...


class Health:
    """Serves them on all addresses; an asynchronous context manager.

    Args:
        port: Of the two for the kubelet.
        metrics_port: Of the one for Prometheus, which a network policy may let in alone; 0 for none.
        metrics: Makes its text.

    Attributes:
        watched: Who is asked: nobody at the start, then the election, then the reconciler.
    """

    def __init__(self, port: int, metrics_port: int = 0, metrics: Callable[[], bytes] = bytes) -> None:
        self.watched: Watched | None = None
        self._pages = {port: [web.get("/healthz", self._healthz), web.get("/readyz", self._readyz)]}
        if metrics_port:
            self._pages.setdefault(metrics_port, []).append(web.get("/metrics", self._show))
        self._metrics = metrics
        self._served = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as served:
            for port, pages in self._pages.items():
                application = web.Application()
                application.add_routes(pages)
                runner = web.AppRunner(application, access_log=None)
                served.push_async_callback(runner.cleanup)
                await runner.setup()
                try:
                    await web.TCPSite(runner, port=port).start()
                except OSError as error:
                    paths = " and ".join(page.path for page in pages)
                    raise errors.SettingsError(f"can't serve {paths} on port {port}: {error}") from error
            self._served = served.pop_all()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._served.aclose()

    async def _healthz(self, _: web.Request) -> web.Response:
        trouble = self.watched.is_alive() if self.watched else ""
        return web.Response(status=503 if trouble else 200, text=trouble or "ok")

    async def _readyz(self, _: web.Request) -> web.Response:
        if self.watched is not None and self.watched.is_ready():
            return web.Response(text=self.watched.ready_text)
        return web.Response(status=503, text="it has just started, or its first lists are under way")

    async def _show(self, _: web.Request) -> web.Response:
        return web.Response(body=self._metrics(), headers={"Content-Type": CONTENT_TYPE_LATEST})
