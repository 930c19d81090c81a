"""The marker on a node: says which digest of a model is staged there, in which boot of the kernel.

Written by `publish` as the last thing, read by `wait` in other pods. `warmth` changes one thing in it. Must not import torch.
"""

from __future__ import annotations

import json
import os
from typing import NamedTuple
from urllib.parse import quote

from modelweights_loader.errors import WillNotWorkError
from modelweights_loader.opening import resolve
from modelweights_loader.small_files import read_regular, write_atomically

MARKER_FOLDER = ".modelweights"
MARKER_VERSION = 1
_BOOT_ID_FILE = "/proc/sys/kernel/random/boot_id"
_MAX_NAME_BYTES = 255
_CUT_CHARACTERS = 180
MAX_MARKER_BYTES = 65536

WRITTEN = "Written"
NOT_WRITABLE = "NotWritable"
NOT_ASKED = "NotAsked"


class Marker(NamedTuple):
    """What a marker says; path is relative to the root, staged_at RFC 3339.

    warm: a refresh left as much of it in the page cache as is asked for, or none has measured it since it was staged.
    """

    path: str
    manifest_digest: str
    boot_id: str
    node_boot_id: str
    size_bytes: int
    file_count: int
    staged_at: str
    warm: bool = True


def read_boot_id(path: str = _BOOT_ID_FILE) -> str:
    """Reads the kernel's boot ID; it changes when the page cache is lost.

    Args:
        path: For tests.

    Returns:
        A UUID.

    Raises:
        WillNotWorkError: Nobody says here in which boot we are.
    """
    try:
        with open(path, encoding="ascii") as file:
            return file.read().strip()
    except (OSError, ValueError) as error:
        message = (
            f"the boot ID can't be read from {path} ({error}), without which no marker tells anything; mount /proc"
        )
        raise WillNotWorkError(message) from error


def name_marker(relative_path: str) -> str:
    """Names the marker of a model.

    Args:
        relative_path: Of the model below the root; `.` for the root itself.

    Returns:
        A file name of at most 255 bytes.
    """
    quoted = _quote(relative_path)
    name = f"{quoted}.json"
    if len(name.encode()) > _MAX_NAME_BYTES:
        import hashlib  # noqa: PLC0415 - OpenSSL costs 10 ms, and few names are this long

        digest = hashlib.sha256(quoted.encode()).hexdigest()[:16]
        return f"{quoted[:_CUT_CHARACTERS]}-{digest}.json"
    return name


def begin_of_markers(relative_folder: str) -> str:
    """Says how the names of all markers begin whose models lie in a folder; others may begin so too, where it is long.

    Args:
        relative_folder: Below the root.

    Returns:
        The first characters.
    """
    return _quote(f"{relative_folder}/")[:_CUT_CHARACTERS]


def _quote(relative_path: str) -> str:
    return quote(os.fsencode(relative_path), safe="")


def write_marker(folder: str, marker: Marker) -> None:
    """Writes a marker, whole or not at all.

    Args:
        folder: The marker folder, which must be there (it is mounted); world-readable afterwards.
        marker: Its content.

    Raises:
        OSError: It can't be written.
    """
    content = {
        "version": MARKER_VERSION,
        "path": marker.path,
        "manifestDigest": marker.manifest_digest,
        "bootID": marker.boot_id,
        "nodeBootID": marker.node_boot_id,
        "sizeBytes": marker.size_bytes,
        "fileCount": marker.file_count,
        "stagedAt": marker.staged_at,
        "warm": marker.warm,
    }
    write_atomically(os.path.join(folder, name_marker(marker.path)), json.dumps(content, indent=1).encode() + b"\n")


def read_marker(folder: str, relative_path: str) -> Marker | None:
    """Reads the marker of a model.

    Args:
        folder: The marker folder.
        relative_path: Of the model below the root.

    Returns:
        The marker, or None when there is none.

    Raises:
        OSError: It is there but can't be read.
        ValueError: It is there but says nothing that this version understands.
    """
    try:
        content = json.loads(read_regular(os.path.join(folder, name_marker(relative_path)), MAX_MARKER_BYTES))
    except FileNotFoundError:
        return None
    except RecursionError as error:
        msg = "it is nested too deeply"
        raise ValueError(msg) from error
    if not isinstance(content, dict) or content.get("version") != MARKER_VERSION:
        msg = "it has another version"
        raise ValueError(msg)
    if content.get("path") != relative_path:
        msg = f"it is about {content.get('path')!r}"
        raise ValueError(msg)
    digest = content.get("manifestDigest")
    if not isinstance(digest, str) or not digest.startswith("sha256:"):
        msg = "it has no manifest digest"
        raise ValueError(msg)
    return Marker(
        path=relative_path,
        manifest_digest=digest,
        boot_id=str(content.get("bootID", "")),
        node_boot_id=str(content.get("nodeBootID", "")),
        size_bytes=_whole(content.get("sizeBytes", 0)),
        file_count=_whole(content.get("fileCount", 0)),
        staged_at=str(content.get("stagedAt", "")),
        # One that an older version wrote says nothing of it.
        warm=_flag(content.get("warm", True)),
    )


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        msg = f"{str(value)[:80]!r} is neither true nor false"
        raise ValueError(msg)  # noqa: TRY004 - as below
    return value


def _whole(value: object) -> int:
    if not isinstance(value, int):
        msg = f"{str(value)[:80]!r} is no whole number"
        raise ValueError(msg)  # noqa: TRY004 - its content is wrong, not a caller
    return value


def find_marker_folder(path: str) -> tuple[str, str] | None:
    """Walks up from a model to the folder that holds the markers.

    Args:
        path: The model as this pod sees it.

    Returns:
        The marker folder and the model's path relative to its parent, or None.
    """
    real = resolve(path)
    parent = real
    while True:
        folder = os.path.join(parent, MARKER_FOLDER)
        if os.path.isdir(folder):
            return folder, os.path.relpath(real, parent)
        above = os.path.dirname(parent)
        if above == parent:
            return None
        parent = above
