"""The file systems that other tests stand on: real, and without leftovers."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests import filesystems
from tests.filesystems.tools import is_mounted

SHOWN: dict[str, tuple[str, Callable[[Path, Path], AbstractContextManager[Path]]]] = {
    "sshfs": ("fuse.sshfs", filesystems.show_sshfs),
    "sshfs with direct I/O": ("fuse.sshfs", lambda source, at: filesystems.show_sshfs(source, at, direct_io=True)),
    "bindfs": ("fuse", filesystems.show_bindfs),
    "bindfs with direct I/O": ("fuse", lambda source, at: filesystems.show_bindfs(source, at, direct_io=True)),
    "mergerfs": ("fuse.mergerfs", filesystems.show_mergerfs),
    "mergerfs with direct I/O": (
        "fuse.mergerfs",
        lambda source, at: filesystems.show_mergerfs(source, at, direct_io=True),
    ),
    "rclone": ("fuse.rclone", filesystems.show_rclone),
    "overlay": ("overlay", lambda source, at: filesystems.mount_overlay(source, at, at.parent / "scratch")),
}


def type_of(mount_point: Path) -> str:
    wanted = str(mount_point).replace(" ", "\\040")
    lines = Path("/proc/self/mounts").read_text().splitlines()
    return next(line.split()[2] for line in lines if line.split()[1] == wanted)


def check_and_fail(folder: Path, kind: str, content: bytes) -> None:
    """What a test that fails does inside of a mount."""
    assert (folder / "file").read_bytes() == content
    assert type_of(folder) == kind
    raise ZeroDivisionError


def write_and_fail(folder: Path, kind: str) -> None:
    (folder / "file").write_bytes(b"kept")
    check_and_fail(folder, kind, b"kept")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "file").write_bytes(bytes(range(256)) * 1000)
    return folder


@pytest.mark.parametrize("name", SHOWN)
def test_a_folder_is_shown_and_nothing_is_left_behind_even_after_a_failure(
    name: str, source: Path, tmp_path: Path
) -> None:
    kind, show = SHOWN[name]
    mount_point = tmp_path / "mount point"
    with pytest.raises(ZeroDivisionError), show(source, mount_point) as folder:
        check_and_fail(folder, kind, (source / "file").read_bytes())
    assert not is_mounted(mount_point)
    assert list(mount_point.iterdir()) == []


@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_an_image_is_mounted_and_removed(kind: str, tmp_path: Path) -> None:
    image, mount_point = tmp_path / "image", tmp_path / "mount"
    with pytest.raises(ZeroDivisionError), filesystems.mount_image(kind, image, mount_point) as folder:
        write_and_fail(folder, kind)
    assert not is_mounted(mount_point)
    assert not image.exists()


def test_a_tmpfs_is_mounted(tmp_path: Path) -> None:
    with filesystems.mount_tmpfs(tmp_path / "mount", 2**20) as folder:
        assert type_of(folder) == "tmpfs"
    assert not is_mounted(tmp_path / "mount")


def test_a_server_that_mounts_nothing_is_an_error_with_its_words(tmp_path: Path) -> None:
    with (
        pytest.raises(filesystems.FileSystemError, match="bindfs"),
        filesystems.show_bindfs(tmp_path / "missing", tmp_path / "mount"),
    ):
        pass
