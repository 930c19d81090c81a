"""Publishes what was fetched: a folder that is named by its manifest digest, in one of two layouts. Called by `fetching`.

Killed at any moment it leaves the old folder or the new one, and what is needed to go on:

    record.json written --> folder renamed to its digest --> record.json renamed to <key>.json
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, NamedTuple

from modelweights_loader.checkpoint import MAX_INDEX_BYTES
from modelweights_loader.errors import WillNotWorkError
from modelweights_loader.fetch.choice import choose_listed
from modelweights_loader.fetch.damage import make_target
from modelweights_loader.fetch.folders import Folder, error_of, saying
from modelweights_loader.fetch.published import (
    FETCH_FOLDER,
    FILES_FOLDER,
    Places,
    Published,
    PublishedFile,
    encode,
    is_same,
    read_published,
)
from modelweights_loader.manifest import digest_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from modelweights_loader.fetch.journal import Finished
    from modelweights_loader.sources.contract import RemoteFile

PLAIN = "Plain"
HUGGING_FACE_CACHE = "HuggingFaceCache"
LAYOUTS = (PLAIN, HUGGING_FACE_CACHE)

_RECORD = "record.json"
_TREE = "tree"
_OLD = "old"
_COMMIT = re.compile(r"[0-9a-f]{40}")
_REPOSITORY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,95}(/[A-Za-z0-9_][A-Za-z0-9._-]{0,95})?")
# A ref is a path below refs; what isn't plain, or in the way of main, is left away, since it is only a second name.
_REF = re.compile(r"(?!.*\.\.)(?!main[/.])[A-Za-z0-9][A-Za-z0-9._-]{0,199}(/[A-Za-z0-9][A-Za-z0-9._-]{0,199}){0,5}")


class Fetched(NamedTuple):
    """What is to be published.

    Attributes:
        key: Of this source, revision, filters and layout.
        layout: One of `LAYOUTS`.
        revision: Resolved.
        ref: As it was asked for, or "".
        name: `org/name` for a Hugging Face cache, else "".
        described: The source in words.
        source: Names the source without its revision.
        files: As listed.
        finished: What each is, by path.
        damaged: Places below the home that are known to be bad.
    """

    key: str
    layout: str
    revision: str
    ref: str
    name: str
    described: str
    source: str
    files: Sequence[RemoteFile]
    finished: Mapping[str, Finished]
    damaged: AbstractSet[str] = frozenset()


def publish(home: Folder, fetched: Fetched) -> Published:
    """Publishes files that all lie below `.fetch/<key>/files`, verified and on the disk.

    Args:
        home: Of the ModelWeights, locked.
        fetched: What they are.

    Returns:
        What is published.

    Raises:
        LoaderError: They are no checkpoint, or can't be put in place.
    """
    with home.folder(FETCH_FOLDER) as fetch, fetch.folder(fetched.key) as own:
        with own.folder(FILES_FOLDER) as files:
            _remove_others(files, set(fetched.finished))
            _sync_folders(files)
            digest = _make_digest(files, fetched)
        places = _place(fetched)
        top = digest.removeprefix("sha256:")
        published = Published(
            revision=fetched.revision,
            manifest_digest=digest,
            folder="/".join([top, *_snapshot_parts(fetched)]),
            described=fetched.described,
            source=fetched.source,
            size_bytes=sum(one.size_bytes for one in fetched.finished.values()),
            files=tuple(
                PublishedFile(file.path, f"{top}/{places[file.path]}", fetched.finished[file.path], file.version)
                for file in fetched.files
            ),
        )
        tree = FILES_FOLDER if fetched.layout == PLAIN else _build_cache(own, fetched, places)
        own.write(_RECORD, encode(published))
        _put(home, own, tree, published, fetched.damaged)
        home.sync()
        _note(fetch, own, fetched.key)
    return published


def finish_publication(home: Folder, key: str) -> None:
    """Goes on where an earlier run was killed between the folder's new name and its record.

    Args:
        home: Of the ModelWeights, locked.
        key: Of this source, revision, filters and layout.
    """
    try:
        with home.folder(FETCH_FOLDER) as fetch, fetch.folder(key) as own:
            published = read_published(own, _RECORD)
            if published is None:
                return
            with Places(home) as places:
                if all(places.is_as_left(file.place, file.finished) for file in published.files):
                    _note(fetch, own, key)
    except FileNotFoundError:
        return


def _note(fetch: Folder, own: Folder, key: str) -> None:
    own.rename(_RECORD, fetch, f"{key}.json")
    fetch.sync()
    fetch.remove_tree(key)


def _remove_others(files: Folder, wanted: set[str]) -> None:
    """What nobody listed is not published."""
    for path, _ in list(files.walk()):
        if path not in wanted:
            with files.holding(path) as (folder, name):
                folder.unlink(name)


def _sync_folders(folder: Folder) -> None:
    for name in folder.names():
        if folder.has_subfolder(name):
            with folder.folder(name) as inner:
                _sync_folders(inner)
    folder.sync()


def _make_digest(files: Folder, fetched: Fetched) -> str:
    """Over the files that count, by the rules that `validate` has; what lies there was all listed."""

    def get_index(file: RemoteFile) -> bytes:
        return files.read(file.path, MAX_INDEX_BYTES + 1) or b""

    chosen = choose_listed(fetched.files, fetched.described, get_index)
    finished = [(file.path, fetched.finished[file.path]) for file in chosen]
    return digest_of([{"path": path, "sha256": one.sha256, "size": one.size_bytes} for path, one in finished])


def _place(fetched: Fetched) -> dict[str, str]:
    """By path: where the file itself lies below the folder of the digest."""
    if fetched.layout == PLAIN:
        return {file.path: file.path for file in fetched.files}
    cache = _snapshot_parts(fetched)[0]
    return {file.path: f"{cache}/blobs/{_name_blob(file, fetched.finished[file.path])}" for file in fetched.files}


def _name_blob(file: RemoteFile, finished: Finished) -> str:
    """The hub's ETag: the sha256 of large files, git's hash of small ones."""
    return finished.git_blob if file.git_blob and not file.sha256 else finished.sha256


def _snapshot_parts(fetched: Fetched) -> list[str]:
    return list_snapshot_parts(fetched.layout, fetched.name, fetched.revision, fetched.described)


def list_snapshot_parts(layout: str, name: str, revision: str, described: str) -> list[str]:
    """Says where the checkpoint lies below the folder of its digest.

    Args:
        layout: One of `LAYOUTS`.
        name: `org/name`, for a Hugging Face cache.
        revision: Resolved.
        described: The source in words.

    Returns:
        Names of folders, none for `Plain`.

    Raises:
        WillNotWorkError: The layout can't be had of this source.
    """
    if layout == PLAIN:
        return []
    if not _REPOSITORY.fullmatch(name):
        message = (
            f"the layout {HUGGING_FACE_CACHE} needs a repository's name, org/name, and {described} has none; use the "
            f"layout {PLAIN}"
        )
        raise WillNotWorkError(message, reason="NoRepositoryName")
    return ["models--" + name.replace("/", "--"), "snapshots", commit_of(revision)]


def commit_of(revision: str) -> str:
    """Names the snapshot: the commit; of a digest over a listing as many digits.

    Args:
        revision: Resolved.

    Returns:
        40 hex digits, as huggingface_hub knows them.

    Raises:
        WillNotWorkError: It is neither.
    """
    commit = revision.removeprefix("sha256:")[:40]
    if not _COMMIT.fullmatch(commit):
        message = f"the source calls its revision {revision[:80]!r}, which is neither a commit nor a digest"
        raise WillNotWorkError(message, reason="UnsafePath")
    return commit


def _build_cache(own: Folder, fetched: Fetched, places: Mapping[str, str]) -> str:
    """Makes the layout of huggingface_hub's cache out of hard links, so that it can be made again after a kill."""
    own.remove_tree(_TREE)
    cache, _, commit = _snapshot_parts(fetched)
    with own.folder(_TREE, make=True) as tree, own.folder(FILES_FOLDER) as files:
        with tree.folder(f"{cache}/blobs", make=True) as blobs:
            for file in fetched.files:
                _link_or_move(files, file.path, blobs, places[file.path].rpartition("/")[2])
        with tree.folder(f"{cache}/snapshots/{commit}", make=True) as snapshot:
            for file in fetched.files:
                _make_link(snapshot, file.path, make_target(file.path, places[file.path]))
        with tree.folder(f"{cache}/refs", make=True) as refs:
            # Engines that are given the name alone look for main, whatever was asked for here.
            for ref in {"main", fetched.ref if _REF.fullmatch(fetched.ref) else "main"} - {commit}:
                with refs.holding(ref, make=True) as (folder, name):
                    folder.write(name, commit.encode())
        _sync_folders(tree)
    return _TREE


