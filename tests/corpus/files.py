"""Cases of what lies in place of a shard: cut off, never written, of another kind, of a size that harms."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import zipfile
from typing import TYPE_CHECKING

from tests.corpus.case import BAD, GOOD, SHARD, Case, dump, entry, good, pack, shard

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_GOOD = good("a", "b")
_HEADER_END = len(_GOOD) - 8
_MIB = 2**20
_MAX_HEADER = 100_000_000
_HOLE = "zeros in place of weights; ranges of 64 KiB or more that were never written are taken for a download that died"
_NO_BOUND = "bounds of 64 KiB and a million tensors, so that 100 MB of header can't take gigabytes to parse"


def _case(name: str, what: str, content: bytes, reason: str = "", why: str = "") -> Case:
    return Case(
        name,
        what,
        shard(content),
        BAD if reason else GOOD,
        reason or "StructureValidated",
        SHARD if reason else "",
        why,
    )


def _zip_archive() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"a": 1}))
    return buffer.getvalue()


def _lookalikes() -> list[Case]:
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 90868376\n".encode()
    page = b"<!DOCTYPE html>\n<html><head><title>503 Service Unavailable</title></head></html>\n"
    s3 = b'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>NoSuchKey</Code></Error>'
    return [
        _case("file-lfs-pointer", "a Git LFS pointer", pointer, "GitLfsPointer"),
        _case("file-html", "an error page", page, "HtmlPage"),
        _case("file-html-bom", "an error page with a byte order mark", b"\xef\xbb\xbf\r\n" + page, "HtmlPage"),
        _case("file-html-upper", "an old error page", b"<HTML><BODY>404</BODY></HTML>", "HtmlPage"),
        _case("file-html-short", "a page shorter than a header's length", b"<html>", "HtmlPage"),
        _case("file-xml", "an object store's error", s3, "HtmlPage"),
        _case("file-json", "a hub's error", b'{"error":"Repository not found"}', "JsonText"),
        _case("file-json-indented", "an index in place of a shard", b'{\n  "weight_map": {}\n}', "JsonText"),
        _case("file-text", "an error as plain text", b"Entry not found, whatever you do", "HeaderTooLarge"),
        _case("file-zip", "a torch checkpoint, renamed", _zip_archive(), "OtherFormat"),
        _case("file-pickle", "an old torch checkpoint, renamed", pickle.dumps({"a": [0] * 9}), "OtherFormat"),
        _case("file-gzip", "compressed", gzip.compress(_GOOD, mtime=0), "OtherFormat"),
        _case("file-gzip-dated", "compressed, with a date", gzip.compress(_GOOD, mtime=1), "OtherFormat"),
        _case("file-zstd", "compressed by zstd", b"\x28\xb5\x2f\xfd" + _GOOD, "OtherFormat"),
        _case("file-gguf", "a GGUF file, renamed", b"GGUF\x03\0\0\0" + bytes(40), "OtherFormat"),
        _case("file-hdf5", "an HDF5 file, renamed", b"\x89HDF\r\n\x1a\n" + bytes(40), "OtherFormat"),
        _case("file-numpy", "a numpy array, renamed", b"\x93NUMPY\x01\0" + bytes(40), "OtherFormat"),
        _case("file-random", "random bytes", bytes(range(200, 40, -1)), "HeaderTooLarge"),
    ]


def _lengths() -> list[Case]:
    one = dump({"a": entry()})
    return [
        _case("length-0", "a header of no bytes", pack(b"", 4), "InvalidHeader"),
        _case("length-0-alone", "eight zeros and nothing else", bytes(8), "InvalidHeader"),
        _case("length-1", "a header of one byte", pack(one, 4, 1), "InvalidHeader"),
        _case("length-short", "a length one too small", pack(one, 4, len(one) - 1), "InvalidHeader"),
        _case("length-long", "a length one too large", pack(one, 4, len(one) + 1), "InvalidHeader"),
        _case("length-whole-file", "a length that takes all", pack(one, 4, len(one) + 4), "InvalidHeader"),
        _case("length-beyond", "a length one beyond the file", pack(one, 4, len(one) + 5), "Truncated"),
        _case("length-big-endian", "a length in the other byte order", len(one).to_bytes(8, "big") + one, "HeaderTooLarge"),
        *(
            _case(f"length-{name}", f"a length of {name}", pack(one, 4, length), "HeaderTooLarge")
            for name, length in {
                "100000001": _MAX_HEADER + 1, "2-32": 2**32, "2-40": 2**40, "2-63": 2**63, "2-64-minus-1": 2**64 - 1,
            }.items()
        ),
        Case("length-sparse", "100 MB of header in a file that was never written", _sparse_header, BAD, "InvalidHeader", SHARD),
        Case("length-100001-mb-sparse", "a byte above the bound, and the file is that long", _sparse_above, BAD, "HeaderTooLarge", SHARD),
    ]  # fmt: skip


def _sparse_header(folder: Path) -> None:
    (folder / SHARD).write_bytes((_MAX_HEADER - 8).to_bytes(8, "little") + b"{")
    os.truncate(folder / SHARD, 2 * _MAX_HEADER)


def _sparse_above(folder: Path) -> None:
    (folder / SHARD).write_bytes((_MAX_HEADER + 1).to_bytes(8, "little") + b"{")
    os.truncate(folder / SHARD, 2 * _MAX_HEADER)


def _cuts() -> list[Case]:
    with_brace = bytearray(_GOOD)
    with_brace[8] ^= 1
    digit = _GOOD.replace(b"[4]", b"[5]", 1)
    quote = _GOOD.replace(b'"a"', b'"a#', 1)
    dtype = _GOOD.replace(b'"U8"', b'"Q8"', 1)
    data = _GOOD[:-1] + bytes([_GOOD[-1] ^ 1])
    return [
        _case("cut-empty", "an empty file", b"", "HeaderTooSmall"),
        _case("cut-1", "one byte", _GOOD[:1], "HeaderTooSmall"),
        _case("cut-7", "seven bytes", _GOOD[:7], "HeaderTooSmall"),
        _case("cut-8", "a header's length and nothing else", _GOOD[:8], "Truncated"),
        _case("cut-9", "cut after the brace", _GOOD[:9], "Truncated"),
        _case("cut-in-header", "cut in the header", _GOOD[: _HEADER_END // 2], "Truncated"),
        _case("cut-before-data", "cut before the data", _GOOD[:_HEADER_END], "Truncated"),
        _case("cut-in-first", "cut in the first tensor", _GOOD[: _HEADER_END + 2], "Truncated"),
        _case("cut-after-first", "cut between two tensors", _GOOD[: _HEADER_END + 4], "Truncated"),
        _case("cut-last-byte", "the last byte is missing", _GOOD[:-1], "Truncated"),
        _case("cut-start", "the first byte is missing", _GOOD[1:], "HeaderTooLarge"),
        _case("cut-start-header", "resumed at the wrong place: data without a header", _GOOD[_HEADER_END:], "HeaderTooLarge"),
        _case("more-byte", "one byte more", _GOOD + b"\0", "TrailingBytes"),
        _case("more-twice", "written twice, one after the other", _GOOD + _GOOD, "TrailingBytes"),
        _case("flipped-length", "a bit of the length", bytes([_GOOD[0] ^ 1]) + _GOOD[1:], "InvalidHeader"),
        _case("flipped-brace", "a bit of the first brace", bytes(with_brace), "InvalidHeader"),
        _case("flipped-digit", "a bit of a digit", digit, "ShapeMismatch"),
        _case("flipped-quote", "a bit of a quotation mark", quote, "InvalidHeader"),
        _case("flipped-dtype", "a bit of a dtype", dtype, "InvalidTensor"),
        _case("flipped-data", "a bit of the data: only a hash can tell", data),
        _case("line-ends", "copied as text: CR LF for LF", good("a").replace(b",", b",\r\n"), "InvalidTensor"),
    ]  # fmt: skip


def _large(data_bytes: int = 4 * _MIB) -> tuple[bytes, int]:
    """The start of a file of two tensors of half of that size each, and its length."""
    half = data_bytes // 2
    start = pack({"a": entry(shape=[half], offsets=[0, half]), "b": entry(shape=[half], offsets=[half, 2 * half])}, 0)
    return start, len(start) + data_bytes


def _with_hole(begin: int, end: int) -> Callable[[Path], None]:
    """All of the data is written but for a range, in bytes from the start of the file."""

    def build(folder: Path) -> None:
        start, size = _large()
        with (folder / SHARD).open("wb") as file:
            file.write(start + b"\1" * (begin - len(start)))
            if end < size:
                file.seek(end)
                file.write(b"\1" * (size - end))
        os.truncate(folder / SHARD, size)

    return build


def _all_zeros(folder: Path) -> None:
    (folder / SHARD).write_bytes(bytes(_MIB))


def _all_hole(folder: Path) -> None:
    (folder / SHARD).touch()
    os.truncate(folder / SHARD, 8 * _MIB)


def _zero_weights(folder: Path) -> None:
    start, size = _large(_MIB)
    (folder / SHARD).write_bytes(start + bytes(size - len(start)))


def _preallocated(folder: Path) -> None:
    start, size = _large()
    with (folder / SHARD).open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, size)
        file.write(start)


def _holes() -> list[Case]:
    start, size = _large()
    return [
        Case("zeros-all", "zeros, of full size", _all_zeros, BAD, "ZerosForHeader", SHARD),
        Case("zeros-never-written", "of full size, never written", _all_hole, BAD, "ZerosForHeader", SHARD),
        Case("zeros-weights", "a header and zeros that were written", _zero_weights),
        Case("hole-all", "a header and nothing behind it", _with_hole(len(start), size), BAD, "HoleInFile", "tensor a", _HOLE),
        Case("hole-last", "the end was never written", _with_hole(3 * _MIB, size), BAD, "HoleInFile", "tensor b", _HOLE),
        Case("hole-midst", "a part of 1 MiB was never written", _with_hole(_MIB, 2 * _MIB), BAD, "HoleInFile", "tensor a", _HOLE),
        Case("hole-small", "a hole of 32 KiB, as sparse copies make them", _with_hole(_MIB, _MIB + 2**15)),
        Case("hole-preallocated", "room was made, then only the header written", _preallocated, BAD, "HoleInFile", "tensor a", _HOLE),
    ]  # fmt: skip


def _heavy() -> list[Case]:
    size = _MAX_HEADER - 100
    text = dump(entry(shape=[0], offsets=[0, 0]))

    def of(name: str, what: str, header: Callable[[], bytes], reason: str = "", why: str = "") -> Case:
        def build(folder: Path) -> None:
            (folder / SHARD).write_bytes(pack(header(), 0))

        return Case(
            name,
            what,
            build,
            BAD if reason else GOOD,
            reason or "StructureValidated",
            SHARD if reason else "",
            why,
            heavy=True,
        )

    return [
        of("heavy-100-mb", "a header of exactly 100,000,000 bytes", lambda: (b'{"a":%s}' % text).ljust(_MAX_HEADER)),
        of("heavy-numbers", "a shape of 50 million numbers", lambda: b'{"a":{"shape":[' + b"1," * (size // 2) + b"1]}}", "InvalidTensor"),
        of("heavy-deep", "100 million lists in lists", lambda: b'{"a":{"shape":' + b"[" * size + b"}}", "InvalidTensor"),
        of("heavy-name", "a name of 100 MB", lambda: b'{"' + b"k" * size + b'":%s}' % text, "InvalidHeader", _NO_BOUND),
        of("heavy-emoji", "100 MB of text with one emoji", lambda: b'{"\xf0\x9f\x98\x80":"' + b"k" * size + b'"}', "InvalidTensor"),
        of("heavy-metadata", "16 million values of metadata, then rubbish", lambda: b'{"__metadata__":{' + b'"":"",' * (size // 6) + b"}", "InvalidMetadata"),
        of("heavy-spaces", "100 MB of spaces", lambda: b"{" + b" " * size, "InvalidHeader"),
    ]  # fmt: skip


def list_cases() -> list[Case]:
    """All cases of this module."""
    return [*_lookalikes(), *_lengths(), *_cuts(), *_holes(), *_heavy()]
