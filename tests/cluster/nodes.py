"""Writes everything that a node of the embedded cluster needs: configuration files and the plan of its init.

A node's files lie in one folder of the instance; the node sees that folder as /etc/modelweights-node.
"""

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.cluster.controlplane import ControlPlane
from tests.cluster.kubeconfig import write_kubeconfig
from tests.cluster.paths import PACKAGE, InstancePaths
from tests.cluster.plan import Plan, Service
from tests.cluster.topology import (
    CONTROL_PLANE_ADDRESS,
    GPU_RESOURCE,
    IMAGE_HOST,
    KUBELET_PORT,
    MODEL_MODE,
    MODEL_OWNER,
    MODEL_ROOT,
    NODES,
    PAUSE_IMAGE,
    POD_SUBNET,
    REGISTRY_PORT,
    NodeSpec,
)

SCRIPTS = PACKAGE / "scripts"
_ETC = "/etc/modelweights-node"
_BIN = "/opt/modelweights/bin"
_LOGS = "/var/log/modelweights"
_CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
_SHORT_OF_MEMORY = {
    # 100 % would be taken for no threshold at all.
    "evictionSoft": {"memory.available": "99%"},
    "evictionSoftGracePeriod": {"memory.available": "1s"},
    "evictionMaxPodGracePeriod": 1,
}

_CONTAINERD_CONFIG = f"""\
version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
oom_score = 0

[grpc]
  address = "{_CONTAINERD_SOCKET}"

[plugins.'io.containerd.cri.v1.runtime']
  # Without CAP_SYS_RESOURCE no process may lower its score, and runc would fail.
  restrict_oom_score_adj = true
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ["/usr/lib/cni", "/opt/cni/bin"]
    conf_dir = "{_ETC}/cni"
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
      SystemdCgroup = false

[plugins.'io.containerd.cri.v1.images']
  # The registry has them: keep an image once on the node's disk, not packed as well.
  discard_unpacked_layers = true
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = "{PAUSE_IMAGE}"
  [plugins.'io.containerd.cri.v1.images'.registry]
    config_path = "{_ETC}/registries"
"""

_REGISTRY_HOSTS = f"""\
server = "http://{CONTROL_PLANE_ADDRESS}:{REGISTRY_PORT}"
[host."http://{CONTROL_PLANE_ADDRESS}:{REGISTRY_PORT}"]
  capabilities = ["pull", "resolve"]
"""


