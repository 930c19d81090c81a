"""Writes safetensors files with nothing but the standard library.

Used by `split` and `synthetic`, and by unit tests that need a small checkpoint.
"""

from __future__ import annotations

import json
from typing import IO, TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

ITEM_BYTES = {"BF16": 2, "F16": 2, "F32": 4, "F64": 8, "I64": 8, "I32": 4, "I8": 1, "U8": 1, "BOOL": 1, "F8_E4M3": 1}
_ALIGNMENT = 8


class Tensor(NamedTuple):
    """A tensor to write: its bytes come from write, which is handed the open file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int
    write: Callable[[IO[bytes]], None]


def make_tensor(name: str, dtype: str, shape: tuple[int, ...], fill: int = 1) -> Tensor:
    """Makes a tensor whose bytes are all the same."""
    size_bytes = ITEM_BYTES[dtype]
    for dimension in shape:
        size_bytes *= dimension
    return Tensor(name, dtype, shape, size_bytes, lambda file: _write_filled(file, fill, size_bytes))


def _write_filled(file: IO[bytes], fill: int, size_bytes: int) -> None:
    file.write(bytes([fill]) * size_bytes)


def write_safetensors(path: Path, tensors: Iterable[Tensor], metadata: dict[str, str] | None = None) -> None:
    """Writes one file; tensors lie in the order given."""
    listed = list(tensors)
    header: dict[str, object] = {"__metadata__": metadata} if metadata is not None else {}
    position = 0
    for tensor in listed:
        end = position + tensor.size_bytes
        header[tensor.name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [position, end]}
        position = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in listed:
            tensor.write(file)


def write_raw(path: Path, header: bytes, data: bytes = b"", length: int | None = None) -> None:
    """Writes any header, also a wrong one, and any data behind it."""
    path.write_bytes((len(header) if length is None else length).to_bytes(8, "little") + header + data)


def write_index(folder: Path, shards: dict[str, list[Tensor]]) -> None:
    """Writes model.safetensors.index.json for shards."""
    total = sum(tensor.size_bytes for tensors in shards.values() for tensor in tensors)
    weight_map = {tensor.name: name for name, tensors in shards.items() for tensor in tensors}
    content = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def write_sharded(folder: Path, shards: dict[str, list[Tensor]]) -> None:
    """Writes shards, their index and a minimal config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, tensors in shards.items():
        write_safetensors(folder / name, tensors, {"format": "pt"})
    write_index(folder, shards)
    (folder / "config.json").write_text('{"model_type": "synthetic"}\n', encoding="utf-8")