def _make_link(snapshot: Folder, path: str, target: str) -> None:
    with saying("make", f"{snapshot.shown}/{path}"), snapshot.holding(path, make=True) as (folder, name):
        os.symlink(target, name, dir_fd=folder.descriptor)


def _link_or_move(files: Folder, path: str, to: Folder, new_name: str) -> None:
    with files.holding(path) as (folder, name):
        try:
            folder.link(name, to, new_name)
        except FileExistsError:
            # Two files of the same content.
            return
        except OSError:
            # No hard links here: then it can't be made again, and what a kill leaves is fetched anew.
            folder.rename(name, to, new_name)


def _put(home: Folder, own: Folder, tree: str, published: Published, damaged: AbstractSet[str]) -> None:
    top = published.manifest_digest.removeprefix("sha256:")
    status = home.status(top)
    if status is not None and _is_good(home, own, published, damaged):
        # The same content of another revision, or in another layout: what is lacking is added, nothing is changed.
        with own.folder(tree) as source, home.folder(top) as target:
            _merge(source, target)
        return
    if status is not None:
        own.remove_tree(_OLD)
        home.rename(top, own, _OLD)
    own.rename(tree, home, top)


def _is_good(home: Folder, own: Folder, published: Published, damaged: AbstractSet[str]) -> bool:
    """Whether each file that the folder has already is what is to be published. What is only gone is added."""
    recorded = _list_recorded(home)
    top = published.manifest_digest.removeprefix("sha256:")
    with Places(home) as places, Places(own) as mine:
        if any(place.startswith(f"{top}/") and places.status(place) is not None for place in damaged):
            return False
        for file in published.files:
            there = places.status(file.place)
            if there is None:
                continue
            own_status = mine.status(f"{FILES_FOLDER}/{file.path}")
            is_mine = own_status is not None and os.path.samestat(own_status, there)
            known = recorded.get(file.place)
            is_known = known is not None and known.sha256 == file.finished.sha256 and is_same(there, known)
            if not (is_mine or is_known):
                return False
    return True


def _list_recorded(home: Folder) -> dict[str, Finished]:
    with home.folder(FETCH_FOLDER) as fetch:
        records = [read_published(fetch, name) for name in fetch.names() if name.endswith(".json")]
    return {file.place: file.finished for record in records if record is not None for file in record.files}


def _merge(source: Folder, target: Folder) -> None:
    for name in source.names():
        if source.has_subfolder(name):
            with source.folder(name) as below, target.folder(name, make=True) as into:
                _merge(below, into)
        elif target.status(name) is None:
            try:
                source.rename(name, target, name)
            except FileNotFoundError as error:
                raise error_of(error, "rename", f"{source.shown}/{name}") from error
    target.sync()
