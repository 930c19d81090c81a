"""All shards together: every kind of corruption is a bad checkpoint that names its file, in well under a second."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest

from modelweights_loader.checkpoint import find_checkpoint
from modelweights_loader.errors import BadCheckpointError
from modelweights_loader.structure import read_structure
from tests.checkpoints.corrupt import KINDS, make_corrupt
from tests.checkpoints.writer import write_safetensors

if TYPE_CHECKING:
    from pathlib import Path

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
    structure = read_structure(find_checkpoint(str(split)))
    assert structure.tensor_count == 24
    assert len(structure.headers) == 12


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_each_kind_of_corruption_is_named(split: Path, tmp_path: Path, kind: str) -> None:
    folder = make_corrupt(kind, split, tmp_path / "bad")
    started = time.monotonic()
    with pytest.raises(BadCheckpointError) as caught:
        read_structure(find_checkpoint(str(folder)))
    assert time.monotonic() - started < 10  # a hang, not a slow machine
    assert REASONS[kind] == caught.value.reason
    assert "model-000" in caught.value.message


def test_the_first_bad_shard_is_named_whatever_the_threads_do(split: Path) -> None:
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
