"""The provider for machines with a container engine: kind, with the same nodes, labels, taints and device counts.

NOT YET RUN BY US: written where no engine answers. What differs from the embedded cluster: the nodes share the machine's
boot ID and page cache statistics, and their disk is the engine's.
"""

import functools
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from tests.cluster.build import ensure_program
from tests.cluster.commands import run
from tests.cluster.errors import ClusterError, MissingToolError
from tests.cluster.kubernetes_commands import KubernetesCommands
from tests.cluster.paths import InstancePaths
from tests.cluster.topology import (
    GPU_RESOURCE,
    IMAGE_HOST,
    KUBERNETES_VERSION,
    MODEL_MODE,
    MODEL_OWNER,
    MODEL_ROOT,
    NODES,
    POD_SECURITY_NAMESPACES,
    NodeSpec,
)


@functools.cache
def docker_answers() -> bool:
    """Return whether a container engine is behind the command ``docker``, not only the command itself."""
    if shutil.which("docker") is None:
        return False
    try:
        argv = ["docker", "info", "--format={{.ServerVersion}}"]
        answer = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=15)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return answer.returncode == 0 and bool(answer.stdout.strip())


def _node_config(node: NodeSpec) -> dict[str, object]:
    registration = {
        "kind": "JoinConfiguration",
        "nodeRegistration": {"taints": node.taints, "kubeletExtraArgs": {"feature-gates": "ImageVolume=true"}},
    }
    labels = {**node.labels, "modelweights.io/kind-node": node.name}
    return {"role": "worker", "labels": labels, "kubeadmConfigPatches": [yaml.safe_dump(registration)]}


def kind_config() -> dict[str, object]:
    """Return kind's configuration: a control plane, and the embedded cluster's nodes as workers."""
    return {
        "kind": "Cluster",
        "apiVersion": "kind.x-k8s.io/v1alpha4",
        "featureGates": {"ImageVolume": True},
        "nodes": [{"role": "control-plane"}, *(_node_config(node) for node in NODES)],
    }


