"""Cases of one shard whose header is odd: its types, numbers, names, offsets and JSON."""

from __future__ import annotations

from typing import Any

from tests.corpus.case import BAD, GOOD, Case, dump, entry, pack, shard

DTYPE_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "I64": 64, "U64": 64, "F64": 64, "C64": 64,
}  # fmt: skip

_ONE = dump({"a": entry()})
_TWO = {"a": entry(), "b": entry(offsets=[4, 8])}
_FORMAT = "the format's description does not have it, and other readers disagree about it"
_NO_BOUND = "a tensor's description may take 64 KiB, so that a hostile header can't take gigabytes to parse"


def _case(name: str, what: str, header: Any, data: int = 4, reason: str = "", why: str = "", says: str = "") -> Case:
    exit_code = BAD if reason else GOOD
    return Case(
        name,
        what,
        shard(pack(header, data)),
        exit_code,
        reason or "StructureValidated",
        says or ("m" if reason else ""),
        why,
    )


def _dtypes() -> list[Case]:
    cases = []
    for dtype, bits in DTYPE_BITS.items():
        low = dtype.lower().replace("_", "-")
        fits, size = entry(dtype, [2, 4], [0, bits]), bits
        cases.append(_case(f"dtype-{low}", f"a tensor of {dtype}", {"a": fits}, size))
        longer = entry(dtype, [2, 4], [0, size + 1])
        cases.append(
            _case(f"dtype-{low}-wrong-size", f"{dtype}, a byte too many", {"a": longer}, size + 1, "ShapeMismatch")
        )
    strange: dict[str, Any] = {
        "unknown": "F31", "lower-case": "f32", "torch-name": "bfloat16", "with-space": "U8 ", "empty": "", "null": None,
        "number": 8, "list": ["U8"],
    }  # fmt: skip
    return [
        *cases,
        *(
            _case(f"dtype-{name}", f"dtype {value!r}", {"a": entry(value)}, 4, "InvalidTensor")
            for name, value in strange.items()
        ),
        _case("dtype-object", "dtype as an object", {"a": entry({"U8": None})}, 4, "InvalidTensor", _FORMAT),
        _case("dtype-f4-odd", "three numbers of four bits", {"a": entry("F4", [3], [0, 2])}, 2, "ShapeMismatch"),
        _case("dtype-f6-odd", "two numbers of six bits", {"a": entry("F6_E3M2", [2], [0, 2])}, 2, "ShapeMismatch"),
        _case("dtype-f6-even", "four numbers of six bits", {"a": entry("F6_E3M2", [4], [0, 3])}, 3),
        _case("dtype-f4-scalar", "half a byte", {"a": entry("F4", [], [0, 1])}, 1, "ShapeMismatch"),
    ]


def _numbers() -> list[Case]:
    """The number stands for the shape's 4, as text, since no library writes it."""
    cases = []
    for name, text, reason in (
        ("minus-zero", "-0", "InvalidTensor"),
        ("negative", "-4", "InvalidTensor"),
        ("point", "4.0", "InvalidHeader"),
        ("exponent", "4e0", "InvalidHeader"),
        ("nan", "NaN", "InvalidHeader"),
        ("infinity", "Infinity", "InvalidHeader"),
        ("minus-infinity", "-Infinity", "InvalidHeader"),
        ("leading-zero", "04", "InvalidHeader"),
        ("plus", "+4", "InvalidHeader"),
        ("hexadecimal", "0x4", "InvalidHeader"),
        ("underscore", "4_0", "InvalidHeader"),
        ("true", "true", "InvalidTensor"),
        ("python-true", "True", "InvalidHeader"),
        ("null", "null", "InvalidTensor"),
        ("string", '"4"', "InvalidTensor"),
        ("list", "[4]", "InvalidTensor"),
        ("two-to-the-64", str(2**64), "InvalidTensor"),
        ("huge", "9" * 1000, "InvalidTensor"),
        ("endless", "9" * 60_000, "InvalidHeader"),
        ("arabic-digit", "\u0664", "InvalidHeader"),
    ):
        text_of = f'{{"a":{{"dtype":"U8","shape":[{text}],"data_offsets":[0,4]}}}}'
        cases.append(_case(f"number-{name}", f"a shape with {text[:20]}", text_of, 4, reason))
        if name in {"minus-zero", "point", "string", "two-to-the-64"}:
            text_of = f'{{"a":{{"dtype":"U8","shape":[4],"data_offsets":[{text},4]}}}}'
            cases.append(_case(f"offset-{name}", f"offsets with {text[:20]}", text_of, 4, reason))
    return cases


