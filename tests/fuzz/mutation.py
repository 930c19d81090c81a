"""Changes a safetensors file so that it mostly stays one: pieces of its JSON are swapped, then length and data made to fit.

Blind changes nearly always end at the first rule; these get to the last ones. Called by the fuzzing target.
"""

from __future__ import annotations

import json
import math
import random
import re

from tests.corpus.headers import DTYPE_BITS

_MAX_DATA_BYTES = 2048
_TOKENS = [
    b'"a"', b'"b"', b'""', b'"__metadata__"', b'"dtype"', b'"shape"', b'"data_offsets"', b'"U8"', b'"F4"', b'"F6_E2M3"',
    b'"F32"', b'"C64"', b'"BF16"', b'"F8_E8M0"', b'"f32"', b"0", b"1", b"2", b"4", b"8", b"-0", b"-1", b"1.0", b"1e0",
    b"4294967296", b"9223372036854775808", b"18446744073709551615", b"18446744073709551616", b"true", b"null", b"NaN",
    b"Infinity", b"[", b"]", b"{", b"}", b",", b":", b" ", b"\t", b"\n", b"\0", b"\\u0061", b"\\ud83d", b"\\ud83d\\ude00",
    b"\\n", b"\\", b'"', b"\xff", b"\xc3\xa9", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"[]", b"{}", b"[0,0]", b"[0,4]", b"[4,8]",
    b"//", b"/**/", b"'",
    b'"c":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}', b'"d":{"dtype":"F4","shape":[2],"data_offsets":[0,1]},',
    b'"__metadata__":{"format":"pt"},', b'"e":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},',
]  # fmt: skip
_PIECES = re.compile(rb'"(?:[^"\\]|\\.)*"|-?[0-9][0-9.eE+-]*|[\[\]{},:]|[a-zA-Z]+|[ \t\n\r]+|.', re.DOTALL)


def mutate(content: bytes, seed: int, max_bytes: int) -> bytes:
    """Changes a file; the same seed, the same change."""
    rng = random.Random(seed)  # noqa: S311 - for tests
    text = content[8 : 8 + int.from_bytes(content[:8], "little")] if len(content) > 8 else b"{}"
    data = content[8 + len(text) :]
    if rng.random() < 0.4:
        text = _rebuild(text, rng)
    if rng.random() < 0.8:
        pieces = _PIECES.findall(text[:max_bytes])
        for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
            _change(pieces, rng)
        text = b"".join(pieces)
    if rng.random() < 0.8:
        data = _fit(text, data)
    if rng.random() < 0.1:
        data += b"\2" * rng.randrange(1, 9)
    length = len(text) + (rng.choice((-1, 1, 2**32, 2**63)) if rng.random() < 0.05 else 0)
    changed = max(length, 0).to_bytes(8, "little") + text + data
    if rng.random() < 0.05:
        changed = changed[: rng.randrange(len(changed) + 1)]
    return changed[:max_bytes]


def _rebuild(text: bytes, rng: random.Random) -> bytes:
    """The same names with other types, shapes and order, and offsets that mostly fit."""
    try:
        names = [name for name in json.loads(text) if isinstance(name, str) and name != "__metadata__"]
    except (ValueError, TypeError, RecursionError):
        names = []
    entries: dict[str, object] = {}
    position = 0
    for name in rng.sample(names, len(names)) + rng.choice(([], [], ["new"], ["\U0001f600", "]"])):
        dtype = rng.choice(list(DTYPE_BITS))
        shape = [rng.choice((0, 1, 2, 3, 8)) for _ in range(rng.randrange(4))]
        size = math.prod(shape) * DTYPE_BITS[dtype] // 8
        slip = rng.choice((0,) * 12 + (1, -1))
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position + slip, position + slip + size]}
        position += size
    if rng.random() < 0.3:
        entries["__metadata__"] = {rng.choice(("format", "}", "{", '"')): rng.choice(("pt", "", "{}}", "\n"))}
    order = rng.sample(list(entries), len(entries))
    return json.dumps(
        {name: entries[name] for name in order},
        ensure_ascii=rng.random() < 0.5,
        separators=rng.choice(((",", ":"), (", ", " : "))),
    ).encode("utf-8", "surrogatepass")


def _change(pieces: list[bytes], rng: random.Random) -> None:
    at = rng.randrange(len(pieces)) if pieces else 0
    other = rng.randrange(len(pieces)) if pieces else 0
    kind = rng.randrange(7)
    if kind == 0 or not pieces:
        pieces.insert(at, rng.choice(_TOKENS))
    elif kind == 1:
        pieces[at] = rng.choice(_TOKENS)
    elif kind == 2:
        del pieces[at]
    elif kind == 3:
        pieces[at], pieces[other] = pieces[other], pieces[at]
    elif kind == 4:
        # A member or a value, again somewhere else.
        pieces[other:other] = pieces[at : at + rng.randrange(1, 20)]
    elif kind == 5 and pieces[at].isdigit():
        pieces[at] = str(max(int(pieces[at]) + rng.choice((-4, -1, 1, 4)), 0)).encode()
    else:
        piece = bytearray(pieces[at])
        piece[rng.randrange(len(piece))] ^= 1 << rng.randrange(8)
        pieces[at] = bytes(piece)


def _fit(text: bytes, data: bytes) -> bytes:
    """As much data as the header asks for, if it can be read and asks for little."""
    try:
        entries = json.loads(text)
        ends = [entry["data_offsets"][1] for name, entry in entries.items() if name != "__metadata__"]
        end = max(ends, default=0)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        return data
    return b"\1" * end if isinstance(end, int) and 0 <= end <= _MAX_DATA_BYTES else data
