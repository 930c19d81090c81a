"""Writes kubeconfig files; everything is embedded, so that a file can be moved or mounted alone."""

import base64
import json
from pathlib import Path

from tests.cluster.pki import KeyPair


def _encoded(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def write_kubeconfig(path: Path, server: str, authority: Path, client: KeyPair | str) -> Path:
    """Write a kubeconfig (JSON is YAML) for a client certificate, or for a bearer token given as a string."""
    user = (
        {"token": client}
        if isinstance(client, str)
        else {"client-certificate-data": _encoded(client.certificate), "client-key-data": _encoded(client.key)}
    )
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "modelweights",
        "clusters": [
            {
                "name": "modelweights",
                "cluster": {"server": server, "certificate-authority-data": _encoded(authority)},
            },
        ],
        "users": [{"name": "modelweights", "user": user}],
        "contexts": [{"name": "modelweights", "context": {"cluster": "modelweights", "user": "modelweights"}}],
    }
    path.touch(mode=0o600)
    path.write_text(json.dumps(content, indent=1) + "\n")
    return path
