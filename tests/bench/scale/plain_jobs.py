"""The floor: a script that makes the same Jobs, waits for them and deletes them, and keeps no status of anything.

`python -m tests.bench.scale.plain_jobs`, started by `run` as a process of its own. Like the operator it has one watch of Jobs with
a selector and keeps to the same cap; it makes what failed anew at once, under another name. Its client is the operator's, so what
is left between the two is what the operator does beside.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Iterator
from typing import Any, Final

from modelweights_operator import errors
from modelweights_operator.api import v1alpha1 as api
from modelweights_operator.domain import manifests, names
from modelweights_operator.domain.snapshot import Node, Owner, Policy
from modelweights_operator.kube import paths
from modelweights_operator.kube.client import Api

Json = dict[str, Any]

POLICY: Final = Policy(loader_image="loader:test", image_pull_policy="IfNotPresent", host_path_roots=("/models",))
_AT_A_TIME: Final = 16
_OURS: Final = f"{names.MANAGED_BY_LABEL}={names.MANAGED_BY}"


class Script:
    """Makes the Jobs of all pairs, so many at a time."""

    def __init__(self, kube: Api, wanted: Iterator[Json], most: int) -> None:
        self._kube, self._wanted = kube, wanted
        self._places, self._requests = asyncio.Semaphore(most), asyncio.Semaphore(_AT_A_TIME)
        self._made: dict[str, Json] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.done = self.failed = 0
        self._over = asyncio.Event()

    async def run(self) -> None:
        """Until the last one is done."""
        listed = await self._kube.get(paths.JOBS, labelSelector=_OURS)
        watch = asyncio.create_task(self._watch(listed["metadata"]["resourceVersion"]))
        total = 0
        for manifest in self._wanted:
            total += 1
            await self._places.acquire()
            self._start(manifest)
        while self.done < total:
            self._over.clear()
            await self._over.wait()
        watch.cancel()
        await asyncio.gather(watch, *self._tasks, return_exceptions=True)

    def _start(self, manifest: Json) -> None:
        self._made[manifest["metadata"]["name"]] = manifest
        self._spawn(self._create(manifest))

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _create(self, manifest: Json) -> None:
        async with self._requests:
            await self._kube.create(paths.jobs(manifest["metadata"]["namespace"]), manifest)

    async def _watch(self, version: str) -> None:
        while True:
            async for event in self._kube.watch(paths.JOBS, resourceVersion=version, labelSelector=_OURS):
                body = event["object"]
                version = body["metadata"]["resourceVersion"]
                if event["type"] in ("ADDED", "MODIFIED"):
                    self._seen(body)

    def _seen(self, body: Json) -> None:
        ends = {each["type"] for each in (body.get("status") or {}).get("conditions") or [] if each["status"] == "True"}
        if not ends & {"Complete", "Failed"} or body["metadata"]["name"] not in self._made:
            return
        manifest = self._made.pop(body["metadata"]["name"])
        self._spawn(self._end(manifest, failed="Failed" in ends))

    async def _end(self, manifest: Json, *, failed: bool) -> None:
        metadata = manifest["metadata"]
        async with self._requests:
            await self._kube.delete(f"{paths.jobs(metadata['namespace'])}/{metadata['name']}")
        if failed:
            self.failed += 1
            self._start({**manifest, "metadata": {**metadata, "name": f"{metadata['name']}-r"}})
            return
        self.done += 1
        self._places.release()
        self._over.set()


def job_of(namespace: str, name: str, node: str, number: int) -> Json:
    """The Job that the operator would make for a pair, but of nobody's."""
    spec = api.Spec.model_validate({"source": {"hostPath": {"path": f"/models/{name}"}}})
    owner = Owner(namespace, name, f"uid-{name}", 1, spec, api.Status())
    boot = f"5b5c1e0e-0000-4000-8000-{number:012d}"
    manifest = manifests.staging_job(owner, spec, Node(node, f"uid-{node}", boot, {}), attempt=0, policy=POLICY)
    del manifest["metadata"]["ownerReferences"]
    return manifest


async def _main(pairs: list[list[Any]], most: int) -> Json:
    async with await Api.connect() as kube:
        script = Script(kube, (job_of(*pair) for pair in pairs), most)
        await script.run()
        return {"done": script.done, "failed": script.failed}


def main() -> int:
    """Read the pairs from standard input; print what was done."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--most", type=int, required=True)
    arguments = parser.parse_args()
    try:
        found = asyncio.run(_main(json.load(sys.stdin), arguments.most))
    except errors.ApiError as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
