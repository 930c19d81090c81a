"""The provider for a cluster that somebody else runs, reached by a kubeconfig; only ever used when asked for.

NOT YET RUN BY US against a foreign cluster. Commands on nodes need a privileged pod there; power cuts are not offered.
"""

import functools
import json
import os
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.cluster.commands import run
from tests.cluster.errors import ClusterError, MissingToolError
from tests.cluster.kubernetes_commands import KubernetesCommands
from tests.cluster.topology import GPU_LABEL

REGISTRY_VARIABLE = "MODELWEIGHTS_CLUSTER_REGISTRY"
TOOLS_IMAGE_VARIABLE = "MODELWEIGHTS_CLUSTER_TOOLS_IMAGE"
_NAMESPACE = "kube-system"


class Existing(KubernetesCommands):
    """Somebody's cluster: never created and never deleted here."""

    def __init__(self, kubeconfig: Path) -> None:
        if not kubeconfig.is_file():
            raise MissingToolError(f"provider kubeconfig: {kubeconfig} is not a file")
        super().__init__("existing", kubeconfig)

    def _node_names(self, selector: str) -> tuple[str, ...]:
        listed = json.loads(self.kubectl("get", "nodes", f"--selector={selector}", "--output=json"))["items"]
        return tuple(item["metadata"]["name"] for item in listed)

    @functools.cached_property
    def gpu_nodes(self) -> tuple[str, ...]:
        return self._node_names(f"{GPU_LABEL}=true")

    @functools.cached_property
    def cpu_node(self) -> str:
        others = self._node_names(f"{GPU_LABEL}!=true,!node-role.kubernetes.io/control-plane")
        if not others:
            raise ClusterError("the cluster has no node without GPU")
        return others[0]

    def up(self) -> str:
        if not self.is_up():
            raise ClusterError(f"the API server of {self.kubeconfig} does not answer")
        return "the existing cluster answers"

    def down(self) -> str:
        return "the existing cluster is left as it is"

    def node_exec(
        self,
        node: str,
        argv: list[str],
        input: str | None = None,  # noqa: A002
        *,
        check: bool = True,
        timeout: float = 60,
    ) -> str:
        name = self._start_node_pod(node)
        try:
            enter = ["nsenter", "--target=1", "--mount", "--uts", "--ipc", "--net", "--pid", "--", *argv]
            arguments = ["exec", "--stdin", f"--namespace={_NAMESPACE}", name, "--", *enter]
            return self.kubectl(*arguments, input=input, check=check, timeout=timeout)
        finally:
            self.kubectl("delete", "pod", name, f"--namespace={_NAMESPACE}", "--wait=false", "--grace-period=0")

    def _start_node_pod(self, node: str) -> str:
        name = f"modelweights-node-{uuid.uuid4().hex[:8]}"
        container = {
            "name": "shell",
            "image": os.environ.get(TOOLS_IMAGE_VARIABLE, "debian:trixie-slim"),
            "command": ["sleep", "3600"],
            "securityContext": {"privileged": True},
        }
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": _NAMESPACE},
            "spec": {
                "nodeName": node,
                "hostPID": True,
                "restartPolicy": "Never",
                "tolerations": [{"operator": "Exists"}],
                "containers": [container],
            },
        }
        self.kubectl("create", "--filename=-", input=json.dumps(pod))
        ready = ["wait", "--for=condition=Ready", f"pod/{name}", f"--namespace={_NAMESPACE}", "--timeout=120s"]
        self.kubectl(*ready, timeout=130)
        return name

    def copy_to_node(self, node: str, source: Path, destination: str, owner: str = "0:65532") -> None:
        name = self._start_node_pod(node)
        target = f"/proc/1/root{destination}"
        user, group = owner.split(":")
        pack = ["tar", "-C", str(source), f"--owner=+{user}", f"--group=+{group}", "-cf", "-", "."]
        script = f'mkdir -p "{target}" && tar -C "{target}" --numeric-owner -xpf -'
        try:
            with subprocess.Popen(pack, stdout=subprocess.PIPE) as packing:
                arguments = ["exec", "--stdin", f"--namespace={_NAMESPACE}", name, "--", "sh", "-c", script]
                self._pipe(packing, arguments)
        finally:
            self.kubectl("delete", "pod", name, f"--namespace={_NAMESPACE}", "--wait=false", "--grace-period=0")

    def _pipe(self, packing: "subprocess.Popen[bytes]", arguments: list[str]) -> None:
        argv = [self.kubectl_program, "kubectl", f"--kubeconfig={self.kubeconfig}", *arguments]
        finished = subprocess.run(argv, stdin=packing.stdout, capture_output=True, text=True, check=False)
        if finished.returncode or packing.wait():
            raise ClusterError(f"copying to a node: {finished.stderr.strip()}")

    def _registry(self) -> str:
        registry = os.environ.get(REGISTRY_VARIABLE)
        if not registry:
            raise MissingToolError(
                f"provider kubeconfig: set {REGISTRY_VARIABLE} to a registry that the nodes can pull from"
            )
        return registry

    def push_image(self, source: str | Path, name_and_tag: str) -> str:
        reference = f"{self._registry()}/{name_and_tag}"
        if Path(source).exists():
            raise ClusterError(
                "provider kubeconfig pushes images from buildah's storage: `buildah pull` the archive first"
            )
        run(["buildah", "push", str(source), f"docker://{reference}"], timeout=900)
        return reference

    def has_image(self, name_and_tag: str) -> bool:
        raise ClusterError(f"provider kubeconfig cannot tell whether {name_and_tag} is there: push it")

    def stop_node(self, node: str) -> None:
        raise ClusterError(f"provider kubeconfig does not stop nodes ({node})")

    def start_node(self, node: str, *, timeout: float = 60, taints: Sequence[Mapping[str, str]] = ()) -> None:
        raise ClusterError(f"provider kubeconfig does not start nodes ({node}, {timeout:g} s, {taints})")

    def restart_node(self, node: str, *, new_boot_id: bool = True, drop_caches: bool = True) -> None:
        raise ClusterError(f"provider kubeconfig does not restart nodes ({node}, {new_boot_id}, {drop_caches})")

    def set_memory_pressure(self, node: str, *, on: bool) -> None:
        raise ClusterError(f"provider kubeconfig does not change kubelets ({node}, {on})")