def _shapes() -> list[Case]:
    def of(shape: Any, offsets: Any = (0, 4), dtype: str = "U8") -> dict[str, Any]:
        return {"a": entry(dtype, shape, offsets)}

    return [
        _case("shape-scalar", "a scalar: shape []", of([], [0, 1]), 1),
        _case("shape-zero", "a tensor of no elements", of([0], [0, 0]), 0),
        _case("shape-zero-among", "shape [3, 0, 2]", of([3, 0, 2], [0, 0]), 0),
        _case("shape-ones", "64 dimensions of 1, as many as torch takes", of([1] * 64, [0, 1]), 1),
        _case("shape-65-ones", "65 dimensions, more than torch takes", of([1] * 65, [0, 1]), 1),
        _case("shape-20000-ones", "20,000 dimensions", of([1] * 20_000, [0, 1]), 1),
        _case("shape-60000-ones", "60,000 dimensions", of([1] * 60_000, [0, 1]), 1, "InvalidTensor", _NO_BOUND),
        _case("shape-null", "no shape but null", of(None), 4, "InvalidTensor"),
        _case("shape-object", "a shape {}", of({}), 4, "InvalidTensor"),
        _case("shape-string", "a shape '4'", of("4"), 4, "InvalidTensor"),
        _case("shape-number", "a shape 4", of(4), 4, "InvalidTensor"),
        _case("shape-nested", "a shape [[4]]", of([[4]]), 4, "InvalidTensor"),
        _case("shape-too-large", "a shape for more bytes", of([5]), 4, "ShapeMismatch"),
        _case("shape-too-small", "a shape for fewer bytes", of([3]), 4, "ShapeMismatch"),
        _case("shape-overflow", "2^32 times 2^32 times 1", of([2**32, 2**32, 1]), 4, "ShapeMismatch"),
        _case(
            "shape-overflow-to-fit",
            "2^62 times 4 plus nothing is 0 in 64 bits",
            of([2**62, 4], [0, 0]),
            0,
            "ShapeMismatch",
        ),
        _case("shape-overflow-then-zero", "2^63 times 4 times 0", of([2**63, 4, 0], [0, 0]), 0, "ShapeMismatch"),
        _case("shape-zero-then-huge", "0 times 2^63 times 4", of([0, 2**63, 4], [0, 0]), 0),
        _case("shape-bits-overflow", "2^61 bytes are 2^64 bits", of([2**61]), 4, "ShapeMismatch"),
        _case("shape-bits-overflow-f32", "2^60 of F32", of([2**60], [0, 4], "F32"), 4, "ShapeMismatch"),
    ]


def _offsets() -> list[Case]:
    def two(first: Any, second: Any) -> dict[str, Any]:
        return {"a": first, "b": second}

    empty = entry(shape=[0], offsets=[0, 0])
    return [
        _case("offsets-swapped", "end before begin", {"a": entry(offsets=[4, 0])}, 4, "ShapeMismatch"),
        _case("offsets-swapped-empty", "end before begin, no elements", {"a": entry(shape=[0], offsets=[4, 0])}, 4, "ShapeMismatch"),
        _case("offsets-overlap", "the second begins two bytes early", two(entry(), entry(offsets=[2, 6])), 6, "OverlappingTensors"),
        _case("offsets-same", "two tensors of the same bytes", two(entry(), entry()), 4, "OverlappingTensors"),
        _case("offsets-hole-first", "nothing says what the first bytes are", {"a": entry(offsets=[4, 8])}, 8, "HoleInData"),
        _case("offsets-hole-between", "a gap between two tensors", two(entry(), entry(offsets=[6, 10])), 10, "HoleInData"),
        _case("offsets-trailing", "one byte after the last tensor", {"a": entry()}, 5, "TrailingBytes"),
        _case("offsets-trailing-empty", "no tensor, but data", {}, 4, "TrailingBytes"),
        _case("offsets-short", "one byte is missing", {"a": entry()}, 3, "Truncated"),
        _case("offsets-no-data", "all data is missing", {"a": entry()}, 0, "Truncated"),
        _case("offsets-far", "far beyond the end", {"a": entry(shape=[2**50], offsets=[0, 2**50])}, 4, "Truncated"),
        _case("offsets-three", "three offsets", {"a": entry(offsets=[0, 4, 8])}, 4, "InvalidTensor"),
        _case("offsets-one", "one offset", {"a": entry(offsets=[4])}, 4, "InvalidTensor"),
        _case("offsets-none", "no offsets", {"a": entry(offsets=[])}, 4, "InvalidTensor"),
        _case("offsets-object", "offsets as an object", {"a": entry(offsets={"0": 4})}, 4, "InvalidTensor"),
        _case("offsets-other-order", "the header lists them last to first", {"b": _TWO["b"], "a": _TWO["a"]}, 8),
        _case("offsets-empty-first", "an empty tensor, then one that shares its offset", two(empty, entry()), 4),
        _case("offsets-empty-after", "an empty tensor listed after one that shares its offset", two(entry(), empty), 4),
        _case("offsets-empty-at-end", "an empty tensor at the end", two(entry(), entry(shape=[0], offsets=[4, 4])), 4),
        _case("offsets-empty-within", "an empty tensor in the midst of another", two(entry(), entry(shape=[0], offsets=[2, 2])), 4, "OverlappingTensors"),
        _case("offsets-empty-beyond", "an empty tensor after the end", two(entry(), entry(shape=[0], offsets=[9, 9])), 4, "HoleInData"),
        _case("offsets-many-empty", "three empty tensors and nothing else", dict.fromkeys("abc", empty), 0),
    ]  # fmt: skip


