"""`/healthz` and `/readyz` for the kubelet. Started by `handlers`."""

from typing import Protocol

from aiohttp import web


class Watched(Protocol):
    """What can be asked how it is."""

    def is_ready(self) -> bool:
        """Whether it has its first picture of the cluster."""
        ...

    def is_alive(self) -> str:
        """Why it should be restarted; "" when it shouldn't."""
        ...


async def serve(watched: Watched, port: int) -> web.AppRunner:
    """Serve both on all addresses; the caller cleans the runner up."""

    async def healthz(_: web.Request) -> web.Response:
        trouble = watched.is_alive()
        return web.Response(status=503 if trouble else 200, text=trouble or "ok")

    async def readyz(_: web.Request) -> web.Response:
        ready = watched.is_ready()
        return web.Response(status=200 if ready else 503, text="ok" if ready else "the first lists are under way")

    application = web.Application()
    application.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz)])
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, port=port).start()
    return runner
