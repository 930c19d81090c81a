"""Brings an OCI archive to a registry, layer by layer, without a detour by an image store. Called by the Embedded provider.

A registry's API for this is https://github.com/opencontainers/distribution-spec/blob/main/spec.md#push.
"""

import http.client
import json
import tarfile
from pathlib import Path
from typing import Any

from tests.cluster.errors import ClusterError

_TIMEOUT_SECONDS = 300


def is_oci_archive(path: Path) -> bool:
    """Whether a file is an archive of an OCI layout, in which each blob lies under its digest."""
    if not tarfile.is_tarfile(path):
        return False
    with tarfile.open(path) as archive:
        return any(name.removeprefix("./") == "oci-layout" for name in archive.getnames())


def push_archive(archive: Path, registry: str, name_and_tag: str) -> None:
    """Push the one image of an OCI archive; blobs that the registry has already are left out.

    Args:
        archive: the archive.
        registry: host and port; it is spoken to in clear.
        name_and_tag: under which it is kept there.

    Raises:
        ClusterError: the registry refused something.
    """
    name, _, tag = name_and_tag.rpartition(":")
    with tarfile.open(archive) as members:
        paths = {each.removeprefix("./"): each for each in members.getnames()}

        def read(path: str) -> bytes:
            file = members.extractfile(paths[path])
            assert file is not None
            return file.read()

        def blob(digest: str) -> bytes:
            return read(f"blobs/{digest.replace(':', '/')}")

        (entry,) = json.loads(read("index.json"))["manifests"]
        manifest = blob(entry["digest"])
        described = json.loads(manifest)
        for descriptor in (described["config"], *described["layers"]):
            digest = descriptor["digest"]
            if _ask(registry, "HEAD", f"/v2/{name}/blobs/{digest}")[0] == http.client.NOT_FOUND:
                _upload(registry, name, digest, blob(digest))
    put = _ask(registry, "PUT", f"/v2/{name}/manifests/{tag}", manifest, entry["mediaType"])
    _check(put, http.client.CREATED, f"the manifest of {name_and_tag}")


def _upload(registry: str, name: str, digest: str, content: bytes) -> None:
    begun = _ask(registry, "POST", f"/v2/{name}/blobs/uploads/")
    _check(begun, http.client.ACCEPTED, f"an upload to {name}")
    # With the host or without, with a query or without.
    path = "/" + begun[1]["Location"].removeprefix(f"http://{registry}").lstrip("/")
    path += f"{'&' if '?' in path else '?'}digest={digest}"
    _check(_ask(registry, "PUT", path, content, "application/octet-stream"), http.client.CREATED, f"{name}@{digest}")


def _ask(
    registry: str, method: str, path: str, body: bytes = b"", content_type: str = ""
) -> tuple[int, http.client.HTTPMessage, str]:
    """Status, header fields and text of an answer."""
    connection = http.client.HTTPConnection(registry, timeout=_TIMEOUT_SECONDS)
    try:
        connection.request(method, path, body, {"Content-Type": content_type} if content_type else {})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode(errors="replace")
    finally:
        connection.close()


def _check(answer: tuple[int, Any, str], status: int, what: str) -> None:
    if answer[0] != status:
        raise ClusterError(f"the registry answers {answer[0]} for {what}: {answer[2][:500]}")
