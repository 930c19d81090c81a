"""All shards together: every kind of corruption is a bad checkpoint that names its file, in well under a second."""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING

import pytest

from modelweights_loader import structure
from modelweights_loader.checkpoint import find_checkpoint
from modelweights_loader.errors import BadCheckpointError
from modelweights_loader.safetensors_header import read_header
from modelweights_loader.structure import read_structure
from tests.checkpoints.corrupt import KINDS, make_corrupt
from tests.checkpoints.writer import write_safetensors

if TYPE_CHECKING:
    from pathlib import Path

    from modelweights_loader.safetensors_header import Header

REASONS = {
    "header-length": "HeaderTooLarge",
    "truncated-shard": "Truncated",
    "overlapping-offsets": "OverlappingTensors",
    "wrong-dtype": "ShapeMismatch",
    "lfs-pointer": "GitLfsPointer",
    "html-page": "HtmlPage",
    "missing-shard": "MissingShard",
    "tensor-twice": "TensorInTwoShards",
    "index-disagrees": "IndexMismatch",
    "flipped-byte": "InvalidHeader",
}


def test_a_good_checkpoint_passes(split: Path) -> None:
    found = read_structure(find_checkpoint(str(split)))
    assert found.tensor_count == 24
    assert len(found.headers) == 12


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_each_kind_of_corruption_is_named(split: Path, tmp_path: Path, kind: str) -> None:
    folder = make_corrupt(kind, split, tmp_path / "bad")
    started = time.monotonic()
    with pytest.raises(BadCheckpointError) as caught:
        read_structure(find_checkpoint(str(folder)))
    assert time.monotonic() - started < 10  # a hang, not a slow machine
    assert REASONS[kind] == caught.value.reason
    assert "model-000" in caught.value.message


def test_threads_read_where_storage_makes_wait_and_only_there(split: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used = set()

    def read_slowly(path: str, shown: str, *, is_found: bool) -> Header:
        used.add(threading.get_ident())
        time.sleep(latency_seconds)
        return read_header(path, shown, is_found=is_found)

    monkeypatch.setattr(structure, "read_header", read_slowly)
    for latency_seconds, least, most in ((0.0, 1, 1), (0.1, 6, 12)):
        used.clear()
        # Being kept from a core is waiting too, but not for ten seconds.
        monkeypatch.setattr(structure, "_MIN_WAIT_SECONDS", 0.01 if latency_seconds else 10.0)
        assert read_structure(find_checkpoint(str(split))).tensor_count == 24
        assert least <= len(used) <= most


def test_the_first_bad_shard_is_named_whatever_the_threads_do(split: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(structure, "_MIN_WAIT_SECONDS", -3600.0)
    shards = sorted(split.glob("*.safetensors"))
    for shard in shards[3:]:
        shard.write_bytes(b"x")
    for _ in range(20):
        with pytest.raises(BadCheckpointError, match=shards[3].name):
            read_structure(find_checkpoint(str(split)))


def test_an_index_has_to_list_every_tensor_of_its_shards(split: Path) -> None:
    index = split / "model.safetensors.index.json"
    content = json.loads(index.read_text(encoding="utf-8"))
    del content["weight_map"]["layer.0.weight"]
    index.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(BadCheckpointError, match=r"does not list tensor layer\.0\.weight") as caught:
        read_structure(find_checkpoint(str(split)))
    assert caught.value.reason == "IndexMismatch"


def test_shards_without_a_tensor_are_no_checkpoint(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "model.safetensors", [])
    with pytest.raises(BadCheckpointError) as caught:
        read_structure(find_checkpoint(str(tmp_path)))
    assert caught.value.reason == "NoTensors"
