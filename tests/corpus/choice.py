"""The files that an engine would hand to its loader, chosen as vLLM does, without a word of the loader's own code.

Used to ask other readers about a checkpoint.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def choose_files(path: Path) -> list[str]:
    """Lists the files, in order of their names; what can't be read counts as if it were not there."""
    folder = _resolve_cache(path)
    if not folder.is_dir():
        return [str(path)] if path.name.endswith(".safetensors") else []
    chosen, index = sorted(folder.glob("consolidated*.safetensors")), "consolidated.safetensors.index.json"
    if not chosen:
        chosen, index = sorted(folder.glob("[!.]*.safetensors")), "model.safetensors.index.json"
    listed = _read_listed(folder / index)
    return [str(file) for file in chosen if listed is None or file.name in listed]


def _resolve_cache(path: Path) -> Path:
    snapshots = path / "snapshots"
    if not snapshots.is_dir():
        return path
    found = sorted(snapshots.glob("[!.]*"))
    ref = path / "refs" / "main"
    named = snapshots / ref.read_text(encoding="utf-8") if ref.is_file() else path
    return named if named in found or not found else found[0]


def _read_listed(path: Path) -> set[str] | None:
    try:
        if not path.is_file() or path.stat().st_size > 10**6:
            return None
        return set(json.loads(path.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
