"""What is fetched, where it lies afterwards, and what the next run does with it."""

from __future__ import annotations

import hashlib
import json
import os
from typing import TYPE_CHECKING

import pytest
from huggingface_hub import snapshot_download

from modelweights_loader.checkpoint import find_checkpoint
from modelweights_loader.errors import BadCheckpointError, NoRoomError, WillNotWorkError
from modelweights_loader.fetch.fetching import FetchOptions, fetch
from modelweights_loader.manifest import ManifestHasher
from modelweights_loader.memory import Reserve
from tests.unit.loader.fetch.conftest import MIB, QUICK, read_published
from tests.unit.loader.fetch.scripted_source import COMMIT, ScriptedSource, make_bytes, make_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.loader.fetch.conftest import Fetch


def test_what_an_engine_loads_is_fetched_and_nothing_else(home: Path, fetch_it: Fetch) -> None:
    contents = make_checkpoint()
    source = ScriptedSource(
        contents | {"model-00009-of-00009.safetensors": b"not in the index", "model.bin": b"pickle"}
    )
    result = fetch_it(source)
    wanted = {path: content for path, content in contents.items() if path != "README.md"}
    assert ("Fetched", wanted) == (result.reason, read_published(home, result))
    # The index was read to know what to fetch, and not once more.
    assert sum(map(len, wanted.values())) == source.served_bytes


def test_digest_is_what_validation_makes_of_the_bytes(home: Path, fetch_it: Fetch) -> None:
    for layout in ("Plain", "HuggingFaceCache"):
        published = fetch_it(ScriptedSource(make_checkpoint()), layout=layout).published
        assert published is not None
        digest = ManifestHasher(find_checkpoint(str(home / published.folder))).digest()
        assert digest == published.manifest_digest
        assert published.folder.startswith(digest.removeprefix("sha256:"))


def test_nothing_but_lock_and_record_stays_of_the_work(home: Path, fetch_it: Fetch) -> None:
    published = fetch_it(ScriptedSource(make_checkpoint())).published
    assert published is not None
    assert {".fetch", published.folder} == set(os.listdir(home))
    lock, record = sorted(os.listdir(home / ".fetch"), key=len)
    assert ("lock", ".json", 37) == (lock, record[-5:], len(record))
    modes = {path.stat().st_mode & 0o777 for path in (home / published.folder).rglob("*") if path.is_file()}
    assert {0o644} == modes


def test_include_takes_the_place_of_the_choice_and_exclude_goes_first(home: Path, fetch_it: Fetch) -> None:
    source = ScriptedSource(make_checkpoint() | {"consolidated.safetensors": b"mistral's"})
    result = fetch_it(source, include=("*.safetensors", "*.json", "README*"), exclude=("consolidated*", "tok*"))
    names = {
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
        "config.json",
        "1_Pooling/config.json",
        "README.md",
    }
    assert names == read_published(home, result).keys()


def test_consolidated_wins(home: Path, fetch_it: Fetch) -> None:
    result = fetch_it(ScriptedSource(make_checkpoint() | {"consolidated.safetensors": b"mistral's"}))
    found = read_published(home, result)
    assert ["consolidated.safetensors"] == [name for name in found if name.endswith("safetensors")]


def test_second_run_fetches_nothing_and_a_pinned_one_asks_nobody(fetch_it: Fetch) -> None:
    source = ScriptedSource(make_checkpoint())
    first = fetch_it(source)
    served, listed = source.served_bytes, source.listed
    second = fetch_it(source)
    assert ("AlreadyThere", first.published, served, listed + 1, 0.0) == (
        second.reason,
        second.published,
        source.served_bytes,
        source.listed,
        second.seconds,
    )
    assert "AlreadyThere" == fetch_it(source, revision=COMMIT).reason
    assert listed + 1 == source.listed


def test_repository_is_found_by_its_name_offline(home: Path, fetch_it: Fetch) -> None:
    contents = make_checkpoint()
    published = fetch_it(ScriptedSource(contents), layout="HuggingFaceCache", revision="dev").published
    assert published is not None
    cache = home / published.manifest_digest.removeprefix("sha256:")
    for revision in (None, "dev", COMMIT):
        folder = snapshot_download("org/tiny", revision=revision, cache_dir=cache, local_files_only=True)
        assert str(home / published.folder) == folder
    blobs = cache / "models--org--tiny" / "blobs"
    large = hashlib.sha256(contents["model-00001-of-00002.safetensors"]).hexdigest()
    small = hashlib.sha1(b"blob 2\0{}", usedforsecurity=False).hexdigest()
    assert {large, small} <= set(os.listdir(blobs))
    assert os.readlink(home / published.folder / "1_Pooling" / "config.json").startswith("../../../blobs/")


def test_both_layouts_of_one_digest_share_a_folder_and_their_bytes(home: Path, fetch_it: Fetch) -> None:
    source = ScriptedSource(make_checkpoint())
    fetch_it(source)
    served = source.served_bytes
    cached = fetch_it(source, layout="HuggingFaceCache")
    assert served == source.served_bytes
    assert 2 == len(os.listdir(home))
    assert {one.state for one in cached.plan.files} == {"have"} if cached.plan else False
    assert "AlreadyThere" == fetch_it(source).reason


def test_new_revision_takes_over_what_did_not_change(home: Path, fetch_it: Fetch) -> None:
    contents = make_checkpoint()
    old = fetch_it(ScriptedSource(contents))
    new_shard = make_bytes("new", 2_000_000)
    source = ScriptedSource(contents | {"model-00002-of-00002.safetensors": new_shard}, revision="f" * 40)
    new = fetch_it(source)
    assert len(new_shard) == source.served_bytes == new.fetched_bytes
    assert new_shard == read_published(home, new)["model-00002-of-00002.safetensors"]
    # The old one is as it was.
    assert contents["model-00002-of-00002.safetensors"] == read_published(home, old)["model-00002-of-00002.safetensors"]


