"""Cases of an index: that of another revision, and what is none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.corpus.case import (
    BAD,
    GOOD,
    INDEX,
    SHARD,
    WILL_NOT_WORK,
    Case,
    dump,
    good,
    write,
    write_files,
    write_sharded,
)

if TYPE_CHECKING:
    from pathlib import Path

_BROKEN = good("a")[:-1]
_CHOOSES = "the index is what engines choose files by, so it has to be one"


def _weight_maps() -> list[Case]:
    shards = {"model-1.safetensors": ["a"], "model-2.safetensors": ["b"]}

    def case(
        name: str,
        what: str,
        weight_map: object,
        reason: str = "",
        says: str = "",
        why: str = "",
        code: int = 0,
        **extra: bytes,
    ) -> Case:
        def build(folder: Path) -> None:
            write_sharded(folder, shards, weight_map)
            write(folder, {key.replace("__", ".").replace("_", "-"): content for key, content in extra.items()})

        return Case(
            f"index-{name}", what, build, code or (BAD if reason else GOOD), reason or "StructureValidated", says, why
        )

    each = "each file is good by itself; index and shards are of two revisions"
    return [
        case("usual", "two shards and their index", None),
        case("unlisted-shard", "a shard that the index does not list", {"a": "model-1.safetensors"}),
        case("unlisted-bad", "the same, broken", {"a": "model-1.safetensors", "b": "model-2.safetensors"}, adapter__safetensors=_BROKEN),
        case("unlisted-tensor", "a listed shard holds a tensor that the index lacks", {"b": "model-2.safetensors", "c": "model-1.safetensors"}, "IndexMismatch", "c", each),
        case("stale", "a shard has more tensors than the index lists", None, "IndexMismatch", "tensor x", each, model_1__safetensors=good("a", "x")),
        case("missing-shard", "a listed shard is missing", {"a": "model-1.safetensors", "b": "model-2.safetensors", "c": "model-3.safetensors"}, "MissingShard", "model-3.safetensors", each),
        case("renamed", "shards were renamed after", {"a": "model-00001-of-00002.safetensors"}, "MissingShard", "model-00001", each),
        case("swapped", "tensors swapped", {"a": "model-2.safetensors", "b": "model-1.safetensors"}, "IndexMismatch", "tensor a", each),
        case("ghost", "a tensor that no shard holds", {"a": "model-1.safetensors", "b": "model-2.safetensors", "c": "model-2.safetensors"}, "IndexMismatch", "tensor c", each),
        case("empty-map", "an empty weight_map", {}, "NoTensors", INDEX, _CHOOSES),
        case("map-list", "weight_map as a list", ["a"], "InvalidIndex", INDEX, _CHOOSES),
        case("map-number", "a number as a file's name", {"a": 1}, "InvalidIndex", INDEX, _CHOOSES),
        case("map-null", "null as a file's name", {"a": None}, "InvalidIndex", INDEX, _CHOOSES),
        case("map-string", "weight_map as a string", "model-1.safetensors", "InvalidIndex", INDEX, _CHOOSES),
        case("path-up", "../ in a file's name", {"a": "../model-1.safetensors"}, "UnsafePath", "../model-1", _CHOOSES, WILL_NOT_WORK),
        case("path-absolute", "an absolute name", {"a": "/etc/hostname"}, "UnsafePath", "/etc/hostname", _CHOOSES, WILL_NOT_WORK),
        case("path-below", "a file in a folder below", {"a": "sub/model-1.safetensors"}, "UnsafePath", "sub/", _CHOOSES, WILL_NOT_WORK),
        case("path-empty", "an empty name", {"a": ""}, "UnsafePath", INDEX, _CHOOSES, WILL_NOT_WORK),
        case("path-nul", "a zero byte in a name", {"a": "model\0"}, "UnsafePath", INDEX, _CHOOSES, WILL_NOT_WORK),
        case("path-other", "a file that is no safetensors", {"a": "config.json"}, "MissingShard", "config.json", each),
    ]  # fmt: skip


def _indexes() -> list[Case]:
    def case(
        name: str,
        what: str,
        index: bytes,
        reason: str = "",
        *,
        heavy: bool = False,
    ) -> Case:
        content = {SHARD: good("a"), INDEX: index}
        return Case(
            f"index-{name}",
            what,
            write_files(content),
            BAD if reason else GOOD,
            reason or "StructureValidated",
            INDEX if reason else "",
            _CHOOSES if reason else "",
            heavy=heavy,
        )

    one = b'{"metadata":{"total_size":4},"weight_map":{"a":"model.safetensors"}}'
    return [
        case("empty-file", "an empty file", b"", "InvalidIndex"),
        case("lfs", "an LFS pointer", b"version https://git-lfs.github.com/spec/v1\n", "GitLfsPointer"),
        case("html", "an error page", b"<!doctype html>", "HtmlPage"),
        case("json-error", "a hub's error", b'{"error":"Entry not found"}', "InvalidIndex"),
        case("cut", "cut off", one[:-5], "InvalidIndex"),
        case("list", "a list", b"[]", "InvalidIndex"),
        case("no-map", "no weight_map", b'{"metadata":{}}', "InvalidIndex"),
        case("two-maps", "two weight_maps", one[:-1] + b',"weight_map":{}}', "InvalidIndex"),
        case("key-twice", "a tensor twice", one.replace(b'":{"a"', b'":{"a":"x.safetensors","a"'), "InvalidIndex"),
        case("bom", "a byte order mark", b"\xef\xbb\xbf" + one, "InvalidIndex"),
        case("utf16", "UTF-16", one.decode().encode("utf-16"), "InvalidIndex"),
        case("garbage", "a letter after it", one + b"x", "InvalidIndex"),
        case("half-pair", "half of a pair in a name", one.replace(b'"a"', b'"\\ud83d"'), "InvalidIndex"),
        case("indented", "as libraries write it", b'{\n  "metadata": {\n    "total_size": 4\n  },\n  "weight_map": {\n    "a": "model.safetensors"\n  }\n}\n'),
        case("more-keys", "more keys than known", one[:-1] + b',"note":[1,2.5e3,{"b":[]}],"big":1' + b"0" * 5000 + b"}"),
        case("wrong-total", "a wrong total_size: no engine reads it", one.replace(b":4", b":5")),
        case("escaped", "escapes in names", b'{"weight_map":{"\\u0061":"model\\u002esafetensors"}}'),
        case("brace", "a closing brace in its metadata", b'{"metadata":{"note":"a}"},' + one[len(b'{"metadata":{"total_size":4},') :]),
        case("deep", "100,000 lists in lists", b'{"metadata":' + b"[" * 100_000, "InvalidIndex"),
        case("many-members", "2,000 members beside the map", b"{" + b'"x":1,' * 2_000 + one[1:], "InvalidIndex"),
        case("long-name", "a name of 70,000 bytes", dump({"weight_map": {"k" * 70_000: SHARD}}), "InvalidIndex"),
        case("heavy-lists", "50 MB of empty lists", b'{"metadata":[' + b"[]," * 16_000_000 + b"[]]}", "InvalidIndex", heavy=True),
        case("heavy-size", "more than 100 MB", one[:-1] + b" " * 100_000_000 + b"}", "InvalidIndex", heavy=True),
    ]  # fmt: skip


def list_cases() -> list[Case]:
    """All cases of this module."""
    return [*_weight_maps(), *_indexes()]
