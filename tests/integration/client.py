"""The API server as the user of a kubeconfig, and the paths of what the tests make."""

import base64
import http.client
import json
import ssl
import tempfile
import threading
from pathlib import Path
from urllib.parse import urlsplit

from tests.json_client import Json, JsonClient

MODELS = "/apis/modelweights.io/v1alpha1"


class Kube(JsonClient):
    """Requests as the user of a kubeconfig with a client certificate."""

    def __init__(self, kubeconfig: Path) -> None:
        config = json.loads(kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self._address = urlsplit(cluster["server"]).netloc
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        self._tls = ssl.create_default_context(cadata=authority)
        with tempfile.NamedTemporaryFile() as pem:
            pem.write(base64.b64decode(user["client-certificate-data"]))
            pem.write(base64.b64decode(user["client-key-data"]))
            pem.flush()
            self._tls.load_cert_chain(pem.name)

    def connection(self, timeout: float | None = 30) -> http.client.HTTPConnection:
        """A connection for a single request."""
        return http.client.HTTPSConnection(self._address, context=self._tls, timeout=timeout)

    def history(self, path: str, version: str, **query: str) -> list[Json]:
        """The events of a collection since a resourceVersion."""
        more = "".join(f"&{key}={value}" for key, value in query.items())
        status, text = self.ask("GET", f"{path}?watch=true&resourceVersion={version}&timeoutSeconds=1{more}")
        assert status == 200, text
        return [json.loads(line) for line in text.splitlines()]

    def status_writes(self) -> int:
        """How often the API server was asked to patch the status of a ModelWeights, also when nothing changed by it."""
        _, text = self.ask("GET", "/metrics")
        wanted = ('resource="modelweights"', 'subresource="status"', 'verb="PATCH"')
        lines = [line for line in text.splitlines() if line.startswith("apiserver_request_total{")]
        return sum(int(float(line.split()[-1])) for line in lines if all(part in line for part in wanted))


class SteadyKube(Kube):
    """The same on one connection for each thread: for tests that ask thousands of times."""

    def __init__(self, kubeconfig: Path) -> None:
        super().__init__(kubeconfig)
        self._local = threading.local()

    def ask(
        self, method: str, path: str, body: Json | None = None, content_type: str = "application/json"
    ) -> tuple[int, str]:
        """One request; a connection that has gone meanwhile is made anew."""
        for last in (False, True):
            kept: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
            connection = kept or self.connection()
            try:
                text = None if body is None else json.dumps(body)
                connection.request(method, path, text, {"Content-Type": content_type, "Accept": "application/json"})
                response = connection.getresponse()
                answer = response.status, response.read().decode(errors="replace")
            except (OSError, http.client.HTTPException):
                connection.close()
                self._local.connection = None
                if last or kept is None:
                    raise
            else:
                self._local.connection = connection
                return answer
        raise AssertionError("unreachable")


def model_path(namespace: str, name: str = "") -> str:
    """The path of a ModelWeights, or of all in a namespace."""
    return f"{MODELS}/namespaces/{namespace}/modelweights" + (f"/{name}" if name else "")


def core_path(namespace: str, kind: str, name: str = "") -> str:
    """The path of objects of the core group."""
    return f"/api/v1/namespaces/{namespace}/{kind}" + (f"/{name}" if name else "")


def job_path(namespace: str, name: str = "") -> str:
    """The path of a Job, or of all in a namespace."""
    return f"/apis/batch/v1/namespaces/{namespace}/jobs" + (f"/{name}" if name else "")
