"""What a warm checkpoint looks like to the kubelet, which evicts pods by it: cold pages, normal ones, and after an engine read them.

Called by `__main__`. On a cluster: the kubelet's own summary is asked, beside the kernel's counters of the group of all pods.
The kubelet evicts by two figures: what is available on the node, and what of its allocatable memory the pods leave.
Both take a *working set* as used, that is all but the inactive file pages.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from modelweights_loader.quantity import parse_bytes
from tests import node_page_cache
from tests.bench.figures import MIB, make_table, say, spread, start_result
from tests.bench.processes import BenchmarkError
from tests.checkpoints.synthetic import make_synthetic
from tests.cluster.paths import InstancePaths
from tests.cluster.providers import Cluster, choose
from tests.installation import MODELS_ROOT, condition, deliver_images, install

NAMESPACE: Final = "bench-pressure"
MOMENTS: Final = ("before", "staged", "read by an engine", "refreshed")
PAGES: Final = ("Cold", "Normal")
_READY_SECONDS: Final = 240.0
_FIGURES: Final = ("pods_working_set", "pods_active_file", "pods_inactive_file", "resident")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--instance", default="bench", help="instance of the cluster (default bench)")
    parser.add_argument("--size", type=parse_bytes, default=2**30, help="of the checkpoint (default 1Gi)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each kind (default 3)")
    parser.add_argument("--keep", action="store_true", help="leave a cluster up that this run brought up")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Bring a cluster up where there is none, measure; take it down again when it was ours."""
    cluster = choose("auto", arguments.instance)
    own = not cluster.is_up()
    result = start_result("node-pressure", {"size_mib": arguments.size // MIB, "rounds": arguments.rounds})
    print(cluster.up(), flush=True)
    try:
        runs = _measure(cluster, arguments.instance, arguments.size, arguments.rounds)
    finally:
        if own and not arguments.keep:
            print(cluster.down(), flush=True)
    return {**result, "runs": runs}


def make_tables(result: dict[str, Any]) -> dict[str, str]:
    """Name to Markdown."""
    rows = []
    for pages in PAGES:
        for moment in MOMENTS:
            found = [run["moments"][moment] for run in result["runs"] if run["pages"] == pages]
            found = [figures for figures in found if figures]
            columns = ([figures[name] / MIB for figures in found] for name in _FIGURES)
            rows.append((f"{pages}: {moment}", *(spread(list(column), 0) for column in columns)))
    names = ("pods: working set", "active file", "inactive file", "resident of the checkpoint")
    return {"node-pressure": make_table(("MiB", *names), rows)}


def _measure(cluster: Cluster, instance: str, size_bytes: int, rounds: int) -> list[dict[str, Any]]:
    install(cluster, deliver_images(cluster))
    cluster.kubectl("create", "namespace", NAMESPACE, check=False)
    node, path = cluster.gpu_nodes[0], f"{MODELS_ROOT}/bench-pressure"
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        cluster.copy_to_node(node, make_synthetic(Path(folder) / "checkpoint", size_bytes), path)
    runs = []
    for turn in range(rounds):
        for pages in PAGES:
            moments = _run_once(cluster, instance, node, path, pages, f"{pages.lower()}-{turn}")
            runs.append({"pages": pages, "moments": moments})
            say(f"node-pressure: round {turn + 1} of {rounds}, {pages}")
    cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false", check=False)
    cluster.node_exec(node, ["rm", "-r", path])
    return runs


def _run_once(
    cluster: Cluster, instance: str, node: str, path: str, pages: str, name: str
) -> dict[str, dict[str, int]]:
    node_page_cache.drop(cluster, node, path, MIB)
    moments = {"before": _look(cluster, instance, node, path)}
    prefetch = {"refreshIntervalSeconds": 300, "pages": pages}
    placement = {"nodeSelector": {"kubernetes.io/hostname": node}}
    body = {
        "apiVersion": "modelweights.io/v1alpha1",
        "kind": "ModelWeights",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"source": {"hostPath": {"path": path}}, "placement": placement, "prefetch": prefetch},
    }
    cluster.kubectl("apply", "-f", "-", input=json.dumps(body))
    model = _await("is Ready", lambda: _ready(cluster, name))
    _await("has no Job left", lambda: _has_no_job(cluster))
    moments["staged"] = _look(cluster, instance, node, path)
    # Two reads, as an engine's second start does: the second one has the kernel take the pages for used.
    for _ in range(2):
        cluster.node_exec(node, ["sh", "-c", 'cat "$1"/*.safetensors > /dev/null', "sh", path], timeout=300)
    moments["read by an engine"] = _look(cluster, instance, node, path)
    before = model["status"]["nodes"][node]["measuredAt"]
    status = {"status": {"nodes": {node: {"measuredAt": "2026-01-01T00:00:00Z"}}}}
    patch = ("patch", "mw", name, f"--namespace={NAMESPACE}", "--subresource=status", "--type=merge")
    cluster.kubectl(*patch, f"--patch={json.dumps(status)}")
    _await("is refreshed", lambda: _model(cluster, name)["status"]["nodes"][node]["measuredAt"] > before)
    _await("has no Job left", lambda: _has_no_job(cluster))
    moments["refreshed"] = _look(cluster, instance, node, path)
    cluster.kubectl("delete", "mw", name, f"--namespace={NAMESPACE}", timeout=90)
    return moments


def _model(cluster: Cluster, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(cluster.kubectl("get", "mw", name, f"--namespace={NAMESPACE}", "-o", "json"))
    return found


def _ready(cluster: Cluster, name: str) -> dict[str, Any] | None:
    body = _model(cluster, name)
    return body if condition(body, "Ready").get("status") == "True" else None


def _has_no_job(cluster: Cluster) -> bool:
    return not json.loads(cluster.kubectl("get", "jobs", f"--namespace={NAMESPACE}", "-o", "json"))["items"]


def _await(what: str, ask: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + _READY_SECONDS
    while not (found := ask()):
        if time.monotonic() > deadline:
            raise BenchmarkError(f"the ModelWeights {what}: not within {_READY_SECONDS:g} s")
        time.sleep(0.5)
    return found


def _look(cluster: Cluster, instance: str, node: str, path: str) -> dict[str, int]:
    """The kubelet's figures, measured after now, and the kernel's lists of the same group."""
    since = datetime.now(UTC)
    summary = _await("is measured by the kubelet", lambda: _summary(cluster, node, since))
    pods = next(each for each in summary["systemContainers"] if each["name"] == "pods")["memory"]
    lists = _lists(cluster, instance, node)
    return {
        "pods_working_set": int(pods["workingSetBytes"]),
        "pods_available": int(pods.get("availableBytes", 0)),
        "node_working_set": int(summary["memory"]["workingSetBytes"]),
        "node_available": int(summary["memory"]["availableBytes"]),
        "pods_active_file": lists["active_file"],
        "pods_inactive_file": lists["inactive_file"],
        "resident": node_page_cache.resident_bytes(cluster, node, path),
    }


def _summary(cluster: Cluster, node: str, since: datetime) -> dict[str, Any] | None:
    found: dict[str, Any] = json.loads(cluster.kubectl("get", "--raw", f"/api/v1/nodes/{node}/proxy/stats/summary"))[
        "node"
    ]
    memories = [found["memory"], *(each["memory"] for each in found["systemContainers"] if each["name"] == "pods")]
    return found if all(datetime.fromisoformat(memory["time"]) >= since for memory in memories) else None


def _lists(cluster: Cluster, instance: str, node: str) -> dict[str, int]:
    """Of the group of all pods of this node, children included, in version 1 and 2 of control groups."""
    # The kubelets of one machine have a root each, below their cluster's; that of a machine of its own has none.
    embedded = InstancePaths(instance).cgroup
    paths = (
        "-path",
        f"*/{embedded}/{node}/kubepods/memory.stat",
        "-o",
        "-path",
        "/sys/fs/cgroup/*kubepods*/memory.stat",
    )
    found = cluster.node_exec(node, ["find", "/sys/fs/cgroup", "-maxdepth", "5", *paths]).split()
    own = [path for path in found if f"/{embedded}/{node}/" in path] or [path for path in found if "/mwk-" not in path]
    if not own:
        raise BenchmarkError(f"the control group of the pods of {node} isn't found")
    counters = min(own, key=len)
    figures = dict(line.split() for line in cluster.node_exec(node, ["cat", counters]).splitlines())
    return {
        name: int(figures.get(f"total_{name}", figures.get(name, "0"))) for name in ("active_file", "inactive_file")
    }
