"""Reads the header of a safetensors file strictly and within bounds, without any library.

Called by `structure` for every shard before a loader sees the file. It is at least as strict as the safetensors
library (src/tensor.rs there): fastsafetensors accepts what that one rejects, so the check has to come first. Where it is
stricter, `docs/bad-input.md` says why. A name or type that torch lacks is not judged here: the bytes can be good all the
same. Must not import torch.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
import threading
from typing import NamedTuple, NoReturn, TypeGuard

from modelweights_loader.errors import BadCheckpointError, WillNotWorkError, error_from_os
from modelweights_loader.holes import find_hole
from modelweights_loader.json_walk import MAX_PIECE_BYTES, PLAIN, SPACE, Cursor, check_utf8, refuse
from modelweights_loader.lookalikes import name_lookalike
from modelweights_loader.opening import open_found, open_given

MAX_HEADER_BYTES = 100_000_000
# A bound on memory: each takes up to some 350 bytes of it.
MAX_TENSORS = 1_000_000
_LENGTH_BYTES = 8
_FIRST_READ_BYTES = 1 << 16
_METADATA = "__metadata__"
_MAX_SHOWN = 200
_MAX_SHOWN_DIMENSIONS = 16
_MAX_USIZE = 2**64 - 1

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
_LARGE = threading.Lock()
_DTYPE_NAMES = {name: name for name in DTYPE_BITS}
_TENSOR_KEYS = {"dtype", "shape", "data_offsets"}

# What nearly every tensor looks like, with the comma before it. In the groups: its name; its description; of that all
# before the offsets, if these come last; begin; end. Bounded as the walk bounds what does not match.
_NAME = SPACE + rb'"(' + PLAIN + rb'{0,65534})"' + SPACE
_BEFORE_OFFSETS = (
    rb"([^][{}]{0,200}\[[^][{}]{0,200}\][ \t\n\r,]*" + rb'"data_offsets"' + SPACE + rb":" + SPACE + rb"\[)"
)
_NUMBER = SPACE + rb"(0|[1-9][0-9]{0,18})" + SPACE
_OFFSETS_LAST = _BEFORE_OFFSETS + _NUMBER + rb"," + _NUMBER + rb"\]" + SPACE + rb"\}"
_USUAL_TENSOR = re.compile(SPACE + rb"," + _NAME + rb":" + SPACE + rb"(\{(?:" + _OFFSETS_LAST + rb"|[^{}]{0,65534}\}))")
_MAX_KINDS = 1_000


class TensorInfo(NamedTuple):
    """One tensor as the header describes it; begin and end are bytes from the end of the header."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class Header(NamedTuple):
    """A checked header: data_offset and size_bytes are in bytes from the start of the file."""

    tensors: dict[str, TensorInfo]
    data_offset: int
    size_bytes: int


def read_header(path: str, display: str | None = None, *, is_found: bool = False) -> Header:
    """Reads and checks the header of one shard.

    Args:
        path: The file.
        display: How messages call the file; the path by default.
        is_found: The path was found by `opening.resolve`: a file to which another way leads by now is refused.

    Returns:
        The header, every tensor's bytes accounted for.

    Raises:
        BadCheckpointError: The file is no valid safetensors file; says which rule it breaks.
        WillNotWorkError: The file is missing, forbidden or not a regular file.
        TryAgainError: The storage failed, or another file is there by now.
    """
    shown = display or path
    try:
        descriptor = open_found(path) if is_found else open_given(path)
    except OSError as error:
        raise error_from_os(error, shown, "open") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            message = f"{shown} is not a regular file; put the shard itself there"
            raise WillNotWorkError(message, reason="NotARegularFile")
        length, start = _read_start(descriptor, status.st_size, shown)
        # Of large headers one at a time, whatever the number of threads: together they need room.
        with _LARGE if length > len(start) else contextlib.nullcontext():
            text = _read_text(descriptor, length, start, shown)
            header = parse_header(text, _LENGTH_BYTES + length, status.st_size, shown)
            del text
        _refuse_hole(descriptor, header, shown)
    except OSError as error:
        raise error_from_os(error, shown, "read") from error
    finally:
        os.close(descriptor)
    return header


def _read_start(descriptor: int, size_bytes: int, shown: str) -> tuple[int, bytes]:
    """Returns the length of the header's JSON and what of it was read at once."""
    # One read suffices for most headers. A file that is being cut off gives fewer bytes than its size says.
    start = os.pread(descriptor, _FIRST_READ_BYTES, 0)
    length = int.from_bytes(start[:_LENGTH_BYTES], "little")
    if length > MAX_HEADER_BYTES or start[_LENGTH_BYTES : _LENGTH_BYTES + 1] != b"{":
        lookalike = name_lookalike(start)
        if lookalike is not None:
            _bad(shown, f"is {lookalike.what}, not the weights; {lookalike.remedy}", lookalike.reason)
    if len(start) < _LENGTH_BYTES:
        _bad(shown, f"has {size_bytes} bytes, too short for a safetensors header", "HeaderTooSmall")
    if length > MAX_HEADER_BYTES:
        _bad(shown, f"says that its header has {length} bytes, more than {MAX_HEADER_BYTES}", "HeaderTooLarge")
    if length > size_bytes - _LENGTH_BYTES:
        said = f"says that its header has {length} bytes, but the whole file has {size_bytes}; it is cut off"
        _bad(shown, said, "Truncated")
    if length == 0 or start[_LENGTH_BYTES : _LENGTH_BYTES + 1] != b"{":
        _bad(shown, "has a header that does not start with '{'", "InvalidHeader")
    return length, start[_LENGTH_BYTES : _LENGTH_BYTES + length]


