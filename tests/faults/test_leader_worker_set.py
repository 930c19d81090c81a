"""A real LeaderWorkerSet's groups at the gate: its controller and webhooks, the StatefulSet controller, the operator; no kubelets.

docs/usage.md, "Pods that belong together", and `integration/test_groups.py`, where a test makes the pods.
"""

import base64
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import yaml

from modelweights_operator.domain import names
from tests.cluster.api import ApiServer
from tests.cluster.build import ensure_program
from tests.cluster.commands import run
from tests.cluster.paths import PACKAGE
from tests.integration.client import Kube, core_path, model_path
from tests.integration.cluster_double import DIGEST, OTHER_DIGEST, Team, gated_pod
from tests.integration.conftest import RELEASE, SYSTEM, apply_chart
from tests.integration.operator_process import OperatorProcess, free_port
from tests.json_client import Json
from tests.polling import poll

pytestmark = pytest.mark.timeout(600, func_only=True)
"""Against hangs only."""
CONTROLLERS = ("garbage-collector-controller", "statefulset-controller")
SETS = "/apis/leaderworkerset.x-k8s.io/v1/namespaces/{}/leaderworkersets"


@pytest.fixture
def server() -> Iterator[ApiServer]:
    """An API server with what a LeaderWorkerSet needs, and with the chart."""
    with ApiServer(CONTROLLERS) as server:
        apply_chart(server)
        yield server


@pytest.fixture
def team(server: ApiServer, tmp_path: Path) -> Iterator[Team]:
    """A namespace with a node, while both controllers run."""
    admin = Kube(server.kubeconfig)
    admin.create("/api/v1/namespaces", {"metadata": {"name": "team"}})
    team = Team(admin, "team")
    team.add_node("a")
    account = server.kubeconfig_for_service_account(SYSTEM, RELEASE)
    with _sets_controller(server, tmp_path), OperatorProcess(account, tmp_path / "operator.log"):
        yield team


@contextmanager
def _sets_controller(server: ApiServer, folder: Path) -> Iterator[None]:
    """The controller of LeaderWorkerSets, which has webhooks for pods too."""
    # First: it is what brings the module here.
    program = ensure_program("leader-worker-set")
    module = Path(run(["go", "list", "-C", str(PACKAGE / "go/lws"), "-m", "-f", "{{.Dir}}", "sigs.k8s.io/lws"]).strip())
    definition = module / "config/crd/bases/leaderworkerset.x-k8s.io_leaderworkersets.yaml"
    server.kubectl("apply", "--server-side", "-f", str(definition))
    # What is wrong is told, and nothing where there is none.
    poll("the kind is served", lambda: not server.kubectl("get", "leaderworkersets", "--output=name", check=False))
    port = free_port()
    issued = server.issuer.issue("webhook", "webhook", alternative_names=["127.0.0.1"])
    for source, name in ((issued.certificate, "tls.crt"), (issued.key, "tls.key")):
        (folder / name).write_bytes(source.read_bytes())
    config = {
        "apiVersion": "config.lws.x-k8s.io/v1alpha1",
        "kind": "Configuration",
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "webhook": {"host": "127.0.0.1", "port": port, "certDir": str(folder)},
        "metrics": {"bindAddress": "0"},
        "health": {"healthProbeBindAddress": f"127.0.0.1:{free_port()}"},
    }
    (folder / "lws.yaml").write_text(yaml.safe_dump(config))
    argv = [str(program), f"--config={folder / 'lws.yaml'}"]
    environment = {**os.environ, "KUBECONFIG": str(server.kubeconfig)}
    with (
        (folder / "lws.log").open("wb") as log,
        subprocess.Popen(argv, stdout=log, stderr=log, env=environment) as process,
    ):
        try:
            poll("its webhooks answer", partial(_listens, port), seconds=60)
            server.kubectl("apply", "--server-side", "-f", "-", input=_webhooks(server, module, port))
            yield
        finally:
            process.terminate()
            process.wait(20)
            print((folder / "lws.log").read_text()[-3000:])


def _listens(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False


def _webhooks(server: ApiServer, module: Path, port: int) -> str:
    """As the module has them, at the process in place of a Service."""
    authority = base64.b64encode(server.authority.read_bytes()).decode()
    configurations = list(yaml.safe_load_all((module / "config/webhook/manifests.yaml").read_text()))
    for configuration in configurations:
        for webhook in configuration["webhooks"]:
            path = webhook["clientConfig"]["service"]["path"]
            webhook["clientConfig"] = {"url": f"https://127.0.0.1:{port}{path}", "caBundle": authority}
    return yaml.safe_dump_all(configurations)


def _pods(team: Team) -> dict[str, Json]:
    """Of the set, by their names."""
    pods = team.admin.items(core_path(team.namespace, "pods"))
    return {
        pod["metadata"]["name"]: pod
        for pod in pods
        if "leaderworkerset.sigs.k8s.io/name" in pod["metadata"].get("labels", {})
    }


def _uid(team: Team, name: str) -> str:
    pod = _pods(team).get(name)
    return str(pod["metadata"]["uid"]) if pod else ""


def _digests(team: Team) -> dict[str, str]:
    """Per pod the digest that it was let go with, "" while it waits."""
    found = {}
    for name, pod in _pods(team).items():
        gated = any(gate["name"] == names.GATE for gate in pod["spec"].get("schedulingGates", []))
        found[name] = "" if gated else pod["metadata"]["annotations"][names.DIGEST_ANNOTATION]
    return found


def _await_digests(team: Team, **digests: str) -> None:
    expected = {name.replace("_", "-"): digest for name, digest in digests.items()}
    poll(f"pods are {expected}", lambda: _digests(team) == expected, seconds=60, show=[lambda: str(_digests(team))])


def test_groups_start_whole_and_each_with_one_checkpoint(team: Team) -> None:
    waiting = gated_pod("unnamed", "llama")
    template = {"metadata": {"annotations": waiting["metadata"]["annotations"]}, "spec": waiting["spec"]}
    groups = {"leaderTemplate": template, "workerTemplate": template, "size": 2}
    body = {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": "llm"},
        "spec": {"replicas": 2, "leaderWorkerTemplate": groups},
    }
    team.admin.create(SETS.format(team.namespace), body)
    _await_digests(team, llm_0="", llm_0_1="", llm_1="", llm_1_1="")
    team.create_model()
    team.stage("a")
    _await_digests(team, llm_0=DIGEST, llm_0_1=DIGEST, llm_1=DIGEST, llm_1_1=DIGEST)

    team.admin.patch(model_path(team.namespace, "llama"), {"spec": {"source": {"hostPath": {"path": "/models/other"}}}})
    team.stage("a", digest=OTHER_DIGEST)
    poll("it is published", lambda: team.model()["status"]["published"]["manifestDigest"] == OTHER_DIGEST)
    # The set makes the whole group anew when a container of one of its pods was started again.
    former = _pods(team)["llm-1"]["metadata"]["uid"]
    restarted = {"name": "c", "image": "x", "imageID": "x", "ready": False, "restartCount": 1}
    status = {"status": {"phase": "Running", "containerStatuses": [restarted]}}
    team.admin.patch(f"{core_path(team.namespace, 'pods', 'llm-1-1')}/status", status)
    poll("its leader is another one", lambda: _uid(team, "llm-1") not in ("", former))
    _await_digests(team, llm_0=DIGEST, llm_0_1=DIGEST, llm_1=OTHER_DIGEST, llm_1_1=OTHER_DIGEST)
