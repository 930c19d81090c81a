"""A cluster without kubelets: the tests' API server and etcd, the real Job controller, garbage collector and scheduler, and kwok.

Called by `run` and `plain_jobs`' caller. All ends with the context, and with the process.
"""

import json
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from tests.bench.scale.stages import write_stages
from tests.cluster.api import ApiServer
from tests.cluster.build import ensure_program
from tests.integration.client import Kube

Json = dict[str, Any]

SYSTEM: Final = "modelweights-system"
RELEASE: Final = "mw"
OPERATOR: Final = f"system:serviceaccount:{SYSTEM}:{RELEASE}"
PLAIN: Final = "plain-script"
KUBELETS: Final = "kwok"
NODES_OF_A_POOL: Final = 10
_REPOSITORY: Final = Path(__file__).resolve().parents[3]
_CONTROLLERS: Final = ("job-controller", "garbage-collector-controller")
# Else they are held to 20 requests a second, which on a cluster of this size everybody raises.
_QUICK: Final = {"kube-api-qps": "1000", "kube-api-burst": "2000"}


class ScaleCluster:
    """The cluster; each user's requests stand in the audit log.

    Attributes:
        admin: The administrator's requests.
        server: The API server.
        audit: Path of the audit log.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="modelweights-scale-")
        folder = Path(self._folder.name)
        self.audit = folder / "audit.log"
        policy = folder / "audit-policy.json"
        policy.write_text(json.dumps(_audit_policy()))
        audit = {"audit-log-path": str(self.audit), "audit-policy-file": str(policy), "audit-log-maxsize": "4000"}
        self.server = ApiServer(
            _CONTROLLERS,
            scheduler=True,
            more_flags={
                "kube-apiserver": audit,
                "kube-controller-manager": {**_QUICK, "concurrent-job-syncs": "20"},
                "kube-scheduler": _QUICK,
            },
        )
        self._kwok: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self.server.__enter__()
            self.admin = Kube(self.server.kubeconfig)
            self._start_kwok()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close()

    def _start_kwok(self) -> None:
        folder = Path(self._folder.name)
        (folder / "kwok.yaml").write_text(write_stages())
        argv = [
            str(ensure_program("kwok")),
            f"--kubeconfig={self.server.kubeconfig_for(KUBELETS, ['system:masters'])}",
            f"--config={folder / 'kwok.yaml'}",
            "--manage-nodes-with-label-selector=fake=true",
            "--server-address=",
        ]
        with (folder / "kwok.log").open("wb") as log:
            self._kwok = subprocess.Popen(argv, stdout=log, stderr=log, cwd="/")

    def _close(self) -> None:
        if self._kwok is not None:
            self._kwok.terminate()
            try:
                self._kwok.wait(10)
            except subprocess.TimeoutExpired:
                self._kwok.kill()
                self._kwok.wait()
            self._kwok = None
        self.server.close()
        self._folder.cleanup()

    def install_chart(self) -> Path:
        """Apply the chart without its Deployment's pods ever running; the kubeconfig of the operator's service account."""
        chart = str(_REPOSITORY / "charts" / "modelweights-operator")
        argv = [
            str(ensure_program("helm")),
            "template",
            RELEASE,
            chart,
            "--namespace",
            SYSTEM,
            "--kube-version",
            "1.34.4",
        ]
        argv += ["--set", "hostPathRoots={/models}"]
        manifests = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=60).stdout
        self.server.kubectl("create", "namespace", SYSTEM)
        self.server.kubectl("apply", "--server-side", "-f", "-", input=manifests)
        self.server.kubectl("wait", "--for=condition=Established", "crd/modelweights.modelweights.io", "--timeout=20s")
        return self.server.kubeconfig_for_service_account(SYSTEM, RELEASE)

    def add_node(self, number: int, pool: str = "") -> str:
        """A ready node, of a pool of NODES_OF_A_POOL or of the one that is named; its name."""
        name = f"gpu-node-{number:04d}"
        pool = pool or f"p{number // NODES_OF_A_POOL}"
        labels = {"fake": "true", "pool": pool, "kubernetes.io/hostname": name, "nvidia.com/gpu.present": "true"}
        size = {"cpu": "64", "memory": "1Ti", "pods": "250", "ephemeral-storage": "4Ti"}
        ready = {"type": "Ready", "status": "True", "reason": "Fake", "message": ""}
        status = {
            "capacity": size,
            "allocatable": size,
            "conditions": [ready],
            "nodeInfo": {"bootID": f"5b5c1e0e-0000-4000-8000-{number:012d}", **dict.fromkeys(_NODE_INFO, "fake")},
        }
        self.admin.create("/api/v1/nodes", {"metadata": {"name": name, "labels": labels}, "status": status})
        # Admission taints each new node as not ready, and whoever takes that off isn't there.
        self.admin.patch(f"/api/v1/nodes/{name}", {"spec": {"taints": None}})
        return name


_NODE_INFO: Final = (
    "machineID",
    "systemUUID",
    "kernelVersion",
    "osImage",
    "containerRuntimeVersion",
    "kubeletVersion",
    "kubeProxyVersion",
    "operatingSystem",
    "architecture",
)


def _audit_policy() -> Json:
    """Of the operator and the plain script each request, of kwok what it says of pods; of nobody else anything."""
    kwok = {"level": "Metadata", "users": [KUBELETS], "verbs": ["patch", "update"]}
    resources = [{"group": "", "resources": ["pods/status"]}]
    return {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived", "ResponseStarted"],
        "rules": [
            {"level": "Metadata", "users": [OPERATOR, PLAIN]},
            {**kwok, "resources": resources},
            {"level": "None"},
        ],
    }
