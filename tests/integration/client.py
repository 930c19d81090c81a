"""A plain client of the API server for the tests: JSON in, status and JSON out; and polling with a deadline."""

import base64
import http.client
import json
import ssl
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

Json = dict[str, Any]
T = TypeVar("T")

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
MODELS = "/apis/modelweights.io/v1alpha1"


class RefusedError(AssertionError):
    """The API server answered with an error that the test didn't expect."""

    def __init__(self, status: int, body: Json) -> None:
        super().__init__(f"{status}: {body.get('message')}")
        self.status, self.message = status, str(body.get("message"))


class Kube:
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

    def ask(
        self, method: str, path: str, body: Json | None = None, content_type: str = "application/json"
    ) -> tuple[int, str]:
        """One request; the status and the text of the answer."""
        connection = http.client.HTTPSConnection(self._address, context=self._tls, timeout=30)
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, {"Content-Type": content_type, "Accept": "application/json"})
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def _do(self, method: str, path: str, body: Json | None = None, content_type: str = "application/json") -> Json:
        status, text = self.ask(method, path, body, content_type)
        answer: Json = json.loads(text)
        if status >= 400:
            raise RefusedError(status, answer)
        return answer

    def get(self, path: str) -> Json:
        """Read; an error is the test's failure."""
        return self._do("GET", path)

    def find(self, path: str) -> Json | None:
        """Read, or None when it isn't there."""
        status, text = self.ask("GET", path)
        return None if status == 404 else json.loads(text)

    def items(self, path: str) -> list[Json]:
        """The items of a list."""
        found: list[Json] = self.get(path)["items"]
        return found

    def create(self, path: str, body: Json) -> Json:
        """Create below a collection."""
        return self._do("POST", path, body)

    def patch(self, path: str, body: Json, content_type: str = MERGE) -> Json:
        """Patch."""
        return self._do("PATCH", path, body, content_type)

    def delete(self, path: str, **options: Any) -> None:
        """Delete; what is gone is fine."""
        status, text = self.ask("DELETE", path, options)
        if status not in (200, 202, 404):
            raise RefusedError(status, json.loads(text))

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


def poll(probe: Callable[[], T | None], what: str, seconds: float = 20) -> T:
    """The first answer of the probe that is true, within a deadline."""
    deadline = time.monotonic() + seconds
    while True:
        found = probe()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:g} s: {what} (last: {found!r})")
        time.sleep(0.05)


def model_path(namespace: str, name: str = "") -> str:
    """The path of a ModelWeights, or of all in a namespace."""
    return f"{MODELS}/namespaces/{namespace}/modelweights" + (f"/{name}" if name else "")


def core_path(namespace: str, kind: str, name: str = "") -> str:
    """The path of objects of the core group."""
    return f"/api/v1/namespaces/{namespace}/{kind}" + (f"/{name}" if name else "")


def job_path(namespace: str, name: str = "") -> str:
    """The path of a Job, or of all in a namespace."""
    return f"/apis/batch/v1/namespaces/{namespace}/jobs" + (f"/{name}" if name else "")
