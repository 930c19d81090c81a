"""What is published is touched by hand: it is noticed, nothing that is good is fetched again, and an engine loads what was proven."""

from __future__ import annotations

import json
import os
import resource
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from modelweights_loader.checkpoint import find_checkpoint
from modelweights_loader.fetch.folders import open_home
from modelweights_loader.fetch.journal import Finished
from modelweights_loader.fetch.published import Published, PublishedFile, encode, read_published
from tests.unit.loader.fetch.scripted_source import COMMIT, ScriptedSource, make_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.unit.loader.fetch.conftest import Fetch

SHARD = "model-00001-of-00002.safetensors"
_TOP = "ab" * 32


def _write(name: str) -> Callable[[Path], None]:
    def harm(folder: Path) -> None:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("{}")

    return harm


def _relink(target: str) -> Callable[[Path], None]:
    def harm(folder: Path) -> None:
        (folder / SHARD).unlink()
        (folder / SHARD).symlink_to(target)

    return harm


def _swap(folder: Path) -> None:
    first, second = folder / SHARD, folder / SHARD.replace("00001", "00002")
    other = os.readlink(second)
    second.unlink()
    second.symlink_to(os.readlink(first))
    first.unlink()
    first.symlink_to(other)


@pytest.mark.parametrize(
    ("layout", "harm"),
    [
        ("Plain", _write("consolidated.safetensors")),
        ("Plain", _write("generation_config.json")),
        ("Plain", _write("2_Dense/config.json")),
        ("HuggingFaceCache", _write("generation_config.json")),
        ("HuggingFaceCache", lambda folder: (folder / SHARD).unlink()),
        ("HuggingFaceCache", _relink("/etc/hostname")),
        ("HuggingFaceCache", _relink("../../blobs/nothing")),
        ("HuggingFaceCache", _swap),
        ("HuggingFaceCache", lambda folder: shutil.rmtree(folder.parents[1] / "refs")),
        ("HuggingFaceCache", lambda folder: (folder.parents[1] / "refs" / "main").write_text("0" * 40)),
        ("HuggingFaceCache", shutil.rmtree),
    ],
)
def test_links_and_foreign_files_are_mended_without_a_byte(
    home: Path, fetch_it: Fetch, layout: str, harm: Callable[[Path], None]
) -> None:
    source = ScriptedSource(make_checkpoint())
    first = fetch_it(source, layout=layout, revision=COMMIT)
    assert first.published is not None
    folder, served = home / first.published.folder, source.served_bytes
    harm(folder)
    result = fetch_it(source, layout=layout, revision=COMMIT)
    assert ("Fetched", served) == (result.reason, source.served_bytes)
    counting = {file.path: file.real_path for file in find_checkpoint(str(folder)).files}
    expected = {path: source.contents[path] for path in source.contents if path != "README.md"}
    assert expected == {path: (folder / path).read_bytes() for path in counting}
    if layout != "Plain":
        assert COMMIT == (folder.parents[1] / "refs" / "main").read_text()
    assert "AlreadyThere" == fetch_it(source, layout=layout, revision=COMMIT).reason


def test_files_that_no_engine_reads_are_left_alone(home: Path, fetch_it: Fetch) -> None:
    source = ScriptedSource(make_checkpoint())
    result = fetch_it(source)
    assert result.published is not None
    mine = home / result.published.folder / "NOTES"
    mine.write_text("mine")
    assert ("AlreadyThere", "mine") == (fetch_it(source).reason, mine.read_text())


def make_record(**changes: Any) -> bytes:
    """A record of one file, and what was changed in it."""
    file = PublishedFile("config.json", f"{_TOP}/config.json", Finished(2, "cd" * 32, "", 1), "v")
    sound = json.loads(encode(Published("r", f"sha256:{_TOP}", _TOP, "d", "s", 2, (file,))))
    return json.dumps(sound | changes).encode()


def _row(place: object = f"{_TOP}/config.json", path: object = "config.json", size: object = 2) -> list[Any]:
    return [[path, place, [size, "cd" * 32, "", 1], "v"]]


@pytest.mark.parametrize(
    "changes",
    [
        {"revision": 5},
        {"manifest_digest": 7},
        {"manifest_digest": "sha256:" + "0" * 64},
        {"manifest_digest": "sha256:x", "folder": "x", "files": _row("x/config.json")},
        {"folder": "0" * 64},
        {"folder": f"{_TOP}/../x"},
        {"files": []},
        {"size_bytes": 3},
        {"files": _row("../../etc/passwd")},
        {"files": _row(f"{_TOP}/../../etc/passwd")},
        {"files": _row("/etc/passwd")},
        {"files": _row(f"{_TOP}/a\0b")},
        {"files": _row(f"{_TOP}/\ud800")},
        {"files": _row(_TOP)},
        {"files": _row(5)},
        {"files": _row(path="../x")},
        {"files": _row(path=None)},
        {"files": _row(size="2")},
        {"unknown": 1},
    ],
)
def test_record_that_is_not_ours_counts_as_none(tmp_path: Path, changes: dict[str, Any]) -> None:
    (tmp_path / "good.json").write_bytes(make_record())
    (tmp_path / "bad.json").write_bytes(make_record(**changes))
    with open_home(str(tmp_path), make=False) as folder:
        assert read_published(folder, "good.json") is not None
        assert read_published(folder, "bad.json") is None


def test_record_of_another_digest_is_not_believed(home: Path, fetch_it: Fetch) -> None:
    source = ScriptedSource(make_checkpoint())
    first = fetch_it(source)
    assert first.published is not None
    top = first.published.folder
    (home / top).rename(home / _TOP)
    record = next(home.glob(".fetch/*.json"))
    record.write_text(record.read_text().replace(top, _TOP))
    result = fetch_it(source)
    assert result.published is not None
    assert ("Fetched", top) == (result.reason, result.published.folder)


def test_more_folders_than_may_be_open(fetch_it: Fetch) -> None:
    """Some two hundred are open at the most: folders of a plan, and files that are brought to the disk together."""
    folders = {f"{number}/notes.txt": b"x" for number in range(1000)}
    source = ScriptedSource({**make_checkpoint((1000,)), **folders})
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 300, before[1]))
    try:
        reasons = [fetch_it(source, include=("*",)).reason for _ in range(2)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert ["Fetched", "AlreadyThere"] == reasons


def test_leftovers_of_a_kill_after_publication_go(home: Path, fetch_it: Fetch) -> None:
    source = ScriptedSource(make_checkpoint())
    fetch_it(source)
    key = next(home.glob(".fetch/*.json")).stem
    (home / ".fetch" / key / "old").mkdir(parents=True)
    assert "AlreadyThere" == fetch_it(source).reason
    assert sorted(["lock", f"{key}.json"]) == sorted(os.listdir(home / ".fetch"))
