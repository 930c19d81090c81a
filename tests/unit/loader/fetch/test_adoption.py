"""A record of what is published is lost or spoilt: what is good is proven by its hash and never fetched again."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.unit.loader.fetch.conftest import read_published
from tests.unit.loader.fetch.scripted_source import ScriptedSource, make_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

    from modelweights_loader.fetch.fetching import FetchResult
    from tests.unit.loader.fetch.conftest import Fetch

SHARD = "model-00001-of-00002.safetensors"
LAYOUTS = ("Plain", "HuggingFaceCache")


def lose(home: Path, how: str) -> None:
    (record,) = home.glob(".fetch/*.json")
    if how == "record gone":
        record.unlink()
    elif how == "record spoilt":
        record.write_bytes(record.read_bytes()[:-9])
    else:
        shutil.rmtree(home / ".fetch")


def find_shard(home: Path, result: FetchResult) -> Path:
    """The file itself, in either layout."""
    assert result.published is not None
    return (home / result.published.folder / SHARD).resolve()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("how", ["record gone", "record spoilt", "folder gone"])
def test_without_a_record_nothing_is_fetched_again(home: Path, fetch_it: Fetch, how: str, layout: str) -> None:
    source = ScriptedSource(make_checkpoint())
    first = fetch_it(source, layout=layout)
    before, served = find_shard(home, first).stat(), source.served_bytes
    lose(home, how)
    planned = fetch_it(source, layout=layout, dry_run=True)
    assert (0, planned.size_bytes) == (source.served_bytes - served, planned.reused_bytes)
    again = fetch_it(source, layout=layout)
    assert (0, "Fetched", first.size_bytes) == (source.served_bytes - served, again.reason, again.reused_bytes)
    assert first.published is not None
    assert again.published is not None
    assert first.published.folder == again.published.folder
    assert before.st_ino == find_shard(home, again).stat().st_ino
    assert "AlreadyThere" == fetch_it(source, layout=layout).reason


@pytest.mark.parametrize("layout", LAYOUTS)
def test_without_a_record_a_bad_file_alone_is_fetched_and_readers_keep_theirs(
    home: Path, fetch_it: Fetch, layout: str
) -> None:
    source = ScriptedSource(make_checkpoint())
    file, served = find_shard(home, fetch_it(source, layout=layout)), source.served_bytes
    status = file.stat()
    file.chmod(0o644)
    with file.open("rb+") as opened:
        os.pwrite(opened.fileno(), b"!", 1_000_000)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    bad = file.read_bytes()
    lose(home, "folder gone")
    with file.open("rb") as reader:
        result = fetch_it(source, layout=layout)
        assert bad == reader.read()
    assert len(bad) == source.served_bytes - served
    found = read_published(home, result)
    assert source.contents[SHARD] == found[SHARD]


@pytest.mark.parametrize("hashes", [True, False])
def test_times_that_a_copy_has_not_kept_cost_a_read_and_no_fetch(home: Path, fetch_it: Fetch, *, hashes: bool) -> None:
    source = ScriptedSource(make_checkpoint(), hashes=hashes)
    file, served = find_shard(home, fetch_it(source)), source.served_bytes
    os.utime(file)
    assert "Fetched" == fetch_it(source).reason
    assert served == source.served_bytes
    assert "AlreadyThere" == fetch_it(source).reason


def test_without_hashes_and_record_nothing_proves_that_it_is_what_the_source_has(home: Path, fetch_it: Fetch) -> None:
    source = ScriptedSource(make_checkpoint(), hashes=False)
    served = fetch_it(source).size_bytes
    lose(home, "record gone")
    again = fetch_it(source)
    assert (served, 0) == (again.fetched_bytes, again.reused_bytes)
    found = read_published(home, again)
    assert {path: source.contents[path] for path in found} == found


def test_planted_link_is_not_taken_for_a_published_file(home: Path, fetch_it: Fetch, tmp_path: Path) -> None:
    source = ScriptedSource(make_checkpoint())
    file = find_shard(home, fetch_it(source))
    elsewhere = tmp_path / "elsewhere"
    shutil.move(file, elsewhere)
    file.symlink_to(elsewhere)
    lose(home, "folder gone")
    result = fetch_it(source)
    assert len(source.contents[SHARD]) == result.fetched_bytes
    assert not find_shard(home, result).samefile(elsewhere)


def test_where_no_hard_link_can_be_a_copy_is_made_and_proven(home: Path, fetch_it: Fetch) -> None:
    """A folder that is a mount of its own: links don't pass its border."""
    source = ScriptedSource(make_checkpoint())
    first = fetch_it(source)
    served = source.served_bytes
    file = find_shard(home, first)
    source.contents["config.json"] = b'{"new": 1}'
    source.revision = "b" * 40
    subprocess.run(["mount", "--bind", file.parent, file.parent], check=True, timeout=30)
    try:
        second = fetch_it(source)
    finally:
        subprocess.run(["umount", file.parent], check=True, timeout=30)
    assert len(b'{"new": 1}') == source.served_bytes - served
    copy = find_shard(home, second)
    assert file.stat().st_ino != copy.stat().st_ino
    assert source.contents[SHARD] == copy.read_bytes()
    assert "AlreadyThere" == fetch_it(source).reason
