"""A folder as a source: links inside of it are followed, and none out of it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from modelweights_loader.errors import WillNotWorkError
from modelweights_loader.sources.contract import SourceOptions
from modelweights_loader.sources.local import LocalSource

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small checkpoint, and a secret beside it."""
    made = tmp_path / "source"
    made.mkdir()
    (made / "config.json").write_text("{}")
    (made / "model.safetensors").write_bytes(b"12345678")
    (tmp_path / "token").write_text("hunter2")
    return made


def _list(folder: Path) -> list[str]:
    return [file.path for file in LocalSource(str(folder), SourceOptions()).list_files().files]


@pytest.mark.parametrize("below", ["", "1_Pooling"])
def test_link_out_of_the_folder_is_refused(folder: Path, below: str) -> None:
    (folder / below).mkdir(exist_ok=True)
    link = folder / below / "generation_config.json"
    link.symlink_to(folder.parent / "token")
    with pytest.raises(WillNotWorkError) as caught:
        _list(folder)
    assert ("UnsafePath", True) == (caught.value.reason, str(link) in caught.value.message)


def test_link_that_is_made_after_the_listing_is_refused(folder: Path) -> None:
    source = LocalSource(str(folder), SourceOptions())
    file = next(one for one in source.list_files().files if one.path == "config.json")
    status = (folder / "config.json").stat()
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to(folder.parent / "token")
    os.utime(folder.parent / "token", ns=(status.st_atime_ns, status.st_mtime_ns))
    os.truncate(folder.parent / "token", file.size_bytes)
    os.utime(folder.parent / "token", ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(WillNotWorkError) as caught:
        list(source.read_range(file, 0, file.size_bytes))
    assert "UnsafePath" == caught.value.reason


def test_links_within_the_folder_and_to_the_blobs_of_its_cache_are_followed(folder: Path, tmp_path: Path) -> None:
    (folder / "tokenizer.json").symlink_to("config.json")
    cache = tmp_path / "models--org--name"
    (cache / "blobs").mkdir(parents=True)
    (cache / "blobs" / "0").write_text("{}")
    (cache / "snapshots" / "1").mkdir(parents=True)
    (cache / "snapshots" / "1" / "config.json").symlink_to("../../blobs/0")
    assert ["config.json", "model.safetensors", "tokenizer.json"] == _list(folder)
    source = LocalSource(str(cache / "snapshots" / "1"), SourceOptions())
    [file] = source.list_files().files
    assert b"{}" == b"".join(bytes(piece) for piece in source.read_range(file, 0, 2))


def test_a_folder_that_is_itself_reached_by_a_link(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder)
    assert ["config.json", "model.safetensors"] == _list(tmp_path / "link")


def test_what_is_no_file_is_left_out(folder: Path) -> None:
    """Also the folder that only root may list, which is in the root of every new disk."""
    (folder / "README.md").symlink_to("nothing")
    (folder / "lost+found").mkdir()
    (folder / "lost+found" / "x.json").write_text("{}")
    os.mkfifo(folder / "pipe")
    assert ["config.json", "model.safetensors"] == _list(folder)
