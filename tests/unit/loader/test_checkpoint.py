"""Which files count: shards as the engine would choose them, companions, links, and what is refused."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from modelweights_loader.checkpoint import find_checkpoint, natural_key
from modelweights_loader.errors import BadCheckpointError, LoaderError, WillNotWorkError
from tests.checkpoints.split import make_split

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def _shards(folder: Path, root: Path | None = None) -> list[str]:
    return [shard.path for shard in find_checkpoint(str(folder), str(root) if root else None).shards]


def _touch(folder: Path, *names: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"x")
    return folder


def test_shards_come_in_natural_order(single: Path, tmp_path: Path) -> None:
    folder = make_split(single, tmp_path / "plain", style="plain")
    expected = [f"shard-{number}.safetensors" for number in range(1, 13)]
    assert expected == _shards(folder)
    assert expected != sorted(expected)


def test_natural_order_survives_names_that_begin_with_numbers() -> None:
    assert sorted(["b", "a10", "10", "a2", "2"], key=natural_key) == ["2", "10", "a2", "a10", "b"]
    assert sorted(["10", "1", "01", "9" * 5000], key=natural_key) == ["01", "1", "10", "9" * 5000]


def test_a_path_that_no_repetition_mends_is_not_tried_again(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    for path in ("file/m", "loop", "loop/m", "x" * 300):
        with pytest.raises(WillNotWorkError) as caught:
            find_checkpoint(str(tmp_path / path))
        assert caught.value.reason == "NotFound"


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["model.safetensors"], ["model.safetensors"]),
        (["consolidated.safetensors", "model-1.safetensors", "model-2.safetensors"], ["consolidated.safetensors"]),
        (["b.safetensors", "a.safetensors"], ["a.safetensors", "b.safetensors"]),
        (["a.safetensors", "onnx/b.safetensors", ".hidden.safetensors"], ["a.safetensors"]),
    ],
    ids=["one file", "consolidated wins over shards", "all at the top level", "nothing below or hidden"],
)
def test_the_set_that_the_engine_would_load(tmp_path: Path, names: list[str], expected: list[str]) -> None:
    assert expected == _shards(_touch(tmp_path / "m", *names))


def test_the_index_filters_what_is_not_in_it(split: Path) -> None:
    _touch(split, "adapter.safetensors")
    assert "adapter.safetensors" not in _shards(split)
    assert len(_shards(split)) == 12


def test_companions_count_and_documents_do_not(tmp_path: Path) -> None:
    names = ("config.json", "tokenizer.model", "modeling.py", "chat_template.jinja", "1_Pooling/config.json")
    folder = _touch(tmp_path / "m", "model.safetensors", "README.md", "pytorch_model.bin", *names)
    assert sorted(("model.safetensors", *names)) == [file.path for file in find_checkpoint(str(folder)).files]


def test_an_index_of_another_format_does_not_count(tmp_path: Path) -> None:
    folder = _touch(tmp_path / "m", "model.safetensors", "pytorch_model.bin.index.json")
    assert [file.path for file in find_checkpoint(str(folder)).files] == ["model.safetensors"]


def _cache(tmp_path: Path) -> Path:
    """A Hugging Face cache folder with one snapshot of links to blobs."""
    repository = tmp_path / "models--org--name"
    snapshot = repository / "snapshots" / "abc123"
    (repository / "blobs").mkdir(parents=True)
    snapshot.mkdir(parents=True)
    (repository / "blobs" / "blob").write_bytes(b"x")
    (snapshot / "model.safetensors").symlink_to("../../blobs/blob")
    return snapshot


def test_a_snapshot_of_a_hub_cache_is_followed(tmp_path: Path) -> None:
    snapshot = _cache(tmp_path)
    assert _shards(snapshot) == ["model.safetensors"]
    assert _shards(snapshot.parents[1]) == ["model.safetensors"]
    assert _shards(snapshot, tmp_path) == ["model.safetensors"]


def test_refs_main_chooses_among_snapshots(tmp_path: Path) -> None:
    snapshot = _cache(tmp_path)
    repository = snapshot.parents[1]
    (repository / "snapshots" / "other").mkdir()
    with pytest.raises(WillNotWorkError) as caught:
        find_checkpoint(str(repository))
    assert caught.value.reason == "AmbiguousSnapshot"
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc123", encoding="ascii")
    assert str(snapshot) == find_checkpoint(str(repository)).path


def _unmounted_blob(folder: Path) -> None:
    (folder / "model.safetensors").symlink_to("gone")


def _link_out(folder: Path) -> None:
    (folder / "model.safetensors").symlink_to("/etc/hostname")


def _fifo(folder: Path) -> None:
    os.mkfifo(folder / "model.safetensors")


def _device(folder: Path) -> None:
    (folder / "model.safetensors").symlink_to("/dev/zero")


def _other_formats(folder: Path) -> None:
    _touch(folder, "pytorch_model.bin")


def _index(weight_map: object) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        _touch(folder, "model.safetensors")
        content = json.dumps({"weight_map": weight_map})
        (folder / "model.safetensors.index.json").write_text(content, encoding="utf-8")

    return write


@pytest.mark.parametrize(
    ("prepare", "code", "reason", "says"),
    [
        (lambda _: None, 30, "NoSafetensors", "download"),
        (_other_formats, 30, "NoSafetensors", "pytorch_model.bin"),
        (lambda home: (home / ".fetch").mkdir(), 30, "NoSafetensors", "where fetch publishes"),
        (_unmounted_blob, 20, "DanglingLink", "model.safetensors"),
        (_link_out, 20, "UnsafePath", "/etc/hostname"),
        (_device, 20, "UnsafePath", "/dev/zero"),
        (_fifo, 20, "NotARegularFile", "model.safetensors"),
        (_index({"a": "gone.safetensors"}), 30, "MissingShard", "tensor a"),
        (_index({"a": "../model.safetensors"}), 20, "UnsafePath", "../model"),
        (_index({"a": 1}), 30, "InvalidIndex", "weight_map"),
        (_index([]), 30, "InvalidIndex", "weight_map"),
        (_index({}), 30, "NoTensors", "names no tensor"),
    ],
)
def test_what_is_refused(tmp_path: Path, prepare: Callable[[Path], None], code: int, reason: str, says: str) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    prepare(folder)
    with pytest.raises(LoaderError) as caught:
        find_checkpoint(str(folder))
    assert (code, reason) == (caught.value.exit_code, caught.value.reason)
    assert says in caught.value.message


def test_a_path_out_of_the_root_is_refused(single: Path, tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "m").symlink_to(single)
    (tmp_path / "rootless").mkdir()
    for path in (tmp_path / "root" / "m", tmp_path / "root" / ".." / "single", tmp_path / "rootless"):
        with pytest.raises(WillNotWorkError) as caught:
            find_checkpoint(str(path), str(tmp_path / "root"))
        assert caught.value.reason == "UnsafePath"


def test_what_is_not_there_or_no_folder(single: Path) -> None:
    for path, reason in ((single / "gone", "NotFound"), (single / "config.json", "NotAFolder")):
        with pytest.raises(WillNotWorkError) as caught:
            find_checkpoint(str(path))
        assert reason == caught.value.reason


def test_garbage_in_the_index_is_a_bad_checkpoint(split: Path) -> None:
    for text in (b"[", b"\xff\xfe", b"null", b"[" * 100_000, b"version https://git-lfs.github.com/spec/v1"):
        (split / "model.safetensors.index.json").write_bytes(text)
        with pytest.raises(BadCheckpointError):
            find_checkpoint(str(split))


def test_a_fifo_in_place_of_the_ref_holds_nobody(single: Path, tmp_path: Path) -> None:
    repository = tmp_path / "models--a--b"
    (repository / "refs").mkdir(parents=True)
    (repository / "snapshots").mkdir()
    single.rename(repository / "snapshots" / "one")
    os.mkfifo(repository / "refs" / "main")
    assert find_checkpoint(str(repository)).path.endswith("/snapshots/one")
