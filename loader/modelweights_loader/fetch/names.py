"""Checks the names of a listing before anything is written: they come from a stranger. Called by `plan`.

Pure. What is refused here would lead out of the folder, hide from those who look, or be one file where another is meant.
"""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING

from modelweights_loader.errors import WillNotWorkError
from modelweights_loader.sources.bounds import MAX_FOLDERS, NamesBudget, refuse_number

if TYPE_CHECKING:
    from collections.abc import Iterable

    from modelweights_loader.sources.contract import RemoteFile

MAX_DEPTH = 8
MAX_NAME_BYTES = 255
# No checkpoint comes near; sums stay far from what file systems can count.
MAX_FILE_BYTES = 2**44
MAX_TOTAL_BYTES = 2**46
_MAX_SHOWN = 200
# Ours, and what git and huggingface_hub would take for their own.
_RESERVED = {".git", ".fetch", ".modelweights"}
_UNSAFE = "UnsafePath"


def check_files(files: Iterable[RemoteFile]) -> None:
    """Refuses a listing with a name, size or number of files that no checkpoint has.

    Args:
        files: As listed.

    Raises:
        WillNotWorkError: UnsafePath or TooManyFiles, with the entry that is wrong.
    """
    seen: dict[str, str] = {}
    total_bytes, budget = 0, NamesBudget("the source")
    for file in files:
        budget.add((file.path,))
        check_name(file.path)
        _check_size(file)
        total_bytes += max(file.size_bytes, 0)
        _note(seen, file.path)
    if total_bytes > MAX_TOTAL_BYTES:
        message = f"the source lists {total_bytes} bytes, more than {MAX_TOTAL_BYTES}; name the checkpoint's own folder"
        raise WillNotWorkError(message, reason="TooManyFiles")
    _refuse_file_and_folder(seen)


def check_name(path: str) -> None:
    """Refuses a path that is not a plain one below the root.

    Args:
        path: As listed.

    Raises:
        WillNotWorkError: UnsafePath.
    """
    parts = path.split("/")
    if len(parts) > MAX_DEPTH:
        _refuse(path, f"is nested deeper than {MAX_DEPTH} levels")
    # Format characters turn a name around on a terminal, surrogates are no text at all, and a tab or line end is control.
    bad = next((one for one in path if unicodedata.category(one) in {"Cc", "Cf", "Cs", "Zl", "Zp"}), None)
    if bad is not None:
        _refuse(path, f"holds the character U+{ord(bad):04X}")
    if "\\" in path:
        _refuse(path, "holds a backslash")
    for part in parts:
        _check_part(path, part)


def _check_part(path: str, part: str) -> None:
    if part in {"", ".", ".."}:
        _refuse(path, "is absolute or has an empty part" if not part else f"has the part {part!r}")
    if part.casefold() in _RESERVED:
        _refuse(path, f"has the part {part!r}, which is reserved")
    if len(part.encode()) > MAX_NAME_BYTES:
        _refuse(path, f"has a part of more than {MAX_NAME_BYTES} bytes")
    if part != part.strip():
        _refuse(path, "has a part that begins or ends with white space")


def _check_size(file: RemoteFile) -> None:
    if not -1 <= file.size_bytes <= MAX_FILE_BYTES:
        _refuse(file.path, f"has {file.size_bytes} bytes, which no file of a checkpoint has")


def _note(seen: dict[str, str], path: str) -> None:
    """Two names that some file system, or some reader, takes for one."""
    folded = _fold(path)
    if folded in seen:
        what = (
            "is listed twice" if seen[folded] == path else f"is the same as {seen[folded][:_MAX_SHOWN]!r} but for case"
        )
        _refuse(path, what)
    seen[folded] = path


def _refuse_file_and_folder(seen: dict[str, str]) -> None:
    folders: dict[str, str] = {}
    for path in seen.values():
        parts = path.split("/")
        for depth in range(1, len(parts)):
            folder = "/".join(parts[:depth])
            folded = _fold(folder)
            if folded in seen:
                _refuse(path, f"lies in a folder that is a file too, {seen[folded][:_MAX_SHOWN]!r}")
            if folders.setdefault(folded, folder) != folder:
                _refuse(path, f"lies in a folder that is the same as {folders[folded][:_MAX_SHOWN]!r} but for case")
            if len(folders) > MAX_FOLDERS:
                refuse_number("the source", f"more than {MAX_FOLDERS} folders")


def _fold(path: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", path).casefold())


def _refuse(path: str, what: str) -> None:
    message = f"the source lists {path[:_MAX_SHOWN]!r}, which {what}; nothing was written, don't use this source"
    raise WillNotWorkError(message, reason=_UNSAFE)
