"""Checks of the cluster itself, as plain functions: a test runner calls them with a cluster that is up.

Each raises AssertionError, with what it saw, when the cluster is not what it should be.
"""

import contextlib
import json
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.cluster import leftovers
from tests.cluster.embedded import Embedded
from tests.cluster.errors import ClusterError
from tests.cluster.images import write_image_archive
from tests.cluster.paths import InstancePaths
from tests.cluster.providers import Cluster
from tests.cluster.state import Process, State
from tests.cluster.topology import GPU_RESOURCE, KUBERNETES_SERVICE_ADDRESS, MODEL_ROOT

_BUSYBOX = Path("/usr/bin/busybox")
_IMAGE = "cluster-selftest:1"
_NAMESPACE = "ps-privileged"
_COMMANDS = ("sh", "sleep", "cat", "nc", "echo", "ls", "hostname", "head", "wc", "wget", "id", "touch")


def push_test_image(cluster: Cluster) -> str:
    """Push an image with a static busybox, a file and no more; return the reference for pods."""
    program = _BUSYBOX.read_bytes()
    files = {f"bin/{name}": (b'#!/bin/busybox sh\nexec /bin/busybox ${0##*/} "$@"\n', 0o755) for name in _COMMANDS}
    files |= {"bin/busybox": (program, 0o755), "weights/part": (b"from the image\n", 0o644)}
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder) / "image.tar"
        write_image_archive(files, f"localhost/{_IMAGE}", archive, ["/bin/busybox", "sh", "-c"])
        reference = cluster.push_image(archive, _IMAGE)
    assert cluster.has_image(_IMAGE)
    assert not cluster.has_image("cluster-selftest:absent")
    return reference


def pod(name: str, image: str, script: str, **spec: Any) -> dict[str, Any]:
    """Return a pod that runs a script once and tolerates the GPU nodes' taint."""
    container = {"name": "main", "image": image, "args": [script], **spec.pop("container", {})}
    tolerations = [{"key": GPU_RESOURCE, "operator": "Exists", "effect": "NoSchedule"}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "tolerations": tolerations,
            "containers": [container],
            **spec,
        },
    }


@contextlib.contextmanager
def running(cluster: Cluster, manifest: dict[str, Any], namespace: str = _NAMESPACE) -> Iterator[str]:
    """Create a pod under a fresh name, give its name, and delete it in the end."""
    name = f"{manifest['metadata']['name']}-{uuid.uuid4().hex[:6]}"
    manifest["metadata"]["name"] = name
    cluster.kubectl("create", f"--namespace={namespace}", "--filename=-", input=json.dumps(manifest))
    try:
        yield name
    finally:
        cluster.kubectl("delete", "pod", name, f"--namespace={namespace}", "--wait=false", "--now")


def wait_for_phase(cluster: Cluster, name: str, phase: str, namespace: str = _NAMESPACE) -> None:
    """Wait until a pod is in a phase; the error holds its description."""
    until = (f"--for=jsonpath={{.status.phase}}={phase}", "--timeout=60s")
    try:
        cluster.kubectl("wait", f"pod/{name}", f"--namespace={namespace}", *until, timeout=70)
    except ClusterError as error:
        described = cluster.kubectl("describe", "pod", name, f"--namespace={namespace}")
        raise AssertionError(f"pod {name} is not {phase}: {described[-3000:]}") from error


def output_of(cluster: Cluster, manifest: dict[str, Any], namespace: str = _NAMESPACE) -> str:
    """Run a pod to its end and return its log."""
    with running(cluster, manifest, namespace) as name:
        wait_for_phase(cluster, name, "Succeeded", namespace)
        return cluster.kubectl("logs", name, f"--namespace={namespace}")


def check_pod_on_gpu_node(cluster: Cluster, image: str) -> None:
    """A pod that asks for a GPU runs on a GPU node; its log can be read and a command run in it."""
    limits = {"resources": {"limits": {GPU_RESOURCE: "1"}}}
    manifest = pod(
        "gpu", image, "echo up; sleep 300", container=limits, nodeSelector={"nvidia.com/gpu.present": "true"}
    )
    with running(cluster, manifest) as name:
        wait_for_phase(cluster, name, "Running")
        where = cluster.kubectl("get", "pod", name, f"--namespace={_NAMESPACE}", "--output=jsonpath={.spec.nodeName}")
        assert where in cluster.gpu_nodes
        assert cluster.kubectl("logs", name, f"--namespace={_NAMESPACE}") == "up\n"
        said = cluster.kubectl("exec", name, f"--namespace={_NAMESPACE}", "--", "echo", "hello")
        assert said == "hello\n"


