"""Gives orders to the init of a running instance over its Unix socket."""

import json
import os
import socket
from dataclasses import dataclass

from tests.cluster.errors import ClusterError
from tests.cluster.paths import InstancePaths


@dataclass(frozen=True)
class ServiceState:
    """How a supervised process fares; pid is as seen inside the instance, 0 when it does not run."""

    wanted: bool
    pid: int
    starts: int


def order(instance: InstancePaths, *words: str, timeout_seconds: float = 30) -> dict[str, ServiceState]:
    """Send one order (``status``, ``start NAME``, ``stop NAME``), wait for it, and return all services' states."""
    # By descriptor: a socket's path may have 107 bytes, and the cache may lie deep.
    try:
        folder = os.open(instance.root, os.O_DIRECTORY)
    except FileNotFoundError as error:
        raise ClusterError(f"instance {instance.name} is not up") from error
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(timeout_seconds)
            client.connect(f"/proc/self/fd/{folder}/{instance.control.name}")
            client.sendall((" ".join(words) + "\n").encode())
            raw = json.loads(client.makefile().read())
    except OSError as error:
        raise ClusterError(f"instance {instance.name} does not answer: {error}") from error
    finally:
        os.close(folder)
    if "error" in raw:
        raise ClusterError(f"instance {instance.name}: {raw['error']}")
    return {name: ServiceState(**state) for name, state in raw["services"].items()}