def _read_text(descriptor: int, length: int, start: bytes, shown: str) -> bytearray:
    """Returns the header's JSON; nothing is allocated on the file's word alone."""
    text = bytearray(start)
    while len(text) < length:
        piece = os.pread(descriptor, min(length - len(text), 1 << 22), _LENGTH_BYTES + len(text))
        if not piece:
            _bad(shown, "ended while its header was being read; it is being changed", "Truncated")
        text += piece
    return text


def _refuse_hole(descriptor: int, header: Header, shown: str) -> None:
    hole = find_hole(descriptor, header.data_offset, header.size_bytes)
    if hole is None:
        return
    begin, end = hole.begin - header.data_offset, hole.end - header.data_offset
    hit = (name for name, tensor in header.tensors.items() if tensor.begin < end and begin < tensor.end)
    said = (
        f"was never written from byte {hole.begin} to {hole.end} of the file (a hole, which reads as zeros: a download "
        "that did not finish); download it again, or, if those zeros are meant, fill the hole with `cp --sparse=never`"
    )
    _bad(shown, said, "HoleInFile", next(hit, ""))


def parse_header(text: bytes | bytearray, data_offset: int, size_bytes: int, shown: str) -> Header:
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
    try:
        tensors = _parse_entries(text, shown)
    except ValueError as error:
        _bad(shown, f"has a header that is not valid ({error})", "InvalidHeader")
    _check_ranges(tensors, size_bytes - data_offset, shown)
    return Header(tensors, data_offset, size_bytes)


def _parse_entries(text: bytes | bytearray, shown: str) -> dict[str, TensorInfo]:
    """Walks through the header, so that no more of it is in memory at once than its text and what it is about."""
    check_utf8(text)
    tensors: dict[str, TensorInfo] = {}
    has_metadata = False
    cursor = Cursor(text)
    kinds: dict[bytes, TensorInfo] = {}
    for name, entry in cursor.members(_METADATA):
        if name in tensors or (has_metadata and name == _METADATA):
            refuse(f"the key {name[:200]!r} is there twice")
        if name == _METADATA:
            has_metadata = True
            _check_metadata(cursor, shown)
        elif entry is None:
            said = f"has no object of at most {MAX_PIECE_BYTES} bytes as its description"
            _bad(shown, said, "InvalidTensor", name)
        else:
            tensors[name] = _check_tensor(name, entry, shown)
        if len(tensors) > MAX_TENSORS:
            _bad(shown, f"has more than {MAX_TENSORS} tensors in its header", "HeaderTooLarge")
        _take_usual_tensors(cursor, tensors, kinds, shown)
    cursor.expect_end()
    return tensors


def _take_usual_tensors(
    cursor: Cursor, tensors: dict[str, TensorInfo], kinds: dict[bytes, TensorInfo], shown: str
) -> None:
    """Takes tensors as long as nothing is odd.

    Most differ from one before only in name and offsets. What is before the offsets is checked once, then known by its
    bytes: in a description that passed, no bracket is within a string, so another two numbers change nothing else.
    """
    for found in cursor.matches(_USUAL_TENSOR):
        raw_name, entry, kind, begin_digits, end_digits = found.groups()
        name = raw_name.decode()
        if name in tensors or name == _METADATA or len(tensors) >= MAX_TENSORS:
            return
        known = kinds.get(kind)
        if known is not None:
            dtype, shape, known_begin, known_end = known
            begin, end = int(begin_digits), int(end_digits)
            if end - begin == known_end - known_begin:
                tensors[name] = TensorInfo(dtype, shape, begin, end)
                continue
        tensors[name] = checked = _check_tensor(name, entry, shown)
        if kind is not None and len(kinds) < _MAX_KINDS:
            kinds[kind] = checked


def _refuse_number(digits: str) -> NoReturn:
    refuse(f"the number {digits[:40]} is not allowed there")


# One for all entries: making it takes as long as a small entry does.
_DECODER = json.JSONDecoder(parse_float=_refuse_number, parse_constant=_refuse_number)


def _check_metadata(cursor: Cursor, shown: str) -> None:
    """Nothing needs what it says, so it is passed over."""
    try:
        cursor.skip_string_pairs()
    except ValueError as error:
        _bad(shown, f"has a __metadata__ that is no object of strings ({error})", "InvalidMetadata")


