"""The provider that needs nothing but Linux and root: lifecycle.py runs it, this is what tests see of it."""

import datetime as dt
import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.cluster import lifecycle
from tests.cluster.build import ensure_program
from tests.cluster.commands import run
from tests.cluster.control import order
from tests.cluster.errors import ClusterError, CommandError
from tests.cluster.nodes import new_boot_id, register_with_taints, set_soft_eviction
from tests.cluster.paths import InstancePaths
from tests.cluster.registry_push import is_oci_archive, push_archive
from tests.cluster.state import State
from tests.cluster.topology import GPU_RESOURCE, IMAGE_HOST, NODES, node_spec

_MANIFEST_TYPES = (
    "application/vnd.oci.image.manifest.v1+json, application/vnd.oci.image.index.v1+json, "
    "application/vnd.docker.distribution.manifest.v2+json, application/vnd.docker.distribution.manifest.list.v2+json"
)


class Embedded:
    """An instance of the embedded cluster; several may run side by side under different names."""

    def __init__(self, name: str = "dev") -> None:
        self.paths = InstancePaths(name)

    @property
    def name(self) -> str:
        return self.paths.name

    @property
    def kubeconfig(self) -> Path:
        return self.paths.kubeconfig

    @property
    def gpu_nodes(self) -> tuple[str, ...]:
        return tuple(node.name for node in NODES if node.gpus)

    @property
    def cpu_node(self) -> str:
        return next(node.name for node in NODES if not node.gpus)

    def up(self) -> str:
        seconds = lifecycle.up(self.name)
        if seconds is None:
            return f"instance {self.name} is already up"
        return f"instance {self.name} is up after {seconds:.1f} s"

    def down(self) -> str:
        seconds = lifecycle.down(self.name)
        if seconds is None:
            return f"instance {self.name} was not up"
        return f"instance {self.name} is gone after {seconds:.1f} s"

    def is_up(self) -> bool:
        return lifecycle.is_up(self.paths)

    def kubectl(self, *arguments: str, input: str | None = None, check: bool = True, timeout: float = 60) -> str:  # noqa: A002
        lifecycle.process_of(self.paths)
        return lifecycle.kubectl(self.paths, *arguments, input=input, check=check, timeout=timeout)

    def helm(self, *arguments: str, input: str | None = None, check: bool = True, timeout: float = 180) -> str:  # noqa: A002
        lifecycle.process_of(self.paths)
        argv = [str(ensure_program("helm")), f"--kubeconfig={self.kubeconfig}", *arguments]
        homes = {
            f"HELM_{kind}_HOME": str(self.paths.root / "helm" / kind.lower()) for kind in ("CACHE", "CONFIG", "DATA")
        }
        return run(argv, input=input, check=check, timeout=timeout, env={**os.environ, **homes})

    def _enter(self, node: str) -> list[str]:
        pid = self._node_process(node)
        return ["nsenter", f"--target={pid}", "--mount", "--uts", "--ipc", "--net", "--pid", "--"]

    def _node_process(self, node: str) -> int:
        """Return the node's first process as the host sees it: the control socket knows its id inside."""
        inside = order(self.paths, "status").get(node_spec(node).name)
        init = lifecycle.process_of(self.paths).pid
        if inside is None or not inside.pid:
            raise ClusterError(f"node {node} does not run")
        for children in Path(f"/proc/{init}/task").glob("*/children"):
            for pid in children.read_text().split():
                ids = _namespace_ids(int(pid))
                if len(ids) > 1 and ids[-2] == inside.pid:
                    return int(pid)
        raise ClusterError(f"node {node}: its process {inside.pid} is not found")

    def node_exec(
        self,
        node: str,
        argv: list[str],
        input: str | None = None,  # noqa: A002
        *,
        check: bool = True,
        timeout: float = 60,
    ) -> str:
        return run([*self._enter(node), *argv], input=input, check=check, timeout=timeout)

    def copy_to_node(self, node: str, source: Path, destination: str, owner: str = "0:65532") -> None:
        user, group = owner.split(":")
        self.node_exec(node, ["mkdir", "-p", destination])
        pack = ["tar", "-C", str(source), "--sparse", f"--owner=+{user}", f"--group=+{group}", "-cf", "-", "."]
        unpack = [*self._enter(node), "tar", "-C", destination, "--numeric-owner", "-xpf", "-"]
        with subprocess.Popen(pack, stdout=subprocess.PIPE) as packing:
            finished = subprocess.run(unpack, stdin=packing.stdout, capture_output=True, text=True, check=False)
        if finished.returncode or packing.returncode:
            raise ClusterError(f"copying {source} to {node}:{destination}: {finished.stderr.strip()}")

    @property
    def registry(self) -> str:
        """Host and port at which this machine reaches the instance's registry."""
        state = State.read(self.paths.state)
        if state is None:
            raise ClusterError(f"instance {self.name} is not up")
        return f"127.0.0.1:{state.registry_port}"

    def push_image(self, source: str | Path, name_and_tag: str) -> str:
        if Path(source).is_file() and is_oci_archive(Path(source)):
            push_archive(Path(source), self.registry, name_and_tag)
            return f"{IMAGE_HOST}/{name_and_tag}"
        image = _stored_image(source)
        # Uncompressed: on loopback compression costs more than it saves, and a layer's digest is known without reading
        # it, so that a second push moves only what changed.
        target = f"docker://{self.registry}/{name_and_tag}"
        run(["buildah", "push", "--quiet", "--disable-compression", "--tls-verify=false", image, target], timeout=900)
        return f"{IMAGE_HOST}/{name_and_tag}"

    def has_image(self, name_and_tag: str) -> bool:
        name, _, tag = name_and_tag.rpartition(":")
        request = urllib.request.Request(
            f"http://{self.registry}/v2/{name}/manifests/{tag}",
            method="HEAD",
            headers={"Accept": _MANIFEST_TYPES},
        )
        try:
            with urllib.request.urlopen(request, timeout=10):  # noqa: S310 - likewise
                return True
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 404:
                return False
            raise ClusterError(f"the registry answers {error.code} for {name_and_tag}") from error

    def stop_node(self, node: str) -> None:
        order(self.paths, "stop", node_spec(node).name)

    def start_node(self, node: str, *, timeout: float = 60, taints: Sequence[Mapping[str, str]] = ()) -> None:
        register_with_taints(self.paths.node(node), [*node_spec(node).taints, *taints])
        started = dt.datetime.now(dt.UTC)
        order(self.paths, "start", node_spec(node).name)
        self._await_node(node, started, timeout)

    def _await_node(self, node: str, started: dt.datetime, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        missing = "its lease"
        while time.monotonic() < deadline:
            try:
                missing = self._missing_since(node, started)
            except CommandError as error:
                missing = str(error)
            if not missing:
                return
            time.sleep(0.3)
        raise ClusterError(f"node {node} is not ready {timeout:g} s after its start: missing {missing}")

    def restart_node(self, node: str, *, new_boot_id: bool = True, drop_caches: bool = True) -> None:
        self.stop_node(node)
        if drop_caches:
            # The disk is mounted in the instance as well as on the node; without its last mount its cache is gone.
            disk = self.paths.node(node) / "disk"
            init = lifecycle.process_of(self.paths).pid
            run(["nsenter", f"--target={init}", "--mount", "--", "umount", str(disk)], timeout=30)
        if new_boot_id:
            self._renew_boot_id(node)
        self.start_node(node)

    def set_memory_pressure(self, node: str, *, on: bool) -> None:
        set_soft_eviction(self.paths.node(node), on=on)
        started = dt.datetime.now(dt.UTC)
        # The node's init starts it again.
        self.node_exec(node, ["pkill", "-o", "-x", "kubelet"], check=False)
        self._await_node(node, started, 60)

    def _renew_boot_id(self, node: str) -> None:
        new_boot_id(self.paths.node(node))

    def _missing_since(self, node: str, started: dt.datetime) -> str:
        """Return what a node that was just started lacks; its old status says Ready for a while, so ask its lease."""
        lease = json.loads(self.kubectl("get", "lease", node, "--namespace=kube-node-lease", "--output=json"))
        if dt.datetime.fromisoformat(lease["spec"]["renewTime"]) < started:
            return "a fresh lease"
        status = json.loads(self.kubectl("get", "node", node, "--output=json"))["status"]
        if status["nodeInfo"]["bootID"] != (self.paths.node(node) / "boot-id").read_text().strip():
            return "its boot ID"
        ready = next((each for each in status["conditions"] if each["type"] == "Ready"), {"status": ""})
        # Times of conditions are whole seconds.
        heard = dt.datetime.fromisoformat(ready["lastHeartbeatTime"]) if ready["status"] == "True" else None
        if heard is None or heard < started.replace(microsecond=0):
            return "condition Ready"
        if status["allocatable"].get(GPU_RESOURCE, "0") != str(node_spec(node).gpus):
            return GPU_RESOURCE
        return ""


def _namespace_ids(pid: int) -> list[int]:
    """Return a process's ids, from the host's PID namespace to its innermost one."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [int(each) for line in lines if line.startswith("NSpid:") for each in line.split()[1:]]


def _stored_image(source: str | Path) -> str:
    """Return an image in buildah's storage for a Docker archive, a layout folder or the name of one that is there."""
    path = Path(source)
    if path.is_dir():
        return run(["buildah", "pull", "--quiet", f"oci:{path}"], timeout=600).strip()
    if path.is_file():
        return run(["buildah", "pull", "--quiet", f"docker-archive:{path}"], timeout=600).strip()
    return str(source)