def _entries() -> list[Case]:
    twice = '{"a":{"dtype":"U8","dtype":"U8","shape":[4],"data_offsets":[0,4]}}'
    escaped = r'{"a":{"\u0064type":"\u00558","sh\u0061pe":[4],"data_offsets":[0,4]}}'
    brace = r'{"a":{"dtype":"}","shape":[4],"data_offsets":[0,4]}}'
    padded = '{"a":{' + " " * 70_000 + '"dtype":"U8","shape":[4],"data_offsets":[0,4]}}'
    deep = '{"a":{"dtype":"U8","shape":' + "[" * 20_000 + "]" * 20_000 + ',"data_offsets":[0,4]}}'
    return [
        _case("entry-null", "null in place of a tensor's description", {"a": None}, 0, "InvalidTensor"),
        _case("entry-string", "a string in place of it", {"a": "U8"}, 0, "InvalidTensor"),
        _case("entry-empty", "an empty description", {"a": {}}, 0, "InvalidTensor"),
        _case("entry-list", "its values as a list", {"a": ["U8", [4], [0, 4]]}, 4, "InvalidTensor", _FORMAT),
        _case("entry-no-dtype", "no dtype", {"a": {"shape": [4], "data_offsets": [0, 4]}}, 4, "InvalidTensor"),
        _case("entry-no-shape", "no shape", {"a": {"dtype": "U8", "data_offsets": [0, 4]}}, 4, "InvalidTensor"),
        _case("entry-no-offsets", "no data_offsets", {"a": {"dtype": "U8", "shape": [4]}}, 4, "InvalidTensor"),
        _case("entry-unknown-key", "a fourth key", {"a": entry(device="cpu")}, 4, "InvalidTensor", _FORMAT),
        _case("entry-unknown-object", "a fourth key with an object", {"a": entry(x={"y": 1})}, 4, "InvalidTensor", _FORMAT),
        _case("entry-key-case", "DTYPE for dtype", {"a": {"DTYPE": "U8", "shape": [4], "data_offsets": [0, 4]}}, 4, "InvalidTensor"),
        _case("entry-key-twice", "dtype twice", twice, 4, "InvalidTensor"),
        _case("entry-escaped", "keys and dtype with escapes", escaped, 4),
        _case("entry-brace-in-string", "a brace in the dtype", brace, 4, "InvalidHeader"),
        _case("entry-padded", "70,000 spaces in a description", padded, 4, "InvalidTensor", _NO_BOUND),
        _case("entry-deep", "20,000 lists in lists as a shape", deep, 4, "InvalidHeader"),
        _case("entry-deep-unclosed", "100,000 lists that are never closed", '{"a":' + "[" * 100_000, 0, "InvalidTensor"),
        _case("entry-nested", "tensors grouped in an object", {"layer": {"a": entry()}}, 4, "InvalidTensor"),
    ]  # fmt: skip


