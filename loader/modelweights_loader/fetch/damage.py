"""Looks whether what is published is still what was published, and nothing else. Called by `fetching`.

What an engine would load counts: files, the links and refs of a Hugging Face cache, and foreign files that it would take along.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from modelweights_loader.checkpoint import find_checkpoint
from modelweights_loader.errors import LoaderError, TryAgainError
from modelweights_loader.fetch.published import Places
from modelweights_loader.manifest import digest_of

if TYPE_CHECKING:
    from modelweights_loader.fetch.folders import Folder
    from modelweights_loader.fetch.published import Published

_MAX_REF_BYTES = 256


def find_damage(home: Folder, published: Published, *, verify: bool) -> set[str]:
    """Looks whether all is as it was left.

    Args:
        home: Of the ModelWeights.
        published: What should be there.
        verify: Hashes all files; otherwise size and time are believed.

    Returns:
        Places below the home that are not, or that should not be there.

    Raises:
        LoaderError: They can't be looked at.
    """
    damaged: set[str] = set()
    with Places(home) as places:
        for file in published.files:
            if not places.is_as_left(file.place, file.finished) or (
                verify and places.hash(file.place) != file.finished.sha256
            ):
                damaged.add(file.place)
        if "/" in published.folder:
            damaged |= _find_broken_links(places, published)
    # What is gone or wrong is told by its own name above.
    return damaged or _find_foreign(home, published)


def _find_broken_links(places: Places, published: Published) -> set[str]:
    """Of a Hugging Face cache: each link of the snapshot, and the ref by which it is found."""
    broken = {
        f"{published.folder}/{file.path}"
        for file in published.files
        if _read_link(places, f"{published.folder}/{file.path}") != make_target(file.path, file.place)
    }
    top, cache, snapshots, _ = published.folder.split("/")
    refs = places.folder(f"{top}/{cache}/refs")
    commit = refs.read("main", _MAX_REF_BYTES) if refs is not None else None
    named = (commit or b"").decode("ascii", "replace")
    if not named.isalnum() or places.folder(f"{top}/{cache}/{snapshots}/{named}") is None:
        broken.add(f"{top}/{cache}/refs/main")
    return broken


def make_target(path: str, place: str) -> str:
    """Says where the link of a snapshot leads.

    Args:
        path: Of the file in the snapshot.
        place: Of its blob, whose last part counts.

    Returns:
        A relative path.
    """
    return "../" * (2 + path.count("/")) + f"blobs/{place.rpartition('/')[2]}"


def _read_link(places: Places, place: str) -> str:
    below, _, name = place.rpartition("/")
    folder = places.folder(below)
    try:
        return "" if folder is None else os.readlink(name, dir_fd=folder.descriptor)
    except OSError:
        return ""


def _find_foreign(home: Folder, published: Published) -> set[str]:
    """Files that an engine would load and nobody published; all of them where the record names another digest."""
    recorded = {file.path: file for file in published.files}
    top = published.manifest_digest.removeprefix("sha256:")
    try:
        checkpoint = find_checkpoint(f"{home.shown}/{published.folder}", f"{home.shown}/{top}")
    except TryAgainError:
        raise
    except LoaderError:
        # Such as a link out of the folder, or another index: it is made anew of what is good.
        return {f"{published.folder}/."}
    foreign = {f"{published.folder}/{file.path}" for file in checkpoint.files if file.path not in recorded}
    if foreign:
        return foreign
    digest = digest_of(
        [
            {"path": file.path, "sha256": recorded[file.path].finished.sha256, "size": file.size_bytes}
            for file in checkpoint.files
        ]
    )
    return set() if digest == published.manifest_digest else {file.place for file in published.files}
