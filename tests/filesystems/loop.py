"""File systems of the kernel: ext4 and xfs in an image file or in memory, tmpfs, overlay."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.filesystems.tools import FileSystemError, ensure_tools, mounted, run

_MAKE: Final = {
    "ext4": ("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=1"),
    # The oldest sizes that mkfs takes are 300 MiB; -K doesn't discard, which on a sparse file only costs time.
    "xfs": ("mkfs.xfs", "-q", "-f", "-K"),
}
MIN_IMAGE_BYTES: Final = 320 * 2**20
"""mkfs.xfs refuses less than 300 MiB."""


@contextlib.contextmanager
def mount_image(kind: str, image: Path, mount_point: Path, size_bytes: int = MIN_IMAGE_BYTES) -> Iterator[Path]:
    """Make a sparse image with a file system in it, mount it, and remove both afterwards.

    The loop device reads the image past the page cache: otherwise each byte would be cached twice, and a cache that
    was dropped above would still be warm below.

    Args:
        kind: ext4 or xfs.
        image: The file to make.
        mount_point: Folder to mount on, made if it isn't there.
        size_bytes: Of the image.
    """
    if kind not in _MAKE:
        raise FileSystemError(f"no way is known to make {kind}")
    ensure_tools(kind)
    try:
        with image.open("wb") as file:
            file.truncate(size_bytes)
        run(*_MAKE[kind], str(image))
        device = run("losetup", "--find", "--show", "--direct-io=on", str(image))
        try:
            with mounted(mount_point, "mount", "-t", kind, device, str(mount_point)):
                yield mount_point
        finally:
            run("losetup", "--detach", device)
    finally:
        image.unlink(missing_ok=True)


@contextlib.contextmanager
def mount_memory_disk(mount_point: Path, size_bytes: int) -> Iterator[Path]:
    """Make a disk in memory (zram) with ext4 on it, mount it, and remove both afterwards.

    Its bytes are copied by whoever reads them: as fast as memory, but not free of CPU as on a real disk. What is written
    should not be compressible, or it is uncompressed at each read.

    Args:
        mount_point: Folder to mount on, made if it isn't there.
        size_bytes: Of the disk.

    Raises:
        FileSystemError: The kernel has no such disks.
    """
    ensure_tools("ext4")
    control = Path("/sys/class/zram-control")
    if not control.is_dir():
        raise FileSystemError(f"{control} isn't there: this kernel has no zram, or its module isn't loaded")
    number = (control / "hot_add").read_text().strip()
    device = Path(f"/dev/zram{number}")
    try:
        Path(f"/sys/block/{device.name}/disksize").write_text(str(size_bytes))
        run(*_MAKE["ext4"], str(device))
        with mounted(mount_point, "mount", "-t", "ext4", str(device), str(mount_point)):
            yield mount_point
    finally:
        (control / "hot_remove").write_text(number)


@contextlib.contextmanager
def mount_tmpfs(mount_point: Path, size_bytes: int) -> Iterator[Path]:
    """Mount an empty tmpfs."""
    ensure_tools("tmpfs")
    with mounted(mount_point, "mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(mount_point)):
        yield mount_point


@contextlib.contextmanager
def mount_overlay(lower: Path, mount_point: Path, scratch: Path) -> Iterator[Path]:
    """Show a folder through overlayfs.

    Args:
        lower: What is shown.
        mount_point: Folder to mount on, made if it isn't there.
        scratch: A folder for what is written above; not on an overlay itself.
    """
    ensure_tools("overlay")
    upper, work = scratch / "upper", scratch / "work"
    for folder in (upper, work):
        folder.mkdir(parents=True, exist_ok=True)
    options = f"lowerdir={lower},upperdir={upper},workdir={work}"
    with mounted(mount_point, "mount", "-t", "overlay", "-o", options, "overlay", str(mount_point)):
        yield mount_point
