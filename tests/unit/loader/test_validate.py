"""Validation as a whole: what was loaded against the headers, hashes, verdicts, settings, and its reports."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from typing import TYPE_CHECKING, Any

import pytest

from modelweights_loader.checkpoint import find_checkpoint
from modelweights_loader.errors import BadCheckpointError, LoaderError, TryAgainError, UsageError
from modelweights_loader.load.contract import LoadedTensor
from modelweights_loader.load_process import LoadProcess
from modelweights_loader.manifest import digest_of, encode_manifest
from modelweights_loader.safetensors_header import TensorInfo
from modelweights_loader.validate import ValidateOptions, choose_queue_size, compare_with_headers, validate
from tests.checkpoints.writer import make_tensor, write_raw, write_safetensors
from tests.unit.loader.conftest import run_loader

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from modelweights_loader.safetensors_header import Header

MIB = 2**20
HEADERS: dict[str, Any] = {"s": type("H", (), {"tensors": {"a": TensorInfo("F32", (2,), 0, 8)}})}
GOOD = LoadedTensor("a", "F32", [2], 8)


@pytest.mark.parametrize(
    ("loaded", "reason"),
    [
        ([], "TensorMissing"),
        ([GOOD._replace(dtype="F16")], "TensorDiffers"),
        ([GOOD._replace(shape=[1, 2])], "TensorDiffers"),
        ([GOOD._replace(size_bytes=7)], "TensorDiffers"),
        ([GOOD, GOOD._replace(name="b")], "TensorSurplus"),
        ([GOOD, GOOD], "TensorInTwoShards"),
    ],
)
def test_loader_and_headers_must_agree(loaded: list[LoadedTensor], reason: str) -> None:
    headers: dict[str, Header] = HEADERS
    compare_with_headers("m", headers, [GOOD])
    with pytest.raises(BadCheckpointError) as caught:
        compare_with_headers("m", headers, loaded)
    assert reason == caught.value.reason
    assert "tensor " in caught.value.message


@pytest.mark.parametrize(
    ("asked", "largest_bytes", "expected"),
    [(None, 0, 0), (None, 512 * MIB, 0), (None, 512 * MIB + 1, -1), (3, 2**40, 3), (-1, 0, -1), (0, 2**40, 0)],
)
def test_the_queue_size_keeps_memory_bounded_unless_it_is_given(
    asked: int | None, largest_bytes: int, expected: int
) -> None:
    assert expected == choose_queue_size(asked, largest_bytes)


def test_a_bad_header_ends_the_load_process_that_was_started_early(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"<html>")
    process = LoadProcess((sys.executable, "-c", "input()"))
    with pytest.raises(BadCheckpointError):
        validate(find_checkpoint(str(tmp_path)), ValidateOptions(), process)
    assert process.process.poll() is not None


@pytest.mark.parametrize("mode", ["Load", "Full"])
@pytest.mark.parametrize("load_format", ["fastsafetensors", "safetensors"])
def test_the_report_says_under_which_settings_the_load_worked(split: Path, mode: str, load_format: str) -> None:
    ran = run_loader("validate", split, "--mode", mode, "--load-format", load_format, "--queue-size", "1")
    assert (0, "Validated") == (ran.code, ran.report.get("reason")), ran.stderr
    engine = {"loadFormat": load_format, "queueSize": 1, "odirect": False, "nogds": True, "ranks": 1, "tuned": False}
    assert engine == ran.report["engine"]
    assert ran.report["verdicts"] == {"parallelLoader": "Accepts", "safetensors": "Accepts"}
    assert (1, False, "NotUsed", mode) == tuple(ran.report[key] for key in ("queueSize", "odirect", "gds", "mode"))
    assert {"torchVersion", "fastsafetensorsVersion", "safetensorsVersion", "manifestDigest"} <= ran.report.keys()
    assert (24, 12) == (ran.report["tensorCount"], ran.report["shardCount"])
    assert ran.report.get("comparedBytes", 0) == (ran.report["loadedBytes"] if mode == "Full" else 0)


def test_past_the_page_cache_is_said_where_it_was_asked_for(split: Path) -> None:
    ran = run_loader("validate", split, "--odirect")
    assert ran.code == 0, ran.stderr
    assert ran.report["engine"]["odirect"] is True
    assert ran.report["odirect"] is True


def test_a_refusal_names_the_library_that_accepts(tmp_path: Path) -> None:
    header = {"a": {"dtype": "F8_E4M3FNUZ", "shape": [2, 4], "data_offsets": [0, 8]}}
    text = json.dumps(header).encode()
    write_raw(tmp_path / "model.safetensors", text + b" " * (-len(text) % 8), bytes(8))
    refused = run_loader("validate", tmp_path)
    assert (20, "DtypeUnsupported") == (refused.code, refused.report["reason"])
    assert "--load-format safetensors" in refused.report["message"]
    assert refused.report["verdicts"] == {"parallelLoader": "Refuses", "safetensors": "Accepts"}
    assert "torchVersion" in refused.report
    accepted = run_loader("validate", tmp_path, "--load-format", "safetensors")
    assert accepted.code == 0, accepted.stderr
    assert accepted.report["verdicts"] == {"parallelLoader": "Refuses", "safetensors": "Accepts"}
    assert "F8_E4M3FNUZ" in accepted.report["refusals"]["parallelLoader"]


def test_the_manifest_is_canonical_stable_and_says_what_the_digest_says(split: Path, tmp_path: Path) -> None:
    files = [tmp_path / "first", tmp_path / "second"]
    for file in files:
        ran = run_loader("validate", split, "--mode", "Structure", "--manifest", file)
        assert ran.code == 0, ran.stderr
    first, second = (file.read_bytes() for file in files)
    assert first == second
    manifest = json.loads(first)
    assert (manifest["version"], manifest["digest"]) == (1, ran.report["manifestDigest"])
    assert [entry["path"] for entry in manifest["files"]] == sorted(entry["path"] for entry in manifest["files"])
    for entry in manifest["files"]:
        content = (split / entry["path"]).read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (entry["size"], entry["sha256"])
    counts = [entry["tensorCount"] for entry in manifest["files"] if "tensorCount" in entry]
    assert (12, 24) == (len(counts), sum(counts))
    # The counts follow from the bytes: the digest is over the rest.
    rest = [{key: entry[key] for key in ("path", "size", "sha256")} for entry in manifest["files"]]
    assert digest_of(rest) == manifest["digest"]


def test_the_forms_of_digest_and_manifest_are_fixed() -> None:
    lines: list[dict[str, object]] = [{"path": "a", "size": 1, "sha256": "00"}]
    # printf '[{"path":"a","sha256":"00","size":1}]' | sha256sum
    digest = "sha256:2b0db2a3db121b291f0442a255aa911f3c3792c9bc352c2445915b4cc2a04b43"
    assert digest == digest_of(lines)
    expected = f'{{"digest":"{digest}","files":[{{"path":"a","sha256":"00","size":1,"tensorCount":2}}],"version":1}}\n'
    assert expected.encode() == encode_manifest(lines, {"a": 2})


def test_a_manifest_that_cannot_be_written_is_an_error_and_not_lost(single: Path, tmp_path: Path) -> None:
    ran = run_loader("validate", single, "--mode", "None", "--manifest", tmp_path / "missing" / "m")
    assert (20, "ManifestNotWritable") == (ran.code, ran.report["reason"])


def _sums(folder: Path, *options: str) -> str:
    names = sorted(path.name for path in folder.iterdir())
    command = ["sha256sum", *options, *(f"./{name}" for name in names)]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("options", [(), ("--binary",), ("--tag",)])
def test_what_sha256sum_prints_is_compared(split: Path, tmp_path: Path, options: tuple[str, ...]) -> None:
    expect = tmp_path / "sums"
    expect.write_text(_sums(split, *options), encoding="utf-8")
    good = run_loader("validate", split, "--mode", "Structure", "--expect", expect)
    assert (0, 14) == (good.code, good.report.get("comparedHashes")), good.stderr
    shard = sorted(split.glob("*.safetensors"))[3]
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    bad = run_loader("validate", split, "--mode", "Structure", "--expect", expect)
    assert (30, "HashMismatch") == (bad.code, bad.report["reason"])
    assert shard.name in bad.report["message"]
    assert "download it again" in bad.report["message"]


def test_a_manifest_of_ours_is_compared(split: Path, tmp_path: Path) -> None:
    expect = tmp_path / "manifest"
    assert run_loader("validate", split, "--mode", "None", "--manifest", expect).code == 0
    assert run_loader("validate", split, "--mode", "None", "--expect", expect).report["comparedHashes"] == 14
    (split / "config.json").write_text("{}\n", encoding="utf-8")
    changed = run_loader("validate", split, "--mode", "None", "--expect", expect)
    assert (30, "HashMismatch") == (changed.code, changed.report["reason"])
    assert "config.json" in changed.report["message"]


def test_a_group_finds_each_other_without_a_folder_for_temporary_files(
    split: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a root file system that can't be written; and nothing can stay there after SIGKILL."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    figures: dict[str, Any] = validate(find_checkpoint(str(split)), ValidateOptions(world_size=2))
    assert figures["engine"]["ranks"] == 2


def _write_in_place(shard: Path, content: bytes, _times: tuple[int, int]) -> None:
    shard.write_bytes(content)


def _rename_over(shard: Path, content: bytes, times: tuple[int, int]) -> None:
    other = shard.with_name("other")
    other.write_bytes(content)
    os.utime(other, ns=times)
    other.replace(shard)


def _lead_elsewhere(shard: Path, content: bytes, times: tuple[int, int]) -> None:
    other = shard.with_name("other")
    other.write_bytes(content)
    os.utime(other, ns=times)
    shard.rename(shard.with_name("old"))
    shard.symlink_to(other)


def _let_grow(shard: Path, content: bytes, _times: tuple[int, int]) -> None:
    shard.write_bytes(content + b"0")


def _put_a_fifo(shard: Path, _content: bytes, _times: tuple[int, int]) -> None:
    shard.unlink()
    os.mkfifo(shard)


@pytest.mark.parametrize("change", [_write_in_place, _rename_over, _lead_elsewhere, _let_grow, _put_a_fifo])
@pytest.mark.parametrize("expected", ["old", "new"])
def test_files_that_change_while_they_are_validated_are_neither_good_nor_bad(
    single: Path, tmp_path: Path, change: Callable[[Path, bytes, tuple[int, int]], None], expected: str
) -> None:
    """The expected hashes come out of a FIFO: by then it has begun, and the files change before it goes on."""
    shard, expect, manifest = single / "model.safetensors", tmp_path / "expect", tmp_path / "manifest"
    old, status = shard.read_bytes(), shard.stat()
    new = old[:-1] + bytes([old[-1] ^ 1])
    digest = hashlib.sha256({"old": old, "new": new}[expected]).hexdigest()
    os.mkfifo(expect)

    def interfere() -> None:
        with expect.open("w", encoding="utf-8") as file:
            change(shard, new, (status.st_atime_ns, status.st_mtime_ns))
            file.write(f"{digest}  {shard.name}\n")

    options = ValidateOptions(mode="None", expect_file=str(expect), manifest_file=str(manifest))
    checkpoint = find_checkpoint(str(single))
    thread = threading.Thread(target=interfere, daemon=True)
    thread.start()
    with pytest.raises(TryAgainError) as caught:
        validate(checkpoint, options)
    thread.join()
    assert (caught.value.reason, manifest.exists()) == ("FileChanged", False)


HEX = "0" * 64
MANIFEST = f'{{"files": [{{"path": "model.safetensors", "sha256": "{HEX}"}}, {{"path": "%s", "sha256": "{HEX}"}}]}}'


@pytest.mark.parametrize(
    ("content", "kind", "reason", "named"),
    [
        (f"{HEX}  a.safetensors\n", BadCheckpointError, "HashMismatch", "model.safetensors is not listed"),
        (f"{HEX}  config.json\n", UsageError, "Usage", "lists no shard"),
        (f"{HEX}  ../model.safetensors\n", UsageError, "Usage", "lists no shard"),
        (f"{HEX}  model.safetensors\n{'1' * 64}  ./model.safetensors\n", UsageError, "Usage", "two hashes for model"),
        ('{"files": [{"path": "model.safetensors", "sha256": null}]}', UsageError, "Usage", "no manifest"),
        ('{"files": [{"path": "model.safetensors", "sha256": "abc"}]}', UsageError, "Usage", "no manifest"),
        (MANIFEST % "vocab.json", BadCheckpointError, "HashMismatch", "vocab.json is missing"),
        (f"{HEX}  model.safetensors\n{HEX}  z.safetensors\n", BadCheckpointError, "HashMismatch", "z.safetensors"),
        ("nothing of the kind\n", UsageError, "Usage", "line 1"),
        ("", UsageError, "Usage", "no hash"),
        ("{}", UsageError, "Usage", "no manifest"),
        ('{"files": [{"path": "a"}]}', UsageError, "Usage", "no manifest"),
    ],
)
def test_what_to_expect_is_read_strictly(
    single: Path, tmp_path: Path, content: str, kind: type[LoaderError], reason: str, named: str
) -> None:
    expect = tmp_path / "expect"
    expect.write_text(content, encoding="utf-8")
    with pytest.raises(kind, match=named) as caught:
        validate(find_checkpoint(str(single)), ValidateOptions(mode="None", expect_file=str(expect)))
    assert reason == caught.value.reason


@pytest.mark.parametrize(
    "form", ["{digest}  {folder}/{name}\r\n", "\ufeff{digest} *{name}", "{upper}  {name}\n{other}"]
)
def test_hashes_are_found_however_sums_are_written(single: Path, tmp_path: Path, form: str) -> None:
    """Whole paths, Windows' line ends and mark, weights in the same folder that no engine would load."""
    expect, shard = tmp_path / "expect", single / "model.safetensors"
    shard.rename(single / "consolidated.safetensors")
    write_safetensors(shard, [make_tensor("b", "F32", (1,))])
    folder = os.path.realpath(single)
    digest = hashlib.sha256((single / "consolidated.safetensors").read_bytes()).hexdigest()
    other = f"{HEX}  original/a.safetensors\n{HEX}  model.safetensors\n"
    parts = {"digest": digest, "upper": digest.upper(), "folder": folder, "name": "consolidated.safetensors"}
    expect.write_text(form.format(**parts, other=other), encoding="utf-8")
    figures = validate(find_checkpoint(folder), ValidateOptions(mode="None", expect_file=str(expect)))
    assert figures["comparedHashes"] == 1