@pytest.mark.parametrize("how", ["truncated", "gone", "rotten"])
def test_damaged_file_alone_is_fetched_again_and_readers_keep_theirs(home: Path, fetch_it: Fetch, how: str) -> None:
    source = ScriptedSource(make_checkpoint())
    first = fetch_it(source)
    assert first.published is not None
    victim = home / first.published.folder / "model-00001-of-00002.safetensors"
    served = source.served_bytes
    status = victim.stat()
    with victim.open("rb+") as reader:
        if how == "gone":
            victim.unlink()
        else:
            os.pwrite(reader.fileno(), b"rotten", 100)
            if how == "truncated":
                reader.truncate(1000)
            os.utime(victim, ns=(status.st_atime_ns, status.st_mtime_ns))
        # Nobody notices other bytes of the same size and time, but who hashes.
        assert how != "rotten" or "AlreadyThere" == fetch_it(source).reason
        before = os.fstat(reader.fileno()).st_size
        second = fetch_it(source, verify=how == "rotten")
        assert before == os.fstat(reader.fileno()).st_size
    assert ("Fetched", first.published.folder) == (second.reason, second.published and second.published.folder)
    assert len(source.contents[victim.name]) == source.served_bytes - served
    assert source.contents[victim.name] == victim.read_bytes()


def test_no_room_is_said_before_the_first_byte(home: Path, fetch_it: Fetch) -> None:
    source = ScriptedSource(make_checkpoint())
    with pytest.raises(NoRoomError, match=r"\(\d+ bytes\) are to be fetched.* free and .* are to stay so") as caught:
        fetch_it(source, reserve=Reserve(percent=100))
    assert ("NoRoom", 40) == (caught.value.reason, caught.value.exit_code)
    assert {"lock"} == set(os.listdir(home / ".fetch"))
    assert {path for path, *_ in source.reads} == {"model.safetensors.index.json"}


def test_dry_run_writes_nothing(home: Path, fetch_it: Fetch, tmp_path: Path) -> None:
    source = ScriptedSource(make_checkpoint())
    result = fetch_it(source, dry_run=True)
    assert not home.exists()
    assert {"fetch"} == {one.state for one in result.plan.files} if result.plan else False
    fetch_it(source)
    before = _look(tmp_path)
    assert "AlreadyThere" == fetch_it(source, dry_run=True).reason
    result = fetch_it(source, dry_run=True, exclude=("config.json",))
    assert {"have"} == {one.state for one in result.plan.files} if result.plan else False
    assert before == _look(tmp_path)


def _look(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.lstat().st_size, path.lstat().st_mtime_ns) for path in folder.rglob("*")}


def test_source_without_hashes_gives_the_same_digest(fetch_it: Fetch, tmp_path: Path) -> None:
    hashed = fetch_it(ScriptedSource(make_checkpoint()))
    plain = fetch(
        str(tmp_path / "other"),
        ScriptedSource(make_checkpoint(), hashes=False, revision=""),
        FetchOptions("s3://bucket/tiny", download=QUICK, reserve=Reserve(percent=0)),
    )
    assert plain.published is not None
    assert hashed.published is not None
    assert hashed.published.manifest_digest == plain.published.manifest_digest


@pytest.mark.parametrize(
    ("contents", "reason"),
    [
        ({"model.bin": b"pickle"}, "NoSafetensors"),
        ({"model-1.safetensors": b"x", "model.safetensors.index.json": b"{}"}, "InvalidIndex"),
        (
            {
                "model-1.safetensors": b"x",
                "model.safetensors.index.json": b'{"weight_map": {"a": "model-2.safetensors"}}',
            },
            "MissingShard",
        ),
    ],
)
def test_what_is_no_checkpoint_is_not_fetched(
    home: Path, fetch_it: Fetch, contents: dict[str, bytes], reason: str
) -> None:
    with pytest.raises(BadCheckpointError) as caught:
        fetch_it(ScriptedSource(contents))
    assert (reason, 30) == (caught.value.reason, caught.value.exit_code)
    assert ["lock"] == os.listdir(home / ".fetch")


def test_layout_of_the_hub_needs_a_name_before_anything_is_read(fetch_it: Fetch) -> None:
    source = ScriptedSource(make_checkpoint(), name="")
    with pytest.raises(WillNotWorkError) as caught:
        fetch_it(source, url="s3://-bucket/", layout="HuggingFaceCache")
    assert ("NoRepositoryName", []) == (caught.value.reason, source.reads)


def test_large_file_of_many_parts_by_many_connections(home: Path, fetch_it: Fetch) -> None:
    source = ScriptedSource(make_checkpoint((40 * MIB + 12345,)))
    result = fetch_it(source)
    assert (
        source.contents["model-00001-of-00001.safetensors"]
        == (read_published(home, result)["model-00001-of-00001.safetensors"])
    )
    assert 3 < sum(path == "model-00001-of-00001.safetensors" for path, *_ in source.reads)


def test_index_counts_once_and_comes_in_small_pieces(fetch_it: Fetch) -> None:
    contents = make_checkpoint((5 * MIB,))
    names = (f"layer.{number}.{'x' * 60}" for number in range(60_000))
    index = {"weight_map": dict.fromkeys(names, "model-00001-of-00001.safetensors")}
    contents["model.safetensors.index.json"] = json.dumps(index).encode()
    source = ScriptedSource(contents)
    result = fetch_it(source)
    assert (result.size_bytes, result.size_bytes) == (result.fetched_bytes, source.served_bytes)
