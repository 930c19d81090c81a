"""Finds published files of which no record is left, or that were touched since, and proves them by their hashes.

Called by `fetching` when a record below `.fetch` is lost or spoilt: what is published is named by its digest and never
changes in place, so it is there; but only a read of all of it shows that.
"""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING, NamedTuple

from modelweights_loader.errors import LoaderError
from modelweights_loader.fetch.journal import Finished
from modelweights_loader.fetch.published import Places, Reusable, list_folders, list_published, make_tokens, tokens_of
from modelweights_loader.quantity import format_bytes
from modelweights_loader.threads import run_in_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from modelweights_loader.fetch.folders import Folder
    from modelweights_loader.sources.contract import RemoteFile

_CACHE = "models--"


class _Suspect(NamedTuple):
    """A file on this node that may be one that is wanted; any of the hashes proves it."""

    place: str
    wanted: RemoteFile
    sha256: str
    git_blob: str


def find_unrecorded(
    home: Folder,
    wanted: Sequence[RemoteFile],
    reusable: Mapping[tuple[object, ...], Reusable],
    source: str,
    *,
    num_threads: int,
    say: Callable[[str], None] = lambda _: None,
) -> dict[tuple[object, ...], Reusable]:
    """Hashes what may be one of the wanted files and isn't known. Blocks for one read of all that.

    A file of which the source has no hash is found where a record of it is left: nothing else ties bytes to the version
    that the source speaks of.

    Args:
        home: Of the ModelWeights.
        wanted: As listed.
        reusable: From `find_reusable`: what is known needs no proof.
        source: Names the source.
        num_threads: So many read at a time.
        say: Told before it begins to read.

    Returns:
        As `find_reusable`.

    Raises:
        LoaderError: Something can't be read.
    """
    lacking = [file for file in wanted if not any(token in reusable for token in tokens_of(file))]
    if not lacking:
        return {}
    suspects = dict.fromkeys([*_recorded(home, lacking, source), *_published(home, lacking)])
    with Places(home) as places:
        found = [one for one in suspects if _look(places, one) is not None]
    if not found:
        return {}
    total = format_bytes(sum(one.wanted.size_bytes for one in found))
    say(f"{len(found)} published files ({total}) have no record that holds; they are hashed to see which are good")
    return _prove(home, found, num_threads)


def _look(places: Places, one: _Suspect) -> int | None:
    """When it was changed last; None where it can't be what is wanted."""
    try:
        status = places.status(one.place)
    except LoaderError:
        # Such as a link that somebody planted: nothing to use; who writes there refuses it.
        return None
    if status is None or not stat.S_ISREG(status.st_mode) or status.st_size != one.wanted.size_bytes:
        return None
    return status.st_mtime_ns


def _recorded(home: Folder, lacking: Sequence[RemoteFile], source: str) -> Iterator[_Suspect]:
    """Files that are recorded but not as they were left: a copy of a backup has other times."""
    by_token = {token: file for file in lacking for token in tokens_of(file)}
    for file, origin in list_published(home):
        tokens = make_tokens(file.path, file.finished, file.version if origin == source else "")
        wanted = next((by_token[token] for token in tokens if token in by_token), None)
        if wanted is not None:
            yield _Suspect(file.place, wanted, file.finished.sha256, "")


def _published(home: Folder, lacking: Sequence[RemoteFile]) -> Iterator[_Suspect]:
    """Files in the place that each would have in each published folder, in either layout."""
    hashed = [file for file in lacking if file.sha256 or file.git_blob]
    for top in list_folders(home):
        with home.folder(top) as folder:
            caches = [name for name in folder.names() if name.startswith(_CACHE) and folder.has_subfolder(name)]
        for file in hashed:
            sha256, git_blob = file.sha256.lower(), file.git_blob.lower()
            yield _Suspect(f"{top}/{file.path}", file, sha256, git_blob)
            for cache in caches:
                yield _Suspect(f"{top}/{cache}/blobs/{sha256 or git_blob}", file, sha256, git_blob)


def _prove(home: Folder, suspects: Sequence[_Suspect], num_threads: int) -> dict[tuple[object, ...], Reusable]:
    found: dict[tuple[object, ...], Reusable] = {}

    def work(own: Iterator[_Suspect]) -> None:
        with Places(home) as places:
            for one in own:
                good = _check(places, one)
                if good is not None:
                    found.update(dict.fromkeys(tokens_of(one.wanted), good))

    run_in_threads(work, suspects, num_threads, "prove")
    return found


def _check(places: Places, one: _Suspect) -> Reusable | None:
    before = _look(places, one)
    if before is None:
        return None
    size = one.wanted.size_bytes
    try:
        digests = places.digests(one.place, size if one.wanted.git_blob else -1)
    except LoaderError:
        # What can't be read is fetched again.
        return None
    if digests is None or before != _look(places, one):
        return None
    is_good = digests.sha256 == one.sha256 if one.sha256 else digests.git_blob == one.git_blob
    return Reusable(one.place, Finished(size, digests.sha256, digests.git_blob, before)) if is_good else None