def _check_tensor(name: str, text: bytes, shown: str) -> TensorInfo:
    entry: dict[str, object]
    try:
        entry, length = _DECODER.raw_decode(text.decode())
    except (ValueError, RecursionError) as error:
        # JSONDecodeError is a ValueError; deep nesting is a RecursionError.
        _bad(shown, f"has a description that is not valid ({error})", "InvalidHeader", name)
    if length != len(text):
        _bad(shown, "has something after its description", "InvalidHeader", name)
    # Three keys and three colons: none is there twice. A valid entry has no colon elsewhere, and no minus at all; `-0`
    # is a float to the safetensors library.
    if entry.keys() != _TENSOR_KEYS or text.count(b":") != len(_TENSOR_KEYS):
        _bad(shown, "must have dtype, shape and data_offsets, once each and nothing else", "InvalidTensor", name)
    if b"-" in text:
        _bad(shown, "has a negative number", "InvalidTensor", name)
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        _bad(shown, f"has the unknown dtype {str(dtype)[:40]!r}", "InvalidTensor", name)
    if not _is_integers(shape):
        _bad(shown, "has a shape that is no list of whole numbers", "InvalidTensor", name)
    if not _is_integers(offsets) or len(offsets) != 2:  # noqa: PLR2004 - begin and end
        _bad(shown, "has data_offsets that are not two whole numbers", "InvalidTensor", name)
    begin, end = offsets
    if _size_of(dtype, shape, shown, name) != end - begin:
        said = (
            f"has {end - begin} bytes by its offsets [{begin}, {end}], but {dtype} {_show(shape)} needs another number"
        )
        _bad(shown, said, "ShapeMismatch", name)
    # A million tensors share some twenty names of dtypes.
    return TensorInfo(_DTYPE_NAMES[dtype], tuple(shape), begin, end)


def _show(shape: list[int]) -> str:
    return str(shape) if len(shape) <= _MAX_SHOWN_DIMENSIONS else f"of {len(shape)} dimensions"


def _is_integers(value: object) -> TypeGuard[list[int]]:
    if not isinstance(value, list):
        return False
    for item in value:  # noqa: SIM110 - a loop takes half the time, and there are millions
        # bool is a kind of int in Python, but `true` is no number in JSON.
        if type(item) is not int or not 0 <= item <= _MAX_USIZE:
            return False
    return True


def _size_of(dtype: str, shape: list[int], shown: str, name: str) -> int:
    """Number of bytes of a tensor, overflowing where the library's checked arithmetic does."""
    elements = 1
    for dimension in shape:
        elements *= dimension
        if elements > _MAX_USIZE:
            _bad(shown, f"has a shape {_show(shape)} that overflows", "ShapeMismatch", name)
    bits = elements * DTYPE_BITS[dtype]
    if bits > _MAX_USIZE:
        _bad(shown, f"has a shape {_show(shape)} that overflows", "ShapeMismatch", name)
    if bits % 8:
        _bad(shown, f"does not end on a byte: {dtype} {_show(shape)}", "ShapeMismatch", name)
    return bits // 8


def _check_ranges(tensors: dict[str, TensorInfo], data_bytes: int, shown: str) -> None:
    """Checks that the tensors cover the data without hole, overlap or rest."""
    if _is_covered_in_order(tensors, data_bytes):
        return
    position = 0
    for name in sorted(tensors, key=lambda name: (tensors[name].begin, tensors[name].end)):
        begin, end = tensors[name].begin, tensors[name].end
        if begin < position:
            said = f"overlaps another one: begins at {begin}, before {position}"
            _bad(shown, said, "OverlappingTensors", name)
        if begin > position:
            _bad(shown, f"leaves a hole: begins at {begin}, not at {position}", "HoleInData", name)
        position = end
        if position > data_bytes:
            # Named here and not after the loop, so that the message has the first tensor that is cut off.
            said = f"ends at byte {position} of the data, but there are only {data_bytes}; the file is cut off"
            _bad(shown, said, "Truncated", name)
    if position < data_bytes:
        _bad(shown, f"has {data_bytes - position} bytes after its last tensor", "TrailingBytes")


def _is_covered_in_order(tensors: dict[str, TensorInfo], data_bytes: int) -> bool:
    """Whether the tensors follow each other without a gap from first to last byte, as nearly every writer has them."""
    position = 0
    for _, _, begin, end in tensors.values():
        if begin != position:
            return False
        position = end
    return position == data_bytes


def _bad(shown: str, what: str, reason: str, tensor: str | None = None) -> NoReturn:
    subject = f"{shown}: tensor {_shorten(tensor)}" if tensor is not None else shown
    remedy = "" if "again" in what else "; download or convert it again"
    message = f"{subject} {what}{remedy}"
    raise BadCheckpointError(message, reason=reason)


def _shorten(name: str) -> str:
    return name if len(name) <= _MAX_SHOWN else f"{name[:_MAX_SHOWN]}... ({len(name)} characters)"
