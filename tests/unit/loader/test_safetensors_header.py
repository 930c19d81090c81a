"""The header reader: each rule has its reason, and it is bounded whatever a file says. See test_header_properties too."""

from __future__ import annotations

import json
import os
import tempfile
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from safetensors import SafetensorError, deserialize

from modelweights_loader import file_systems
from modelweights_loader.errors import BadCheckpointError, LoaderError
from modelweights_loader.holes import MIN_HOLE_BYTES, find_hole
from modelweights_loader.safetensors_header import DTYPE_BITS, MAX_TENSORS, Header, parse_header, read_header
from tests.checkpoints.writer import write_raw

if TYPE_CHECKING:
    from collections.abc import Callable


def _tensor(dtype: str = "F32", shape: Any = (1,), offsets: Any = (0, 4), **more: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets), **more}


# The library ships no types.
_deserialize: Callable[[bytes], list[tuple[str, dict[str, Any]]]] = deserialize


def _library_accepts(content: bytes) -> bool:
    try:
        _deserialize(content)
    except SafetensorError:
        return False
    return True


def _parse(text: bytes, data_bytes: int) -> Header | None:
    try:
        return parse_header(text, 8 + len(text), 8 + len(text) + data_bytes, "file")
    except BadCheckpointError:
        return None


