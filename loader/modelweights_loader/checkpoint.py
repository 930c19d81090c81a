"""Finds the files that an engine would load from a folder, without reading the weights.

Called by every step. Follows vLLM's choice (model_loader/default_loader.py and weight_utils.py there): a
`consolidated*.safetensors` wins, else the top level's `*.safetensors` filtered by the index, in natural order. Links are
followed only inside the root. Must not import torch.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from modelweights_loader.errors import BadCheckpointError, WillNotWorkError, error_from_os
from modelweights_loader.json_walk import Cursor, check_utf8, refuse
from modelweights_loader.lookalikes import name_lookalike
from modelweights_loader.opening import open_found, resolve
from modelweights_loader.small_files import read_regular

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_INDEX_BYTES = 100_000_000
MAX_TENSORS = 1_000_000
_MAX_INDEX_MEMBERS = 1_000
# What the index says beside the weight_map is passed over; numbers stay text, since long ones take long.
_ANYTHING = json.JSONDecoder(parse_int=str, parse_float=str)
_CONSOLIDATED = "consolidated*.safetensors"
# What engines read beside the weights: configuration, tokenizer, chat template, remote code.
_COMPANIONS = ("*.json", "*.txt", "*.model", "*.tiktoken", "*.jinja", "*.py", "*.jinja2")
# Sentence-transformers keeps its modules' configuration one level down, chat templates have a folder of their own.
_COMPANION_FOLDERS = {"[0-9]_*": ("config.json",), "additional_chat_templates": ("*.jinja",)}
_OTHER_WEIGHTS = ("*.bin", "*.pt", "*.pth", "*.gguf", "*.ckpt", "*.h5", "*.msgpack", "*.onnx", "*.npz")
_HUB_CACHE = re.compile(r"models--.+")


class CheckpointFile(NamedTuple):
    """One file that counts: path below the checkpoint, with '/'; real_path after all links."""

    path: str
    real_path: str
    size_bytes: int


class Choice(NamedTuple):
    """What counts by its name: the index's name or None, shards in no order, and what engines read beside them."""

    index_name: str | None
    shards: list[str]
    companions: list[str]


class Checkpoint(NamedTuple):
    """What an engine would load from a folder: shards in load order, files (shards included) sorted by path.

    weight_map is the index's map of tensor to shard, None without an index.
    """

    path: str
    shards: tuple[CheckpointFile, ...]
    files: tuple[CheckpointFile, ...]
    index_name: str | None
    weight_map: dict[str, str] | None

    @property
    def size_bytes(self) -> int:
        """Size of all shards together."""
        return sum(shard.size_bytes for shard in self.shards)


def natural_key(name: str) -> list[tuple[int, int, str, str]]:
    """Sorts shard 2 before shard 10.

    Args:
        name: A file name.

    Returns:
        A key for `sorted`; numbers compare as numbers, everything else as text.
    """
    return [_piece_key(piece) for piece in re.split(r"([0-9]+)", name) if piece]


def _piece_key(piece: str) -> tuple[int, int, str, str]:
    """By length, then by digits: an index may name what is too long for `int`."""
    if not (piece.isascii() and piece.isdecimal()):
        return (1, 0, piece, "")
    digits = piece.lstrip("0")
    return (0, len(digits), digits, piece)


def find_checkpoint(path: str, root: str | None = None) -> Checkpoint:
    """Finds the files of the checkpoint in a folder.

    Args:
        path: The folder, or a Hugging Face cache folder (`models--org--name`, or a snapshot in it).
        root: Nothing outside of it is touched. Default: the cache folder of a snapshot, else the path itself.

    Returns:
        The checkpoint; nothing but the index has been read.

    Raises:
        WillNotWorkError: Not there, forbidden, or a path that leads out of the root.
        BadCheckpointError: No safetensors files, or an index that does not fit them.
        TryAgainError: The storage failed.
    """
    folder = _resolve_folder(path, root)
    boundary = resolve(root) if root is not None else default_root(folder)
    names = _list_names(folder)
    _refuse_home(names, folder)
    index_name, chosen, companions = choose_files(names, _list_nested(names, folder), folder)
    weight_map = None
    if index_name is not None:
        weight_map = read_weight_map(folder, index_name, _locate(folder, index_name, boundary, {}).real_path)
        chosen = filter_by_index(chosen, weight_map, index_name, folder)
    parents: dict[str, str] = {}
    shards = tuple(_locate(folder, name, boundary, parents) for name in sorted(chosen, key=natural_key))
    others = (_locate(folder, name, boundary, parents) for name in companions)
    return Checkpoint(folder, shards, tuple(sorted((*shards, *others))), index_name, weight_map)


