"""A source of files in memory that does what a test tells it: the second implementation of the interface."""

from __future__ import annotations

import hashlib
import json
import threading
from typing import TYPE_CHECKING

from modelweights_loader.sources.contract import Listing, RemoteFile, digest_listing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def make_bytes(name: str, size: int) -> bytes:
    """The same bytes for the same name, no two blocks alike."""
    block = hashlib.shake_256(name.encode()).digest(65536 - 8)
    return b"".join(number.to_bytes(8) + block for number in range(size // 65536 + 1))[:size]


def make_checkpoint(sizes: tuple[int, ...] = (3_000_000, 2_000_000)) -> dict[str, bytes]:
    """Shards with an index, and what engines read beside them; nothing in a shard is real."""
    shards = {
        f"model-{number:05}-of-{len(sizes):05}.safetensors": make_bytes(str(number), size)
        for number, size in enumerate(sizes, 1)
    }
    index = {"weight_map": {f"tensor.{number}": name for number, name in enumerate(shards)}}
    return {
        **shards,
        "model.safetensors.index.json": json.dumps(index).encode(),
        "config.json": b"{}",
        "tokenizer.json": make_bytes("tokenizer", 70_000),
        "empty.txt": b"",
        "1_Pooling/config.json": b'{"pooling": 1}',
        "README.md": b"not for engines",
    }


class ScriptedSource:
    """Counts what it serves; `fault` changes the pieces of each read, or raises."""

    def __init__(
        self,
        contents: dict[str, bytes],
        *,
        hashes: bool = True,
        fault: Callable[[RemoteFile, int, int, Iterator[bytes]], Iterator[bytes]] | None = None,
        piece_bytes: int = 65536,
        name: str = "org/tiny",
        revision: str = COMMIT,
    ) -> None:
        self.contents = contents
        self.hashes = hashes
        self.fault = fault
        self.piece_bytes = piece_bytes
        self.name = name
        self.revision = revision
        self.lock = threading.Lock()
        self.reads: list[tuple[str, int, int]] = []
        self.served_bytes = 0
        self.is_closed = False
        self.listed = 0

    def list_files(self) -> Listing:
        self.listed += 1
        files = tuple(self.describe(path, content) for path, content in self.contents.items())
        return Listing(self.revision or digest_listing(files), files, "a test's source", self.name)

    def describe(self, path: str, content: bytes) -> RemoteFile:
        """As the hub does: git's hash for small files, sha256 for large ones."""
        sha256 = hashlib.sha256(content).hexdigest()
        git = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
        is_large = path.endswith(".safetensors")
        return RemoteFile(
            path,
            len(content),
            sha256 if self.hashes and is_large else "",
            git if self.hashes and not is_large else "",
            version=sha256[:16],
        )

    def read_range(self, file: RemoteFile, begin: int, end: int) -> Iterator[bytes]:
        with self.lock:
            self.reads.append((file.path, begin, end))
        pieces = self._pieces(self.contents[file.path][begin:end])
        return pieces if self.fault is None else self.fault(file, begin, end, pieces)

    def _pieces(self, content: bytes) -> Iterator[bytes]:
        for begin in range(0, len(content), self.piece_bytes):
            piece = content[begin : begin + self.piece_bytes]
            with self.lock:
                self.served_bytes += len(piece)
            yield piece

    def close(self) -> None:
        self.is_closed = True
