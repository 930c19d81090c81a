"""When the API server says that something happened: watches of one namespace, stamped with one monotonic clock.

Used by `staging`. The times are those at which an event arrives here. The kubelet reports a container's start and end with
a delay of its own (it looks at the containers once a second), and what a controller sees is just that.
"""

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from kubernetes.aio import client as aio_client
from kubernetes.aio import config as aio_config

from modelweights_operator import errors
from modelweights_operator.kube.client import Api

Json = dict[str, Any]

JOB_NAME_LABEL: Final = "batch.kubernetes.io/job-name"


@dataclass
class Milestones:
    """What was seen of one Job and its pod, or of one ModelWeights.

    Attributes:
        at: Per milestone, the monotonic time in seconds at which it was first seen.
        body: The object as it was seen last.
    """

    at: dict[str, float] = field(default_factory=dict)
    body: Json = field(default_factory=dict)

    def note(self, name: str) -> None:
        """Keep the first time only."""
        self.at.setdefault(name, time.monotonic())


class Timeline:
    """Milestones of the ModelWeights, Jobs and pods of a namespace, by their names."""

    def __init__(self, api: Api, namespace: str) -> None:
        self.api, self.namespace = api, namespace
        self.models: defaultdict[str, Milestones] = defaultdict(Milestones)
        self.jobs: defaultdict[str, Milestones] = defaultdict(Milestones)
        self.pods: defaultdict[str, Milestones] = defaultdict(Milestones)
        self.changed = asyncio.Condition()
        self.watches: list[asyncio.Task[None]] = []

    def paths(self) -> dict[str, str]:
        """The collections by the name under which they are kept here."""
        return {
            "models": f"/apis/modelweights.io/v1alpha1/namespaces/{self.namespace}/modelweights",
            "jobs": f"/apis/batch/v1/namespaces/{self.namespace}/jobs",
            "pods": f"/api/v1/namespaces/{self.namespace}/pods",
        }

    async def wait(self, what: str, ask: Callable[[], bool], seconds: float) -> None:
        """Wait until `ask` is true; it is asked at each event.

        Raises:
            TimeoutError: It wasn't in time.
        """
        try:
            async with asyncio.timeout(seconds), self.changed:
                await self.changed.wait_for(ask)
        except TimeoutError as error:
            ended = [repr(watch.exception()) for watch in self.watches if watch.done() and not watch.cancelled()]
            raise TimeoutError(f"{what}: not within {seconds:g} s; watches that ended: {ended or 'none'}") from error

    async def follow(self) -> None:
        """Start a watch of each collection. What is created after this returned is seen."""
        for kind, path in self.paths().items():
            listed = await self.api.get(path)
            watch = self._watch(kind, path, listed["metadata"]["resourceVersion"])
            self.watches.append(asyncio.create_task(watch, name=kind))

    async def _watch(self, kind: str, path: str, version: str) -> None:
        note = {"models": self._model, "jobs": self._job, "pods": self._pod}[kind]
        while True:
            async for event in self.api.watch(path, resourceVersion=version):
                version = event["object"]["metadata"]["resourceVersion"]
                if event["type"] != "BOOKMARK":
                    note(event["type"], event["object"])
                    async with self.changed:
                        self.changed.notify_all()

    def _model(self, kind: str, body: Json) -> None:
        seen = self.models[body["metadata"]["name"]]
        if kind == "DELETED":
            seen.note("gone")
            return
        seen.body = body
        for condition in (body.get("status") or {}).get("conditions") or []:
            if condition["status"] == "True":
                seen.note(condition["type"])

    def _job(self, kind: str, body: Json) -> None:
        seen = self.jobs[body["metadata"]["name"]]
        seen.note("created")
        if kind == "DELETED":
            seen.note("gone")
            return
        seen.body = body
        for condition in (body.get("status") or {}).get("conditions") or []:
            if condition["status"] == "True":
                seen.note(condition["type"])

    def _pod(self, kind: str, body: Json) -> None:
        job = (body["metadata"].get("labels") or {}).get(JOB_NAME_LABEL)
        if job is None or kind == "DELETED":
            return
        seen = self.pods[job]
        seen.note("created")
        seen.body = body
        if body["spec"].get("nodeName"):
            seen.note("scheduled")
        status = body.get("status") or {}
        for state in (*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])):
            if not state["state"].get("waiting"):
                seen.note(f"{state['name']} started")
            if state["state"].get("terminated"):
                seen.note(f"{state['name']} finished")
        if status.get("phase") in ("Succeeded", "Failed"):
            seen.note("finished")


@contextlib.asynccontextmanager
async def record(kubeconfig: Path, namespace: str) -> AsyncIterator[Timeline]:
    """Connect, create the namespace where it isn't there, and watch it as long as the context is open."""
    configuration = aio_client.Configuration()
    await aio_config.load_kube_config(config_file=str(kubeconfig), client_configuration=configuration)
    async with Api(aio_client.ApiClient(configuration)) as api:
        with contextlib.suppress(errors.ConflictError):
            await api.create("/api/v1/namespaces", {"metadata": {"name": namespace}})
        timeline = Timeline(api, namespace)
        try:
            await timeline.follow()
            yield timeline
        finally:
            for watch in timeline.watches:
                watch.cancel()
            await asyncio.gather(*timeline.watches, return_exceptions=True)