def _refuse_home(names: Sequence[str], folder: str) -> None:
    """Says what is meant to those who name where `fetch` publishes, and not what it published."""
    if os.path.isdir(os.path.join(folder, ".fetch")) and not any(name.endswith(".safetensors") for name in names):
        message = f"{folder} is where fetch publishes; name the folder in it that fetch printed"
        raise BadCheckpointError(message, reason="NoSafetensors")


def choose_files(names: Sequence[str], nested: Sequence[str], shown: str) -> Choice:
    """Chooses by names alone, so that the same rules hold for a folder and for the listing of a remote source.

    Args:
        names: Of the top level, sorted, without hidden ones.
        nested: Paths one level down; others than companions are left away.
        shown: The folder or source, for messages.

    Returns:
        What counts; with an index `filter_by_index` has to choose among the shards.

    Raises:
        BadCheckpointError: No safetensors files.
    """
    index_name, chosen = _choose_shards(names, shown)
    companions = [name for name in names if _matches_any(name, _COMPANIONS)]
    companions += [path for path in nested if _is_nested_companion(path)]
    # Another format's index belongs to weights that are not loaded.
    companions = [name for name in companions if not name.endswith(".index.json") or name == index_name]
    return Choice(index_name, chosen, companions)


def _is_nested_companion(path: str) -> bool:
    folder, _, name = path.partition("/")
    return any(
        fnmatchcase(folder, pattern) and _matches_any(name, wanted) for pattern, wanted in _COMPANION_FOLDERS.items()
    )


def resolve_below(path: str, root: str | None) -> str:
    """Resolves a path and makes sure that it stays below the root.

    Args:
        path: Any path.
        root: The folder that it must not leave, or None for no such rule.

    Returns:
        The real path.

    Raises:
        WillNotWorkError: It leads out of the root.
    """
    real = resolve(path)
    if root is not None and not _is_below(real, resolve(root)):
        message = f"{path} leads to {real}, out of the root {root}; pass a path below the root"
        raise WillNotWorkError(message, reason="UnsafePath")
    return real


def _is_below(real: str, boundary: str) -> bool:
    return real == boundary or real.startswith(boundary.rstrip("/") + "/")


def _resolve_folder(path: str, root: str | None) -> str:
    folder = resolve_below(path, root)
    try:
        mode = os.stat(folder).st_mode
    except OSError as error:
        raise error_from_os(error, path, "find") from error
    if not stat.S_ISDIR(mode):
        message = f"{path} is no folder; pass the folder that holds config.json and the shards"
        raise WillNotWorkError(message, reason="NotAFolder")
    snapshots = os.path.join(folder, "snapshots")
    if _HUB_CACHE.fullmatch(os.path.basename(folder)) and os.path.isdir(snapshots):
        return resolve_below(_choose_snapshot(folder, snapshots), root or folder)
    return folder


def _choose_snapshot(folder: str, snapshots: str) -> str:
    """The snapshot that refs/main names, else the only one."""
    try:
        name = read_regular(os.path.join(folder, "refs", "main"), 256).decode("ascii").strip()
        if re.fullmatch(r"[0-9A-Za-z_-]{1,128}", name) and os.path.isdir(os.path.join(snapshots, name)):
            return os.path.join(snapshots, name)
    except (OSError, ValueError):
        pass
    names = _list_names(snapshots)
    if len(names) == 1:
        return os.path.join(snapshots, names[0])
    message = f"{folder} holds {len(names)} snapshots and no refs/main that chooses one; pass one of snapshots/*"
    raise WillNotWorkError(message, reason="AmbiguousSnapshot")


