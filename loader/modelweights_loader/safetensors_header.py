"""Reads the header of a safetensors file strictly and within bounds, without any library.

Called by `structure` for every shard before a loader sees the file. It is at least as strict as the safetensors
library (src/tensor.rs there): fastsafetensors accepts what that one rejects, so the check has to come first. A name or
type that torch lacks is not judged here: the bytes can be good all the same. Must not import torch.
"""

from __future__ import annotations

import json
import os
import stat
from typing import NamedTuple, NoReturn

from modelweights_loader.errors import BadCheckpointError, WillNotWorkError, error_from_os

MAX_HEADER_BYTES = 100_000_000
_LENGTH_BYTES = 8
_MAX_USIZE = 2**64 - 1
_MAX_INTEGER_DIGITS = 20

DTYPE_BITS = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}
_TENSOR_KEYS = {"dtype", "shape", "data_offsets"}


class TensorInfo(NamedTuple):
    """One tensor as the header describes it; begin and end are bytes from the end of the header."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class Header(NamedTuple):
    """A checked header: data_offset and size_bytes are in bytes from the start of the file."""

    tensors: dict[str, TensorInfo]
    metadata: dict[str, str]
    data_offset: int
    size_bytes: int


class _JsonError(ValueError):
    """The JSON is well-formed for Python, but not what the format allows."""


def read_header(path: str, display: str | None = None) -> Header:
    """Reads and checks the header of one shard.

    Args:
        path: The file. It is opened without following into a FIFO or a device.
        display: How messages call the file; the path by default.

    Returns:
        The header, every tensor's bytes accounted for.

    Raises:
        BadCheckpointError: The file is no valid safetensors file; says which rule it breaks.
        WillNotWorkError: The file is missing, forbidden or not a regular file.
        TryAgainError: The storage failed.
    """
    shown = display or path
    try:
        # O_NONBLOCK: opening a FIFO that took the file's place must not hang.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        raise error_from_os(error, shown, "open") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            message = f"{shown} is not a regular file; put the shard itself there"
            raise WillNotWorkError(message, reason="NotARegularFile")
        text, data_offset = _read_text(descriptor, status.st_size, shown)
    except OSError as error:
        raise error_from_os(error, shown, "read") from error
    finally:
        os.close(descriptor)
    return parse_header(text, data_offset, status.st_size, shown)


def _read_text(descriptor: int, size_bytes: int, shown: str) -> tuple[bytes, int]:
    """Returns the header's JSON and where the data begins; nothing is allocated on the file's word alone."""
    start = os.pread(descriptor, 512, 0)
    _refuse_lookalikes(start, shown)
    if size_bytes < _LENGTH_BYTES or len(start) < _LENGTH_BYTES:
        _bad(shown, f"has {size_bytes} bytes, too short for a safetensors header", "HeaderTooSmall")
    length = int.from_bytes(start[:_LENGTH_BYTES], "little")
    if length > MAX_HEADER_BYTES:
        _bad(shown, f"says that its header has {length} bytes, more than {MAX_HEADER_BYTES}", "HeaderTooLarge")
    if length > size_bytes - _LENGTH_BYTES:
        _bad(
            shown,
            f"says that its header has {length} bytes, but the whole file has {size_bytes}; it is cut off",
            "Truncated",
        )
    if start[_LENGTH_BYTES : _LENGTH_BYTES + 1] != b"{" or length == 0:
        _bad(shown, "has a header that does not start with '{'", "InvalidHeader")
    text = bytearray()
    while len(text) < length:
        piece = os.pread(descriptor, min(length - len(text), 1 << 22), _LENGTH_BYTES + len(text))
        if not piece:
            _bad(shown, "ended while its header was being read; it is being changed", "Truncated")
        text += piece
    return bytes(text), _LENGTH_BYTES + length


def _refuse_lookalikes(start: bytes, shown: str) -> None:
    """Names the two files that most often lie in place of a shard."""
    if start.startswith(b"version https://git-lfs"):
        _bad(shown, "is a Git LFS pointer, not the weights; run `git lfs pull` or download it again", "GitLfsPointer")
    lowered = start.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if lowered.startswith((b"<!doctype", b"<html", b"<?xml")):
        _bad(shown, "is an HTML or XML page (an error page of a server?), not the weights", "HtmlPage")


def parse_header(text: bytes, data_offset: int, size_bytes: int, shown: str) -> Header:
    """Checks the JSON of a header against the size of its file.

    Args:
        text: The header's JSON in UTF-8.
        data_offset: Where the tensors' bytes begin, in bytes from the start of the file.
        size_bytes: The size of the file.
        shown: How messages call the file.

    Returns:
        The header, every tensor's bytes accounted for.

    Raises:
        BadCheckpointError: Says which rule is broken, naming the tensor.
    """
    entries = _parse_json(text, shown)
    raw_metadata = entries.pop("__metadata__", {})
    metadata = _check_metadata(raw_metadata, shown)
    tensors = {name: _check_tensor(name, entry, shown) for name, entry in entries.items()}
    if b"\\u" in text:
        _check_surrogates([*tensors, *metadata, *metadata.values()], shown)
    _check_ranges(tensors, size_bytes - data_offset, shown)
    return Header(tensors, metadata, data_offset, size_bytes)


def _parse_json(text: bytes, shown: str) -> dict[str, object]:
    try:
        parsed = json.loads(
            text.decode("utf-8"),
            object_pairs_hook=_unique_pairs,
            parse_int=_parse_integer,
            parse_float=_refuse_number,
            parse_constant=_refuse_number,
        )
    except (ValueError, RecursionError) as error:
        # UnicodeDecodeError and JSONDecodeError are ValueErrors; deep nesting is a RecursionError.
        _bad(shown, f"has a header that is not valid ({error})", "InvalidHeader")
    if not isinstance(parsed, dict):
        _bad(shown, "has a header that is no JSON object", "InvalidHeader")
    return parsed


def _unique_pairs(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            msg = f"the key {key[:200]!r} is there twice"
            raise _JsonError(msg)
        seen.add(key)
    raise AssertionError


def _parse_integer(digits: str) -> int:
    # `-0` is a float to the safetensors library, and Python's conversion of endless digits is quadratic.
    if digits.startswith("-") or len(digits) > _MAX_INTEGER_DIGITS:
        _refuse_number(digits)
    return int(digits)


def _refuse_number(digits: str) -> NoReturn:
    msg = f"the number {digits[:40]} is not allowed there"
    raise _JsonError(msg)


def _check_metadata(raw: object, shown: str) -> dict[str, str]:
    if not isinstance(raw, dict) or not all(isinstance(value, str) for value in raw.values()):
        _bad(shown, "has a __metadata__ that is no object of strings", "InvalidMetadata")
    return raw


def _check_surrogates(names: list[str], shown: str) -> None:
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError:
            _bad(shown, f"has the name {ascii(name)[:200]}, which is half of a character pair", "InvalidHeader")


def _check_tensor(name: str, entry: object, shown: str) -> TensorInfo:
    if not isinstance(entry, dict) or entry.keys() != _TENSOR_KEYS:
        _bad(shown, "must have dtype, shape and data_offsets, no more and no less", "InvalidTensor", name)
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        _bad(shown, f"has the unknown dtype {str(dtype)[:40]!r}", "InvalidTensor", name)
    if not _is_integers(shape):
        _bad(shown, "has a shape that is no list of whole numbers", "InvalidTensor", name)
    if not _is_integers(offsets) or len(offsets) != 2:  # noqa: PLR2004 - begin and end
        _bad(shown, "has data_offsets that are not two whole numbers", "InvalidTensor", name)
    begin, end = offsets
    if _size_of(dtype, shape, shown, name) != end - begin:
        _bad(
            shown,
            f"has {end - begin} bytes by its offsets [{begin}, {end}], but {dtype} {shape} needs another number",
            "ShapeMismatch",
            name,
        )
    return TensorInfo(dtype, tuple(shape), begin, end)


def _is_integers(value: object) -> bool:
    # bool is a kind of int in Python, but `true` is no number in JSON.
    return isinstance(value, list) and all(type(item) is int and 0 <= item <= _MAX_USIZE for item in value)


def _size_of(dtype: str, shape: list[int], shown: str, name: str) -> int:
    """Number of bytes of a tensor, overflowing where the library's checked arithmetic does."""
    elements = 1
    for dimension in shape:
        elements *= dimension
        if elements > _MAX_USIZE:
            _bad(shown, f"has a shape {shape} that overflows", "ShapeMismatch", name)
    bits = elements * DTYPE_BITS[dtype]
    if bits > _MAX_USIZE:
        _bad(shown, f"has a shape {shape} that overflows", "ShapeMismatch", name)
    if bits % 8:
        _bad(shown, f"does not end on a byte: {dtype} {shape}", "ShapeMismatch", name)
    return bits // 8


def _check_ranges(tensors: dict[str, TensorInfo], data_bytes: int, shown: str) -> None:
    """Checks that the tensors cover the data without hole, overlap or rest."""
    position = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
        if tensor.begin < position:
            _bad(
                shown, f"overlaps another one: begins at {tensor.begin}, before {position}", "OverlappingTensors", name
            )
        if tensor.begin > position:
            _bad(shown, f"leaves a hole: begins at {tensor.begin}, not at {position}", "HoleInData", name)
        position = tensor.end
        if position > data_bytes:
            # Named here and not after the loop, so that the message has the first tensor that is cut off.
            _bad(
                shown,
                f"ends at byte {position} of the data, but there are only {data_bytes}; the file is cut off",
                "Truncated",
                name,
            )
    if position < data_bytes:
        _bad(shown, f"has {data_bytes - position} bytes after its last tensor", "TrailingBytes")


def _bad(shown: str, what: str, reason: str, tensor: str | None = None) -> NoReturn:
    subject = f"{shown}: tensor {tensor}" if tensor is not None else shown
    remedy = "" if "again" in what or "git lfs" in what else "; download or convert it again"
    message = f"{subject} {what}{remedy}"
    raise BadCheckpointError(message, reason=reason)
