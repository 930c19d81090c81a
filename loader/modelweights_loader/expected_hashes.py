"""What the files' hashes should be: from the names of a Hugging Face cache, or from a file that the user gives.

Called by `validate`, compared by `manifest`; `sources.remote_manifest` uses its parser. Must not import torch.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from typing import TYPE_CHECKING, Any, NamedTuple

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


def start_git_blob(size_bytes: int) -> Any:
    """Starts the hash by which git names a blob.

    Args:
        size_bytes: Of the whole content.

    Returns:
        Of hashlib, to be updated with the content.
    """
    return hashlib.sha1(b"blob %d\0" % size_bytes, usedforsecurity=False)


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
    # Other stores have a folder of that name too, with names that are other hashes.
    if os.path.basename(folder) != "blobs" or not os.path.isdir(os.path.join(os.path.dirname(folder), "snapshots")):
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
    digests, is_manifest = parse_hashes(content, f"{checkpoint.path.rstrip('/')}/", path)
    _compare_names(digests, checkpoint, path, is_manifest=is_manifest)
    return {name: Expected(SHA256, digest, path) for name, digest in digests.items()}


def parse_hashes(content: bytes, folder: str, path: str) -> tuple[dict[str, str], bool]:
    """Parses a manifest of ours, or what sha256sum prints.

    Args:
        content: Of the file.
        folder: What names in it may begin with, up to the '/'; "" for nothing.
        path: Of the file, for messages.

    Returns:
        sha256 in lower case by path below the folder, and whether it is a manifest of ours.

    Raises:
        UsageError: It is neither, lists nothing, or has two hashes for one name.
    """
    text = content.decode("utf-8", "surrogateescape").removeprefix("\ufeff")
    is_manifest = text.lstrip().startswith("{")
    pairs = _parse_manifest(text, path) if is_manifest else _parse_sums(text, path)
    return _collect(pairs, folder, path), is_manifest


def _parse_manifest(text: str, path: str) -> list[tuple[str, str]]:
    try:
        return [_read_entry(entry) for entry in json.loads(text)["files"]]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        message = f"{path} is no manifest ({type(error).__name__}: {error}); make it with validate --manifest"
        raise UsageError(message) from error


def _read_entry(entry: dict[str, Any]) -> tuple[str, str]:
    name, digest = entry["path"], entry["sha256"]
    if not (isinstance(name, str) and re.fullmatch("[0-9a-fA-F]{64}", digest)):
        message = f"not a path and its sha256: {name!r:.80}, {digest!r:.80}"
        raise ValueError(message)
    return name, digest


def _parse_sums(text: str, path: str) -> list[tuple[str, str]]:
    pairs = []
    # Not splitlines: other things than line ends that it splits at may be in names.
    for number, ended in enumerate(text.split("\n"), start=1):
        line = ended.removesuffix("\r")
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
        pairs.append((name, digest))
    return pairs


def _collect(pairs: list[tuple[str, str]], folder: str, path: str) -> dict[str, str]:
    """By name in the checkpoint's folder, also where it is written with ./ or with the whole path before it."""
    digests: dict[str, str] = {}
    for written, digest in pairs:
        name = written.removeprefix(folder).removeprefix("./")
        if digests.setdefault(name, digest.lower()) != digest.lower():
            message = f"{path} has two hashes for {name[:200]}; pass one of a single revision"
            raise UsageError(message)
    if not digests:
        message = f"{path} lists no hash; pass a manifest or what sha256sum printed"
        raise UsageError(message)
    return digests


def _compare_names(digests: dict[str, str], checkpoint: Checkpoint, path: str, *, is_manifest: bool) -> None:
    """Every shard must be listed, or the check would be silently partial; other files need not count for the engine."""
    shards = {shard.path for shard in checkpoint.shards}
    listed = {name for name in digests if name.endswith(".safetensors") and "/" not in name}
    if not listed and not shards <= digests.keys():
        message = f"{path} lists no shard by its name in {checkpoint.path}: {min(digests)[:200]!r}; run sha256sum in that folder"
        raise UsageError(message)
    if is_manifest:
        # It lists what counts, and nothing else.
        missing = digests.keys() - {file.path for file in checkpoint.files}
    else:
        # What is there but is not loaded, such as the same weights once more, need not be compared.
        missing = {name for name in listed - shards if not os.path.exists(os.path.join(checkpoint.path, name))}
    for names, said in ((shards - digests.keys(), "is not listed in"), (missing, "is missing, but listed in")):
        if names:
            message = f"{checkpoint.path}/{min(names)} {said} {path}; compare files of one revision"
            raise BadCheckpointError(message, reason="HashMismatch")