@pytest.mark.parametrize(
    ("header", "data", "reason"),
    [
        (b"", b"", "InvalidHeader"),
        (b"[]", b"", "InvalidHeader"),
        (b" {}", b"", "InvalidHeader"),
        (b"{", b"", "InvalidHeader"),
        (b"{}\0", b"", "InvalidHeader"),
        (b'{"a":' + b"[" * 100_000, b"", "InvalidTensor"),
        (b'{"a":{"shape":' + b"[" * 60_000 + b"}}", b"", "InvalidHeader"),
        (b'{"\xff":1}', b"", "InvalidHeader"),
        (b'{"__metadata__":[]}', b"", "InvalidMetadata"),
        (b'{"__metadata__":{"a":1}}', b"", "InvalidMetadata"),
        (b'{"__metadata__":{"a":null}}', b"", "InvalidMetadata"),
        (b"{}", b"xxxx", "TrailingBytes"),
        (json.dumps({"a": _tensor()}).encode(), b"xxxxx", "TrailingBytes"),
        (json.dumps({"a": _tensor()}).encode(), b"xxx", "Truncated"),
        (json.dumps({"a": _tensor(dtype="F31")}).encode(), b"xxxx", "InvalidTensor"),
        (json.dumps({"a": _tensor(shape=[2])}).encode(), b"xxxx", "ShapeMismatch"),
        (json.dumps({"a": _tensor(shape=[True])}).encode(), b"xxxx", "InvalidTensor"),
        (json.dumps({"a": _tensor(shape=[1.0])}).encode(), b"xxxx", "InvalidHeader"),
        (json.dumps({"a": _tensor(shape=[-1])}).encode(), b"xxxx", "InvalidTensor"),
        (json.dumps({"a": _tensor(shape=[2**63, 4, 0], offsets=[0, 0])}).encode(), b"", "ShapeMismatch"),
        (json.dumps({"a": _tensor(shape=[10**30])}).encode(), b"xxxx", "InvalidTensor"),
        (json.dumps({"a": _tensor(offsets=[0])}).encode(), b"xxxx", "InvalidTensor"),
        (json.dumps({"a": _tensor(offsets=[4, 0])}).encode(), b"xxxx", "ShapeMismatch"),
        (json.dumps({"a": _tensor(offsets=[4, 8])}).encode(), b"xxxxxxxx", "HoleInData"),
        (json.dumps({"a": _tensor(), "b": _tensor(offsets=[2, 6])}).encode(), b"xxxxxx", "OverlappingTensors"),
        (json.dumps({"a": _tensor(extra=1)}).encode(), b"xxxx", "InvalidTensor"),
        (json.dumps({"a": _tensor("F4", [3], [0, 2])}).encode(), b"xx", "ShapeMismatch"),
        (b'{"a":%s,"a":%s}' % ((json.dumps(_tensor()).encode(),) * 2), b"xxxx", "InvalidHeader"),
        (b'{"\\ud800":%s}' % json.dumps(_tensor()).encode(), b"xxxx", "InvalidHeader"),
    ],
)
def test_each_broken_rule_has_its_reason(tmp_path: Path, header: bytes, data: bytes, reason: str) -> None:
    write_raw(tmp_path / "bad.safetensors", header, data)
    with pytest.raises(BadCheckpointError) as caught:
        read_header(str(tmp_path / "bad.safetensors"))
    assert reason == caught.value.reason
    assert "bad.safetensors" in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("last", "reason"),
    [
        (b'"c":{"dtype":"U8","shape":[4],"data_offsets":[8,12]}', None),
        (b'"c" : {"dtype":"U8","shape":[4],"data_offsets":[ 8 , 12 ] }', None),
        (b'"c":{"data_offsets":[8,12],"dtype":"U8","shape":[4]}', None),
        (b'"\\u0063":{"dtype":"U8","shape":[4],"data_offsets":[8,12]}', None),
        (b'"__metadata__":{"a":"b"},"c":{"dtype":"U8","shape":[4],"data_offsets":[8,12]}', None),
        (b'"b":{"dtype":"U8","shape":[4],"data_offsets":[8,12]}', "InvalidHeader"),
        (b'"c":{"dtype":"U8","shape":[4],"data_offsets":[8,12]}]', "InvalidHeader"),
        (b'"c":{"dtype":"U8","shape":[4],"data_offsets":[8,12]},', "InvalidHeader"),
        (b',"c":{"dtype":"U8","shape":[4],"data_offsets":[8,12]}', "InvalidHeader"),
        (b'"c":{"dtype":"U8","shape":[4],"data_offsets":[08,12]}', "InvalidHeader"),
        (b'"c":{"dtype":"U8","shape":[4],"data_offsets":[8.0,12]}', "InvalidHeader"),
        (b'"c":{"dtype":"U8","shape":[4],"data_offsets":[-8,12]}', "InvalidTensor"),
        (b'"c":{"dtype":"U8","shape":[4],"data_offsets":[8,12,12]}', "InvalidTensor"),
        (b'"c":{"dtype":"U8","shape":[4],"data_offsets":[8,12],"x":[8,12]}', "InvalidTensor"),
        (b'"c":{"dtype":"U8","shape":[4],"data_offsets":[18446744073709551616,18446744073709551620]}', "InvalidTensor"),
        (b'"__metadata__":{"dtype":"U8","shape":[4],"data_offsets":[8,12]}', "InvalidMetadata"),
        (b'"c":{"dtype":"U8","shape":[4],"data_offsets":[8,13]}', "ShapeMismatch"),
        (b'"c":{"dtype":"U8","shape":[4],"data_offsets":[12,8]}', "ShapeMismatch"),
        (b'"c":{"dtype":"U8","shape":[4],"data_offsets":[9,13]}', "HoleInData"),
        (b'"c":{"dtype":"U8","shape":[4],"data_offsets":[7,11]}', "OverlappingTensors"),
        (b'"c":{"dtype":"U8","shape":[4],"data_offsets":[8,12]},"d":{"dtype":"U8","shape":[4],"data_offsets":[12,16]}',
         "Truncated"),
    ],
)  # fmt: skip
def test_tensors_after_others_of_their_kind_are_looked_at_as_closely(last: bytes, reason: str | None) -> None:
    entry = b'"%s":{"dtype":"U8","shape":[4],"data_offsets":[%d,%d]},'
    text = b"{" + entry % (b"a", 0, 4) + entry % (b"b", 4, 8) + last + b"}"
    if reason is None:
        assert _library_accepts(len(text).to_bytes(8, "little") + text + bytes(12))
        header = parse_header(text, 8 + len(text), 8 + len(text) + 12, "file")
        assert ("U8", (4,), 8, 12) == header.tensors["c"]
        return
    with pytest.raises(BadCheckpointError) as caught:
        parse_header(text, 8 + len(text), 8 + len(text) + 12, "file")
    assert reason == caught.value.reason


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "HeaderTooSmall"),
        (b"1234567", "HeaderTooSmall"),
        ((2**40).to_bytes(8, "little") + b"{}", "HeaderTooLarge"),
        ((2**64 - 1).to_bytes(8, "little") + b"{}", "HeaderTooLarge"),
        ((99_999_999).to_bytes(8, "little") + b"{}", "Truncated"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "GitLfsPointer"),
        (b"\n<!DOCTYPE html><html></html>", "HtmlPage"),
        (b"<HTML>404</HTML>", "HtmlPage"),
        (b'<?xml version="1.0"?><Error/>', "HtmlPage"),
    ],
)
def test_what_lies_in_place_of_a_shard_is_named(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "bad.safetensors").write_bytes(content)
    with pytest.raises(BadCheckpointError) as caught:
        read_header(str(tmp_path / "bad.safetensors"))
    assert reason == caught.value.reason


