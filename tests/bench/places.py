"""The storage that a prefetch is measured on: file systems, and disks made slow. Called by `prefetch`."""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, NamedTuple

from tests import filesystems
from tests.bench.control_groups import throttle
from tests.bench.page_cache import make_cold
from tests.bench.scratch import list_shards, make_set

_IMAGE_SPARE_BYTES: Final = 512 * 2**20
_SLOW_BYTES_PER_SECOND: Final = {"slow-300": 300_000_000, "slow-100": 100_000_000}


class Place(NamedTuple):
    """A checkpoint on some storage. backing are the files below, which must be cold as well; groups make it slow."""

    name: str
    shards: tuple[Path, ...]
    backing: tuple[Path, ...] = ()
    groups: tuple[Path, ...] = ()

    @property
    def folder(self) -> Path:
        return self.shards[0].parent

    @property
    def size_bytes(self) -> int:
        return sum(shard.stat().st_size for shard in self.shards)

    def make_cold(self) -> None:
        make_cold(self.shards)
        if self.backing:
            make_cold(self.backing)


Show = Callable[[Path, Path], AbstractContextManager[Path]]
SHOWN: Final[dict[str, Show]] = {
    "sshfs, kernel_cache": lambda source, at: filesystems.show_sshfs(source, at, "kernel_cache"),
    "sshfs, defaults": filesystems.show_sshfs,
    "sshfs, direct_io": lambda source, at: filesystems.show_sshfs(source, at, direct_io=True),
    "bindfs, kernel_cache": lambda source, at: filesystems.show_bindfs(source, at, "kernel_cache"),
    "bindfs, defaults": filesystems.show_bindfs,
    "bindfs, direct_io": lambda source, at: filesystems.show_bindfs(source, at, direct_io=True),
    "mergerfs": filesystems.show_mergerfs,
    "mergerfs, cache.files=partial": lambda source, at: filesystems.show_mergerfs(source, at, "cache.files=partial"),
    "mergerfs, cache.files=off": lambda source, at: filesystems.show_mergerfs(source, at, direct_io=True),
    "rclone": filesystems.show_rclone,
    "overlay": lambda source, at: filesystems.mount_overlay(source, at, at.parent / "overlay"),
}
PLACES: Final = ("ext4", "xfs", "sshfs", "bindfs", *_SLOW_BYTES_PER_SECOND)
# Mounted so that pages are kept over an open; otherwise there is nothing to prefetch.
_SHOWN_AS: Final = {"sshfs": "sshfs, kernel_cache", "bindfs": "bindfs, kernel_cache"}
_SIZE_SHARES: Final = {"ext4": 8, "xfs": 8, "sshfs": 16, "bindfs": 16, "slow-300": 16, "slow-100": 48}
"""A table's set is that part of the main point's, so that a run takes about a second everywhere."""


@contextlib.contextmanager
def open_place(name: str, scratch: Path, main_bytes: int) -> Iterator[Place]:
    """Make one of PLACES, with a checkpoint whose size suits it; the disk below scratch is called ext4.

    Args:
        name: Which.
        scratch: A folder on a real disk.
        main_bytes: Size of the main point's checkpoint, from which this one's follows.
    """
    size_bytes, folder = main_bytes // _SIZE_SHARES[name], scratch / f"set-{name}"
    if name == "xfs":
        image, at = scratch / "xfs.img", scratch / "xfs"
        with filesystems.mount_image("xfs", image, at, size_bytes + _IMAGE_SPARE_BYTES) as mounted:
            yield Place(name, tuple(make_set(mounted / "set", size_bytes)))
        return
    source = tuple(make_set(folder, size_bytes))
    if name in _SHOWN_AS:
        with show(_SHOWN_AS[name], source, scratch / "shown") as place:
            yield place
    elif name in _SLOW_BYTES_PER_SECOND:
        with throttle(scratch, _SLOW_BYTES_PER_SECOND[name]) as group:
            yield Place(name, source, groups=(group,))
    else:
        yield Place(name, source)


@contextlib.contextmanager
def show(name: str, source: tuple[Path, ...], mount_point: Path) -> Iterator[Place]:
    """Show a checkpoint through one of SHOWN."""
    with SHOWN[name](source[0].parent, mount_point) as folder:
        yield Place(name, tuple(list_shards(folder)), backing=source)