def _names() -> list[Case]:
    text = dump(entry()).decode()
    second = dump(entry(offsets=[4, 8])).decode()
    same = "two descriptions of one name: the library takes the last, others the first"
    return [
        _case("name-empty", "a tensor without a name", {"": entry()}),
        _case("name-spaces", "a name of spaces", {"  ": entry()}),
        _case("name-path", "a name like a path", {"../../etc/passwd": entry()}),
        _case("name-emoji", "a name with an emoji", f'{{"\U0001f600":{text}}}'),
        _case("name-escaped-pair", "an emoji as an escaped pair", f'{{"\\ud83d\\ude00":{text}}}'),
        _case("name-half-pair", "half of a pair", f'{{"\\ud83d":{text}}}', 4, "InvalidHeader"),
        _case("name-low-half-pair", "the lower half", f'{{"\\ude00":{text}}}', 4, "InvalidHeader"),
        _case("name-pair-swapped", "the halves in the wrong order", f'{{"\\ude00\\ud83d":{text}}}', 4, "InvalidHeader"),
        _case("name-escaped-nul", "a zero byte by escape", f'{{"\\u0000":{text}}}'),
        _case("name-nul", "a zero byte", b'{"\0":%s}' % text.encode(), 4, "InvalidHeader"),
        _case("name-tab", "a tab that is not escaped", f'{{"\t":{text}}}', 4, "InvalidHeader"),
        _case("name-bad-escape", r"an escape \x41", f'{{"\\x41":{text}}}', 4, "InvalidHeader"),
        _case("name-short-escape", r"an escape \u41", f'{{"\\u41":{text}}}', 4, "InvalidHeader"),
        _case("name-not-utf8", "a name that is not UTF-8", b'{"\xff":%s}' % text.encode(), 4, "InvalidHeader"),
        _case("name-overlong", "an overlong encoding of a slash", b'{"\xc0\xaf":%s}' % text.encode(), 4, "InvalidHeader"),
        _case("name-surrogate-bytes", "half of a pair as bytes", b'{"\xed\xa0\xbd":%s}' % text.encode(), 4, "InvalidHeader"),
        _case("name-cut-utf8", "a character cut off", b'{"\xf0\x9f\x98":%s}' % text.encode(), 4, "InvalidHeader"),
        _case("name-twice", "a name twice, the same bytes", f'{{"a":{text},"a":{text}}}', 4, "InvalidHeader", same),
        _case("name-twice-differing", "a name twice, other bytes", f'{{"a":{text},"a":{second}}}', 8, "InvalidHeader"),
        _case("name-twice-escaped", "a name twice, once escaped", f'{{"a":{text},"\\u0061":{text}}}', 4, "InvalidHeader", same),
        _case("name-composed", "one name composed and decomposed", {"\u00e9": entry(), "e\u0301": entry(offsets=[4, 8])}, 8),
        _case("name-long", "a name of 65,000 bytes", {"k" * 65_000: entry()}),
        _case("name-too-long", "a name of 70,000 bytes", {"k" * 70_000: entry()}, 4, "InvalidHeader", "a name may have 64 KiB, so that one emoji in 100 MB can't make 400 MB of it"),
    ]  # fmt: skip


def _metadata() -> list[Case]:
    def of(metadata: Any) -> dict[str, Any]:
        return {"__metadata__": metadata, "a": entry()}

    one = _ONE.decode()[1:]
    return [
        _case("metadata-usual", "metadata as writers have it", of({"format": "pt"})),
        _case("metadata-empty", "empty metadata", of({})),
        _case("metadata-last", "metadata after the tensors", {"a": entry(), "__metadata__": {"format": "pt"}}),
        _case("metadata-large", "a value of 1 MB", of({"tags": "x" * 10**6})),
        _case("metadata-escapes", "a value of 20,000 escapes", of({"tags": '"\n' * 10_000})),
        _case("metadata-json", "JSON in a value", of({"config": '{"a": [1, {}]}'})),
        _case("metadata-brace", "a closing brace in a value", of({"config": '"}'})),
        _case("metadata-brace-key", "braces in a key", of({"}{": ""})),
        _case("metadata-many", "100,000 values", of({str(number): "" for number in range(100_000)})),
        _case("metadata-key-twice", "a key twice", f'{{"__metadata__":{{"a":"b","a":"c"}},{one}'),
        _case("metadata-escaped-key", "__metadata__ with an escape", f'{{"\\u005f_metadata__":{{"a":"b"}},{one}'),
        _case("metadata-null", "null", of(None), 4, "InvalidMetadata", _FORMAT),
        _case("metadata-list", "a list", of([]), 4, "InvalidMetadata"),
        _case("metadata-string", "a string", of("pt"), 4, "InvalidMetadata"),
        _case("metadata-number-value", "a number as a value", of({"step": 1}), 4, "InvalidMetadata"),
        _case("metadata-null-value", "null as a value", of({"step": None}), 4, "InvalidMetadata"),
        _case("metadata-nested", "an object as a value", of({"config": {}}), 4, "InvalidMetadata"),
        _case("metadata-half-pair", "half of a pair in a value", f'{{"__metadata__":{{"a":"\\ud83d"}},{one}', 4, "InvalidMetadata"),
        _case("metadata-tensor", "a tensor of that name", {"__metadata__": entry()}, 4, "InvalidMetadata"),
        _case("metadata-twice", "__metadata__ twice", f'{{"__metadata__":{{}},"__metadata__":{{}},{one}', 4, "InvalidHeader"),
        _case("metadata-unclosed", "metadata without an end", '{"__metadata__":{"a":"b"', 0, "InvalidMetadata"),
    ]  # fmt: skip