@dataclass(frozen=True)
class NodeFiles:
    """Writer of one node's folder."""

    instance: InstancePaths
    node: NodeSpec

    @property
    def folder(self) -> Path:
        return self.instance.node(self.node.name)

    def write(self, control_plane: ControlPlane) -> Service:
        """Write the folder and return the service that runs the node under the instance's init."""
        for name in ("cni", f"registries/{IMAGE_HOST}", "pki", "disk", "root"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        (self.folder / "containerd.toml").write_text(_CONTAINERD_CONFIG)
        (self.folder / "registries" / IMAGE_HOST / "hosts.toml").write_text(_REGISTRY_HOSTS)
        (self.folder / "cni" / "10-bridge.conflist").write_text(json.dumps(self._cni()))
        (self.folder / "kubelet.yaml").write_text(yaml.safe_dump(self._kubelet_config()))
        (self.folder / "proxy.yaml").write_text(yaml.safe_dump(self._proxy_config()))
        (self.folder / "network").write_text(self._network())
        new_boot_id(self.folder)
        self._write_identity(control_plane)
        self._plan().write(self.folder / "plan.json")
        return self._service()

    def _write_identity(self, control_plane: ControlPlane) -> None:
        name, authority, server = self.node.name, control_plane.authority, control_plane.server
        client = authority.issue(f"kubelet-{name}", f"system:node:{name}", ["system:nodes"])
        write_kubeconfig(self.folder / "kubelet.kubeconfig", server, authority.certificate, client)
        serving = authority.issue(f"serving-{name}", f"system:node:{name}", ["system:nodes"], [name, self.node.address])
        for source, target in ((serving.certificate, "kubelet.crt"), (serving.key, "kubelet.key")):
            (self.folder / "pki" / target).write_bytes(source.read_bytes())
        (self.folder / "pki" / "ca.crt").write_bytes(authority.certificate.read_bytes())
        proxy = (control_plane.root / "proxy.kubeconfig").read_text()
        (self.folder / "proxy.kubeconfig").write_text(proxy)

    def _cni(self) -> dict[str, object]:
        bridge = {
            "type": "bridge",
            "bridge": "pods0",
            "isGateway": True,
            "hairpinMode": True,
            "ipam": {
                "type": "host-local",
                # On tmpfs: an address whose pod vanished with the node must not stay taken.
                "dataDir": "/run/cni/networks",
                "ranges": [[{"subnet": self.node.pod_subnet, "gateway": self.node.pod_gateway}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        }
        plugins = [bridge, {"type": "portmap", "capabilities": {"portMappings": True}}]
        return {"cniVersion": "1.0.0", "name": "pods", "plugins": plugins}

    def _kubelet_config(self) -> dict[str, object]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": "0.0.0.0",  # noqa: S104 - of the node's own network namespace
            "port": KUBELET_PORT,
            "authentication": {"anonymous": {"enabled": False}, "x509": {"clientCAFile": f"{_ETC}/pki/ca.crt"}},
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": f"{_ETC}/pki/kubelet.crt",
            "tlsPrivateKeyFile": f"{_ETC}/pki/kubelet.key",
            "containerRuntimeEndpoint": f"unix://{_CONTAINERD_SOCKET}",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.instance.cgroup}/{self.node.name}",
            "failCgroupV1": False,
            "failSwapOn": False,
            "oomScoreAdj": 0,
            "clusterDomain": "cluster.local",
            # Nobody answers there: the cluster has no DNS. Without an address the kubelet warns at every pod.
            "clusterDNS": ["10.96.0.10"],
            "featureGates": {"ImageVolume": True},
            "registerWithTaints": self.node.taints,
            # The disk is as full as the host's: never collect the images that a test loaded.
            "imageGCHighThresholdPercent": 100,
            "evictionHard": {"memory.available": "64Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            # A node whose pressure has ended is given pods again; the default is five minutes.
            "evictionPressureTransitionPeriod": "10s",
            "nodeStatusUpdateFrequency": "4s",
            "nodeLeaseDurationSeconds": 16,
            "maxPods": 200,
            "serializeImagePulls": False,
        }

    def _proxy_config(self) -> dict[str, object]:
        return {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "nftables",
            "hostnameOverride": self.node.name,
            "clusterCIDR": POD_SUBNET,
            "clientConnection": {"kubeconfig": f"{_ETC}/proxy.kubeconfig"},
            "oomScoreAdj": 0,
            "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        }

    def _network(self) -> str:
        lines = [f"address {self.node.address}/24", f"gateway {CONTROL_PLANE_ADDRESS}"]
        lines += [f"route {other.pod_subnet} {other.address}" for other in NODES if other != self.node]
        return "\n".join(lines) + "\n"

    def _plan(self) -> Plan:
        ready = "/run/modelweights-pause-imported"
        load = f"{_BIN}/ctr -n k8s.io images import {_ETC}/pause.tar && touch {ready}"
        services = [
            self._node_service("containerd", [f"{_BIN}/containerd", "-c", f"{_ETC}/containerd.toml"]),
            self._node_service("pause-image", ["/bin/sh", "-c", load], [f"unix:{_CONTAINERD_SOCKET}"], once=True),
            self._node_service("kubelet", self._kubelet(), [f"file:{ready}"]),
            self._node_service("kube-proxy", [f"{_BIN}/kube-proxy", f"--config={_ETC}/proxy.yaml"]),
        ]
        if self.node.gpus:
            argv = [f"{_BIN}/device-plugin", f"-resource={GPU_RESOURCE}", f"-count={self.node.gpus}"]
            socket = "unix:/var/lib/kubelet/device-plugins/kubelet.sock"
            services.append(self._node_service("device-plugin", argv, [socket]))
        setup = [
            "/bin/sh",
            str(SCRIPTS / "node-setup.sh"),
            str(self.folder),
            str(self.instance.root / "bin"),
            str(self.instance.logs),
            f"{self.instance.cgroup}/{self.node.name}",
            MODEL_ROOT,
            f"{MODEL_OWNER[0]}:{MODEL_OWNER[1]}",
            f"{MODEL_MODE:o}",
        ]
        return Plan(services, setup=setup)

    def _kubelet(self) -> list[str]:
        labels = ",".join(f"{key}={value}" for key, value in self.node.labels.items())
        return [
            f"{_BIN}/kubelet",
            f"--config={_ETC}/kubelet.yaml",
            f"--kubeconfig={_ETC}/kubelet.kubeconfig",
            f"--hostname-override={self.node.name}",
            f"--node-ip={self.node.address}",
            f"--node-labels={labels}",
            f"--boot-id-file={_ETC}/boot-id",
        ]

    def _node_service(
        self, name: str, argv: list[str], wait_for: list[str] | None = None, *, once: bool = False
    ) -> Service:
        log = f"{_LOGS}/{self.node.name}-{name}.log"
        path = f"PATH={_BIN}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        return Service(name, argv, log, env=[path], wait_for=wait_for or [], once=once)

    def _service(self) -> Service:
        folder, name = str(self.folder), self.node.name
        cgroup = f"{self.instance.cgroup}/{name}"
        return Service(
            name,
            [str(self.instance.root / "bin" / "init"), str(self.folder / "plan.json")],
            str(self.instance.logs / f"{name}.log"),
            isolated=True,
            before=["/bin/sh", str(SCRIPTS / "node-disk.sh"), folder, f"{self.node.disk_gib}G", cgroup],
            after_start=["/bin/sh", str(SCRIPTS / "node-link.sh"), f"node{self.node.number}"],
            after_stop=["/bin/sh", str(SCRIPTS / "node-stopped.sh"), cgroup],
        )


def new_boot_id(folder: Path) -> str:
    """Write a fresh boot ID into a node's folder: the kubelet reads it once, when it starts."""
    boot_id = str(uuid.uuid4())
    (folder / "boot-id").write_text(boot_id + "\n")
    return boot_id


def register_with_taints(folder: Path, taints: Sequence[Mapping[str, str]]) -> None:
    """Write into a node's folder with which taints its kubelet makes the node; one that is there keeps its own."""
    path = folder / "kubelet.yaml"
    config = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump({**config, "registerWithTaints": [dict(taint) for taint in taints]}))


def set_soft_eviction(folder: Path, *, on: bool) -> None:
    """Write into a node's folder whether its kubelet takes memory to be short whatever is free.

    A soft threshold: a hard one would be taken off what pods may request, and no pod that requests any could run.
    """
    path = folder / "kubelet.yaml"
    config = {key: value for key, value in yaml.safe_load(path.read_text()).items() if key not in _SHORT_OF_MEMORY}
    path.write_text(yaml.safe_dump({**config, **(_SHORT_OF_MEMORY if on else {})}))
