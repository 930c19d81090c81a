"""Takes sha256 hashes from a file that lies beside the weights, since most object stores and web servers have none.

Called by the object store and https sources with their list. Who may write the objects may write this file too: it shows
what was broken on its way or in the store, not who put it there. Must not import any library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from modelweights_loader.errors import UsageError, WillNotWorkError
from modelweights_loader.expected_hashes import parse_hashes
from modelweights_loader.sources.bounds import MAX_DOCUMENT_BYTES, MAX_FILES, check_json, parse_json, refuse_number

if TYPE_CHECKING:
    from collections.abc import Callable

    from modelweights_loader.sources.contract import RemoteFile

# The first that is there counts; of our own `validate --manifest`, or of sha256sum.
NAMES = ("manifest.json", "SHA256SUMS", "sha256sum.txt")
_MAX_SHOWN = 3


class Hashed(NamedTuple):
    """Files with the hashes that a manifest has for them, and what is to be said of it; "" where there is none."""

    files: tuple[RemoteFile, ...]
    said: str


def add_hashes(files: tuple[RemoteFile, ...], read: Callable[[RemoteFile], bytes], place: str) -> Hashed:
    """Looks for a manifest in a list and adds its hashes to the files.

    Args:
        files: The list.
        read: Gives a whole file of it.
        place: URL of the folder, for messages.

    Returns:
        All files of the list.

    Raises:
        WillNotWorkError: The manifest is too large, can't be parsed, or contradicts what the store vouches for.
    """
    by_path = {file.path: file for file in files}
    for name in NAMES:
        if name not in by_path:
            continue
        digests = read_manifest(by_path[name], read, place)
        if digests is not None:
            return _merge(files, digests, name, place)
    return Hashed(files, "")


def read_manifest(file: RemoteFile, read: Callable[[RemoteFile], bytes], place: str) -> dict[str, str] | None:
    """Reads one manifest.

    Args:
        file: It.
        read: Gives a whole file.
        place: URL of its folder, for messages.

    Returns:
        sha256 by path; None for a manifest.json of another kind, as web sites have too.

    Raises:
        WillNotWorkError: It is too large, or can't be parsed.
    """
    if file.size_bytes > MAX_DOCUMENT_BYTES:
        message = (
            f"{place}/{file.path} has more than {MAX_DOCUMENT_BYTES} bytes; write what sha256sum prints, or remove it"
        )
        raise WillNotWorkError(message, reason="BadManifest")
    content = read(file)
    shown = f"{place}/{file.path}"
    if file.path.endswith(".json") and not _is_ours(content, shown):
        return None
    try:
        if not file.path.endswith(".json"):
            # A file of sums may hold JSON all the same.
            check_json(content if content.lstrip()[:1] == b"{" else b"", shown, "BadManifest")
            if content.count(b"\n") > MAX_FILES:
                refuse_number(shown, f"more than {MAX_FILES} files")
        digests, _ = parse_hashes(content, "", shown)
    except UsageError as error:
        raise WillNotWorkError(error.message, reason="BadManifest") from error
    return digests


def _is_ours(content: bytes, shown: str) -> bool:
    value = parse_json(content, shown, "BadManifest")
    if value is None:
        # Also half a file of ours is taken for one, and then refused.
        return b'"files"' in content
    entries = value.get("files") if isinstance(value, dict) else None
    return isinstance(entries, list)


def _merge(files: tuple[RemoteFile, ...], digests: dict[str, str], name: str, place: str) -> Hashed:
    merged = []
    for file in files:
        expected = digests.get(file.path, "")
        if file.sha256 and expected and file.sha256 != expected:
            message = f"{place}/{name} has another hash for {file.path} than the store itself; write a new {name}"
            raise WillNotWorkError(message, reason="BadManifest")
        merged.append(file._replace(sha256=file.sha256 or expected))
    # Listing itself is a usual mistake of `sha256sum * > SHA256SUMS`, and its hash is always wrong then.
    merged = [file._replace(sha256="") if file.path == name else file for file in merged]
    missing = sorted(digests.keys() - {file.path for file in files})
    said = f"{len(digests) - len(missing)} hashes from {name}"
    if missing:
        shown = ", ".join(ascii(path)[:80] for path in missing[:_MAX_SHOWN])
        said += f", which names {len(missing)} that are not there: {shown}"
    return Hashed(tuple(merged), said)
