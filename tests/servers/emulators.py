"""Emulators of Google's and Azure's stores on loopback: fake-gcs-server from Go modules, Microsoft's Azurite from npm.

They are no real stores: what passes here shows that lists, ranges and conditions go through obstore as those stores' own
tests expect them. Both keep everything in memory.
"""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import fcntl
import hashlib
import hmac
import http.client
import json
import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path
from urllib.parse import quote

from tests.cluster.build import ensure_program
from tests.cluster.paths import cache_root
from tests.debian import Tool, ensure
from tests.servers.running import ServerProcess, free_ports

NODE, NPM = Tool("node", "nodejs"), Tool("npm", "npm")
_LOCK = Path(__file__).with_name("azurite")
# Azurite's own, the same for everybody.
AZURE_ACCOUNT = "devstoreaccount1"
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


class _Emulator(ServerProcess):
    """On a port of its own."""

    def __init__(self) -> None:
        super().__init__("emulator")
        (self.port,) = free_ports(1)

    def answers(self) -> bool:
        """Whether it takes connections."""
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=5):
            return True
        return False

    def credentials(self, **values: str) -> str:
        """Write a folder of credentials as a Secret is mounted."""
        folder = Path(tempfile.mkdtemp(dir=self.home))
        for name, value in values.items():
            (folder / name).write_text(value)
        return str(folder)

    def _must(self, method: str, path: str, headers: dict[str, str], body: bytes) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            text = response.read()
            assert response.status < 300, f"{method} {path}: {response.status} {text[:500]!r}"
        finally:
            connection.close()


class GoogleEmulator(_Emulator):
    """fake-gcs-server."""

    def __init__(self) -> None:
        super().__init__()
        self.url = f"http://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        """fake-gcs-server."""
        options = ["-backend", "memory", "-scheme", "http", "-host", "127.0.0.1", "-port", str(self.port)]
        return [str(ensure_program("fake-gcs-server")), *options, "-public-host", f"127.0.0.1:{self.port}"]

    def key(self) -> str:
        """A service account's key that asks nobody for a token."""
        fields = {"client_email": "", "private_key": "", "private_key_id": ""}
        return json.dumps({"gcs_base_url": self.url, "disable_oauth": True, **fields})

    def make_bucket(self, name: str) -> None:
        """Make a bucket."""
        self._must("POST", "/storage/v1/b?project=test", _JSON, json.dumps({"name": name}).encode())

    def put(self, bucket: str, key: str, content: bytes) -> None:
        """Write an object."""
        path = f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name={quote(key, safe='')}"
        self._must("POST", path, {"Content-Type": "application/octet-stream"}, content)


_JSON = {"Content-Type": "application/json"}


class AzureEmulator(_Emulator):
    """Azurite, for blobs alone."""

    def __init__(self) -> None:
        super().__init__()
        self.url = f"http://127.0.0.1:{self.port}/{AZURE_ACCOUNT}"

    def command(self) -> list[str]:
        """Azurite's server of blobs."""
        options = ["--blobHost", "127.0.0.1", "--blobPort", str(self.port), "--inMemoryPersistence", "--silent"]
        program = _install_azurite() / "node_modules/azurite/dist/src/blob/main.js"
        return [str(NODE.find()), str(program), *options, "--skipApiVersionCheck", "--disableTelemetry"]

    def make_bucket(self, name: str) -> None:
        """Make a container."""
        self._signed("PUT", f"/{AZURE_ACCOUNT}/{name}", {}, "restype=container", b"")

    def put(self, bucket: str, key: str, content: bytes) -> None:
        """Write a blob."""
        self._signed("PUT", f"/{AZURE_ACCOUNT}/{bucket}/{quote(key)}", {"x-ms-blob-type": "BlockBlob"}, "", content)

    def _signed(self, method: str, path: str, headers: dict[str, str], query: str, body: bytes) -> None:
        """Send a request with the account's shared key."""
        date = dt.datetime.now(dt.UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
        own = {**headers, "x-ms-date": date, "x-ms-version": "2021-08-06"}
        length = str(len(body)) if body else ""
        fields = [method, "", "", length, "", *([""] * 7)]
        lines = [f"{name}:{own[name]}" for name in sorted(own)]
        resource = f"/{AZURE_ACCOUNT}{path}" + (f"\n{query.replace('=', ':')}" if query else "")
        wanted = "\n".join([*fields, *lines, resource])
        signature = base64.b64encode(hmac.digest(base64.b64decode(AZURE_KEY), wanted.encode(), "sha256")).decode()
        own["Authorization"] = f"SharedKey {AZURE_ACCOUNT}:{signature}"
        self._must(method, f"{path}?{query}" if query else path, {**own, "Content-Length": str(len(body))}, body)


def _install_azurite() -> Path:
    """By its lock file, once, into the cache."""
    ensure([NODE, NPM])
    digest = hashlib.sha256((_LOCK / "package-lock.json").read_bytes()).hexdigest()[:16]
    folder = cache_root() / f"azurite-{digest}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".azurite-") as scratch:
                made = shutil.copytree(_LOCK, Path(scratch) / "made")
                arguments = ["ci", "--ignore-scripts", "--no-audit", "--no-fund"]
                environment = {**os.environ, "npm_config_update_notifier": "false"}
                command = [str(NPM.find()), *arguments]
                ended = subprocess.run(
                    command, cwd=made, env=environment, capture_output=True, text=True, check=False, timeout=600
                )
                assert ended.returncode == 0, f"npm could not install azurite:\n{ended.stderr[-2000:]}"
                made.rename(folder)
    return folder
