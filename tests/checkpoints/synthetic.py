"""Writes a bfloat16 checkpoint of any size, shaped like a language model's layers, with finite numbers in it."""

from __future__ import annotations

import random
from typing import IO, TYPE_CHECKING

from tests.checkpoints.split import name_shard
from tests.checkpoints.writer import Tensor, write_sharded

if TYPE_CHECKING:
    from pathlib import Path

_ROW_ITEMS = 4096
_ITEM_BYTES = 2
_PATTERN_BYTES = 2**20


def _make_pattern(seed: int) -> bytes:
    """Random bfloat16 numbers between 2^-63 and 2 in size: no infinities and no NaN, which an exponent of 255 would be."""
    pattern = bytearray(random.Random(seed).randbytes(_PATTERN_BYTES))  # noqa: S311 - test data
    # Little-endian: the second byte has the sign and the upper seven bits of the exponent.
    pattern[1::2] = bytes((byte & 0x9F) | 0x20 for byte in pattern[1::2])
    return bytes(pattern)


class _Filled:
    """Writes one pattern again and again: as fast as the disk, and never compressible to zeros."""

    def __init__(self, pattern: bytes, size_bytes: int) -> None:
        self._pattern, self._size_bytes = pattern, size_bytes

    def __call__(self, file: IO[bytes]) -> None:
        left = self._size_bytes
        while left > 0:
            file.write(self._pattern[: min(left, len(self._pattern))])
            left -= len(self._pattern)


def make_synthetic(
    destination: Path, size_bytes: int = 2**30, shards: int = 4, tensors_per_shard: int = 8, style: str = "padded"
) -> Path:
    """Writes about size_bytes in shards of equal size, with index and config.json. The same arguments, the same bytes."""
    rows = max(1, size_bytes // (shards * tensors_per_shard * _ROW_ITEMS * _ITEM_BYTES))
    tensor_bytes = rows * _ROW_ITEMS * _ITEM_BYTES
    content: dict[str, list[Tensor]] = {}
    for shard in range(shards):
        pattern = _make_pattern(shard)
        content[name_shard(shard + 1, shards, style)] = [
            Tensor(
                f"model.layers.{shard}.block.{index}.weight",
                "BF16",
                (rows, _ROW_ITEMS),
                tensor_bytes,
                _Filled(pattern, tensor_bytes),
            )
            for index in range(tensors_per_shard)
        ]
    write_sharded(destination, content)
    return destination