def check_untolerated_pod_stays_off_gpu_nodes(cluster: Cluster, image: str) -> None:
    """A pod without toleration lands on the node without GPU."""
    manifest = pod("plain", image, "echo done", tolerations=[])
    with running(cluster, manifest) as name:
        wait_for_phase(cluster, name, "Succeeded")
        where = cluster.kubectl("get", "pod", name, f"--namespace={_NAMESPACE}", "--output=jsonpath={.spec.nodeName}")
        assert where == cluster.cpu_node


def check_nodes_differ(cluster: Cluster, image: str) -> None:
    """Pods on two nodes see different files below the model root; the nodes have different boot IDs."""

    def check(node: str) -> None:
        assert cluster.node_exec(node, ["stat", "-c", "%u:%g %a", MODEL_ROOT]) == "0:65532 2775\n"
        cluster.node_exec(node, ["tee", f"{MODEL_ROOT}/who"], input=node)
        seen = output_of(
            cluster,
            pod(
                "see",
                image,
                "cat /models/who",
                nodeName=node,
                volumes=[{"name": "models", "hostPath": {"path": MODEL_ROOT}}],
                container={"volumeMounts": [{"name": "models", "mountPath": "/models"}]},
            ),
        )
        assert seen == node

    with ThreadPoolExecutor() as pool:
        list(pool.map(check, cluster.gpu_nodes))
    assert len(set(boot_ids(cluster).values())) == len(boot_ids(cluster))


def boot_ids(cluster: Cluster) -> dict[str, str]:
    """Return the boot ID of each node as the API server knows it."""
    nodes = json.loads(cluster.kubectl("get", "nodes", "--output=json"))["items"]
    return {node["metadata"]["name"]: node["status"]["nodeInfo"]["bootID"] for node in nodes}


def check_pod_security(cluster: Cluster, image: str) -> None:
    """A pod with a hostPath is refused where `restricted` is enforced."""
    manifest = pod("host", image, "true", volumes=[{"name": "models", "hostPath": {"path": MODEL_ROOT}}])
    refused = cluster.kubectl(
        "create", "--namespace=ps-restricted", "--filename=-", input=json.dumps(manifest), check=False
    )
    assert 'violates PodSecurity "restricted' in refused, refused


def check_pods_reach_the_api_server(cluster: Cluster, image: str) -> None:
    """From every node a pod reaches the API server at the address of the service `kubernetes`."""
    # Spoken to in clear, a TLS server of Go says so: that is answer enough, and needs no client but nc.
    mounted = "test -s /var/run/secrets/kubernetes.io/serviceaccount/token"
    ask = f"printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 5 {KUBERNETES_SERVICE_ADDRESS} 443"

    def check(node: str) -> None:
        answer = output_of(cluster, pod("reach", image, f"{mounted} && {ask}", nodeName=node))
        assert "HTTPS server" in answer, answer

    with ThreadPoolExecutor() as pool:
        list(pool.map(check, (*cluster.gpu_nodes, cluster.cpu_node)))


def check_pods_reach_each_other(cluster: Cluster, image: str) -> None:
    """A pod is reached from another node at its own address and at its service's."""
    server = pod("server", image, "while true; do echo served | nc -l -p 8080; done", nodeName=cluster.gpu_nodes[0])
    label = f"selftest-{uuid.uuid4().hex[:6]}"
    server["metadata"]["labels"] = {"app": label}
    with running(cluster, server) as name:
        wait_for_phase(cluster, name, "Running")
        cluster.kubectl("expose", "pod", name, f"--name={label}", "--port=80", "--target-port=8080", f"-n={_NAMESPACE}")
        try:
            path = "--output=jsonpath={.status.podIP}"
            direct = cluster.kubectl("get", "pod", name, f"-n={_NAMESPACE}", path)
            service = cluster.kubectl(
                "get", "service", label, f"-n={_NAMESPACE}", "--output=jsonpath={.spec.clusterIP}"
            )
            for target in (f"{direct} 8080", f"{service} 80"):
                script = f"for i in 1 2 3 4 5; do echo | nc -w 3 {target} && exit 0; sleep 1; done; exit 1"
                client = pod("client", image, script, nodeName=cluster.gpu_nodes[1])
                assert "served" in output_of(cluster, client)
        finally:
            cluster.kubectl("delete", "service", label, f"-n={_NAMESPACE}")