def test_nothing_is_allocated_on_the_files_word(tmp_path: Path) -> None:
    path = tmp_path / "sparse.safetensors"
    write_raw(path, b"x", length=99_000_000)
    os.truncate(path, 200_000_000)
    tracemalloc.start()
    with pytest.raises(BadCheckpointError):
        read_header(str(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000


def test_a_fifo_in_place_of_a_shard_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(LoaderError) as caught:
        read_header(str(tmp_path / "fifo"))
    assert caught.value.reason == "NotARegularFile"


@pytest.mark.parametrize("dtype", sorted(DTYPE_BITS))
def test_every_dtype_of_the_format_is_read_whatever_torch_has(dtype: str) -> None:
    data_bytes = DTYPE_BITS[dtype]
    text = json.dumps({"a": _tensor(dtype, [2, 4], [0, data_bytes])}).encode()
    assert _library_accepts(len(text).to_bytes(8, "little") + text + bytes(data_bytes))
    header = _parse(text, data_bytes)
    assert header is not None
    assert (dtype, (2, 4), 0, data_bytes) == header.tensors["a"]


@pytest.mark.parametrize("parent", ["/var/tmp", "/dev/shm"])  # noqa: S108 - a disk and a tmpfs
@pytest.mark.parametrize("hole_bytes", [0, MIN_HOLE_BYTES // 2, MIN_HOLE_BYTES, 2**21])
@pytest.mark.parametrize("at_end", [False, True])
def test_a_hole_of_some_size_is_named_and_zeros_are_not(parent: str, hole_bytes: int, at_end: bool) -> None:  # noqa: FBT001 - a row
    size = 2**22
    text = (
        json.dumps({"a": _tensor("U8", [4096], [0, 4096]), "b": _tensor("U8", [size], [4096, 4096 + size])})
        .encode()
        .ljust(4088)
    )
    with tempfile.TemporaryDirectory(dir=parent) as folder:
        path = Path(folder) / "model.safetensors"
        with path.open("wb") as file:
            # Zeros that are written are no hole, whether they have reached the disk or not.
            file.write(len(text).to_bytes(8, "little") + text + bytes(4096))
            if not at_end:
                file.seek(hole_bytes, os.SEEK_CUR)
            file.write(bytes(size - hole_bytes))
            file.truncate(8192 + size)
        if hole_bytes < MIN_HOLE_BYTES:
            assert read_header(str(path)).tensors.keys() == {"a", "b"}
            return
        with pytest.raises(BadCheckpointError, match=r"tensor b was never written .* --sparse=never") as caught:
            read_header(str(path))
        assert caught.value.reason == "HoleInFile"


def test_a_file_system_without_holes_or_with_those_of_others_is_believed_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "hole"
    path.touch()
    os.truncate(path, 2**21)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        assert find_hole(descriptor, 0, 2**21) == (0, 2**21)
        monkeypatch.setattr(file_systems, "detect_open", lambda _descriptor: file_systems.FileSystem("zfs", "/"))
        assert find_hole(descriptor, 0, 2**21) is None
        monkeypatch.setattr(os, "SEEK_HOLE", 99)
        assert find_hole(descriptor, 0, 2**21) is None
    finally:
        os.close(descriptor)


def test_a_million_tensors_are_the_bound() -> None:
    entry = json.dumps(_tensor("U8", [0], [0, 0]), separators=(",", ":")).encode()
    text = b"{" + b",".join(b'"%x":%s' % (number, entry) for number in range(MAX_TENSORS + 1)) + b"}"
    with pytest.raises(BadCheckpointError) as caught:
        parse_header(text, 8 + len(text), 8 + len(text), "file")
    assert caught.value.reason == "HeaderTooLarge"
