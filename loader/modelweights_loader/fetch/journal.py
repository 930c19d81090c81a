"""What of a fetch is verified so far: an append-only file, one checksummed line for each step. Called by `syncing`.

What a line says of a part is proven before it is believed, by hashing that part again: so it may be written before the data is
on the disk. What it says of a whole file is believed, so it comes after. A torn or foreign line ends what is read: a crash
tears the last ones at most.

    <8 hex digits: crc32 of the rest> {"file": path, "identity": …}        what follows is about this content of the file
    <…> {"part": path, "end": bytes, "sha256": digest of the file up to there}
    <…> {"chunk": path, "begin": bytes, "end": bytes, "crc32": of what lies between}       behind the last part
    <…> {"done": path, "size": bytes, "sha256": …, "git": …, "mtime": ns}
"""

from __future__ import annotations

import json
import os
import threading
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

from modelweights_loader.fetch.folders import saying

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from modelweights_loader.fetch.folders import Folder
    from modelweights_loader.sources.contract import RemoteFile

JOURNAL_NAME = "journal"
# 100,000 files with 4 lines each, of 400 bytes; or notes of some terabytes. It is never held as a whole.
_MAX_BYTES = 2**28
_MAX_LINE_BYTES = 2**14
# Older notes are kept at each multiple of this: what a power failure took is mostly behind the last few.
_THIN_BYTES = 2**25
_NUM_LATEST = 64
_ENCODER = json.JSONEncoder(separators=(",", ":"))


class Chunk(NamedTuple):
    """Bytes behind the hashed front that another connection has written."""

    begin: int
    end: int
    crc32: int


class Finished(NamedTuple):
    """A whole file: what it is, and how it was left, to notice that it is no longer that."""

    size_bytes: int
    sha256: str
    git_blob: str
    mtime_ns: int


class Record(NamedTuple):
    """What is known of one file: prefixes by their ends with their digests, chunks behind them, both ascending; or all."""

    identity: str
    parts: tuple[tuple[int, str], ...] = ()
    finished: Finished | None = None
    chunks: tuple[Chunk, ...] = ()


class _Notes:
    """What has been read of one file so far."""

    def __init__(self, identity: str) -> None:
        self.identity = identity
        self.parts: list[tuple[int, str]] = []
        self.chunks: dict[int, Chunk] = {}
        self.finished: Finished | None = None

    def add_part(self, end: int, sha256: str) -> None:
        while self.parts and self.parts[-1][0] >= end:
            self.parts.pop()
        self.parts.append((end, sha256))
        if len(self.parts) > _NUM_LATEST and self.parts[-_NUM_LATEST - 1][0] % _THIN_BYTES:
            del self.parts[-_NUM_LATEST - 1]

    def freeze(self) -> Record:
        front = self.parts[-1][0] if self.parts else 0
        behind = sorted(chunk for chunk in self.chunks.values() if chunk.begin >= front)
        return Record(self.identity, tuple(self.parts), self.finished, tuple(behind))


def identify(file: RemoteFile) -> str:
    """Names the content that a listing speaks of.

    Args:
        file: As listed.

    Returns:
        The same for the same content only: parts of two are never mixed.
    """
    return json.dumps([file.size_bytes, file.sha256, file.git_blob, file.version])


def read_journal(folder: Folder) -> dict[str, Record]:
    """Reads what an earlier run left.

    Args:
        folder: Of the key.

    Returns:
        By path; empty where there is none.

    Raises:
        LoaderError: It can't be read.
    """
    notes: dict[str, _Notes] = {}
    for line in _lines(folder):
        entry = _decode(line)
        if entry is None:
            break
        try:
            _apply(notes, entry)
        except (KeyError, TypeError, ValueError):
            break
    return {path: each.freeze() for path, each in notes.items()}


