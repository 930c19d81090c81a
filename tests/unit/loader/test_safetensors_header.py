"""The header reader: never good where the safetensors library says bad, and bounded whatever a file says."""

from __future__ import annotations

import json
import os
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, deserialize

from modelweights_loader.errors import BadCheckpointError, LoaderError
from modelweights_loader.safetensors_header import DTYPE_BITS, Header, parse_header, read_header
from tests.checkpoints.writer import write_raw

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


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


_NUMBERS = st.one_of(
    st.integers(0, 12), st.sampled_from([-1, 2**32, 2**63, 2**64 - 1, 2**64, 1.0, 1e400, True, None, "1"])
)
_NAMES = st.one_of(st.sampled_from(["a", "b", "", "__metadata__", "é", "\ud800"]), st.text(max_size=3))
_ENTRIES = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from([*sorted(DTYPE_BITS), "F31", 1]),
        "shape": st.lists(_NUMBERS, max_size=3),
        "data_offsets": st.lists(_NUMBERS, min_size=1, max_size=3),
    },
    optional={"extra": _NUMBERS},
)


@st.composite
def _nearly_valid(draw: st.DrawFn) -> tuple[bytes, int]:
    """Headers whose tensors fit, most of them, so that both readers get to their deeper rules."""
    entries: dict[str, Any] = {}
    position = 0
    for name in draw(st.lists(_NAMES, max_size=4, unique=True)):
        dtype = draw(st.sampled_from(["U8", "F32", "F4", "BF16", "C64"]))
        shape = draw(st.lists(st.integers(0, 4), max_size=3))
        size = DTYPE_BITS[dtype]
        for dimension in shape:
            size *= dimension
        size //= 8
        slip = draw(st.sampled_from([0, 0, 0, 0, 1, -1]))
        entries[name] = _tensor(dtype, shape, [max(position + slip, 0), position + size])
        position += size
    text = json.dumps(entries, ensure_ascii=draw(st.booleans())).encode("utf-8", "surrogatepass")
    return text + b" " * draw(st.integers(0, 2)), position + draw(st.sampled_from([0, 0, 0, 1]))


def _check_against_library(text: bytes, data_bytes: int) -> None:
    header = _parse(text, data_bytes)
    if header is None:
        return
    content = len(text).to_bytes(8, "little") + text + bytes(data_bytes)
    assert _library_accepts(content)
    found = {name: (item["dtype"], tuple(item["shape"])) for name, item in _deserialize(content)}
    assert found == {name: (item.dtype, item.shape) for name, item in header.tensors.items()}


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(_nearly_valid())
def test_never_good_where_the_library_says_bad(case: tuple[bytes, int]) -> None:
    text, data_bytes = case
    if text.startswith(b"{"):
        _check_against_library(text, data_bytes)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(_NAMES, st.one_of(_ENTRIES, st.none(), st.lists(_NUMBERS, max_size=2)), max_size=3))
def test_never_good_on_wild_values(entries: dict[str, Any]) -> None:
    text = json.dumps(entries).encode()
    for data_bytes in (0, 4, 8):
        _check_against_library(text, data_bytes)


@settings(max_examples=400, deadline=None)
@given(st.integers(0, 10**6), st.binary(min_size=1, max_size=1), st.sampled_from(["replace", "insert", "delete"]))
def test_never_good_after_any_change_of_one_byte(where: int, byte: bytes, how: str) -> None:
    text = json.dumps({"__metadata__": {"format": "pt"}, "a": _tensor(), "b": _tensor("U8", [2, 2], [4, 8])}).encode()
    at = where % len(text)
    changed = text[:at] + (b"" if how == "delete" else byte) + text[at + (how != "insert") :]
    if changed.startswith(b"{"):
        _check_against_library(changed, 8)
