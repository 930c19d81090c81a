"""The header reader against the safetensors library, for any bytes: never good where it says bad, and the same tensors.

Derandomised: the same examples each time. `make fuzz` looks further.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from modelweights_loader import checkpoint
from modelweights_loader.json_walk import Cursor, JsonError, check_utf8
from modelweights_loader.safetensors_header import DTYPE_BITS, Header
from tests.corpus import CASES
from tests.fuzz import judge as judging
from tests.fuzz.__main__ import run, write_seeds
from tests.fuzz.judge import DifferenceError, Judge
from tests.fuzz.mutation import mutate

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

bounded = settings(
    max_examples=500, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    """One for all examples."""
    made = Judge()
    yield made
    made.close()


def _pack(text: bytes, data_bytes: int) -> bytes:
    return len(text).to_bytes(8, "little") + text + b"\1" * data_bytes


_NAMES = st.one_of(st.sampled_from(["a", "b", "model.layers.0.weight"]), st.text(max_size=8)).filter(
    lambda name: name != "__metadata__" and name.isprintable()
)
_METADATA = st.dictionaries(st.text(max_size=5), st.text(max_size=20), max_size=3)


class Valid:
    """A valid file and what is in it."""

    def __init__(self, text: bytes, data_bytes: int, tensors: dict[str, tuple[str, tuple[int, ...], int, int]]) -> None:
        """Keeps them."""
        self.content = _pack(text, data_bytes)
        self.tensors = tensors

    def __repr__(self) -> str:
        """For hypothesis."""
        return repr(self.content)


@st.composite
def valid_files(draw: st.DrawFn) -> Valid:
    """Headers as any writer may have them: all types, any order of tensors and keys, escapes, white space, metadata."""
    tensors: dict[str, tuple[str, tuple[int, ...], int, int]] = {}
    position = 0
    for name in draw(st.lists(_NAMES, max_size=5, unique=True)):
        dtype = draw(st.sampled_from(sorted(DTYPE_BITS)))
        shape = draw(st.lists(st.integers(0, 4), max_size=4))
        bits = DTYPE_BITS[dtype]
        for dimension in shape:
            bits *= dimension
        if bits % 8:
            # Whole bytes: eight times as many of them.
            shape, bits = [*shape, 8], bits * 8
        tensors[name] = (dtype, tuple(shape), position, position + bits // 8)
        position += bits // 8
    members: list[tuple[str, Any]] = []
    for name, (dtype, listed, begin, end) in tensors.items():
        entry = {"dtype": dtype, "shape": listed, "data_offsets": [begin, end]}
        members.append((name, {key: entry[key] for key in draw(st.permutations(list(entry)))}))
    if draw(st.booleans()):
        members.append(("__metadata__", draw(_METADATA)))
    text = json.dumps(
        dict(draw(st.permutations(members))),
        ensure_ascii=draw(st.booleans()),
        indent=draw(st.sampled_from([None, None, 1, "\t"])),
        separators=draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,\r\n", "\t:\n")])),
    )
    return Valid(text.encode() + draw(st.sampled_from([b"", b" ", b" " * 7, b"\n"])), position, tensors)


@bounded
@given(valid_files())
def test_what_is_valid_is_good_with_the_same_tensors(judge: Judge, file: Valid) -> None:
    header = judge.compare(file.content)
    assert header is not None
    found = {name: (info.dtype, info.shape, info.begin, info.end) for name, info in header.tensors.items()}
    assert file.tensors == found


@bounded
@given(valid_files(), st.integers(0, 2**32), st.integers(1, 4))
def test_never_good_after_changes_of_structure(judge: Judge, file: Valid, seed: int, times: int) -> None:
    content = file.content
    for number in range(times):
        content = mutate(content, seed + number, 8192)
    judge.compare(content)


@bounded
@given(valid_files(), st.lists(st.tuples(st.integers(0, 10**6), st.binary(max_size=2), st.integers(0, 2)), min_size=1))
def test_never_good_after_changes_of_bytes(judge: Judge, file: Valid, changes: list[tuple[int, bytes, int]]) -> None:
    content = bytearray(file.content)
    for where, piece, deleted in changes:
        at = where % (len(content) + 1)
        content[at : at + deleted] = piece
    judge.compare(bytes(content))


@bounded
@given(st.binary(max_size=200), st.integers(0, 8))
def test_never_good_on_any_bytes(judge: Judge, text: bytes, data_bytes: int) -> None:
    judge.compare(_pack(b"{" + text, data_bytes))
    judge.compare(text)


_VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-(2**65), 2**65), st.floats(), st.text(max_size=4),
        st.sampled_from([0, 4, 8, "U8", "F4"]),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)),
    max_leaves=6,
)  # fmt: skip
_WILD_ENTRIES = st.fixed_dictionaries(
    {}, optional={"dtype": _VALUES, "shape": _VALUES, "data_offsets": _VALUES, "x": _VALUES}
)


@bounded
@given(st.dictionaries(st.sampled_from(["a", "b", "__metadata__", ""]), st.one_of(_WILD_ENTRIES, _VALUES), max_size=3))
def test_never_good_on_wild_values(judge: Judge, entries: dict[str, Any]) -> None:
    for data_bytes in (0, 4):
        judge.compare(_pack(json.dumps(entries).encode("utf-8", "surrogatepass"), data_bytes))


@bounded
@given(st.dictionaries(st.text(max_size=5), st.text(max_size=5)), _METADATA, st.sampled_from([None, 2]))
def test_an_index_says_what_any_parser_says(
    weight_map: dict[str, str], metadata: dict[str, str], indent: int | None
) -> None:
    index = {"metadata": {"total_size": 1, "x": [1.5, {}], **metadata}, "weight_map": weight_map}
    text = json.dumps(index, ensure_ascii=indent is None, indent=indent).encode()
    assert weight_map == checkpoint._parse_index(text)


@bounded
@given(
    st.dictionaries(st.text(max_size=3), st.text(max_size=3), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 10**6), st.binary(max_size=2), st.integers(0, 2)), min_size=1, max_size=4),
)
def test_an_index_is_never_good_where_a_parser_says_bad(
    weight_map: dict[str, str], changes: list[tuple[int, bytes, int]]
) -> None:
    text = bytearray(json.dumps({"metadata": {}, "weight_map": weight_map}).encode())
    for where, piece, deleted in changes:
        at = where % (len(text) + 1)
        text[at : at + deleted] = piece
    try:
        found = checkpoint._parse_index(bytes(text))
    except (ValueError, RecursionError):
        return
    assert found == json.loads(bytes(text).decode()).get("weight_map")


@bounded
@given(st.binary(max_size=40))
def test_strings_are_passed_over_as_they_are_taken(text: bytes) -> None:
    """Long strings, which nobody decodes, are as strictly looked at as short ones, and both as by the standard library."""
    quoted = b'{"' + text + b'":"' + text + b'"}'
    outcomes: list[object] = []
    for pass_over in (True, False):
        try:
            check_utf8(quoted)
            cursor = Cursor(quoted)
            if pass_over:
                cursor.skip_string_pairs()
            else:
                pairs = list(cursor.string_pairs())
            cursor.expect_end()
        except JsonError:
            outcomes.append(None)
        else:
            outcomes.append("taken")
    assert outcomes[0] == outcomes[1]
    if outcomes[0]:
        assert list(json.loads(quoted.decode()).items()) == pairs[-1:]


def test_the_judge_notices_a_reader_that_lets_too_much_pass(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "read_header", lambda _path, _shown: Header({}, 8, 8))
    with pytest.raises(DifferenceError, match="good here"):
        judge.compare(b"\0" * 8)
    with pytest.raises(DifferenceError, match="good in both"):
        judge.compare(_pack(b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', 1))


def test_fuzzing_runs_and_finds_no_difference(tmp_path: Path) -> None:
    """For two seconds, so that the harness can't rot; `make fuzz` takes ten minutes."""
    result = run(2, 1, tmp_path / "findings")
    assert result.executions > 100
    assert not result.found, result.log[-2000:]


def test_changes_are_the_same_for_the_same_seed_and_often_good(judge: Judge, tmp_path: Path) -> None:
    assert write_seeds(tmp_path) > len(CASES) // 2
    content = (tmp_path / "json-padded").read_bytes()
    changed = [mutate(content, seed, 4096) for seed in range(300)]
    assert changed == [mutate(content, seed, 4096) for seed in range(300)]
    assert sum(judge.compare(one) is not None for one in changed) > 20
