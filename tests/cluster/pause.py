"""Makes the pods' pause image: a static program of our own in an otherwise empty image, so nothing is downloaded."""

import gzip
import hashlib
import io
import json
import tarfile
from pathlib import Path


def _tar(files: dict[str, tuple[bytes, int]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, (content, mode) in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), mode
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def _digest(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


def write_pause_archive(program: Path, reference: str, target: Path) -> Path:
    """Write an OCI archive of one layer that holds program as /pause, named reference; return its path."""
    layer = _tar({"pause": (program.read_bytes(), 0o755)})
    packed = gzip.compress(layer, mtime=0)
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Entrypoint": ["/pause"], "User": "65535:65535"},
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
        },
    ).encode()
    prefix = "application/vnd.oci.image"
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": f"{prefix}.manifest.v1+json",
            "config": _descriptor(f"{prefix}.config.v1+json", config),
            "layers": [_descriptor(f"{prefix}.layer.v1.tar+gzip", packed)],
        },
    ).encode()
    entry = _descriptor(f"{prefix}.manifest.v1+json", manifest)
    entry["annotations"] = {"io.containerd.image.name": reference}
    index = json.dumps({"schemaVersion": 2, "manifests": [entry]}).encode()
    blobs = {f"blobs/sha256/{_digest(each)[7:]}": (each, 0o644) for each in (packed, config, manifest)}
    layout = json.dumps({"imageLayoutVersion": "1.0.0"}).encode()
    target.write_bytes(_tar({"oci-layout": (layout, 0o644), "index.json": (index, 0o644), **blobs}))
    return target


def _descriptor(media_type: str, content: bytes) -> dict[str, object]:
    return {"mediaType": media_type, "digest": _digest(content), "size": len(content)}
