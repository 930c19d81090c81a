"""Cases of a folder: which of its files count, links, what is no file, caches of Hugging Face."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

from tests.corpus.case import BAD, GOOD, INDEX, SHARD, WILL_NOT_WORK, Case, good, pack, write, write_files

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_A, _B, _BROKEN = good("a"), good("b"), good("a")[:-1]
_CACHE = "models--org--name"
_OUT = "links are followed within the checkpoint only: elsewhere lie other people's files, or nothing on the next node"


def _which() -> list[Case]:
    both = {"consolidated.safetensors": _A, "model-1.safetensors": _A, "model-2.safetensors": _B}
    split = {"model-1-of-2.safetensors": _A, "model-2-of-2.safetensors": _B}
    return [
        Case("which-two", "two shards without an index", write_files(split)),
        Case("which-consolidated", "consolidated and split: the first counts", write_files(both)),
        Case("which-consolidated-bad", "consolidated broken, split good", write_files({**both, "consolidated.safetensors": _BROKEN}), BAD, "Truncated", "consolidated.safetensors"),
        Case("which-split-bad", "consolidated good, split broken", write_files({**both, "model-2.safetensors": _BROKEN})),
        Case("which-consolidated-shards", "two consolidated shards", write_files({"consolidated-1.safetensors": _A, "consolidated-2.safetensors": _B})),
        Case("which-consolidated-twice", "consolidated as one file and as shards", write_files({"consolidated.safetensors": _A, "consolidated-1.safetensors": _A}), BAD, "TensorInTwoShards", "consolidated", "each file is good by itself; an engine would take either of the two"),
        Case("which-bin-beside", "pickles beside", write_files({SHARD: _A, "pytorch_model.bin": b"x"})),
        Case("which-bin-only", "nothing but pickles", write_files({"pytorch_model.bin": b"x"}), BAD, "NoSafetensors", "pytorch_model.bin"),
        Case("which-gguf-only", "nothing but GGUF", write_files({"model.gguf": b"GGUF"}), BAD, "NoSafetensors", "model.gguf"),
        Case("which-nothing", "an empty folder", write_files({}), BAD, "NoSafetensors", "m"),
        Case("which-config-only", "everything but the weights", write_files({"config.json": b"{}"}), BAD, "NoSafetensors", "m"),
        Case("which-below", "shards in a folder below", write_files({"transformer/model.safetensors": _A}), BAD, "NoSafetensors", "m", "engines look at the top level only"),
        Case("which-below-beside", "a broken one in a folder below", write_files({SHARD: _A, "onnx/model.safetensors": _BROKEN})),
        Case("which-hidden", "only a hidden shard", write_files({".model.safetensors": _A}), BAD, "NoSafetensors", "m"),
        Case("which-upper-case", "an extension in capitals", write_files({"model.SAFETENSORS": _A}), BAD, "NoSafetensors", "m"),
        Case("which-partial", "an unfinished download beside", write_files({SHARD: _A, "model-2.safetensors.incomplete": b""})),
        Case("which-partial-only", "nothing but an unfinished download", write_files({"model.safetensors.part": _A}), BAD, "NoSafetensors", "m"),
        Case("which-duplicate", "a tensor in two shards", write_files({"model-1.safetensors": _A, "model-2.safetensors": _A}), BAD, "TensorInTwoShards", "model-2.safetensors", "each file is good by itself; an engine would take either of the two"),
        Case("which-copy", "a forgotten copy of a shard", write_files({SHARD: _A, "model (1).safetensors": _A}), BAD, "TensorInTwoShards", "model (1)", "each file is good by itself; an engine would take either of the two"),
        Case("which-second-bad", "the last of three broken", write_files({**split, "model-3.safetensors": _BROKEN}), BAD, "Truncated", "model-3.safetensors"),
        Case("which-empty-shard", "a shard without tensors among others", write_files({**split, "model-3.safetensors": pack({}, 0)})),
        Case("which-all-empty", "two shards without tensors", write_files({"1.safetensors": pack({}, 0), "2.safetensors": pack({}, 0)}), BAD, "NoTensors", "m", "nothing to load; the library alone minds nothing"),
        Case("which-numbers", "shard 10 after shard 2", write_files({f"shard-{n}.safetensors": good(f"t{n}") for n in range(1, 13)})),
        Case("which-huge-number", "a number of 200 digits in a name", write_files({"9" * 200 + ".safetensors": _A})),
        Case("which-one-file", "a file in place of the folder", write_files({SHARD: _A}), WILL_NOT_WORK, "NotAFolder", SHARD, "a folder is staged, with configuration and tokenizer", f"m/{SHARD}"),
        Case("which-missing", "a path that is not there", write_files({}), WILL_NOT_WORK, "NotFound", "gone", path="m/gone"),
    ]  # fmt: skip


def _names() -> list[Case]:
    line_end, not_utf8 = "model\n1.safetensors", os.fsdecode(b"model-\xff.safetensors")
    return [
        Case("name-line-end", "a line end in a name", write_files({line_end: _A})),
        Case("name-line-end-bad", "the same, broken", write_files({line_end: _BROKEN}), BAD, "Truncated", "model 1.safetensors"),
        Case("name-bytes", "a name that is no UTF-8", write_files({not_utf8: _A})),
        Case("name-bytes-bad", "the same, broken", write_files({not_utf8: _BROKEN}), BAD, "Truncated", "model-"),
        Case("name-longest", "a name of 255 bytes", write_files({"x" * 243 + ".safetensors": _A})),
        Case("name-longest-bad", "the same, broken", write_files({"x" * 243 + ".safetensors": _BROKEN}), BAD, "Truncated", "xxx.safetensors"),
        Case("name-glob", "a name with brackets", write_files({"model[1]*.safetensors": _A})),
        Case("name-option", "a name like an option", write_files({"--help.safetensors": _A})),
        Case("name-emoji-file", "a name with an emoji", write_files({"\U0001f600.safetensors": _A})),
    ]  # fmt: skip


def _link(target: str, name: str = SHARD, **files: bytes) -> Callable[[Path], None]:
    def build(folder: Path) -> None:
        write(folder, {key.replace("__", "."): content for key, content in files.items()})
        (folder / name).symlink_to(target)

    return build


def _link_to_folder(folder: Path) -> None:
    write(folder.parent / "elsewhere", {SHARD: _A})
    folder.rmdir()
    folder.symlink_to("elsewhere")


def _link_out_of_root(folder: Path) -> None:
    write(folder.parent / "elsewhere", {SHARD: _A})
    (folder / SHARD).symlink_to("../elsewhere/" + SHARD)


def _hard_link(folder: Path) -> None:
    write(folder, {"weights": _A})
    (folder / SHARD).hardlink_to(folder / "weights")


def _links() -> list[Case]:
    return [
        Case("link-inside", "a link to a file beside it", _link("weights", weights=_A)),
        Case("link-inside-bad", "the same, broken", _link("weights", weights=_BROKEN), BAD, "Truncated", SHARD),
        Case("link-chain", "a link to a link", _link_chain),
        Case("link-hard", "a hard link", _hard_link),
        Case("link-folder", "the folder itself is a link", _link_to_folder),
        Case("link-out", "a link to a good shard elsewhere", _link_out_of_root, WILL_NOT_WORK, "UnsafePath", SHARD, _OUT),
        Case("link-out-allowed", "the same, with --root above both", _link_out_of_root, arguments=("--root", "{base}")),
        Case("link-absolute", "a link to a file of the system", _link("/etc/hostname"), WILL_NOT_WORK, "UnsafePath", SHARD),
        Case("link-dangling", "a link to what is not there", _link("gone"), WILL_NOT_WORK, "DanglingLink", SHARD),
        Case("link-loop", "a link to itself", _link(SHARD), WILL_NOT_WORK, "NotFound", SHARD),
        Case("link-loop-two", "two links to each other", _link_each_other, WILL_NOT_WORK, "NotFound", SHARD),
        Case("link-dangling-beside", "a tokenizer's link to what is not there", _link("gone", "tokenizer.json", model__safetensors=_A), WILL_NOT_WORK, "DanglingLink", "tokenizer.json", "the weights alone don't start an engine"),
    ]  # fmt: skip


def _link_chain(folder: Path) -> None:
    _link("middle", weights=_A)(folder)
    (folder / "middle").symlink_to("weights")


def _link_each_other(folder: Path) -> None:
    _link("other")(folder)
    (folder / "other").symlink_to(SHARD)


def _fifo_index(folder: Path) -> None:
    write(folder, {SHARD: _A})
    os.mkfifo(folder / INDEX)


def _make_socket(folder: Path) -> None:
    # A socket's path may have 107 bytes only.
    here = os.open(folder, os.O_RDONLY)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(f"/proc/self/fd/{here}/{SHARD}")
    finally:
        os.close(here)


def _fifo_beside(folder: Path) -> None:
    write(folder, {SHARD: _A})
    os.mkfifo(folder / "tokenizer.json")


def _unreadable(what: str) -> Callable[[Path], None]:
    def build(folder: Path) -> None:
        write(folder, {SHARD: _A, "config.json": b"{}"})
        target = folder if what == "folder" else folder / what
        target.chmod(0)

    return build


def _kinds() -> list[Case]:
    no_file = (WILL_NOT_WORK, "NotARegularFile")
    return [
        Case("kind-folder", "a folder named like a shard", lambda folder: (folder / SHARD).mkdir(), *no_file, SHARD),
        Case("kind-fifo", "a FIFO", lambda folder: os.mkfifo(folder / SHARD), *no_file, SHARD),
        Case("kind-socket", "a socket", _make_socket, *no_file, SHARD),
        Case("kind-device", "a link to /dev/zero, below the root", _link("/dev/zero"), *no_file, SHARD, arguments=("--root", "/")),
        Case("kind-null", "a link to /dev/null, below the root", _link("/dev/null"), *no_file, SHARD, arguments=("--root", "/")),
        Case("kind-fifo-beside", "a FIFO in place of the tokenizer", _fifo_beside, *no_file, "tokenizer.json", "the weights alone don't start an engine"),
        Case("kind-fifo-index", "a FIFO in place of the index", _fifo_index, *no_file, INDEX, "the index is what engines choose files by, so it has to be one"),
        Case("kind-unreadable", "a shard that may not be read", _unreadable(SHARD), WILL_NOT_WORK, "Forbidden", SHARD, as_user=True),
        Case("kind-unreadable-folder", "a folder that may not be entered", _unreadable("folder"), WILL_NOT_WORK, "Forbidden", "m", as_user=True),
        Case("kind-unreadable-config", "a configuration that may not be read", _unreadable("config.json"), WILL_NOT_WORK, "Forbidden", "config.json", "the weights alone don't start an engine", as_user=True),
    ]  # fmt: skip


def _cache(
    blobs: dict[str, bytes], ref: str | None = "abc", snapshots: tuple[str, ...] = ("abc",)
) -> Callable[[Path], None]:
    """A cache folder of Hugging Face: snapshots of links to blobs."""

    def build(folder: Path) -> None:
        cache = folder.parent / _CACHE
        write(cache, {f"blobs/{number}": content for number, content in enumerate(blobs.values())})
        for snapshot in snapshots:
            (cache / "snapshots" / snapshot).mkdir(parents=True)
            for number, name in enumerate(blobs):
                (cache / "snapshots" / snapshot / name).symlink_to(f"../../blobs/{number}")
        if ref is not None:
            write(cache, {"refs/main": ref.encode()})

    return build


def _cache_lacks_blob(folder: Path) -> None:
    _cache({SHARD: _A})(folder)
    (folder.parent / _CACHE / "blobs" / "0").rename(folder.parent / _CACHE / "blobs" / "0.incomplete")


def _cache_leads_out(folder: Path) -> None:
    _cache({SHARD: _A})(folder)
    blob = folder.parent / _CACHE / "blobs" / "0"
    blob.rename(folder.parent / "blob")
    blob.symlink_to("../../blob")


def _caches() -> list[Case]:
    def case(
        name: str,
        what: str,
        build: Callable[[Path], None],
        verdict: tuple[int, str, str] = (GOOD, "StructureValidated", ""),
        why: str = "",
        path: str = _CACHE,
    ) -> Case:
        return Case(f"cache-{name}", what, build, *verdict, why, path)

    usual = {SHARD: _A, "config.json": b"{}"}
    return [
        case("usual", "a cache folder", _cache(usual)),
        case("snapshot", "a snapshot in it", _cache(usual), path=f"{_CACHE}/snapshots/abc"),
        case("no-ref", "no refs/main, one snapshot", _cache(usual, None)),
        case("two", "two snapshots, refs/main chooses", _cache(usual, snapshots=("abc", "def"))),
        case("ambiguous", "two snapshots, nothing chooses", _cache(usual, None, ("abc", "def")), (WILL_NOT_WORK, "AmbiguousSnapshot", _CACHE), "the library is given files, not caches"),
        case("ref-gone", "refs/main names no snapshot, there is one", _cache(usual, "gone")),
        case("ref-escapes", "refs/main with ../", _cache(usual, "../../../m", ("abc", "def")), (WILL_NOT_WORK, "AmbiguousSnapshot", _CACHE), "the library is given files, not caches"),
        case("no-snapshot", "no snapshot", lambda folder: write(folder.parent / _CACHE, {"snapshots/.keep": b""}), (WILL_NOT_WORK, "AmbiguousSnapshot", _CACHE)),
        case("no-blob", "the blob is still being fetched", _cache_lacks_blob, (WILL_NOT_WORK, "DanglingLink", SHARD)),
        case("leads-out", "a blob is a link out of the cache", _cache_leads_out, (WILL_NOT_WORK, "UnsafePath", SHARD), _OUT),
        case("bad-blob", "the blob is broken", _cache({SHARD: _BROKEN}), (BAD, "Truncated", SHARD)),
        case("lfs-blob", "the blob is an LFS pointer", _cache({SHARD: b"version https://git-lfs.github.com/spec/v1\n"}), (BAD, "GitLfsPointer", SHARD)),
    ]  # fmt: skip


def list_cases() -> list[Case]:
    """All cases of this module."""
    return [*_which(), *_names(), *_links(), *_kinds(), *_caches()]
