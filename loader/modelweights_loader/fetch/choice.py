"""Chooses among listed files what an engine would load, by the rules of `checkpoint`. Called by `plan`."""

from __future__ import annotations

import hashlib
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from modelweights_loader.checkpoint import choose_files, filter_by_index, parse_weight_map
from modelweights_loader.errors import BadCheckpointError, TryAgainError
from modelweights_loader.expected_hashes import start_git_blob
from modelweights_loader.fetch.retry import repeat
from modelweights_loader.fetch.transfer import Digests, find_mismatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from modelweights_loader.fetch.retry import Backoff
    from modelweights_loader.sources.contract import Listing, RemoteFile, Source


_PIECE_BYTES = 2**18
# It stays in memory until it is written. The largest known have some 15 MB.
_MAX_INDEX_BYTES = 40 * 2**20


class IndexedSource:
    """A source that remembers the index, which has to be read before it is known what to fetch."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._content: dict[str, memoryview] = {}

    def list_files(self) -> Listing:
        """Lists, and forgets what was read of an earlier listing."""
        self._content.clear()
        return self._source.list_files()

    def remember(self, file: RemoteFile, content: bytes | bytearray) -> None:
        """Keeps a file's content, which comes from memory from now on."""
        self._content[file.path] = memoryview(content)

    def read_range(self, file: RemoteFile, begin: int, end: int) -> Iterator[bytes | memoryview]:
        """Reads a range."""
        content = self._content.get(file.path)
        if content is None:
            return self._source.read_range(file, begin, end)
        # In small pieces, so that a range that is shortened meanwhile isn't read to its old end.
        return (content[at : min(at + _PIECE_BYTES, end)] for at in range(begin, end, _PIECE_BYTES))

    def close(self) -> None:
        """Closes the source."""
        self._source.close()


def filter_files(files: Iterable[RemoteFile], include: Sequence[str], exclude: Sequence[str]) -> list[RemoteFile]:
    """Filters as huggingface_hub does: patterns of fnmatch over whole paths, where `*` passes `/` too.

    Args:
        files: As listed.
        include: What is kept must match one of them; empty keeps all.
        exclude: And none of these.

    Returns:
        Sorted by path.
    """
    wanted, unwanted = (
        [f"{one}*" if one.endswith("/") else one for one in patterns] for patterns in (include, exclude)
    )
    kept = (file for file in files if not wanted or _matches(file.path, wanted))
    return sorted(file for file in kept if not _matches(file.path, unwanted))


def _matches(path: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(path, pattern) for pattern in patterns)


def choose_listed(
    files: Sequence[RemoteFile], described: str, read_index: Callable[[RemoteFile], bytes | bytearray]
) -> list[RemoteFile]:
    """Chooses what an engine would load.

    Args:
        files: Filtered.
        described: The source in words.
        read_index: Fetches the index.

    Returns:
        Shards, the index, and what is read beside them, sorted by path.

    Raises:
        LoaderError: There is no checkpoint, or an index that doesn't fit it.
    """
    by_path = {file.path: file for file in files if not any(part.startswith(".") for part in file.path.split("/"))}
    names = sorted(path for path in by_path if "/" not in path)
    nested = sorted(path for path in by_path if path.count("/") == 1)
    index_name, shards, companions = choose_files(names, nested, described)
    if index_name is not None:
        weight_map = parse_weight_map(described, index_name, read_index(by_path[index_name]))
        shards = filter_by_index(shards, weight_map, index_name, described)
    return [by_path[path] for path in sorted({*shards, *companions})]


def read_index(
    source: IndexedSource, file: RemoteFile, described: str, backoff: Backoff, sleep: Callable[[float], None]
) -> bytes | bytearray:
    """Fetches the index into memory.

    Args:
        source: Remembers it.
        file: The index.
        described: The source in words.
        backoff: Counts failures.
        sleep: Waits.

    Returns:
        Its content, compared with what the source says of it.

    Raises:
        LoaderError: It can't be had, is too large, or twice was another than the source says.
    """
    if file.size_bytes > _MAX_INDEX_BYTES:
        message = (
            f"{file.path} of {described} has {file.size_bytes} bytes, an index that is fetched has at most "
            f"{_MAX_INDEX_BYTES}; bring the files to the node by other means and use them in place"
        )
        raise BadCheckpointError(message, reason="InvalidIndex")
    mismatches = 0
    while True:
        content = repeat(lambda: _read_all(source, file), backoff, sleep)
        git = start_git_blob(len(content))
        git.update(content)
        mismatch = find_mismatch(file, Digests(hashlib.sha256(content).hexdigest(), git.hexdigest()), described)
        if mismatch is None:
            source.remember(file, content)
            return content
        mismatches += 1
        if mismatches > 1:
            raise mismatch


def _read_all(source: IndexedSource, file: RemoteFile) -> bytearray:
    limit = file.size_bytes if file.size_bytes >= 0 else _MAX_INDEX_BYTES
    content = bytearray()
    for piece in source.read_range(file, 0, limit):
        content += piece
        if len(content) > limit:
            message = f"{file.path} goes on behind byte {limit}, where it should end"
            raise TryAgainError(message, reason="TooManyBytes")
    if len(content) < file.size_bytes:
        message = f"{file.path} ended at byte {len(content)} of {file.size_bytes}; try again"
        raise TryAgainError(message, reason="EndedEarly")
    return content
