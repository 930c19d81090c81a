"""The operator's own cost with hundreds of nodes and a thousand objects, beside a plain script. Called by `tests.bench`.

For each size, on a cluster of its own: all objects are created at once and staged to the end; then nothing happens; then a node
joins that only the wide objects select. Before that, on another cluster, the script makes the same Jobs.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from tests.bench.figures import say, start_result
from tests.bench.processes import BenchmarkError
from tests.bench.scale import audit
from tests.bench.scale.cluster import KUBELETS, NODES_OF_A_POOL, OPERATOR, PLAIN, ScaleCluster
from tests.bench.scale.processes import Sample, Watched
from tests.integration.client import model_path
from tests.integration.operator_process import OperatorProcess

Json = dict[str, Any]

NAMESPACES: Final = 10
MAX_JOBS: Final = 500
STATUS_NODES: Final = 1000
_POLL_SECONDS: Final = 5.0
_TELL_SECONDS: Final = 30.0
_ALL: Final = "/apis/modelweights.io/v1alpha1/modelweights"


@dataclass(frozen=True)
class Size:
    """How much of everything."""

    nodes: int
    models: int
    wide: int

    def models_of(self) -> Iterator[tuple[str, str, str]]:
        """Namespace, name and pool of each object; pool "" for those on all nodes."""
        pools = -(-self.nodes // NODES_OF_A_POOL)
        for number in range(self.models):
            is_wide = number < self.wide
            name = f"wide-{number:02d}" if is_wide else f"narrow-{number:04d}"
            yield f"team-{number % NAMESPACES}", name, "" if is_wide else f"p{number % pools}"

    def pairs(self) -> list[list[Any]]:
        """Namespace, object, node and the node's number of all that is to be staged."""
        found: list[list[Any]] = []
        for namespace, name, pool in self.models_of():
            first = int(pool.removeprefix("p") or 0) * NODES_OF_A_POOL
            last = min(first + NODES_OF_A_POOL, self.nodes) if pool else self.nodes
            found += [[namespace, name, f"gpu-node-{number:04d}", number] for number in range(first, last)]
        return found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this benchmark."""
    parser.add_argument("--nodes", default="100,300,500", help="numbers of nodes, one run each (default 100,300,500)")
    parser.add_argument("--models", type=int, default=1000, help="objects at the largest size; others in proportion")
    parser.add_argument(
        "--wide", type=int, default=20, help="of these, how many are on all nodes; the others on ten each"
    )
    parser.add_argument("--idle-seconds", type=int, default=130, help="how long to look on when all is done")
    parser.add_argument("--minutes", type=int, default=60, help="bound of one run")
    parser.add_argument("--no-floor", action="store_true", help="leave the plain script out")
    parser.add_argument(
        "--keep", type=Path, help="folder for the audit log, the operator's and its profile, which slows it down"
    )
    parser.add_argument("--no-status", action="store_true", help=f"leave out the one object on {STATUS_NODES} nodes")


def run(arguments: argparse.Namespace) -> Json:
    """Run all sizes."""
    numbers = sorted(int(each) for each in arguments.nodes.split(","))
    sizes = [
        Size(nodes, max(arguments.models * nodes // numbers[-1], arguments.wide), arguments.wide) for nodes in numbers
    ]
    options = {
        "nodes": arguments.nodes,
        "objects": arguments.models,
        "on_all_nodes": arguments.wide,
        "jobs_at_a_time": MAX_JOBS,
    }
    result = start_result("scale", options)
    result["runs"] = []
    for size in sizes:
        found: Json = {"nodes": size.nodes, "objects": size.models, "wide": size.wide, "pairs": len(size.pairs())}
        found["jobs_at_a_time"] = MAX_JOBS
        if not arguments.no_floor:
            found["plain"] = _measure_plain(size, arguments.minutes)
        found["operator"] = _measure_operator(size, arguments)
        result["runs"].append(found)
    if not arguments.no_status:
        result["status"] = _measure_status(STATUS_NODES, arguments.minutes)
    return result


# --- the floor --------------------------------------------------------------------------------------------------------


def _measure_plain(size: Size, minutes: int) -> Json:
    with ScaleCluster() as cluster:
        _make_nodes(cluster, size.nodes)
        _make_namespaces(cluster)
        say(f"{size.nodes} nodes: the plain script makes {len(size.pairs())} Jobs")
        argv = [sys.executable, "-m", "tests.bench.scale.plain_jobs", f"--most={MAX_JOBS}"]
        kubeconfig = cluster.server.kubeconfig_for(PLAIN, ["system:masters"])
        environment = {**os.environ, "KUBECONFIG": str(kubeconfig)}
        began = time.time()
        with subprocess.Popen(
            argv, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            with Watched(process.pid) as watched:
                try:
                    text, _ = process.communicate(json.dumps(size.pairs()), timeout=minutes * 60)
                except BaseException:
                    process.kill()
                    raise
            if process.returncode:
                raise BenchmarkError(f"the plain script ended with {process.returncode}")
        requests = [each for each in audit.read(cluster.audit) if each.user == PLAIN]
        return {
            "seconds": round(time.time() - began, 1),
            "cpu_seconds": round(watched.samples[-1].cpu_seconds, 1) if watched.samples else 0.0,
            "peak_rss_bytes": max((sample.rss_bytes for sample in watched.samples), default=0),
            "requests": audit.count(requests),
            **json.loads(text),
        }


# --- the operator -----------------------------------------------------------------------------------------------------


@contextmanager
def _running_operator(cluster: ScaleCluster, keep: Path | None = None) -> Iterator[Watched]:
    kubeconfig = cluster.install_chart()
    with TemporaryDirectory(prefix="modelweights-scale-") as folder:
        log = (keep or Path(folder)) / "operator.log"
        profile = keep / "profile" if keep else None
        with OperatorProcess(kubeconfig, log, profile=profile, MODELWEIGHTS_MAX_JOBS=str(MAX_JOBS)) as operator:
            try:
                with Watched(operator.pid) as watched:
                    yield watched
            except BaseException:
                print(log.read_text()[-3000:], file=sys.stderr)
                raise
        if "Traceback" in log.read_text():
            raise BenchmarkError(f"the operator's log has a traceback:\n{log.read_text()[-3000:]}")


def _measure_operator(size: Size, arguments: argparse.Namespace) -> Json:
    minutes = arguments.minutes
    with ScaleCluster() as cluster:
        _make_nodes(cluster, size.nodes)
        _make_namespaces(cluster)
        with _running_operator(cluster, arguments.keep) as watched:
            say(f"{size.nodes} nodes: {size.models} objects, {len(size.pairs())} pairs")
            begins = [watched.now()]
            for namespace, name, pool in size.models_of():
                cluster.admin.create(model_path(namespace), _model(namespace, name, pool))
            _await_ready(cluster, size.models, minutes)
            begins.append(watched.now())
            time.sleep(arguments.idle_seconds)
            begins.append(watched.now())
            cluster.add_node(size.nodes, pool="joined")
            _await_nodes(cluster, size.nodes + 1, size.wide, minutes)
            begins.append(watched.now())
            requests = audit.read(cluster.audit)
            if arguments.keep is not None:
                shutil.copy(cluster.audit, arguments.keep / "audit.log")
            phases = [_phase(requests, before, after) for before, after in pairwise(begins)]
            waits = audit.seconds_to_status(
                (each for each in requests if each.answered <= begins[1].at), OPERATOR, KUBELETS
            )
            return {
                **dict(zip(("staging", "idle", "join"), phases, strict=True)),
                "peak_rss_bytes": watched.peak_bytes(),
                "peak_jobs": audit.most_jobs(requests, OPERATOR),
                "stagings_timed": len(waits),
                "to_status_seconds": {
                    str(percent): round(audit.percentile(waits, percent), 3) for percent in (50, 90, 99, 100)
                },
                "status": _largest_status(cluster, size),
            }


def _phase(requests: list[audit.Request], before: Sample, after: Sample) -> Json:
    within = [each for each in requests if each.user == OPERATOR and before.at <= each.answered <= after.at]
    failed = [each for each in within if each.status >= 400]
    return {
        "seconds": round(after.at - before.at, 1),
        "cpu_seconds": round(after.cpu_seconds - before.cpu_seconds, 2),
        "rss_bytes": after.rss_bytes,
        "requests": audit.count(within),
        "refused": audit.count(failed),
        "writes": sum(each.verb in audit.WRITES for each in within),
    }


def _measure_status(nodes: int, minutes: int) -> Json:
    """One object on so many nodes: how large it becomes."""
    with ScaleCluster() as cluster:
        _make_nodes(cluster, nodes)
        _make_namespaces(cluster)
        with _running_operator(cluster) as watched:
            say(f"one object on {nodes} nodes")
            model = _model("team-0", "wide-00", "")
            model["spec"]["placement"]["maxConcurrentNodes"] = 100
            cluster.admin.create(model_path("team-0"), model)
            _await_ready(cluster, 1, minutes)
            return {
                "nodes": nodes,
                "peak_rss_bytes": watched.peak_bytes(),
                **_largest_status(cluster, Size(nodes, 1, 1)),
            }


def _model(namespace: str, name: str, pool: str) -> Json:
    selector = {"pool": pool} if pool else {"fake": "true"}
    return {
        "apiVersion": "modelweights.io/v1alpha1",
        "kind": "ModelWeights",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "source": {"hostPath": {"path": f"/models/{name}"}},
            "placement": {"nodeSelector": selector, "maxConcurrentNodes": 10 if pool else 50},
        },
    }


def _make_nodes(cluster: ScaleCluster, nodes: int) -> None:
    for number in range(nodes):
        cluster.add_node(number)


def _make_namespaces(cluster: ScaleCluster) -> None:
    for number in range(NAMESPACES):
        cluster.admin.create("/api/v1/namespaces", {"metadata": {"name": f"team-{number}"}})


def _largest_status(cluster: ScaleCluster, size: Size) -> Json:
    """Bytes of the first object on all nodes, with its managed fields and without."""
    namespace, name, _ = next(size.models_of())
    status, text = cluster.admin.ask("GET", model_path(namespace, name))
    body = json.loads(text)
    managed = body["metadata"].pop("managedFields", [])
    return {
        "object_bytes": len(text) if status == 200 else 0,
        "managed_bytes": len(json.dumps(managed, separators=(",", ":"))),
        "entries": len(body["status"]["nodes"]),
    }


# --- waiting ----------------------------------------------------------------------------------------------------------


def _await_ready(cluster: ScaleCluster, models: int, minutes: int) -> None:
    """Until all objects are ready."""
    told = time.monotonic()

    def ready() -> bool:
        nonlocal told
        ratios = _ratios(cluster)
        if time.monotonic() - told > _TELL_SECONDS:
            done = sum(int(ratio.partition("/")[0]) for _, ratio in ratios)
            say(f"{done} staged, {_count(cluster, '/apis/batch/v1/jobs')} Jobs, those that go among them")
            told = time.monotonic()
        return len(ratios) == models and all(state == "True" for state, _ in ratios)

    _await("all objects are ready", ready, minutes)


def _await_nodes(cluster: ScaleCluster, nodes: int, wide: int, minutes: int) -> None:
    def ready() -> bool:
        return sum(ratio == f"{nodes}/{nodes}" for _, ratio in _ratios(cluster)) == wide

    _await("the node that joined is staged", ready, minutes, every=1.0)


def _await(what: str, ask: Callable[[], bool], minutes: int, every: float = _POLL_SECONDS) -> None:
    deadline = time.monotonic() + minutes * 60
    while not _answer(ask):
        if time.monotonic() > deadline:
            raise BenchmarkError(f"not within {minutes} minutes: {what}")
        time.sleep(every)


def _answer(ask: Callable[[], bool]) -> bool:
    """An API server that is busy may take longer than the client waits."""
    try:
        return ask()
    except TimeoutError as error:
        say(f"no answer: {error}")
        return False


def _ratios(cluster: ScaleCluster) -> list[tuple[str, str]]:
    """Of each object, whether it is ready, and on how many nodes: as a table, which leaves the statuses where they are."""
    connection = cluster.admin.connection()
    try:
        connection.request("GET", _ALL, headers={"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"})
        table = json.loads(connection.getresponse().read())
    finally:
        connection.close()
    columns = [column["name"] for column in table["columnDefinitions"]]
    ready, nodes = columns.index("Ready"), columns.index("Nodes")
    return [(row["cells"][ready] or "", row["cells"][nodes] or "0/0") for row in table["rows"]]


def _count(cluster: ScaleCluster, path: str) -> int:
    """How many objects of a kind there are: one is listed, and the server says how many remain."""
    page = cluster.admin.get(f"{path}?limit=1")
    return len(page["items"]) + int(page["metadata"].get("remainingItemCount") or 0)
