"""Brings an embedded instance up and down. Used by the Embedded provider and by the command line."""

import contextlib
import fcntl
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.cluster.build import ensure_program, ensure_programs
from tests.cluster.commands import run
from tests.cluster.errors import ClusterError, CommandError
from tests.cluster.leftovers import remove_leftovers
from tests.cluster.paths import REPOSITORY, InstancePaths
from tests.cluster.registry_store import bound_registry
from tests.cluster.requirements import ensure_requirements
from tests.cluster.state import Process, State
from tests.cluster.topology import GPU_RESOURCE, NODES, POD_SECURITY_NAMESPACES

UP_TIMEOUT_SECONDS = 180.0
_POLL_SECONDS = 0.3


@contextlib.contextmanager
def _locked(instance: InstancePaths) -> Iterator[None]:
    instance.lock.parent.mkdir(parents=True, exist_ok=True)
    with instance.lock.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def kubectl(instance: InstancePaths, *arguments: str, **options: Any) -> str:
    """Run our kubectl against the instance; options are those of ``commands.run``."""
    program = str(ensure_program("kubernetes"))
    return run([program, "kubectl", f"--kubeconfig={instance.kubeconfig}", *arguments], **options)


def is_up(instance: InstancePaths) -> bool:
    """Return whether the instance runs and its API server says that it is ready."""
    supervisor, state = Process.read(instance.supervisor), State.read(instance.state)
    if supervisor is None or state is None or not (supervisor.alive() and state.init.alive()):
        return False
    with contextlib.suppress(CommandError):
        return kubectl(instance, "get", "--raw=/readyz", timeout=10) == "ok"
    return False


def up(name: str) -> float | None:
    """Bring an instance up, or leave it alone if it is; return the seconds that it took, or None if it was up.

    Raises:
        MissingToolError: something must be installed first.
        ClusterError: it did not come up; the message holds the ends of the logs.
    """
    instance = InstancePaths(name)
    with _locked(instance):
        if is_up(instance):
            return None
        ensure_requirements()
        ensure_programs()
        _end(instance)
        bound_registry()
        started = time.monotonic()
        supervisor = _start_supervisor(instance)
        try:
            _wait_until_ready(instance, supervisor, started + UP_TIMEOUT_SECONDS)
        except ClusterError as error:
            logs = _log_ends(instance)
            _end(instance, keep_logs=True)
            raise ClusterError(f"{error}\n{logs}\nlogs: {instance.logs}") from error
        return time.monotonic() - started


def down(name: str) -> float | None:
    """End an instance and remove all that is of it; return the seconds that it took, or None if there was nothing."""
    instance = InstancePaths(name)
    with _locked(instance):
        existed = instance.root.exists()
        started = time.monotonic()
        _end(instance)
        return time.monotonic() - started if existed else None


def _end(instance: InstancePaths, *, keep_logs: bool = False) -> None:
    supervisor, state = Process.read(instance.supervisor), State.read(instance.state)
    # The supervisor first: it cleans up, and one that is alive would fight over the same files.
    if supervisor is not None and not supervisor.end(20):
        supervisor.end(2, signal.SIGKILL)
    if state is not None:
        state.init.end(10, signal.SIGKILL)
    remove_leftovers(instance, keep_logs=keep_logs)


def _start_supervisor(instance: InstancePaths) -> "subprocess.Popen[bytes]":
    instance.logs.mkdir(parents=True, exist_ok=True)
    with (instance.logs / "supervisor.log").open("ab") as log:
        supervisor = subprocess.Popen(
            [sys.executable, "-m", "tests.cluster.supervisor", instance.name],
            cwd=REPOSITORY,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    Process.of(supervisor.pid).write(instance.supervisor)
    # It outlives this call, and maybe this process: somebody has to take its exit status when it doesn't.
    threading.Thread(target=supervisor.wait, name=f"reap {instance.name}", daemon=True).start()
    return supervisor


def _wait_until_ready(instance: InstancePaths, supervisor: "subprocess.Popen[bytes]", deadline: float) -> None:
    missing = "the supervisor's start"
    applied = False
    while time.monotonic() < deadline:
        if supervisor.poll() is not None:
            raise ClusterError(f"instance {instance.name} ended while it started")
        if instance.state.exists():
            try:
                if not applied:
                    missing = "the API server"
                    kubectl(instance, "apply", "--filename=-", input=_namespaces(), timeout=20)
                    applied = True
                missing = _missing(instance)
            except CommandError as error:
                missing = f"{missing} ({str(error).splitlines()[-1][:200]})"[:400]
            if not missing:
                return
        time.sleep(_POLL_SECONDS)
    raise ClusterError(f"instance {instance.name} is not ready after {UP_TIMEOUT_SECONDS:g} s: missing {missing}")


def _namespaces() -> str:
    items = [
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": name, "labels": {"pod-security.kubernetes.io/enforce": level}},
        }
        for name, level in POD_SECURITY_NAMESPACES.items()
    ]
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})


def _missing(instance: InstancePaths) -> str:
    """Return what is not there yet, or an empty string."""
    nodes = json.loads(kubectl(instance, "get", "nodes", "--output=json", timeout=10))["items"]
    by_name = {node["metadata"]["name"]: node["status"] for node in nodes}
    for spec in NODES:
        status = by_name.get(spec.name)
        if status is None:
            return f"node {spec.name}"
        if not any(each["type"] == "Ready" and each["status"] == "True" for each in status.get("conditions", [])):
            return f"readiness of node {spec.name}"
        if status["allocatable"].get(GPU_RESOURCE, "0") != str(spec.gpus):
            return f"{GPU_RESOURCE} on node {spec.name}"
    accounts = kubectl(instance, "get", "serviceaccounts", "--all-namespaces", "--output=name", timeout=10)
    if accounts.count("/default") < len(POD_SECURITY_NAMESPACES) + 1:
        return "the namespaces' service accounts"
    return ""


def _log_ends(instance: InstancePaths) -> str:
    def end(path: Path) -> str:
        return "\n".join(path.read_text(errors="replace").splitlines()[-8:])

    return "\n".join(f"--- {path.name}\n{end(path)}" for path in sorted(instance.logs.glob("*.log")))


def process_of(instance: InstancePaths) -> Process:
    """Return the instance's init as the host sees it, or raise ClusterError."""
    state = State.read(instance.state)
    if state is None or not state.init.alive():
        raise ClusterError(f"instance {instance.name} is not up: python -m tests.cluster up --instance {instance.name}")
    return state.init
