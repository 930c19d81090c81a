"""Servers that checkpoints come from, as pods on the node without GPUs: a hub, an S3 store, a web server with TLS.

Each has a Service, whose address is known before the pod is made: the hub's links and the web server's certificate hold
it. What they serve lies on that node's disk, below `/models`, and is put there by the test.
"""

import base64
import hashlib
import json
import secrets
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.cluster.build import ensure_program
from tests.cluster.pki import Authority
from tests.debian import Tool, ensure
from tests.e2e.client import path_of
from tests.e2e.files import push_files
from tests.e2e.objects import RESTRICTED
from tests.e2e.site import Site
from tests.json_client import Json
from tests.polling import poll
from tests.servers import hub as hub_program

_HUB_PORTS: Final = (8080, 8081)
_STORE_PORT: Final = 7070
_WEB_PORT: Final = 8443
_TMP: Final = "/tmp"  # noqa: S108 - the pod's own emptyDir
_NGINX: Final = Tool("nginx", "nginx-light")

_UPLOAD: Final = """
import os, sys, time, urllib.error, urllib.request
from pathlib import Path
import obstore
from obstore.store import S3Store
def answers():
    try:
        urllib.request.urlopen("http://127.0.0.1:7070/", timeout=2)
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True
while not answers():
    time.sleep(0.1)
store = S3Store("weights", endpoint="http://127.0.0.1:7070", region="us-east-1", virtual_hosted_style_request=False,
                client_options={"allow_http": True})
for path in sorted(Path("/served").rglob("*")):
    if path.is_file():
        # In parts, as large objects come: their ETag is no hash then.
        obstore.put(store, str(path.relative_to("/served")), path, chunk_size=5 << 20, use_multipart=True)
Path("/tmp/uploaded").touch()
time.sleep(86400)
"""


@dataclass(frozen=True)
class Server:
    """A server that answers; `url` is for pods."""

    site: Site
    namespace: str
    name: str
    url: str


class HubServer(Server):
    """The hub of `tests.servers.hub`; its folder is on the node, so that what it serves can be changed while it runs."""

    @property
    def folder(self) -> str:
        """On the node: ORGANISATION/NAME/REVISION/… and hub.json."""
        return f"/models/{self.namespace}"

    def add(self, repository: str, revision: str, files: Path) -> None:
        """Serve the files of a local folder as a revision of a repository."""
        self.site.cluster.copy_to_node(self.site.cluster.cpu_node, files, f"{self.folder}/{repository}/{revision}")

    def describe(self, repository: str, **facts: Any) -> None:
        """Write the repository's refs, and whether it is gated or private."""
        self._write(f"{repository}/hub.json", facts)

    def settings(self, **settings: Any) -> None:
        """Write the hub's settings: tokens, faults."""
        self._write("hub.json", settings)

    def _write(self, name: str, content: Json) -> None:
        path = f"{self.folder}/{name}"
        # Renamed into place: the hub reads it for each request.
        script = 'cat >"$1.new" && chmod 644 "$1.new" && mv "$1.new" "$1"'
        self.site.cluster.node_exec(
            self.site.cluster.cpu_node, ["sh", "-ec", script, "sh", path], input=json.dumps(content)
        )


def start_hub(site: Site, namespace: str) -> HubServer:
    """Start an empty hub in a namespace that lets hostPath in."""
    site.cluster.node_exec(site.cluster.cpu_node, ["mkdir", "-p", f"/models/{namespace}"])
    address = _make_service(site, namespace, "hub", *_HUB_PORTS)
    program = Path(hub_program.__file__)
    site.client.create(
        path_of("ConfigMap", namespace),
        {"metadata": {"name": "hub"}, "data": {program.name: program.read_text(encoding="utf-8")}},
    )
    api, data = _HUB_PORTS
    # In a pod of its own, whose network is the cluster's.
    command = ["python", f"/program/{program.name}", "--root", "/served", "--host", "0.0.0.0", "--name", address]  # noqa: S104
    container = {
        **_container("hub", site.images.loader, [*command, "--port", str(api), "--data-port", str(data)]),
        "volumeMounts": [_mount("served", "/served"), _mount("program", "/program")],
        "readinessProbe": _ready_on(api),
    }
    volumes = [_on_node("served", f"/models/{namespace}"), {"name": "program", "configMap": {"name": "hub"}}]
    _start(site, namespace, "hub", [container], volumes)
    return HubServer(site, namespace, "hub", f"http://{address}:{api}")


