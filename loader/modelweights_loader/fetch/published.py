"""What is published below a home: `.fetch/<key>.json` says which folder a source and revision gave, and how its files were.

Called by `plan` and `publication`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
from typing import TYPE_CHECKING, Any, NamedTuple

from modelweights_loader.errors import LoaderError, WillNotWorkError
from modelweights_loader.expected_hashes import start_git_blob
from modelweights_loader.fetch.folders import Folder, open_home, saying, split
from modelweights_loader.fetch.journal import Finished, read_journal
from modelweights_loader.fetch.names import check_name
from modelweights_loader.fetch.transfer import Digests

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from modelweights_loader.sources.contract import RemoteFile

FETCH_FOLDER = ".fetch"
FILES_FOLDER = "files"
VERSION = 1
_VERIFY = "verify"
# 100,000 files with 700 bytes each.
_MAX_BYTES = 2**27
_PIECE_BYTES = 2**18
KEY = re.compile(r"[0-9a-f]{32}")
# Names of the folders of published checkpoints: the digits of their digests.
PUBLISHED_FOLDER = re.compile(r"[0-9a-f]{64}")
_SNAPSHOT = re.compile(r"/models--[A-Za-z0-9._-]+/snapshots/[0-9a-f]{40}")
# Open folders at a time: a listing may have more than a process may open.
_MAX_OPEN = 64


class PublishedFile(NamedTuple):
    """One file: where it lies below the home, what it is, how it was left, and what the source called its content."""

    path: str
    place: str
    finished: Finished
    version: str


class Published(NamedTuple):
    """One published checkpoint.

    Attributes:
        revision: That was fetched.
        manifest_digest: With `sha256:`.
        folder: The checkpoint, below the home.
        described: The source in words.
        source: Names the source without its revision, so that a version means the same content.
        size_bytes: Of all files.
        files: Those that were fetched.
    """

    revision: str
    manifest_digest: str
    folder: str
    described: str
    source: str
    size_bytes: int
    files: tuple[PublishedFile, ...]


def encode(published: Published) -> bytes:
    """Makes the content of the file.

    Args:
        published: What it says.

    Returns:
        JSON.
    """
    files = [[file.path, file.place, list(file.finished), file.version] for file in published.files]
    return json.dumps({"formatVersion": VERSION, **published._asdict(), "files": files}).encode()


def read_published(folder: Folder, name: str) -> Published | None:
    """Reads such a file.

    Args:
        folder: Where it lies.
        name: Its name.

    Returns:
        None where there is none, or one that this version doesn't understand.
    """
    try:
        content: dict[str, Any] = json.loads(folder.read(name, _MAX_BYTES) or b"null")
        if content.pop("formatVersion") != VERSION:
            return None
        rows = content.pop("files")
        files = (PublishedFile(path, place, Finished(*finished), version) for path, place, finished, version in rows)
        published = Published(**content, files=tuple(files))
        return published if _is_sound(published) else None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _is_sound(published: Published) -> bool:
    """Whether it can be ours: no place leads out of the folder of its digest, whoever wrote the file."""
    top = published.manifest_digest.removeprefix("sha256:")
    for file in published.files:
        place, _, below = file.place.partition("/")
        types = [type(value) for value in (*file.finished, file.version)]
        if place != top or types != [int, str, str, int, str] or not (_is_plain(below) and _is_plain(file.path)):
            return False
    texts = (published.revision, published.folder, published.described, published.source)
    return (
        bool(published.files)
        and PUBLISHED_FOLDER.fullmatch(top) is not None
        and all(type(text) is str for text in texts)
        and (published.folder == top or _SNAPSHOT.fullmatch(published.folder.removeprefix(top)) is not None)
        and published.size_bytes == sum(file.finished.size_bytes for file in published.files)
    )


def _is_plain(path: str) -> bool:
    try:
        check_name(path)
    except WillNotWorkError:
        return False
    return True


def list_folders(home: Folder) -> list[str]:
    """Lists the folders of published checkpoints.

    Args:
        home: Of the ModelWeights.

    Returns:
        The hexadecimal digests by which they are named, sorted.
    """
    return [name for name in home.names() if PUBLISHED_FOLDER.fullmatch(name) and home.has_subfolder(name)]


def list_others(path: str, folder: str) -> list[str]:
    """Lists which checkpoints lie below a home beside one.

    Args:
        path: Of the home.
        folder: Of the one, below the home.

    Returns:
        The hexadecimal digests by which their folders are named, sorted; none where the home can't be read.
    """
    own = folder.partition("/")[0]
    with contextlib.suppress(OSError, LoaderError), open_home(path, make=False) as home:
        return [name for name in list_folders(home) if name != own]
    return []


def ask_to_verify(path: str) -> None:
    """Has the next fetch hash what is published, since it was found to be wrong; in vain where nothing can be written.

    Args:
        path: Of the home.
    """
    with (
        contextlib.suppress(OSError, LoaderError),
        open_home(path, make=False) as home,
        home.folder(FETCH_FOLDER) as folder,
    ):
        folder.write(_VERIFY, b"")


def must_verify(folder: Folder) -> bool:
    """Says whether somebody asked for it.

    Args:
        folder: `.fetch` of the home.
    """
    return folder.status(_VERIFY) is not None


def note_verified(folder: Folder) -> None:
    """Forgets that somebody asked for it.

    Args:
        folder: `.fetch` of the home.
    """
    folder.unlink(_VERIFY)


class Places:
    """Looks at files below a home; files of one folder after another cost one opening of it."""

    def __init__(self, home: Folder) -> None:
        self._home = home
        self._folders: dict[str, Folder | None] = {}

    def __enter__(self) -> Places:
        return self

    def __exit__(self, *_: object) -> None:
        while self._folders:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        folder = self._folders.pop(next(iter(self._folders)))
        if folder is not None:
            folder.close()

    def folder(self, path: str) -> Folder | None:
        """Opens a folder; None where there is none. It stays open until others have been asked for, or this is closed."""
        if not path:
            return self._home
        if path not in self._folders:
            if len(self._folders) >= _MAX_OPEN:
                self._forget_oldest()
            try:
                self._folders[path] = self._home.folder(path)
            except FileNotFoundError:
                self._folders[path] = None
        return self._folders[path]

    def status(self, place: str) -> os.stat_result | None:
        """Looks at a file without following it."""
        below, name = split(place)
        folder = self.folder(below)
        return None if folder is None else folder.status(name)

    def is_as_left(self, place: str, finished: Finished) -> bool:
        """Compares kind, size and time."""
        status = self.status(place)
        return status is not None and is_same(status, finished)

    def hash(self, place: str) -> str:
        """Hashes a file, "" where there is none. Blocks for a read of it."""
        digests = self.digests(place)
        return "" if digests is None else digests.sha256

    def digests(self, place: str, git_size_bytes: int = -1) -> Digests | None:
        """Hashes a file, None where there is none. Blocks for a read of it.

        Args:
            place: Of the file.
            git_size_bytes: Its size, where git's hash is wanted too: that begins with it.
        """
        below, name = split(place)
        folder = self.folder(below)
        if folder is None:
            return None
        try:
            descriptor = folder.open(name, os.O_RDONLY)
        except FileNotFoundError:
            return None
        sha256, buffer = hashlib.sha256(), memoryview(bytearray(_PIECE_BYTES))
        git = start_git_blob(git_size_bytes) if git_size_bytes >= 0 else None
        shown = f"{folder.shown}/{name}"
        with saying("read", shown), os.fdopen(descriptor, "rb", buffering=0) as file:
            while got := file.readinto(buffer):
                sha256.update(buffer[:got])
                if git is not None:
                    git.update(buffer[:got])
        return Digests(sha256.hexdigest(), git.hexdigest() if git is not None else "")


def is_same(status: os.stat_result, finished: Finished) -> bool:
    """Says whether a file is as it was left."""
    is_file = stat.S_ISREG(status.st_mode)
    return is_file and (status.st_size, status.st_mtime_ns) == (finished.size_bytes, finished.mtime_ns)


class Reusable(NamedTuple):
    """A file on this node whose content is known: where it lies below the home, and what it is."""

    place: str
    finished: Finished


def find_reusable(home: Folder, source: str, damaged: set[str]) -> dict[tuple[object, ...], Reusable]:
    """Finds what earlier fetches left whole, published or not.

    Args:
        home: Of the ModelWeights.
        source: Names the source.
        damaged: Places that are known to be bad.

    Returns:
        By what `tokens_of` says of a file that is wanted.
    """
    found: dict[tuple[object, ...], Reusable] = {}
    with Places(home) as places:
        for file, origin in _list_files(home):
            if file.place in damaged or not places.is_as_left(file.place, file.finished):
                continue
            for token in make_tokens(file.path, file.finished, file.version if origin == source else ""):
                found.setdefault(token, Reusable(file.place, file.finished))
    return found


def _list_files(home: Folder) -> Iterator[tuple[PublishedFile, str]]:
    yield from list_published(home)
    with home.folder(FETCH_FOLDER) as fetch:
        for name in fetch.names():
            if KEY.fullmatch(name):
                with fetch.folder(name) as folder:
                    yield from _list_unpublished(folder, name)


def list_published(home: Folder) -> Iterator[tuple[PublishedFile, str]]:
    """Lists what all records say.

    Args:
        home: Of the ModelWeights.

    Yields:
        Each file, and the name of its source.
    """
    if not home.has_folder(FETCH_FOLDER):
        return
    with home.folder(FETCH_FOLDER) as fetch:
        for name in fetch.names():
            if KEY.fullmatch(name.removesuffix(".json")) and name.endswith(".json"):
                published = read_published(fetch, name)
                if published is not None:
                    source = published.source
                    yield from ((file, source) for file in published.files)


def _list_unpublished(folder: Folder, key: str) -> Iterable[tuple[PublishedFile, str]]:
    for path, record in read_journal(folder).items():
        if record.finished is not None:
            yield PublishedFile(path, f"{FETCH_FOLDER}/{key}/{FILES_FOLDER}/{path}", record.finished, ""), ""


def read_reusable(home: Folder, file: RemoteFile, reusable: Mapping[tuple[object, ...], Reusable]) -> bytes | None:
    """Reads a small file of which this node has the content.

    Args:
        home: Of the ModelWeights.
        file: As listed.
        reusable: From `find_reusable`.

    Returns:
        Its content, None where it isn't here or no longer what it was.
    """
    found = next((reusable[token] for token in tokens_of(file) if token in reusable), None)
    if found is None:
        return None
    with home.holding(found.place) as (folder, name):
        content = folder.read(name, found.finished.size_bytes + 1) or b""
    return content if hashlib.sha256(content).hexdigest() == found.finished.sha256 else None


def tokens_of(file: RemoteFile) -> list[tuple[object, ...]]:
    """Says by what a listed file is known.

    Args:
        file: As listed.

    Returns:
        Any of them names this very content; the best comes first.
    """
    listed = Finished(file.size_bytes, file.sha256.lower(), file.git_blob.lower(), 0)
    return make_tokens(file.path, listed, file.version if not (file.sha256 or file.git_blob) else "")


def make_tokens(path: str, finished: Finished, version: str) -> list[tuple[object, ...]]:
    """Says by what a content is known.

    Args:
        path: Where it lies in the checkpoint.
        finished: Its size and hashes.
        version: What the source calls it, where it is the source that is asked; else "".

    Returns:
        As `tokens_of`.
    """
    tokens: list[tuple[object, ...]] = []
    if finished.sha256:
        tokens.append(("sha256", finished.sha256, finished.size_bytes))
    if finished.git_blob:
        tokens.append(("git", finished.git_blob, finished.size_bytes))
    if version:
        tokens.append(("version", path, version, finished.size_bytes))
    return tokens
