"""A folder that is swapped for a link while the loader works: nothing outside is taken for what is inside.

Each test drives the race for real, many rounds of it, and would see what got through.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from modelweights_loader import marker as markers
from modelweights_loader.checkpoint import find_checkpoint
from modelweights_loader.errors import LoaderError
from modelweights_loader.fetch.fetching import FetchOptions, fetch
from modelweights_loader.fetch.folders import open_home
from modelweights_loader.manifest import ManifestHasher
from modelweights_loader.memory import Reserve
from modelweights_loader.publish import PublishOptions, publish
from modelweights_loader.report import write_result
from modelweights_loader.safetensors_header import read_header
from modelweights_loader.sources.contract import SourceOptions
from modelweights_loader.sources.local import LocalSource
from tests.checkpoints.writer import make_tensor, write_safetensors
from tests.unit.loader.fetch.scripted_source import ScriptedSource, make_checkpoint
from tests.unit.loader.swapping import swapping

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = 300
ENOUGH = 20
"""So often it must have got through to what it may read, or the race would prove nothing."""
FETCHES = 12
DEADLINE_SECONDS = 60


class Place:
    """`root/mine/model`, which may be read, and `root/theirs/model` with files of the same names and sizes, which may not.

    `root/mine/link` leads from the one to the other; swapping it with `root/mine/model` is the race.
    """

    def __init__(self, root: Path) -> None:
        self.root, self.mine, self.theirs = root, root / "mine" / "model", root / "theirs" / "model"
        for folder, tensor in ((self.mine, "inside.w"), (self.theirs, "theirs.w")):
            folder.mkdir(parents=True)
            write_safetensors(folder / "model.safetensors", [make_tensor(tensor, "F32", (64, 16), len(tensor) + 1)])
            (folder / "config.json").write_text(json.dumps({"of": tensor}))
        self.link = root / "mine" / "link"
        self.link.symlink_to("../theirs/model")
        for name in ("model.safetensors", "config.json"):
            # Sizes and times tell nothing.
            os.utime(self.mine / name, ns=(10**18, 10**18))
            os.utime(self.theirs / name, ns=(10**18, 10**18))

    def race(self, work: Callable[[], object]) -> list[object]:
        """Does it many times during the swaps; what it gave, without those that were refused."""
        given: list[object] = []
        deadline, rounds = time.monotonic() + DEADLINE_SECONDS, 0
        with swapping(self.mine, self.link):
            while rounds < ROUNDS or len(given) < ENOUGH:
                assert time.monotonic() < deadline, f"{len(given)} of {rounds} got through"
                rounds += 1
                # Any other error would be a traceback to its user.
                with contextlib.suppress(LoaderError):
                    given.append(work())
        return given

    @property
    def inside(self) -> Path:
        """Wherever it is after the race."""
        return self.link if self.mine.is_symlink() else self.mine


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def _digest(folder: Path) -> str:
    return ManifestHasher(find_checkpoint(str(folder))).digest()


def test_hashes_are_of_files_inside_the_root(place: Place) -> None:
    inside, root = _digest(place.mine), str(place.root / "mine")
    given = place.race(lambda: ManifestHasher(find_checkpoint(str(place.mine), root)).digest())
    assert set(given) == {inside}


def test_headers_are_of_files_inside_the_root(place: Place) -> None:
    root = str(place.root / "mine")

    def work() -> str:
        checkpoint = find_checkpoint(str(place.mine), root)
        return next(iter(read_header(checkpoint.shards[0].real_path, is_found=True).tensors))

    assert set(place.race(work)) == {"inside.w"}


def test_a_copy_is_of_files_inside_the_source(place: Place) -> None:
    """The folder that is swapped lies in the source, as where somebody may write in a part of it."""
    source = LocalSource(str(place.root / "mine"), SourceOptions())

    def work() -> bytes:
        files = {file.path: file for file in source.list_files().files}
        # The swap gives it the one or the other name.
        file = next(file for path, file in files.items() if path.endswith("config.json"))
        return b"".join(bytes(piece) for piece in source.read_range(file, 0, file.size_bytes))

    assert set(place.race(work)) == {b'{"of": "inside.w"}'}


def test_a_copys_listing_names_nothing_outside(place: Place) -> None:
    (place.theirs / "secret-plan.txt").write_text("x")
    source = LocalSource(str(place.root / "mine"), SourceOptions())
    given = place.race(lambda: frozenset(Path(file.path).name for file in source.list_files().files))
    assert set().union(*given) == {"config.json", "model.safetensors"}  # type: ignore[arg-type]


def test_markers_are_of_the_folder_that_was_proven(place: Place, tmp_path: Path) -> None:
    """Pods of others wait for theirs: a marker there would start them before their own files are proven."""
    marker_dir, results = tmp_path / markers.MARKER_FOLDER, tmp_path / "results"
    marker_dir.mkdir()
    digest = _digest(place.mine)
    root = str(place.root)
    path = str(place.mine)
    write_result(str(results), "validate", {"exitCode": 0, "manifestDigest": digest}, path)
    options = PublishOptions("BestEffort", 95, results=str(results), marker_dir=str(marker_dir), marker_root=root)

    def work() -> None:
        publish(path, find_checkpoint(path, str(place.root / "mine")), options)

    place.race(work)
    found = {json.loads(file.read_text())["path"] for file in marker_dir.iterdir()}
    assert found <= {"mine/model", "mine/link"}
    assert found


def test_nothing_outside_is_removed(place: Place) -> None:
    """What is removed has a folder in it that is swapped for a link."""
    tree, kept = place.root / "mine" / "tree", {path.name: path.read_bytes() for path in place.theirs.iterdir()}
    with swapping(tree / "folder", tree / "link"), open_home(str(place.root / "mine"), make=False) as home:
        for _ in range(ROUNDS // 3):
            (tree / "folder" / "deep").mkdir(parents=True)
            (tree / "folder" / "deep" / "config.json").write_text("{}")
            (tree / "link").symlink_to("../../theirs/model")
            while tree.exists():
                with contextlib.suppress(LoaderError):
                    home.remove_tree("tree")
            assert {path.name: path.read_bytes() for path in place.theirs.iterdir()} == kept


@pytest.mark.parametrize("swapped", [".fetch", ".fetch/{key}", ".fetch/{key}/files", "{digest}"])
def test_a_fetch_writes_nothing_outside(place: Place, swapped: str) -> None:
    """A tenant that may write into its home has the folders that are written to swapped for links to another's home."""
    source, options = ScriptedSource(make_checkpoint((30_000,))), FetchOptions("hf://org/tiny", reserve=Reserve())
    fetch(str(place.root / "theirs"), source, options)
    (record,) = (place.root / "theirs" / ".fetch").glob("*.json")
    (digest,) = (path.name for path in (place.root / "theirs").glob("?" * 64))
    (place.root / "theirs" / ".fetch" / record.stem / "files").mkdir(parents=True)
    (place.root / "theirs" / ".fetch" / record.stem / "files" / "config.json").write_text("theirs")
    kept = _list_all(place.root / "theirs")
    home, name = place.root / "mine", swapped.format(key=record.stem, digest=digest)
    link = home / "link-of-mine"
    deadline, rounds, well = time.monotonic() + DEADLINE_SECONDS, 0, 0
    with swapping(home / name, link), open_home(str(place.root), make=False) as root:
        while rounds < FETCHES or not well:
            assert time.monotonic() < deadline
            while home.exists():
                with contextlib.suppress(LoaderError):
                    root.remove_tree("mine")
            home.mkdir()
            link.symlink_to(place.root / "theirs" / name)
            rounds += 1
            with contextlib.suppress(LoaderError):
                fetch(str(home), source, options)
                well += 1
            assert _list_all(place.root / "theirs") == kept


def _list_all(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Inode, time and content of each file, by path."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        found[str(path.relative_to(folder))] = (
            status.st_ino,
            status.st_mtime_ns,
            path.read_bytes() if path.is_file() else b"",
        )
    return found
