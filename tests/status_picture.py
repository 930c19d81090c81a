"""`python -m tests.status_picture`: draws docs/figures/status.svg, and prints what docs/kubectl.md shows of the other commands.

A real API server and the real operator, whose status is what is drawn; kubelets and the Job controller are played, as in the
integration tests. Takes a minute and a half, since the operator reads the progress of what takes longer than a minute.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from rich.console import Console

from kubectl_modelweights import gathered, status, table
from kubectl_modelweights.client import Client
from modelweights_operator.domain import names
from tests.cluster.api import ApiServer
from tests.integration.client import Kube, core_path, model_path
from tests.integration.cluster_double import Team, gated_pod, report
from tests.integration.conftest import RELEASE, REPOSITORY, SYSTEM, apply_chart
from tests.integration.operator_process import OperatorProcess
from tests.integration.test_progress import play_kubelet
from tests.json_client import Json
from tests.polling import poll

PICTURE: Final = REPOSITORY / "docs/figures/status.svg"
SIZE: Final = 16_060_556_376
NAMESPACE: Final = "chat"
_COMMANDS: Final = (
    ("status",),
    ("status", "llama"),
    ("why", "llama"),
    ("gate", "server-1"),
    ("top",),
    ("flags", "minilm", "--engine", "vllm"),
    ("verify", "minilm"),
    ("pause", "minilm"),
    ("resume", "minilm"),
    ("retry", "llama", "--node", "chat-gpu-2"),
)


def main() -> int:
    """Make the status, draw it, print the rest."""
    with ApiServer(["garbage-collector-controller"]) as server, tempfile.TemporaryDirectory() as folder:
        apply_chart(server)
        account = server.kubeconfig_for_service_account(SYSTEM, RELEASE)
        admin = Kube(server.kubeconfig)
        admin.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        team = Team(admin, NAMESPACE)
        with play_kubelet(server.issuer) as kubelet, OperatorProcess(account, Path(folder) / "log"):
            kubelet.log = b"fetch: 62 %, 9.3 GiB of 15.0 GiB, 1.1 GiB/s\n"
            _play(team, kubelet.port)
            os.environ["KUBECONFIG"] = str(server.kubeconfig)
            os.environ["PATH"] = f"{server.folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
            _draw()
            _print()
    return 0


def _play(team: Team, kubelet_port: int) -> None:
    """A small model on all nodes; a large one that is ready on one, failed on one, fetched on one, and waits for one."""
    for number in range(1, 5):
        node = team.add_node(f"gpu-{number}")
        endpoints = {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": kubelet_port}},
            "capacity": {"memory": "64Gi"},
        }
        content = "application/strategic-merge-patch+json"
        team.admin.patch(f"/api/v1/nodes/{node}/status", {"status": endpoints}, content)
    team.create_model("minilm")
    figures: Json = {"sizeBytes": 90_868_376, "residentBytes": 90_868_376, "tensorCount": 103}
    for number in range(1, 5):
        team.end(_job(team, "minilm", number), report(**figures))
    team.wait_for("Ready", "True", name="minilm")
    source = {"huggingFace": {"repository": "meta-llama/Llama-3.1-8B-Instruct", "revision": "main"}}
    placement = {"nodeSelector": {"team": NAMESPACE}, "canaryNodes": 0, "maxConcurrentNodes": 1}
    team.create_model("llama", source=source, placement=placement)
    commit = "0e9e39f249a16976918f6564b8830bc894c89659"
    team.admin.create(core_path(NAMESPACE, "pods"), gated_pod("server-1", "llama-70b,minilm"))
    team.end_resolve(_job(team, "llama", 1), commit)
    figures = {"sizeBytes": SIZE, "residentBytes": SIZE - 2**29, "tensorCount": 291, "revision": commit}
    team.end(_job(team, "llama", 1), report("sha256:" + "c4" * 32, **figures))
    bad = "model-00002-of-00004.safetensors: 4999802720 bytes, its header says 4999802728: fetch it again"
    failed = json.dumps({"step": "validate", "exitCode": 30, "reason": "Truncated", "message": bad})
    team.end(_job(team, "llama", 2), failed)
    _run_fetch(team, _job(team, "llama", 3))
    poll(
        "progress is in the status",
        lambda: team.model("llama")["status"]["nodes"].get("chat-gpu-3", {}).get("progressPercent"),
        seconds=120,
    )


def _job(team: Team, model: str, number: int) -> Json:
    node = team.node_name(f"gpu-{number}")
    uid = team.admin.get(model_path(NAMESPACE, model))["metadata"]["uid"]

    def probe() -> Json | None:
        for job in team.jobs():
            ours = job["metadata"]["labels"][names.OWNER_LABEL] == uid
            if (
                ours
                and job["metadata"]["annotations"][names.NODE_ANNOTATION] == node
                and not job["status"].get("conditions")
            ):
                return job
        return None

    return poll(f"a Job of {model} for {node}", probe)


def _run_fetch(team: Team, job: Json) -> None:
    """The pod's step `fetch` runs, on its node."""
    name = team._make_pod(job)
    body = {
        "target": {"apiVersion": "v1", "kind": "Node", "name": job["metadata"]["annotations"][names.NODE_ANNOTATION]}
    }
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name, "namespace": NAMESPACE}, **body}
    team.admin.create(core_path(NAMESPACE, "pods", f"{name}/binding"), binding)
    state = {"name": "fetch", "image": "x", "imageID": "x", "ready": False, "restartCount": 0}
    running = {**state, "state": {"running": {"startedAt": "2026-11-30T12:00:00Z"}}}
    steps = {"phase": "Pending", "initContainerStatuses": [running]}
    team.admin.patch(f"{core_path(NAMESPACE, 'pods', name)}/status", {"status": steps})


def _draw() -> None:
    model = gathered.model(Client(namespace=NAMESPACE), "llama")
    console = Console(record=True, width=120, force_terminal=True, file=open(os.devnull, "w"))  # noqa: SIM115, PTH123 - for the process
    console.print(table.renderable(status.one(model).blocks, console.width))
    drawn = console.export_svg(title="kubectl modelweights status llama", unique_id="status")
    # Whoever looks at it shouldn't fetch a font from elsewhere for that.
    PICTURE.write_text(re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL))


def _print() -> None:
    for words in _COMMANDS:
        print(f"$ kubectl modelweights {' '.join(words)}", flush=True)
        argv = ["kubectl", "modelweights", words[0], f"--namespace={NAMESPACE}", *words[1:]]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
        print(done.stdout + done.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