def default_root(folder: str) -> str:
    """Says what the links of a checkpoint may not leave.

    Args:
        folder: The checkpoint, after all links.

    Returns:
        The folder; of a snapshot in a Hugging Face cache, which links to ../../blobs, the cache folder.
    """
    snapshots = os.path.dirname(folder)
    repository = os.path.dirname(snapshots)
    if os.path.basename(snapshots) == "snapshots" and _HUB_CACHE.fullmatch(os.path.basename(repository)):
        return repository
    return folder


def _list_names(folder: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(folder) if not name.startswith("."))
    except OSError as error:
        raise error_from_os(error, folder, "list") from error


def _list_nested(names: list[str], folder: str) -> list[str]:
    found = []
    for pattern in _COMPANION_FOLDERS:
        for name in names:
            nested = os.path.join(folder, name)
            # A link to a folder is not followed: only plain folders of the checkpoint count.
            if fnmatchcase(name, pattern) and os.path.isdir(nested) and not os.path.islink(nested):
                found += [f"{name}/{inner}" for inner in _list_names(nested)]
    return found


def _matches_any(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _choose_shards(names: Sequence[str], folder: str) -> tuple[str | None, list[str]]:
    chosen = [name for name in names if fnmatchcase(name, _CONSOLIDATED)]
    index_name = "consolidated.safetensors.index.json"
    if not chosen:
        chosen = [name for name in names if name.endswith(".safetensors")]
        index_name = "model.safetensors.index.json"
    if not chosen and index_name not in names:
        others = [name for name in names if _matches_any(name, _OTHER_WEIGHTS)]
        has = f"it has {', '.join(others[:3])}; convert it" if others else "check the path, or download the weights"
        message = f"{folder} holds no *.safetensors file; {has}"
        raise BadCheckpointError(message, reason="NoSafetensors")
    return (index_name if index_name in names else None), chosen


def read_weight_map(folder: str, index_name: str, real_path: str) -> dict[str, str]:
    """Reads the index.

    Args:
        folder: Where it belongs, for messages.
        index_name: Its name there.
        real_path: The file.

    Returns:
        Tensor to shard's name, which nothing has looked at so far.

    Raises:
        BadCheckpointError: It is no index.
        LoaderError: It can't be read.
    """
    try:
        with open(open_found(real_path), "rb") as file:
            text = file.read(MAX_INDEX_BYTES + 1)
    except OSError as error:
        raise error_from_os(error, os.path.join(folder, index_name), "read") from error
    return parse_weight_map(folder, index_name, text)


def parse_weight_map(folder: str, index_name: str, text: bytes | bytearray) -> dict[str, str]:
    """Likewise of the index's content, or its first `MAX_INDEX_BYTES` and one more.

    Args:
        folder: Where it belongs, for messages.
        index_name: Its name there.
        text: Its content.

    Returns:
        See `read_weight_map`.

    Raises:
        BadCheckpointError: It is no index.
    """
    path = os.path.join(folder, index_name)
    if len(text) > MAX_INDEX_BYTES:
        _refuse_index(path, f"has more than {MAX_INDEX_BYTES} bytes")
    lookalike = name_lookalike(bytes(text[:512]))
    if lookalike is not None and lookalike.reason != "JsonText":
        _refuse_index(path, f"is {lookalike.what}, not the index; {lookalike.remedy}", lookalike.reason)
    try:
        weight_map = _parse_index(text)
    except (ValueError, RecursionError) as error:
        _refuse_index(path, f"is no index with a weight_map of file names ({error})")
    if weight_map is None:
        _refuse_index(path, "is no index, it has no weight_map")
    return weight_map


def _parse_index(text: bytes | bytearray) -> dict[str, str] | None:
    """Walks through the index, so that a hostile one takes no more memory than a large one."""
    check_utf8(text)
    cursor = Cursor(text)
    weight_map: dict[str, str] | None = None
    for count, (key, _) in enumerate(cursor.members()):
        if count >= _MAX_INDEX_MEMBERS:
            refuse("it has too many members")
        if key != "weight_map":
            cursor.skip_value(_ANYTHING)
        elif weight_map is not None:
            refuse("it has two weight_maps")
        else:
            weight_map = _take_weight_map(cursor)
    cursor.expect_end()
    return weight_map


def _take_weight_map(cursor: Cursor) -> dict[str, str]:
    weight_map: dict[str, str] = {}
    shards: dict[str, str] = {}
    for tensor, shard in cursor.string_pairs():
        if tensor in weight_map:
            refuse(f"the tensor {tensor[:200]!r} is there twice")
        if len(weight_map) >= MAX_TENSORS:
            refuse(f"it names more than {MAX_TENSORS} tensors")
        # A thousand shards, a million tensors.
        weight_map[tensor] = shards.setdefault(shard, shard)
    return weight_map


def _refuse_index(path: str, what: str, reason: str = "InvalidIndex") -> NoReturn:
    remedy = "" if "again" in what else "; download it again"
    message = f"{path} {what}{remedy}"
    raise BadCheckpointError(message, reason=reason)


def filter_by_index(chosen: list[str], weight_map: dict[str, str], index_name: str, folder: str) -> list[str]:
    """Leaves those shards that the index names.

    Args:
        chosen: From `choose_files`.
        weight_map: From `read_weight_map`.
        index_name: Of the index, for messages.
        folder: Likewise.

    Returns:
        Names of shards, in the order of the index.

    Raises:
        BadCheckpointError: It names none, or one that isn't there.
        WillNotWorkError: It names what is no plain file name.
    """
    wanted = dict.fromkeys(weight_map.values())
    if not wanted:
        message = f"{folder}/{index_name} names no tensor; download it again"
        raise BadCheckpointError(message, reason="NoTensors")
    for shard in wanted:
        if "/" in shard or "\0" in shard or shard in {"", ".", ".."}:
            message = (
                f"{folder}/{index_name} names the shard {shard[:200]!r}, which is no plain file name; don't use it"
            )
            raise WillNotWorkError(message, reason="UnsafePath")
    missing = sorted(set(wanted) - set(chosen), key=natural_key)
    if missing:
        tensor = next(name for name, shard in weight_map.items() if shard == missing[0])
        message = (
            f"{folder}: shard {missing[0]} is missing ({len(missing)} of {len(wanted)}), {index_name} needs it for "
            f"tensor {tensor}; download the missing shards"
        )
        raise BadCheckpointError(message, reason="MissingShard")
    return list(wanted)


def _find_real_path(path: str, parents: dict[str, str]) -> str:
    """`resolve`, which looks at each part of each path, with the folders' part looked at once."""
    parent, base = os.path.split(path)
    with contextlib.suppress(OSError):
        if base not in {"", ".", ".."} and not stat.S_ISLNK(os.lstat(path).st_mode):
            if parent not in parents:
                parents[parent] = resolve(parent)
            return os.path.join(parents[parent], base)
    return resolve(path)


def _locate(folder: str, name: str, boundary: str, parents: dict[str, str]) -> CheckpointFile:
    """Resolves one file; refuses links out of the boundary and anything but a regular file, without opening it.

    `parents` keeps the real paths of folders from one file to the next: there may be thousands.
    """
    path = os.path.join(folder, name)
    real = _find_real_path(path, parents)
    if not _is_below(real, boundary):
        message = f"{path} is a link to {real}, out of {boundary}; mount the whole folder, or copy the file"
        raise WillNotWorkError(message, reason="UnsafePath")
    try:
        status = os.stat(real)
    except FileNotFoundError as error:
        message = f"{path} is a link to {real}, which is not there; mount the whole folder (with blobs)"
        raise WillNotWorkError(message, reason="DanglingLink") from error
    except OSError as error:
        raise error_from_os(error, path, "find") from error
    if not stat.S_ISREG(status.st_mode):
        message = f"{path} is not a regular file; put the file itself there"
        raise WillNotWorkError(message, reason="NotARegularFile")
    return CheckpointFile(name, real, status.st_size)