class Kind(KubernetesCommands):
    """A cluster of kind's, named after the instance."""

    def __init__(self, name: str = "dev") -> None:
        super().__init__(name, InstancePaths(f"kind-{name}"[:16]).kubeconfig)
        self.cluster = f"modelweights-{name}"

    @functools.cached_property
    def _kind_program(self) -> str:
        return shutil.which("kind") or str(ensure_program("kind"))

    @functools.cached_property
    def _nodes(self) -> dict[str, str]:
        """Node names by our names: kind numbers its workers, our label tells them apart."""
        items = json.loads(self.kubectl("get", "nodes", "--output=json"))["items"]
        label = "modelweights.io/kind-node"
        labelled = [item["metadata"] for item in items if label in item["metadata"]["labels"]]
        return {metadata["labels"][label]: metadata["name"] for metadata in labelled}

    @property
    def gpu_nodes(self) -> tuple[str, ...]:
        return tuple(self._nodes[node.name] for node in NODES if node.gpus)

    @property
    def cpu_node(self) -> str:
        return next(self._nodes[node.name] for node in NODES if not node.gpus)

    def up(self) -> str:
        if not docker_answers():
            raise MissingToolError("provider kind: no container engine answers `docker info`; install and start Docker")
        if self.is_up():
            return f"kind cluster {self.cluster} is already up"
        started = time.monotonic()
        self.kubeconfig.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as config:
            yaml.safe_dump(kind_config(), config)
            config.flush()
            argv = [self._kind_program, "create", "cluster", f"--name={self.cluster}", f"--config={config.name}"]
            image = f"--image=kindest/node:{KUBERNETES_VERSION}"
            run([*argv, image, f"--kubeconfig={self.kubeconfig}", "--wait=120s"], timeout=900)
        self._furnish()
        return f"kind cluster {self.cluster} is up after {time.monotonic() - started:.1f} s"

    def _furnish(self) -> None:
        for name, level in POD_SECURITY_NAMESPACES.items():
            self.kubectl("create", "namespace", name)
            self.kubectl("label", "namespace", name, f"pod-security.kubernetes.io/enforce={level}")
        for node in NODES:
            name = self._nodes[node.name]
            self.node_exec(name, ["install", "-d", MODEL_ROOT])
            self.node_exec(name, ["chown", f"{MODEL_OWNER[0]}:{MODEL_OWNER[1]}", MODEL_ROOT])
            self.node_exec(name, ["chmod", f"{MODEL_MODE:o}", MODEL_ROOT])
        self._report_gpus()

    def _report_gpus(self) -> None:
        """Report GPUs as a device plugin would; the kubelet keeps resources that it doesn't know until it restarts."""
        for node in NODES:
            if node.gpus:
                capacity = {GPU_RESOURCE: str(node.gpus)}
                patch = json.dumps({"status": {"capacity": capacity, "allocatable": capacity}})
                self.kubectl("patch", "node", self._nodes[node.name], "--subresource=status", "--patch", patch)

    def down(self) -> str:
        run([self._kind_program, "delete", "cluster", f"--name={self.cluster}"], timeout=180)
        shutil.rmtree(self.kubeconfig.parent, ignore_errors=True)
        return f"kind cluster {self.cluster} is gone"

    def node_exec(
        self,
        node: str,
        argv: list[str],
        input: str | None = None,  # noqa: A002
        *,
        check: bool = True,
        timeout: float = 60,
    ) -> str:
        return run(["docker", "exec", "--interactive", node, *argv], input=input, check=check, timeout=timeout)

    def copy_to_node(self, node: str, source: Path, destination: str, owner: str = "0:65532") -> None:
        self.node_exec(node, ["mkdir", "-p", destination])
        run(["docker", "cp", f"{source}/.", f"{node}:{destination}"], timeout=600)
        self.node_exec(node, ["chown", "-R", owner, destination])

    def push_image(self, source: str | Path, name_and_tag: str) -> str:
        reference, path = f"{IMAGE_HOST}/{name_and_tag}", Path(source)
        if path.is_dir():
            raise ClusterError("provider kind loads archives and Docker's images, not layout folders: pack it first")
        if path.is_file():
            loaded = run(["docker", "load", "--quiet", f"--input={path}"], timeout=600).strip().rpartition(": ")[2]
        else:
            loaded = str(source)
        run(["docker", "tag", loaded, reference])
        run([self._kind_program, "load", "docker-image", f"--name={self.cluster}", reference], timeout=900)
        return reference

    def has_image(self, name_and_tag: str) -> bool:
        listed = self.node_exec(self.cpu_node, ["crictl", "images", "--output=json"])
        tags = [tag for image in json.loads(listed)["images"] for tag in image["repoTags"]]
        return f"{IMAGE_HOST}/{name_and_tag}" in tags

    def stop_node(self, node: str) -> None:
        run(["docker", "kill", node])

    def start_node(self, node: str, *, timeout: float = 60, taints: Sequence[Mapping[str, str]] = ()) -> None:
        run(["docker", "start", node])
        # One that was deleted meanwhile has to register first.
        self.kubectl("wait", "--for=create", f"node/{node}", f"--timeout={timeout:g}s", timeout=timeout + 10)
        for taint in taints:
            # Nothing is scheduled there yet: it isn't ready.
            text = f"{taint['key']}={taint.get('value', '')}:{taint['effect']}"
            self.kubectl("taint", "node", node, text, "--overwrite")
        # The old status says Ready for a while after a short absence.
        self.kubectl("wait", "--for=condition=Ready=Unknown", f"node/{node}", "--timeout=5s", check=False)
        self.kubectl("wait", "--for=condition=Ready", f"node/{node}", f"--timeout={timeout:g}s", timeout=timeout + 10)
        self._report_gpus()

    def restart_node(self, node: str, *, new_boot_id: bool = True, drop_caches: bool = True) -> None:
        if new_boot_id:
            raise ClusterError("provider kind: a container has its machine's boot ID; restart with new_boot_id=False")
        self.stop_node(node)
        if drop_caches:
            run(
                [
                    "docker",
                    "run",
                    "--rm",
                    "--privileged",
                    "busybox",
                    "sh",
                    "-c",
                    "sync; echo 1 >/proc/sys/vm/drop_caches",
                ]
            )
        self.start_node(node)

    def set_memory_pressure(self, node: str, *, on: bool) -> None:
        raise ClusterError(f"provider kind does not change kubelets ({node}, {on})")
