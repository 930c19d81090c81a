"""What the files' hashes should be: from the names of a Hugging Face cache, or from a file that the user gives.

Called by `validate`, compared by `manifest`. Must not import torch.
"""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, NamedTuple

from modelweights_loader.errors import BadCheckpointError, UsageError, describe_os_error

if TYPE_CHECKING:
    from modelweights_loader.checkpoint import Checkpoint, CheckpointFile

SHA256 = "sha256"
# As git names a blob: sha1 over "blob <size>\0" and the content.
GIT_BLOB = "git-blob"

_MAX_FILE_BYTES = 64 * 2**20
_BLOB_NAMES = ((re.compile(r"[0-9a-f]{64}"), SHA256), (re.compile(r"[0-9a-f]{40}"), GIT_BLOB))
# GNU's form, with "*" for binary and a backslash in front of escaped names; and the one with a tag.
_SUM_LINE = re.compile(r"(\\?)([0-9a-fA-F]{64}) [ *](.+)")
_TAG_LINE = re.compile(r"(\\?)SHA256 \((.+)\) = ([0-9a-fA-F]{64})")


class Expected(NamedTuple):
    """The hash that a file should have, and who says so."""

    algorithm: str
    digest: str
    source: str


def expect_from_cache(file: CheckpointFile) -> Expected | None:
    """Takes the hash from the name of a blob in a Hugging Face cache: large files by sha256, small ones by git's sha1.

    Args:
        file: With its real path.

    Returns:
        What is expected, or None for a file that is no such blob.
    """
    folder, name = os.path.split(file.real_path)
    if os.path.basename(folder) != "blobs":
        return None
    for pattern, algorithm in _BLOB_NAMES:
        if pattern.fullmatch(name):
            return Expected(algorithm, name, f"its name in the cache, blobs/{name[:12]}…")
    return None


def read_expectations(path: str, checkpoint: Checkpoint) -> dict[str, Expected]:
    """Reads which hashes the files should have.

    Args:
        path: A manifest of ours (`validate --manifest`), or what sha256sum prints.
        checkpoint: Whose files are meant.

    Returns:
        By path below the checkpoint.

    Raises:
        UsageError: It can't be read, or is neither.
        BadCheckpointError: It lists shards that the checkpoint lacks, or leaves out shards that it has.
    """
    try:
        with open(path, "rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        message = f"cannot read {path} ({describe_os_error(error)}); pass a manifest or what sha256sum printed"
        raise UsageError(message) from error
    if len(content) > _MAX_FILE_BYTES:
        message = f"{path} has more than {_MAX_FILE_BYTES} bytes; pass a manifest or what sha256sum printed"
        raise UsageError(message)
    text = content.decode("utf-8", "surrogateescape")
    digests = _parse_manifest(text, path) if text.lstrip().startswith("{") else _parse_sums(text, path)
    _compare_names(digests, checkpoint, path)
    return {name: Expected(SHA256, digest, path) for name, digest in digests.items()}


def _parse_manifest(text: str, path: str) -> dict[str, str]:
    try:
        files = json.loads(text)["files"]
        digests = {str(entry["path"]): str(entry["sha256"]) for entry in files}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        message = f"{path} is no manifest ({type(error).__name__}: {error}); make it with validate --manifest"
        raise UsageError(message) from error
    return digests


def _parse_sums(text: str, path: str) -> dict[str, str]:
    digests: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        plain, tagged = _SUM_LINE.fullmatch(line), _TAG_LINE.fullmatch(line)
        if plain:
            escaped, digest, name = plain.groups()
        elif tagged:
            escaped, name, digest = tagged.groups()
        else:
            message = f"line {number} of {path} is not what sha256sum prints: {line[:80]!r}"
            raise UsageError(message)
        if escaped:
            name = re.sub(r"\\(.)", lambda found: {"n": "\n", "r": "\r"}.get(found[1], found[1]), name)
        digests[name.removeprefix("./")] = digest.lower()
    if not digests:
        message = f"{path} lists no hash; pass a manifest or what sha256sum printed"
        raise UsageError(message)
    return digests


def _compare_names(digests: dict[str, str], checkpoint: Checkpoint, path: str) -> None:
    """Every shard must be listed, or the check would be silently partial; other files need not count for the engine."""
    shards = {shard.path for shard in checkpoint.shards}
    listed = {name for name in digests if name.endswith(".safetensors")}
    for names, said in ((shards - digests.keys(), "is not listed in"), (listed - shards, "is missing, but listed in")):
        if names:
            message = f"{checkpoint.path}/{min(names)} {said} {path}; compare files of one revision"
            raise BadCheckpointError(message, reason="HashMismatch")
