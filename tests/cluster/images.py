"""Makes small OCI images from files at hand, so that nothing is downloaded: the pods' pause image, images for tests."""

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

_PREFIX = "application/vnd.oci.image"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def _tar(files: Mapping[str, tuple[bytes, int]], owner: int = 0) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, (content, mode) in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode, member.uid, member.gid = len(content), mode, owner, owner
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def _digest(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


def _descriptor(media_type: str, content: bytes) -> dict[str, object]:
    return {"mediaType": f"{_PREFIX}.{media_type}", "digest": _digest(content), "size": len(content)}


def write_image_archive(
    files: Mapping[str, tuple[bytes, int]],
    reference: str,
    target: Path,
    entrypoint: Sequence[str] = (),
    user: str = "65535:65535",
    *,
    below: Mapping[str, tuple[bytes, int]] | None = None,
    owner: int = 0,
) -> Path:
    """Write an OCI archive and return its path.

    Args:
        files: content and mode by path in the image, without a leading slash.
        reference: name and tag under which containerd imports it.
        target: the archive to write.
        entrypoint: the command that the image runs.
        user: whom it runs as, UID:GID.
        below: files of a further layer, below that of the others.
        owner: user and group of the files.
    """
    # Not compressed: weights don't compress, and the registry is on this machine.
    layers = [_tar(each, owner) for each in (below, files) if each is not None]
    config = json.dumps(
        {
            "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
            "os": "linux",
            "config": {"Entrypoint": list(entrypoint), "User": user, "Env": ["PATH=/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer) for layer in layers]},
        },
    ).encode()
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": f"{_PREFIX}.manifest.v1+json",
            "config": _descriptor("config.v1+json", config),
            "layers": [_descriptor("layer.v1.tar", each) for each in layers],
        },
    ).encode()
    entry = _descriptor("manifest.v1+json", manifest)
    # The first name is containerd's, the second is what other tools know.
    tag = reference.rpartition(":")[2]
    entry["annotations"] = {"io.containerd.image.name": reference, "org.opencontainers.image.ref.name": tag}
    index = json.dumps({"schemaVersion": 2, "manifests": [entry]}).encode()
    blobs = {f"blobs/sha256/{_digest(each)[7:]}": (each, 0o644) for each in (*layers, config, manifest)}
    layout = json.dumps({"imageLayoutVersion": "1.0.0"}).encode()
    target.write_bytes(_tar({"oci-layout": (layout, 0o644), "index.json": (index, 0o644), **blobs}))
    return target
