"""Real loads by ParallelLoader, and the comparison of what it gave with what the headers promise."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

from modelweights_loader import _load_worker as worker
from modelweights_loader.checkpoint import find_checkpoint
from modelweights_loader.errors import BadCheckpointError, TryAgainError, WillNotWorkError
from modelweights_loader.load_process import LoadProcess
from modelweights_loader.manifest import ManifestHasher, digest_of
from modelweights_loader.safetensors_header import DTYPE_BITS, TensorInfo
from modelweights_loader.structure import read_structure
from modelweights_loader.validate import ValidateOptions, compare_with_headers, validate
from tests.checkpoints.writer import make_tensor, write_raw, write_safetensors

if TYPE_CHECKING:
    from pathlib import Path

    from modelweights_loader.safetensors_header import Header


def _request(folder: Path, queue_size: int = 0, device: str = "cpu", gds: str = "Auto") -> dict[str, Any]:
    checkpoint = find_checkpoint(str(folder))
    structure = read_structure(checkpoint)
    dtypes = {tensor.dtype for header in structure.headers.values() for tensor in header.tensors.values()}
    return {
        "files": [shard.real_path for shard in checkpoint.shards],
        "dtypes": sorted(dtypes),
        "queueSize": queue_size,
        "device": device,
        "gds": gds,
        "largestTensorBytes": structure.largest_tensor_bytes,
        "maxThreads": 2,
    }


def _refuse_event(event: dict[str, Any]) -> None:
    raise AssertionError(event)


@pytest.mark.parametrize("queue_size", [-1, 0, 1, 2])
def test_every_queue_size_loads_every_tensor(split: Path, queue_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTSAFETENSORS_ODIRECT", "0")
    result = worker._answer(_request(split, queue_size), _refuse_event)
    assert result["ok"], result
    compare_with_headers("m", read_structure(find_checkpoint(str(split))).headers, result["tensors"])
    assert len(result["tensors"]) == 24


def test_packed_four_bit_tensors_are_compared_by_what_the_header_counts(tmp_path: Path) -> None:
    header = {"a": {"dtype": "F4", "shape": [2, 4], "data_offsets": [0, 4]}}
    text = json.dumps(header).encode()
    write_raw(tmp_path / "model.safetensors", text + b" " * (-len(text) % 8), b"\x11" * 4)
    result = worker._answer(_request(tmp_path), _refuse_event)
    assert result["ok"], result
    compare_with_headers("m", read_structure(find_checkpoint(str(tmp_path))).headers, result["tensors"])


def test_a_dtype_that_the_libraries_lack_is_not_the_checkpoints_fault(tmp_path: Path) -> None:
    header = {"a": {"dtype": "C64", "shape": [1], "data_offsets": [0, 8]}}
    write_raw(tmp_path / "model.safetensors", json.dumps(header).encode(), bytes(8))
    result = worker._answer(_request(tmp_path), _refuse_event)
    assert (result["ok"], result["kind"]) == (False, "DtypeUnsupported")
    assert "C64" in result["error"]


def test_every_dtype_of_the_format_has_a_verdict() -> None:
    for dtype in DTYPE_BITS:
        said = worker.find_lacking_dtype([dtype])
        assert said is None or dtype in said


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RuntimeError("submit_io: register_buffer failed for GDS"), True),
        (RuntimeError("wait_gds_read failed"), True),
        (Exception("[FAIL] init_gds()"), True),
        (Exception("gds is fine, the header is not"), False),
        (RuntimeError("CUDA error"), False),
    ],
)
def test_which_errors_are_about_gds(error: Exception, expected: bool) -> None:  # noqa: FBT001 - a table's column
    assert expected == worker.mentions_gds(error)


def _load_script(monkeypatch: pytest.MonkeyPatch, *endings: Exception | None) -> list[bool]:
    """Replaces the load by a script of endings; returns the list of nogds values that it was called with."""
    calls: list[bool] = []
    left = list(endings)

    def load(_request: dict[str, Any], *, nogds: bool) -> dict[str, Any]:
        calls.append(nogds)
        ending = left.pop(0)
        if ending is not None:
            raise ending
        return {"event": "result", "ok": True, "tensors": [], "loadSeconds": 0.1, "gds": "NotUsed"}

    monkeypatch.setattr(worker, "_load", load)
    return calls


GDS_ERROR = Exception("[FAIL] init_gds()")


@pytest.mark.parametrize(
    ("device", "gds", "endings", "calls", "warnings", "good"),
    [
        ("cpu", "Auto", [None], [True], 0, True),
        ("cuda", "Never", [None], [True], 0, True),
        ("cuda", "Auto", [None], [False], 0, True),
        ("cuda", "Auto", [GDS_ERROR, None], [False, True], 1, True),
        ("cuda", "Auto", [GDS_ERROR, GDS_ERROR], [False, True], 1, False),
        ("cuda", "Auto", [ValueError("x")], [False], 0, False),
        ("cuda", "Never", [GDS_ERROR], [True], 0, False),
    ],
)
def test_gds_is_tried_once_and_warned_of_once(
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    gds: str,
    endings: list[Exception | None],
    calls: list[bool],
    warnings: int,
    good: bool,  # noqa: FBT001 - a table's column
) -> None:
    called = _load_script(monkeypatch, *endings)
    events: list[dict[str, Any]] = []
    result = worker._answer({"dtypes": [], "device": device, "gds": gds}, events.append)
    assert (calls, warnings, good) == (called, len(events), result["ok"])


HEADERS: dict[str, Any] = {"s": type("H", (), {"tensors": {"a": TensorInfo("F32", (2,), 0, 8)}})}


@pytest.mark.parametrize(
    ("loaded", "reason"),
    [
        ([], "TensorMissing"),
        ([["a", "F16", [2]]], "TensorDiffers"),
        ([["a", "F32", [1, 2]]], "TensorDiffers"),
        ([["a", "F32", [2]], ["b", "F32", [2]]], "TensorSurplus"),
        ([["a", "F32", [2]], ["a", "F32", [2]]], "TensorInTwoShards"),
    ],
)
def test_loader_and_headers_must_agree(loaded: list[list[Any]], reason: str) -> None:
    headers: dict[str, Header] = HEADERS
    with pytest.raises(BadCheckpointError) as caught:
        compare_with_headers("m", headers, loaded)
    assert reason == caught.value.reason
    assert "tensor " in caught.value.message


def test_a_bad_header_ends_the_load_process_that_was_started_early(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"<html>")
    process = LoadProcess((sys.executable, "-c", "input()"))
    with pytest.raises(BadCheckpointError):
        validate(find_checkpoint(str(tmp_path)), ValidateOptions(), process)
    assert process._process.poll() is not None


def test_the_digest_depends_on_every_byte_and_name_and_nothing_else(split: Path) -> None:
    def digest() -> str:
        return ManifestHasher(find_checkpoint(str(split))).digest()

    first = digest()
    assert first == digest() == ManifestHasher(find_checkpoint(str(split)), num_threads=1).digest()
    (split / "README.md").write_text("changed", encoding="utf-8")
    assert first == digest()
    (split / "config.json").write_text('{"a": 1}', encoding="utf-8")
    assert first != digest()
    assert first.startswith("sha256:")
    assert len(first) == 71


def test_the_digests_form_is_fixed() -> None:
    # printf '[{"path":"a","sha256":"00","size":1}]' | sha256sum
    expected = "2b0db2a3db121b291f0442a255aa911f3c3792c9bc352c2445915b4cc2a04b43"
    assert f"sha256:{expected}" == digest_of([{"path": "a", "size": 1, "sha256": "00"}])


def test_a_file_that_changes_or_vanishes_is_no_digest(single: Path) -> None:
    checkpoint = find_checkpoint(str(single))
    write_safetensors(single / "model.safetensors", [make_tensor("a", "F32", (1,))])
    with pytest.raises(TryAgainError):
        ManifestHasher(checkpoint).digest()
    (single / "model.safetensors").unlink()
    with pytest.raises(WillNotWorkError):
        ManifestHasher(checkpoint).digest()
