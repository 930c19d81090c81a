"""Splits a checkpoint of one file into shards with an index, byte by byte the same tensors."""

from __future__ import annotations

import json
import shutil
from typing import IO, TYPE_CHECKING

from tests.checkpoints.writer import Tensor, write_index, write_safetensors

if TYPE_CHECKING:
    from pathlib import Path

_STYLES = ("padded", "plain")


def name_shard(number: int, count: int, style: str) -> str:
    """`padded` is what libraries write; `plain` sorts shard 10 before shard 2 unless numbers are compared."""
    if style not in _STYLES:
        message = f"unknown style {style}, known: {', '.join(_STYLES)}"
        raise ValueError(message)
    return f"model-{number:05d}-of-{count:05d}.safetensors" if style == "padded" else f"shard-{number}.safetensors"


def read_tensors(path: Path) -> list[Tensor]:
    """Lists the tensors of a file, in the order of their bytes; each copies its bytes when written."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    tensors = []
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = entry["data_offsets"]
        source = _Source(path, 8 + length + begin, end - begin)
        tensors.append(Tensor(name, entry["dtype"], tuple(entry["shape"]), end - begin, source))
    return tensors


class _Source:
    """The bytes of one tensor in another file."""

    def __init__(self, path: Path, offset: int, size_bytes: int) -> None:
        self._path, self._offset, self._size_bytes = path, offset, size_bytes

    def __call__(self, target: IO[bytes]) -> None:
        with self._path.open("rb") as file:
            file.seek(self._offset)
            left = self._size_bytes
            while left:
                piece = file.read(min(left, 1 << 22))
                if not piece:
                    message = f"{self._path} is too short"
                    raise ValueError(message)
                target.write(piece)
                left -= len(piece)


def make_split(source: Path, destination: Path, count: int = 12, style: str = "padded") -> Path:
    """Splits source/model.safetensors into shards of about equal size; everything else is copied."""
    tensors = read_tensors(source / "model.safetensors")
    total = sum(tensor.size_bytes for tensor in tensors)
    groups: list[list[Tensor]] = [[] for _ in range(count)]
    # Each tensor goes to the shard with the fewest bytes, the large ones first: none stays empty.
    sizes = [0] * count
    for tensor in sorted(tensors, key=lambda item: -item.size_bytes):
        smallest = min(range(count), key=lambda index: (sizes[index], index))
        groups[smallest].append(tensor)
        sizes[smallest] += tensor.size_bytes
    if total and not all(groups):
        message = f"{len(tensors)} tensors are too few for {count} shards"
        raise ValueError(message)
    destination.mkdir(parents=True, exist_ok=True)
    shutil.copytree(source, destination, ignore=shutil.ignore_patterns("*.safetensors"), dirs_exist_ok=True)
    shards = {name_shard(index + 1, count, style): group for index, group in enumerate(groups)}
    for name, group in shards.items():
        write_safetensors(destination / name, group, {"format": "pt"})
    write_index(destination, shards)
    return destination
