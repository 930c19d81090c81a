"""Writes the folder of an embedded instance: programs, certificates, configuration and init's plan.

Called by the supervisor, which alone knows the ports.
"""

import os
import secrets
import socket
from pathlib import Path

from tests.cluster.build import ensure_programs
from tests.cluster.controlplane import IDENTITIES, ControlPlane
from tests.cluster.images import write_image_archive
from tests.cluster.kubeconfig import write_kubeconfig
from tests.cluster.nodes import SCRIPTS, NodeFiles
from tests.cluster.paths import InstancePaths, registry_storage
from tests.cluster.pki import Authority
from tests.cluster.plan import Forward, Plan, Service
from tests.cluster.topology import API_PORT, CONTROL_PLANE_ADDRESS, NODES, PAUSE_IMAGE, REGISTRY_PORT

KUBERNETES_COMMANDS = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kube-proxy",
    "kubelet",
    "kubectl",
    "device-plugin",
)


def link_programs(folder: Path, programs: dict[str, Path]) -> None:
    """Fill a folder with the programs under the names that they act by.

    Hard links: a later build may prune the cache while the instance runs.
    """
    folder.mkdir(parents=True)
    for name, path in programs.items():
        os.link(path, folder / name)
    for command in KUBERNETES_COMMANDS:
        (folder / command).symlink_to("kubernetes")


def _registry(instance: InstancePaths) -> Service:
    storage = registry_storage()
    storage.mkdir(parents=True, exist_ok=True)
    config = instance.root / "registry.yaml"
    config.write_text(
        "version: 0.1\n"
        "log: {level: warn, accesslog: {disabled: true}}\n"
        f"storage: {{filesystem: {{rootdirectory: {storage}}}, delete: {{enabled: true}}}}\n"
        f"http: {{addr: ':{REGISTRY_PORT}', secret: {secrets.token_hex(16)}}}\n",
    )
    argv = [str(instance.root / "bin" / "registry"), "serve", str(config)]
    # Traces would go to a collector that isn't there.
    return Service("registry", argv, str(instance.logs / "registry.log"), env=["OTEL_TRACES_EXPORTER=none"])


def _setup(instance: InstancePaths) -> list[str]:
    routes = [f"{node.pod_subnet}={node.address}" for node in NODES]
    script = str(SCRIPTS / "instance-setup.sh")
    return ["/bin/sh", script, instance.cgroup, CONTROL_PLANE_ADDRESS, *routes]


def write_instance(instance: InstancePaths, api: socket.socket, registry: socket.socket) -> None:
    """Write everything that init and the nodes' inits read.

    Args:
        instance: where to; its folder must not hold anything yet but logs.
        api: listener on the host whose connections go to the API server.
        registry: likewise for the registry.
    """
    instance.logs.mkdir(parents=True, exist_ok=True)
    programs = instance.root / "bin"
    link_programs(programs, ensure_programs())
    plane = ControlPlane(
        root=instance.root,
        programs=programs,
        logs=instance.logs,
        address=CONTROL_PLANE_ADDRESS,
        api_port=API_PORT,
        etcd_port=2379,
        etcd_peer_port=2380,
        bind_address="0.0.0.0",  # noqa: S104 - of the instance's own network namespace
        authority=Authority(instance.pki),
    )
    plane.write_files(tuple(IDENTITIES))
    admin = plane.authority.issue("admin-outside", "modelweights-admin", ["system:masters"])
    outside = f"https://127.0.0.1:{api.getsockname()[1]}"
    write_kubeconfig(instance.kubeconfig, outside, plane.authority.certificate, admin)
    services = [plane.etcd(), plane.api_server(), plane.controller_manager(), plane.scheduler(), _registry(instance)]
    pause_files = {"pause": ((programs / "pause").read_bytes(), 0o755)}
    pause = write_image_archive(pause_files, PAUSE_IMAGE, instance.root / "pause.tar", ["/pause"])
    for node in NODES:
        files = NodeFiles(instance, node)
        service = files.write(plane)
        os.link(pause, files.folder / "pause.tar")
        services.append(service)
    Plan(
        services,
        setup=_setup(instance),
        control=instance.control.name,
        forwards=[
            Forward(api.fileno(), f"127.0.0.1:{API_PORT}"),
            Forward(registry.fileno(), f"127.0.0.1:{REGISTRY_PORT}"),
        ],
    ).write(instance.root / "plan.json")
