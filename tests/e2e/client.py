"""Talks with the API server through `kubectl proxy`, so that any kubeconfig works and a poll costs no process.

Used by all end-to-end tests: `Client` for requests, `Recorder` for the history of what is watched.
"""

import http.client
import json
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import quote

from tests.cluster.build import ensure_program
from tests.cluster.providers import Cluster
from tests.json_client import Json, JsonClient
from tests.polling import poll

_GROUPS: Final = {
    "ConfigMap": ("/api/v1", "configmaps"),
    "PersistentVolumeClaim": ("/api/v1", "persistentvolumeclaims"),
    "Pod": ("/api/v1", "pods"),
    "Job": ("/apis/batch/v1", "jobs"),
    "DaemonSet": ("/apis/apps/v1", "daemonsets"),
    "Deployment": ("/apis/apps/v1", "deployments"),
    "StatefulSet": ("/apis/apps/v1", "statefulsets"),
    "ModelWeights": ("/apis/modelweights.io/v1alpha1", "modelweights"),
}


class _LocalConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path, timeout: float | None) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def path_of(kind: str, namespace: str, name: str = "") -> str:
    """The path of an object, or of all of a kind in a namespace."""
    group, plural = _GROUPS[kind]
    return f"{group}/namespaces/{namespace}/{plural}" + (f"/{name}" if name else "")


class Client(JsonClient):
    """Requests with the administrator's rights; each is one connection to the proxy."""

    def __init__(self, socket_path: Path) -> None:
        self._socket_path = socket_path

    def connection(self, timeout: float | None = 30) -> http.client.HTTPConnection:
        """A connection for a single request."""
        return _LocalConnection(self._socket_path, timeout)

    def make(self, body: Json) -> Json:
        """Create a namespaced object; it names its namespace itself."""
        return self.create(path_of(body["kind"], body["metadata"]["namespace"]), body)

    def remove(self, path: str, grace_seconds: int | None = None) -> None:
        """Delete in the background; what is gone already is fine."""
        grace = {} if grace_seconds is None else {"gracePeriodSeconds": grace_seconds}
        self.delete(path, propagationPolicy="Background", **grace)


@contextmanager
def connected(cluster: Cluster) -> Iterator[Client]:
    """A client, for as long as its proxy runs."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "api"
        argv = [str(ensure_program("kubernetes")), "kubectl", f"--kubeconfig={cluster.kubeconfig}", "proxy"]
        with subprocess.Popen([*argv, f"--unix-socket={path}"], stdout=subprocess.DEVNULL) as proxy:
            try:
                poll("kubectl proxy answers", path.exists, seconds=20, every=0.05)
                yield Client(path)
            finally:
                proxy.terminate()


class Recorder:
    """All that a watch says, in order, from the moment of its start; one thread for each path.

    etcd numbers all writes in one sequence, so the resourceVersions of what is recorded tell which came first.
    """

    def __init__(self, client: Client, **paths: str) -> None:
        self._client = client
        self._events: dict[str, list[tuple[str, Json]]] = {kind: [] for kind in paths}
        self._lock = threading.Lock()
        self._open: dict[str, http.client.HTTPConnection] = {}
        self._closed = False
        self._threads = [
            threading.Thread(target=self._record, args=(kind, path), daemon=True) for kind, path in paths.items()
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End the watches."""
        self._closed = True
        for connection in self._open.values():
            if connection.sock is not None:
                connection.sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(timeout=10)

    def history(self, kind: str, namespace: str, name: str = "") -> list[tuple[str, Json]]:
        """The events (ADDED, MODIFIED, DELETED, each with the object) of a namespace, or of one object."""
        with self._lock:
            events = list(self._events[kind])
        return [
            (event, body)
            for event, body in events
            if body["metadata"]["namespace"] == namespace and name in ("", body["metadata"]["name"])
        ]

    def states(self, kind: str, namespace: str, name: str = "") -> Iterator[Json]:
        """The states of objects in order, without their ends."""
        return (body for event, body in self.history(kind, namespace, name) if event != "DELETED")

    def everything(self, kind: str) -> list[Json]:
        """All states of all objects of a kind."""
        with self._lock:
            return [body for _, body in self._events[kind]]

    def _record(self, kind: str, path: str) -> None:
        """Watch again from where a watch ended: the API server ends those of a kind whose definition is changed."""
        since = ""
        while not self._closed:
            connection = self._client.connection(timeout=None)
            self._open[kind] = connection
            more = f"&resourceVersion={since}" if since else ""
            connection.request("GET", path.replace("?", "?watch=true&") + more)
            response = connection.getresponse()
            while line := response.readline():
                event = json.loads(line)
                if event["type"] == "ERROR":
                    # What came since is no longer known; all that is there is told anew.
                    since = ""
                    break
                since = event["object"]["metadata"]["resourceVersion"]
                with self._lock:
                    self._events[kind].append((event["type"], event["object"]))
            response.close()
            connection.close()


def selecting(path: str, **selectors: str) -> str:
    """A path of a list with label or field selectors; without any it is one of all."""
    return f"{path}?" + "&".join(f"{key}={quote(value)}" for key, value in selectors.items())


def version(body: Json) -> int:
    """The number of the write that made this state of an object."""
    return int(body["metadata"]["resourceVersion"])