def check_image_volumes(cluster: Cluster, image: str) -> None:
    """A pod reads files of an image that is mounted as a volume, and cannot write there."""
    manifest = pod(
        "volume",
        image,
        "cat /image/weights/part; touch /image/new 2>/dev/null || echo read-only",
        volumes=[{"name": "image", "image": {"reference": image}}],
        container={"volumeMounts": [{"name": "image", "mountPath": "/image"}]},
    )
    assert output_of(cluster, manifest) == "from the image\nread-only\n"


def check_node_reboots(cluster: Cluster) -> None:
    """A restarted node has another boot ID, still has its files and its GPU, and nothing of them cached."""
    node = cluster.gpu_nodes[0]
    path = f"{MODEL_ROOT}/selftest-cached"
    before = boot_ids(cluster)
    cluster.node_exec(node, ["dd", "if=/dev/urandom", f"of={path}", "bs=1M", "count=32", "conv=fsync"])
    resident = ["fincore", "--bytes", "--noheadings", "--output=RES", path]
    assert int(cluster.node_exec(node, resident)) == 32 << 20
    cluster.restart_node(node)
    after = boot_ids(cluster)
    assert {name for name in after if before[name] != after[name]} == {node}
    assert int(cluster.node_exec(node, resident)) == 0


def check_lost_node_shows(cluster: Cluster) -> None:
    """A node without power becomes NotReady, and Ready again when it is back; another one reboots until that is noticed."""
    node = cluster.gpu_nodes[1]
    before = boot_ids(cluster)[node]
    cluster.stop_node(node)
    try:
        check_node_reboots(cluster)
        cluster.kubectl("wait", f"node/{node}", "--for=condition=Ready=Unknown", "--timeout=60s", timeout=70)
    finally:
        cluster.start_node(node)
    assert boot_ids(cluster)[node] == before


def check_cluster(cluster: Cluster) -> None:
    """Run every check that leaves the cluster up, those with pods all at a time, and print the seconds of each."""
    image = push_test_image(cluster)
    with_image = (
        check_pod_on_gpu_node,
        check_untolerated_pod_stays_off_gpu_nodes,
        check_nodes_differ,
        check_pod_security,
        check_pods_reach_the_api_server,
        check_pods_reach_each_other,
        check_image_volumes,
    )

    def run(check: Callable[..., None], *arguments: str) -> None:
        started = time.monotonic()
        check(cluster, *arguments)
        print(f"{check.__name__}: {time.monotonic() - started:.1f} s", flush=True)

    with ThreadPoolExecutor(len(with_image)) as pool:
        list(pool.map(lambda check: run(check, image), with_image))
    run(check_lost_node_shows)


def _host_traces(instance: InstancePaths) -> dict[str, list[str]]:
    """Return what an instance could leave on the host, by kind; what others have is in it as well."""

    def lines(*argv: str) -> list[str]:
        return sorted(subprocess.run(argv, check=True, capture_output=True, text=True).stdout.splitlines())

    mine = f"{instance.root}/"
    commands = [path.read_bytes().decode(errors="replace") for path in _command_lines()]
    return {
        "mounts": [line for line in Path("/proc/self/mounts").read_text().splitlines() if mine in line],
        "loop devices": list(leftovers.loop_devices_of(instance)),
        "control groups": [str(path) for path in leftovers.cgroups_of(instance)],
        "links": [line.partition(":")[2].strip().split(":")[0] for line in lines("ip", "-oneline", "link")],
        "firewall": lines("nft", "list", "ruleset"),
        "processes": [command for command in commands if mine in command],
        "files": [str(path) for path in instance.root.rglob("*")] if instance.root.exists() else [],
    }


def _command_lines() -> Iterator[Path]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            path = folder / "cmdline"
            with contextlib.suppress(OSError):
                path.read_bytes()
                yield path


def check_nothing_is_left(name: str, *, kill_supervisor: bool) -> None:
    """Bring an instance up and down and find the host as it was.

    Args:
        name: of an instance that is not up.
        kill_supervisor: kill the supervisor first, as a crash or the kernel might.
    """
    instance, cluster = InstancePaths(name), Embedded(name)
    cluster.down()
    before = _host_traces(instance)
    cluster.up()
    assert _host_traces(instance)["processes"]
    if kill_supervisor:
        state, supervisor = State.read(instance.state), Process.read(instance.supervisor)
        assert state is not None
        assert supervisor is not None
        assert supervisor.end(5, signal.SIGKILL)
        # The instance must end with its supervisor, before anybody cleans up.
        deadline = time.monotonic() + 10
        while state.init.alive() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not state.init.alive()
    started = time.monotonic()
    cluster.down()
    assert time.monotonic() - started < 10
    assert _host_traces(instance) == before
