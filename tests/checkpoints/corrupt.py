"""Breaks a copy of a checkpoint in one named way, as downloads and tools do."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

from tests.checkpoints.writer import ITEM_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_INDEX = "model.safetensors.index.json"


def _shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def _read_header(path: Path) -> tuple[dict[str, Any], bytes]:
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def _write_header(path: Path, header: dict[str, Any], data: bytes) -> None:
    text = json.dumps(header, separators=(",", ":")).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def _tensor_names(header: dict[str, Any]) -> list[str]:
    return sorted((name for name in header if name != "__metadata__"), key=lambda name: header[name]["data_offsets"])


def _header_length(folder: Path) -> None:
    with _shards(folder)[0].open("r+b") as file:
        file.write((2**40).to_bytes(8, "little"))


def _truncated_shard(folder: Path) -> None:
    shard = _shards(folder)[-1]
    with shard.open("r+b") as file:
        file.truncate(shard.stat().st_size - 1)


def _overlapping_offsets(folder: Path) -> None:
    shard = _shards(folder)[-1]
    header, data = _read_header(shard)
    name = _tensor_names(header)[-1]
    header[name]["data_offsets"] = [offset - 1 for offset in header[name]["data_offsets"]]
    _write_header(shard, header, data)


def _wrong_dtype(folder: Path) -> None:
    shard = _shards(folder)[0]
    header, data = _read_header(shard)
    entry = header[_tensor_names(header)[0]]
    # Another size of an item, or the header would be as good as before.
    entry["dtype"] = "F64" if ITEM_BYTES[entry["dtype"]] != ITEM_BYTES["F64"] else "U8"
    _write_header(shard, header, data)


def _lfs_pointer(folder: Path) -> None:
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 90868376\n"
    _shards(folder)[0].write_text(pointer, encoding="ascii")


def _html_page(folder: Path) -> None:
    page = "<!DOCTYPE html>\n<html><head><title>503 Service Unavailable</title></head></html>\n"
    _shards(folder)[0].write_text(page, encoding="ascii")


def _missing_shard(folder: Path) -> None:
    _shards(folder)[-1].unlink()


def _tensor_twice(folder: Path) -> None:
    """The last shard also holds the first one's first tensor."""
    first, last = _shards(folder)[0], _shards(folder)[-1]
    if first == last:
        last = first.with_name("model-extra.safetensors")
        _write_header(last, {}, b"")
    source, source_data = _read_header(first)
    name = _tensor_names(source)[0]
    entry = dict(source[name])
    begin, end = entry["data_offsets"]
    header, data = _read_header(last)
    entry["data_offsets"] = [len(data), len(data) + end - begin]
    header[name] = entry
    _write_header(last, header, data + source_data[begin:end])


def _index_disagrees(folder: Path) -> None:
    """The index puts one tensor into another shard than the one that holds it."""
    index = json.loads((folder / _INDEX).read_text(encoding="utf-8"))
    weight_map: dict[str, str] = index["weight_map"]
    name, shard = next(iter(weight_map.items()))
    weight_map[name] = next(other for other in weight_map.values() if other != shard)
    (folder / _INDEX).write_text(json.dumps(index), encoding="utf-8")


def _flipped_byte(folder: Path) -> None:
    """One bit of the header's JSON is wrong: its first quotation mark."""
    with _shards(folder)[0].open("r+b") as file:
        file.seek(9)
        byte = file.read(1)[0]
        file.seek(9)
        file.write(bytes([byte ^ 0x04]))


KINDS: dict[str, Callable[[Path], None]] = {
    "header-length": _header_length,
    "truncated-shard": _truncated_shard,
    "overlapping-offsets": _overlapping_offsets,
    "wrong-dtype": _wrong_dtype,
    "lfs-pointer": _lfs_pointer,
    "html-page": _html_page,
    "missing-shard": _missing_shard,
    "tensor-twice": _tensor_twice,
    "index-disagrees": _index_disagrees,
    "flipped-byte": _flipped_byte,
}
# These are about shards and index, so a checkpoint of one file can't have them.
NEEDS_INDEX = {"missing-shard", "index-disagrees"}


def make_corrupt(kind: str, source: Path, destination: Path) -> Path:
    """Copies source and breaks the copy."""
    shutil.copytree(source, destination)
    if kind in NEEDS_INDEX and not (destination / _INDEX).is_file():
        shutil.rmtree(destination)
        message = f"{kind} needs a checkpoint with an index; split it first"
        raise ValueError(message)
    KINDS[kind](destination)
    return destination
