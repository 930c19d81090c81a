"""`python -m tests.demo up|down`: called by `make demo`; what it shows is what the README shows.

In the engine's place runs a stand-in (the loader's image), since no engine's image can be had everywhere: it tells where
it finds the weights and how much of them is in the page cache.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import yaml

from tests.checkpoints.real import make_real
from tests.cluster.errors import ClusterError
from tests.cluster.providers import Cluster, choose
from tests.images.engine import ImageError
from tests.installation import MODELS_ROOT, REPOSITORY, condition, deliver_images, get_json, install
from tests.polling import poll

INSTANCE: Final = "demo"
NAMESPACE: Final = "default"
MODEL: Final = "minilm"
_EXAMPLES: Final = REPOSITORY / "docs/examples"
_STAND_IN: Final = (
    'echo "digest $DIGEST, weights in $MODEL_PATH"; modelweights-loader residency "$MODEL_PATH" | grep total; sleep inf'
)


@contextmanager
def step(title: str) -> Iterator[None]:
    """Print what is done and how long it took."""
    print(f"==> {title}", flush=True)
    started = time.monotonic()
    yield
    print(f"    {time.monotonic() - started:.1f} s", flush=True)


def up() -> None:
    """Everything, from the cluster to the started pod."""
    cluster = choose("auto", INSTANCE)
    with step("a real Kubernetes: two GPU nodes, one without"):
        print(f"    {cluster.up()}")
    with step("images of operator and loader, to the cluster's registry"):
        images = deliver_images(cluster)
    with step("the operator, by its chart"):
        install(cluster, images)
    with step(f"a real checkpoint (all-MiniLM-L6-v2) on the disks of {', '.join(cluster.gpu_nodes)}"):
        _clear(cluster)
        _copy_checkpoint(cluster)
    with step("an engine's Deployment with the gate: its pod waits"):
        cluster.kubectl("apply", "--filename=-", input=yaml.safe_dump(_deployment(images.loader)))
        poll("a pod that waits at the gate", lambda: _pod(cluster), seconds=30)
        _show(cluster, "get", "pods", "--selector=app=engine")
    with step("the ModelWeights: prefetched, loaded with ParallelLoader, Ready"):
        cluster.kubectl("apply", f"--filename={_EXAMPLES / 'modelweights.yaml'}")
        cluster.kubectl("wait", "--for=condition=Ready", f"mw/{MODEL}", "--timeout=300s", timeout=310)
        cluster.kubectl("rollout", "status", "deployment/engine", "--timeout=120s", timeout=130)
    _report(cluster)


def _clear(cluster: Cluster) -> None:
    """What an earlier demo left, so that this one shows the same again."""
    for kind, name in (("deployment", "engine"), ("modelweights", MODEL)):
        cluster.kubectl("delete", kind, name, "--ignore-not-found", "--cascade=foreground", timeout=120)
    cluster.kubectl("wait", "--for=delete", "pod", "--selector=app=engine", "--timeout=60s", timeout=70)


def _copy_checkpoint(cluster: Cluster) -> None:
    folder = Path(os.environ.get("TMPDIR", "/tmp")) / f"modelweights-demo-{os.getpid()}"  # noqa: S108 - removed below
    try:
        source = make_real(folder)
        for node in cluster.gpu_nodes:
            cluster.copy_to_node(node, source, f"{MODELS_ROOT}/{MODEL}")
            # Out of the page cache, where the copy left it: as on a node that has been up for a while.
            drop = 'sync; for file in "$0"/*.safetensors; do dd if="$file" iflag=nocache count=0 status=none; done'
            cluster.node_exec(node, ["sh", "-ec", drop, f"{MODELS_ROOT}/{MODEL}"])
    finally:
        subprocess.run(["rm", "-rf", str(folder)], check=True)


def _deployment(stand_in_image: str) -> dict[str, Any]:
    """The example, with the stand-in in the engine's place."""
    body: dict[str, Any] = yaml.safe_load((_EXAMPLES / "deployment.yaml").read_text())
    container = body["spec"]["template"]["spec"]["containers"][0]
    container["image"] = stand_in_image
    container["command"], container["args"] = ["sh", "-ec"], [_STAND_IN]
    return body


def _pod(cluster: Cluster) -> dict[str, Any]:
    items = (get_json(cluster, "pods", "--selector=app=engine") or {}).get("items") or []
    return items[0] if items else {}


def _show(cluster: Cluster, *arguments: str) -> None:
    print(f"\n$ kubectl {' '.join(arguments)}")
    print(cluster.kubectl(*arguments), end="", flush=True)


def _report(cluster: Cluster) -> None:
    """What a person can look at, and how to look further."""
    _show(cluster, "get", "mw")
    model, pod = get_json(cluster, "mw", MODEL), _pod(cluster)
    print("\nnode        state  resident    prefetch       load with ParallelLoader")
    for name, entry in model["status"]["nodes"].items():
        resident, rate = entry["residentBytes"] / 2**20, entry.get("prefetchBytesPerSecond", 0) / 2**30
        print(f"{name:<11} {entry['state']:<6} {resident:6.1f} MiB  {rate:5.2f} GiB/s    {entry['loadSeconds']:.2f} s")
    ready = condition(model, "Ready")["lastTransitionTime"]
    available = condition(model, "Available")["lastTransitionTime"]
    started = pod["status"]["containerStatuses"][0]["state"]["running"]["startedAt"]
    print(f"\npod created    {pod['metadata']['creationTimestamp']}  (gated)")
    print(f"Available      {available}  (one node proven: pods may start there)")
    print(f"pod started    {started}  on {pod['spec']['nodeName']}")
    print(f"Ready          {ready}  (all nodes)")
    if datetime.fromisoformat(started) < datetime.fromisoformat(available):
        raise ClusterError("the pod started before the ModelWeights was Available")
    _show(cluster, "logs", "deployment/engine")
    _show(cluster, "get", "configmap", MODEL, "--output=jsonpath={.data}")
    python = f"{os.path.relpath(sys.executable)} -m tests.cluster --instance {INSTANCE}"
    print(f"""

Give an engine these settings with envFrom, as in docs/examples/deployment.yaml.

Look further (with a kubectl of yours: export KUBECONFIG={cluster.kubeconfig})
  {python} kubectl describe mw {MODEL}
  {python} kubectl explain mw.spec.prefetch
  {python} kubectl logs --namespace modelweights-system deployment/modelweights-operator
  {python} kubectl get nodes --show-labels
Take it down
  make cluster-down""")


def main() -> int:
    """Run the command; one line and 1 when something can't be had."""
    parser = argparse.ArgumentParser(prog="python -m tests.demo", description="Shows the operator at work.")
    parser.add_argument("command", choices=("up", "down"))
    try:
        if parser.parse_args().command == "up":
            up()
        else:
            print(choose("auto", INSTANCE).down())
    except (ClusterError, ImageError, AssertionError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
