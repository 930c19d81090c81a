"""What a case of the corpus is, and how to write its files.

Used by the modules that list cases. Standard library only.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

GOOD, WILL_NOT_WORK, BAD = 0, 20, 30
SHARD = "model.safetensors"
INDEX = "model.safetensors.index.json"


class Case(NamedTuple):
    """A checkpoint and what is to be said of it.

    Attributes:
        name: Unique, in lower case with hyphens.
        what: In words, for the table.
        build: Makes it in an empty folder named `m`; what lies outside of the checkpoint goes beside that folder.
        exit_code: Of `validate --mode Structure`.
        reason: In its report.
        says: What its line on standard error has to name.
        why: Why it is refused although the safetensors library takes it.
        path: What to validate, below the folder that holds `m`.
        arguments: More arguments; `{base}` is the folder that holds `m`.
        as_user: Run as an ordinary user, who may not read everything.
        heavy: Writes 100 MB or takes seconds, so that it is made and taken away by itself.
    """

    name: str
    what: str
    build: Callable[[Path], None]
    exit_code: int = GOOD
    reason: str = "StructureValidated"
    says: str = ""
    why: str = ""
    path: str = "m"
    arguments: tuple[str, ...] = ()
    as_user: bool = False
    heavy: bool = False


def entry(dtype: Any = "U8", shape: Any = (4,), offsets: Any = (0, 4), **more: Any) -> dict[str, Any]:
    """A tensor's description."""
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets, **more}


def pack(header: Any, data: int | bytes = 4, length: int | None = None) -> bytes:
    """A safetensors file: header as an object, text or bytes; data as bytes or as a number of ones."""
    text = header if isinstance(header, bytes) else header.encode() if isinstance(header, str) else dump(header)
    body = data if isinstance(data, bytes) else b"\1" * data
    return (len(text) if length is None else length).to_bytes(8, "little") + text + body


def dump(value: Any) -> bytes:
    """JSON as most writers have it."""
    return json.dumps(value, separators=(",", ":")).encode()


def good(*names: str) -> bytes:
    """A file that holds these tensors, four bytes each."""
    header = {name: entry(offsets=[4 * at, 4 * at + 4]) for at, name in enumerate(names)}
    return pack(header, 4 * len(names))


def write(folder: Path, files: dict[str, bytes]) -> None:
    """Writes files, and the folders that they lie in."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def write_files(files: dict[str, bytes]) -> Callable[[Path], None]:
    """A build that writes files."""
    return lambda folder: write(folder, files)


def shard(content: bytes) -> Callable[[Path], None]:
    """A build that writes one shard."""
    return lambda folder: write(folder, {SHARD: content})


def write_sharded(folder: Path, shards: Mapping[str, Iterable[str]], weight_map: Any = None, **more: Any) -> None:
    """Writes shards and the index that belongs to them, or another weight_map."""
    write(folder, {name: good(*tensors) for name, tensors in shards.items()})
    if weight_map is None:
        weight_map = {tensor: name for name, tensors in shards.items() for tensor in tensors}
    write(folder, {INDEX: dump({"metadata": {"total_size": 8}, "weight_map": weight_map, **more})})