@dataclass(frozen=True)
class StoreServer(Server):
    """versitygw, with the bucket `weights`, and what its root user is called."""

    credentials: Mapping[str, str]


def start_store(site: Site, namespace: str, files: Path) -> StoreServer:
    """Start an S3 store that holds the files of a local folder, each uploaded in parts."""
    node, folder = site.cluster.cpu_node, f"/models/{namespace}-store"
    site.cluster.copy_to_node(node, files, f"{folder}/files")
    credentials = {"AWS_ACCESS_KEY_ID": "e2e", "AWS_SECRET_ACCESS_KEY": secrets.token_hex(16)}
    root = {
        "ROOT_ACCESS_KEY": credentials["AWS_ACCESS_KEY_ID"],
        "ROOT_SECRET_KEY": credentials["AWS_SECRET_ACCESS_KEY"],
    }
    image = _push_program(site, "versitygw", {"bin/versitygw": (ensure_program("versitygw").read_bytes(), 0o755)})
    address = _make_service(site, namespace, "store", _STORE_PORT)
    server = {
        **_container("store", image, ["/bin/versitygw", "--port", f":{_STORE_PORT}", "posix", "/data"]),
        "env": _env(root),
        "volumeMounts": [_mount("data", "/data", read_only=False)],
    }
    upload = {
        **_container("upload", site.images.loader, ["python", "-c", _UPLOAD]),
        "env": _env(credentials),
        "volumeMounts": [_mount("served", "/served"), _mount("tmp", _TMP, read_only=False)],
        "readinessProbe": {"exec": {"command": ["test", "-e", f"{_TMP}/uploaded"]}, "periodSeconds": 1},
    }
    bucket = {
        **_container("bucket", site.images.loader, ["mkdir", "-p", "/data/weights"]),
        "volumeMounts": [_mount("data", "/data", read_only=False)],
    }
    volumes = [_on_node("served", f"{folder}/files"), _empty("data"), _empty("tmp")]
    _start(site, namespace, "store", [server, upload], volumes, before=[bucket])
    return StoreServer(site, namespace, "store", f"http://{address}:{_STORE_PORT}", credentials)


def start_web(site: Site, namespace: str, files: Path, authority: Authority) -> Server:
    """Start nginx with TLS, which serves the files of a local folder; the authority vouches for it."""
    node, folder = site.cluster.cpu_node, f"/models/{namespace}-web"
    site.cluster.copy_to_node(node, files, folder)
    address = _make_service(site, namespace, "web", _WEB_PORT)
    issued = authority.issue(namespace, address, alternative_names=[address])
    texts = {
        "nginx.conf": (_NGINX_CONFIGURATION % {"port": _WEB_PORT}).encode(),
        "tls.crt": issued.certificate.read_bytes(),
        "tls.key": issued.key.read_bytes(),
    }
    data = {name: base64.b64encode(text).decode() for name, text in texts.items()}
    site.client.create(f"/api/v1/namespaces/{namespace}/secrets", {"metadata": {"name": "web"}, "data": data})
    server = {
        **_container("web", _push_nginx(site), ["/usr/sbin/nginx", "-e", "stderr", "-c", "/etc/web/nginx.conf"]),
        "volumeMounts": [
            _mount("etc", "/etc/web"),
            _mount("served", "/served"),
            _mount("tmp", _TMP, read_only=False),
        ],
        "readinessProbe": _ready_on(_WEB_PORT),
    }
    volumes = [_on_node("served", folder), {"name": "etc", "secret": {"secretName": "web"}}, _empty("tmp")]
    _start(site, namespace, "web", [server], volumes)
    return Server(site, namespace, "web", f"https://{address}:{_WEB_PORT}")