def _json() -> list[Case]:
    one = _ONE.decode()
    return [
        _case("json-padded", "spaces after the header, as writers align", one + " " * 7),
        _case("json-white-space", "tabs and line ends after it", one + "\t\r\n "),
        _case("json-indented", "white space everywhere", one.replace(":", " : ").replace(",", " ,\n")),
        _case("json-leading-space", "a space before it", " " + one, 4, "InvalidHeader", "the format's description: the header must begin with '{'"),
        _case("json-bom", "a byte order mark", "\ufeff" + one, 4, "InvalidHeader"),
        _case("json-nul-padded", "zero bytes after it", one + "\0" * 7, 4, "InvalidHeader"),
        _case("json-form-feed", "a form feed between", one.replace(":", ":\f"), 4, "InvalidTensor"),
        _case("json-no-break-space", "a no-break space after it", one + "\u00a0", 4, "InvalidHeader"),
        _case("json-garbage", "a letter after it", one + "x", 4, "InvalidHeader"),
        _case("json-second", "two objects", one + one, 4, "InvalidHeader"),
        _case("json-comma", "a comma at the end", one[:-1] + ",}", 4, "InvalidHeader"),
        _case("json-comma-in-entry", "a comma at the end of a description", one.replace("]}", "],}"), 4, "InvalidHeader"),
        _case("json-comma-first", "a comma first", "{," + one[1:], 4, "InvalidHeader"),
        _case("json-no-colon", "no colon", one.replace('"a":', '"a"'), 4, "InvalidHeader"),
        _case("json-no-comma", "no comma between tensors", dump(_TWO).replace(b'},"b"', b'}"b"'), 8, "InvalidHeader"),
        _case("json-single-quotes", "single quotation marks", one.replace('"', "'"), 4, "InvalidHeader"),
        _case("json-no-quotes", "names without quotation marks", one.replace('"a"', "a"), 4, "InvalidHeader"),
        _case("json-number-key", "a number as a name", one.replace('"a"', "1"), 4, "InvalidHeader"),
        _case("json-comment", "a comment", one.replace(":", ":/**/"), 4, "InvalidTensor"),
        _case("json-line-comment", "a comment at the end", one + "//", 4, "InvalidHeader"),
        _case("json-unclosed", "no closing brace", one[:-1], 4, "InvalidHeader"),
        _case("json-cut", "cut in a name", '{"a', 0, "InvalidHeader"),
        _case("json-cut-escape", "cut in an escape", '{"a\\', 0, "InvalidHeader"),
        _case("json-list", "a list", "[]", 0, "InvalidHeader"),
        _case("json-string", "a string", '"{}"', 0, "InvalidHeader"),
        _case("json-utf16", "UTF-16", one.encode("utf-16-le"), 4, "InvalidHeader"),
        _case("json-utf32", "UTF-32", one.encode("utf-32-le"), 4, "InvalidHeader"),
        _case("json-latin1", "Latin-1", '{"é":'.encode("latin-1") + _ONE[5:], 4, "InvalidHeader"),
        _case("json-brace-only", "nothing but a brace", "{", 0, "InvalidHeader"),
        _case("json-empty-object", "no tensor at all", "{}", 0, "NoTensors", "an engine that loads nothing has random weights; the library alone minds nothing"),
    ]  # fmt: skip


def list_cases() -> list[Case]:
    """All cases of this module."""
    return [*_dtypes(), *_numbers(), *_shapes(), *_offsets(), *_entries(), *_names(), *_metadata(), *_json()]
