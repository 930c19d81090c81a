"""The command that the chart's DaemonSet runs as root on each node: it must give away nothing but the folders that it made."""

from __future__ import annotations

import contextlib
import os
import stat
from typing import TYPE_CHECKING

import pytest

from modelweights_loader.errors import LoaderError
from modelweights_loader.fetch.folders import open_home
from modelweights_loader.prepare import LOADER_GROUP, MODE, prepare
from tests.unit.loader.conftest import STAGING_UID, run_loader
from tests.unit.loader.swapping import swapping

if TYPE_CHECKING:
    from pathlib import Path


def _owner(path: Path) -> tuple[int, int, int]:
    status = path.lstat()
    return status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)


def test_folders_get_the_loaders_group_and_stay_as_they_are(disk: Path) -> None:
    (disk / "team-a").mkdir(mode=0o700)
    (disk / "team-a" / "model").write_text("kept")
    os.chown(disk / "team-a", 1000, 1000)
    ran = run_loader("prepare", disk, "--namespace", "team-a", "--namespace", "team-b")
    assert (ran.code, ran.report["reason"], ran.report["changed"]) == (0, "Prepared", 4)
    for name in ("", ".modelweights", "team-a", "team-b"):
        assert _owner(disk / name) == (0, LOADER_GROUP, MODE)
    assert ((disk / "team-a" / "model").read_text(), _owner(disk / "team-a" / "model")[1]) == ("kept", 0)
    assert run_loader("prepare", disk, "--namespace", "team-a", "--namespace", "team-b").report["changed"] == 0


@pytest.mark.parametrize("name", [".modelweights", "team-a"])
@pytest.mark.parametrize("kind", ["link", "link to nowhere", "file", "fifo"])
def test_what_is_no_folder_is_refused_and_not_followed(disk: Path, name: str, kind: str) -> None:
    outside, root = disk / "outside", disk / "root"
    outside.mkdir(mode=0o700)
    root.mkdir()
    if kind.startswith("link"):
        (root / name).symlink_to(outside if kind == "link" else disk / "nowhere")
    elif kind == "file":
        (root / name).write_text("")
    else:
        os.mkfifo(root / name)
    ran = run_loader("prepare", root, "--namespace", "team-a")
    assert (ran.code, ran.report["reason"]) == (20, "UnsafePath")
    assert str(root / name) in ran.report["message"]
    assert (_owner(outside), (disk / "nowhere").exists()) == ((0, 0, 0o700), False)


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (("{disk}/nowhere",), 20, "NotFound"),
        (("{disk}", "--namespace", ".."), 2, "Usage"),
        (("{disk}", "--namespace", "a/b"), 2, "Usage"),
        (("{disk}", "--namespace", "Team"), 2, "Usage"),
        (("{disk}", "--namespace", ""), 2, "Usage"),
    ],
)
def test_reasons(disk: Path, arguments: tuple[str, ...], code: int, reason: str) -> None:
    ran = run_loader("prepare", *(each.format(disk=disk) for each in arguments))
    assert (ran.code, f"prepare: {reason}:" in ran.stderr) == (code, True)
    assert os.listdir(disk) == []


def test_a_folder_that_is_swapped_for_a_link_gives_nothing_away(disk: Path) -> None:
    outside, root = disk / "outside", disk / "root"
    outside.mkdir(mode=0o700)
    root.mkdir()
    (root / "team-a").mkdir()
    (root / "link").symlink_to(outside)
    well = 0
    with swapping(root / "team-a", root / "link"):
        for _ in range(500):
            with contextlib.suppress(LoaderError):
                prepare(str(root), ["team-a"])
                well += 1
            # As it was before, so that there is something to do.
            with (
                open_home(str(root), make=False) as top,
                contextlib.suppress(LoaderError),
                top.folder("team-a") as folder,
            ):
                os.fchown(folder.descriptor, STAGING_UID, 0)
            assert _owner(outside) == (0, 0, 0o700)
    assert well