_NGINX_CONFIGURATION: Final = """
daemon off; worker_processes 1; pid /tmp/nginx.pid;
events {}
http {
    access_log off; sendfile on; default_type application/octet-stream;
    client_body_temp_path /tmp/body; proxy_temp_path /tmp/proxy; fastcgi_temp_path /tmp/fastcgi;
    uwsgi_temp_path /tmp/uwsgi; scgi_temp_path /tmp/scgi;
    server {
        listen %(port)d ssl; root /served;
        ssl_certificate /etc/web/tls.crt; ssl_certificate_key /etc/web/tls.key;
    }
}
"""


def _push_nginx(site: Site) -> str:
    """An image of the installed nginx and the libraries that it needs: it isn't linked statically."""
    ensure([_NGINX])
    program = Path(str(_NGINX.find()))
    listed = subprocess.run(["ldd", program], check=True, text=True, capture_output=True, timeout=30).stdout
    words = [word for line in listed.splitlines() for word in line.split() if word.startswith("/")]
    files = {path.lstrip("/"): (Path(path).read_bytes(), 0o755) for path in (*words, str(program))}
    accounts = {"etc/passwd": b"nonroot:x:65532:65532::/tmp:/bin/false\n", "etc/group": b"nonroot:x:65532:\n"}
    return _push_program(site, "nginx", {**files, **{name: (text, 0o644) for name, text in accounts.items()}})


def _push_program(site: Site, name: str, files: Mapping[str, tuple[bytes, int]]) -> str:
    """An image of these files alone, with another tag for other content."""
    digest = hashlib.sha256(b"\0".join(path.encode() + content for path, (content, _) in sorted(files.items())))
    return push_files(site, f"test-{name}:{digest.hexdigest()[:16]}", files, user="65532:65532")


def _make_service(site: Site, namespace: str, name: str, *ports: int) -> str:
    """A Service; returns its address."""
    spec = {
        "selector": {"app": name},
        "ports": [{"name": f"port-{port}", "port": port, "targetPort": port} for port in ports],
    }
    made = site.client.create(f"/api/v1/namespaces/{namespace}/services", {"metadata": {"name": name}, "spec": spec})
    return str(made["spec"]["clusterIP"])


def _start(
    site: Site,
    namespace: str,
    name: str,
    containers: list[Json],
    volumes: list[Json],
    before: list[Json] | None = None,
) -> None:
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"namespace": namespace, "name": name, "labels": {"app": name}},
        "spec": {
            "nodeName": site.cluster.cpu_node,
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": {"runAsUser": 65532, "runAsGroup": 65532, "fsGroup": 65532},
            "initContainers": before or [],
            "containers": containers,
            "volumes": volumes,
        },
    }
    site.client.make(body)

    def is_ready() -> bool:
        conditions = site.pod(namespace, name)["status"].get("conditions") or []
        return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)

    poll(f"server {namespace}/{name} is ready", is_ready, seconds=90)


def _container(name: str, image: str, command: list[str]) -> Json:
    return {"name": name, "image": image, "command": command, "securityContext": RESTRICTED}


def _env(values: Mapping[str, str]) -> list[Json]:
    return [{"name": name, "value": value} for name, value in values.items()]


def _mount(volume: str, path: str, *, read_only: bool = True) -> Json:
    return {"name": volume, "mountPath": path, "readOnly": read_only}


def _on_node(name: str, path: str) -> Json:
    return {"name": name, "hostPath": {"path": path, "type": "Directory"}}


def _empty(name: str) -> Json:
    return {"name": name, "emptyDir": {}}


def _ready_on(port: int) -> Json:
    return {"tcpSocket": {"port": port}, "periodSeconds": 1}
