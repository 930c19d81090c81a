"""Small repositories for the hub of tests, and reading of them."""

from __future__ import annotations

import hashlib
import itertools
import json
from typing import TYPE_CHECKING, Any

from tests.checkpoints.writer import make_tensor, write_safetensors

if TYPE_CHECKING:
    from pathlib import Path

    from modelweights_loader.sources.contract import RemoteFile, Source

NAME = "org/name"
WEIGHTS = "model.safetensors"


def make_revision(folder: Path, seed: int = 0) -> Path:
    """A revision of five files: one in LFS, one empty, one in a folder with a name that has to be quoted."""
    (folder / "a b").mkdir(parents=True)
    tensors = [make_tensor(f"layer.{number}", "F32", (64, 1024), seed + number) for number in range(4)]
    write_safetensors(folder / WEIGHTS, tensors, {"format": "pt"})
    (folder / "config.json").write_text(json.dumps({"seed": seed}))
    (folder / "tokenizer.json").write_text(json.dumps(list(range(20_000))))
    (folder / "empty.txt").write_bytes(b"")
    (folder / "a b" / "ü %20?#&;.txt").write_text("odd name")
    return folder


def make_repository(root: Path, *, name: str = NAME, refs: dict[str, str] | None = None, **settings: Any) -> Path:
    """A repository with the revision `one` on main; further ones for refs that name others."""
    refs = refs or {"main": "one"}
    for number, revision in enumerate(sorted({"one", *refs.values()})):
        make_revision(root / name / revision, number)
    (root / name / "hub.json").write_text(json.dumps({"refs": refs, **settings}))
    return root / name


def read_whole(source: Source, file: RemoteFile, num_parts: int = 1) -> bytes:
    """The file's bytes, in so many ranges."""
    bounds = [file.size_bytes * number // num_parts for number in range(num_parts + 1)]
    return b"".join(
        bytes(piece) for begin, end in itertools.pairwise(bounds) for piece in source.read_range(file, begin, end)
    )


def is_vouched(file: RemoteFile, content: bytes) -> bool:
    """Whether the content is what the listing's hash says."""
    if file.sha256:
        return hashlib.sha256(content).hexdigest() == file.sha256
    header = f"blob {len(content)}\0".encode()
    return hashlib.sha1(header + content, usedforsecurity=False).hexdigest() == file.git_blob