def _lines(folder: Folder) -> Iterator[bytes]:
    try:
        descriptor = folder.open(JOURNAL_NAME, os.O_RDONLY)
    except FileNotFoundError:
        return
    with os.fdopen(descriptor, "rb") as file, saying("read", f"{folder.shown}/{JOURNAL_NAME}"):
        while file.tell() < _MAX_BYTES and (line := file.readline(_MAX_LINE_BYTES)):
            yield line.rstrip(b"\n")


def _decode(line: bytes) -> dict[str, Any] | None:
    checksum, _, text = line.partition(b" ")
    try:
        entry = json.loads(text) if int(checksum, 16) == zlib.crc32(text) else None
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) else None


def _apply(notes: dict[str, _Notes], entry: Mapping[str, Any]) -> None:
    if "file" in entry:
        notes[entry["file"]] = _Notes(str(entry["identity"]))
    elif "part" in entry:
        notes[entry["part"]].add_part(int(entry["end"]), str(entry["sha256"]))
    elif "chunk" in entry:
        chunk = Chunk(int(entry["begin"]), int(entry["end"]), int(entry["crc32"]))
        notes[entry["chunk"]].chunks[chunk.begin] = chunk
    else:
        finished = Finished(int(entry["size"]), str(entry["sha256"]), str(entry["git"]), int(entry["mtime"]))
        notes[entry["done"]].finished = finished


def begin_entry(path: str, identity: str) -> dict[str, object]:
    """Makes the entry of a file that begins anew."""
    return {"file": path, "identity": identity}


def part_entry(path: str, end: int, sha256: str) -> dict[str, object]:
    """Makes the entry of a verified prefix."""
    return {"part": path, "end": end, "sha256": sha256}


def chunk_entry(path: str, chunk: Chunk) -> dict[str, object]:
    """Makes the entry of a range that lies behind the verified prefix."""
    return {"chunk": path, **chunk._asdict()}


def done_entry(path: str, finished: Finished) -> dict[str, object]:
    """Makes the entry of a whole file."""
    return {
        "done": path,
        "size": finished.size_bytes,
        "sha256": finished.sha256,
        "git": finished.git_blob,
        "mtime": finished.mtime_ns,
    }


class Journal:
    """The open journal."""

    def __init__(self, folder: Folder, records: Mapping[str, Record]) -> None:
        """Writes what is known anew, without what was torn, and goes on behind it.

        Args:
            folder: Of the key.
            records: What of an earlier run still counts.

        Raises:
            LoaderError: It can't be written.
        """
        self._shown = f"{folder.shown}/{JOURNAL_NAME}"
        folder.write(JOURNAL_NAME, b"".join(_encode(entry) for entry in _entries_of(records)))
        self._descriptor = folder.open(JOURNAL_NAME, os.O_WRONLY | os.O_APPEND)
        self._lock = threading.Lock()

    def append(self, entries: Iterable[Mapping[str, object]]) -> None:
        """Writes entries, which last also when this process is killed.

        Args:
            entries: In order.

        Raises:
            LoaderError: They can't be written.
        """
        text = b"".join(_encode(entry) for entry in entries)
        with self._lock, saying("write", self._shown):
            while text:
                text = text[os.write(self._descriptor, text) :]

    def sync(self) -> None:
        """Makes all entries last also when the power fails.

        Raises:
            LoaderError: The disk failed.
        """
        with saying("write", self._shown):
            os.fdatasync(self._descriptor)

    def close(self) -> None:
        """Closes it."""
        os.close(self._descriptor)


def _entries_of(records: Mapping[str, Record]) -> Iterable[dict[str, object]]:
    for path, record in records.items():
        yield begin_entry(path, record.identity)
        yield from (part_entry(path, end, digest) for end, digest in record.parts)
        yield from (chunk_entry(path, chunk) for chunk in record.chunks)
        if record.finished is not None:
            yield done_entry(path, record.finished)


def _encode(entry: Mapping[str, object]) -> bytes:
    text = _ENCODER.encode(entry).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)