def _make_cache(folder: Path) -> tuple[Path, dict[str, Path]]:
    """A Hugging Face cache of a model: shards named by sha256, small files as git does."""
    cache = folder / "models--org--name"
    snapshot, blobs = cache / "snapshots" / "abc", cache / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    shard = folder / "shard"
    write_safetensors(shard, [make_tensor("a", "F32", (100,))])
    found = {}
    for name, content in (("model.safetensors", shard.read_bytes()), ("config.json", b'{"a": 1}')):
        git = subprocess.run(
            ["git", "hash-object", "--stdin"], input=content, check=True, capture_output=True, cwd=folder
        )
        blob = hashlib.sha256(content).hexdigest() if name.startswith("model") else git.stdout.decode().strip()
        (blobs / blob).write_bytes(content)
        (snapshot / name).symlink_to(os.path.relpath(blobs / blob, snapshot))
        found[name] = blobs / blob
    return cache, found


@pytest.mark.parametrize(("name", "length"), [("model.safetensors", 64), ("config.json", 40)])
def test_blobs_of_a_cache_are_compared_with_their_names(tmp_path: Path, name: str, length: int) -> None:
    cache, blobs = _make_cache(tmp_path)
    assert re.fullmatch(rf"[0-9a-f]{{{length}}}", blobs[name].name)
    good = run_loader("validate", cache, "--mode", "Structure")
    assert (0, 2) == (good.code, good.report["comparedHashes"]), good.stderr
    content = bytearray(blobs[name].read_bytes())
    content[-2] ^= 1
    blobs[name].write_bytes(content)
    bad = run_loader("validate", cache, "--mode", "Structure")
    assert (30, "HashMismatch") == (bad.code, bad.report["reason"])
    assert name in bad.report["message"]


def test_blobs_that_are_of_no_hugging_face_cache_may_be_called_anything(single: Path, tmp_path: Path) -> None:
    blobs, shard = tmp_path / "blobs", single / "model.safetensors"
    blobs.mkdir()
    shard.rename(blobs / ("0" * 40))
    shard.symlink_to(blobs / ("0" * 40))
    checkpoint = find_checkpoint(str(single), root=str(tmp_path))
    assert validate(checkpoint, ValidateOptions(mode="Structure"))["comparedHashes"] is None
