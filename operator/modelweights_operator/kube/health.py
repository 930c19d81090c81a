"""`/healthz` and `/readyz` for the kubelet. Served by `__main__` for as long as the process lives."""

from typing import Protocol, Self

from aiohttp import web

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
    """Serves both on all addresses; an asynchronous context manager.

    Attributes:
        watched: Who is asked: nobody at the start, then the election, then the reconciler.
    """

    def __init__(self, port: int) -> None:
        self.watched: Watched | None = None
        self._port = port
        application = web.Application()
        application.add_routes([web.get("/healthz", self._healthz), web.get("/readyz", self._readyz)])
        self._runner = web.AppRunner(application, access_log=None)

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, port=self._port).start()
        except OSError as error:
            await self._runner.cleanup()
            raise errors.SettingsError(f"can't serve /healthz on port {self._port}: {error}") from error
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._runner.cleanup()

    async def _healthz(self, _: web.Request) -> web.Response:
        trouble = self.watched.is_alive() if self.watched else ""
        return web.Response(status=503 if trouble else 200, text=trouble or "ok")

    async def _readyz(self, _: web.Request) -> web.Response:
        if self.watched is not None and self.watched.is_ready():
            return web.Response(text=self.watched.ready_text)
        return web.Response(status=503, text="it has just started, or its first lists are under way")
