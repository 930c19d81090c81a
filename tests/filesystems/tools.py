"""Programs that file systems need, and mounting without leftovers. Called by `loop` and `fuse`."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.debian import Tool, ensure
from tests.polling import wait_for

TOOLS: Final = {
    "ext4": (Tool("mkfs.ext4", "e2fsprogs"), Tool("losetup", "mount")),
    "xfs": (Tool("mkfs.xfs", "xfsprogs"), Tool("losetup", "mount")),
    # The server alone: the package with the daemon would start one that listens to everybody.
    "sshfs": (Tool("sshfs", "sshfs"), Tool("/usr/lib/openssh/sftp-server", "openssh-sftp-server")),
    "bindfs": (Tool("bindfs", "bindfs"),),
    "mergerfs": (Tool("mergerfs", "mergerfs"),),
    "rclone": (Tool("rclone", "rclone"), Tool("fusermount3", "fuse3")),
}
DEADLINE_SECONDS: Final = 30.0


class FileSystemError(Exception):
    """A file system could not be made or mounted; the message says what was tried and what came of it."""


def ensure_tools(*kinds: str) -> None:
    """Install what the named file systems need; no names mean all of them.

    Raises:
        FileSystemError: This user can't mount.
        MissingPackagesError: The packages can't be installed.
    """
    if os.geteuid() != 0:
        raise FileSystemError("file systems are mounted for this: run it as root")
    ensure(tool for kind in kinds or TOOLS for tool in TOOLS.get(kind, ()))


def run(*argv: str) -> str:
    """Run a program to its end; return what it printed."""
    finished = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
    if finished.returncode != 0:
        raise FileSystemError(f"{' '.join(argv)}: {(finished.stderr or finished.stdout).strip()}")
    return finished.stdout.strip()


def is_mounted(mount_point: Path) -> bool:
    """Whether something is mounted there. Asks the kernel's list, since a dead FUSE file system answers no stat."""
    wanted = str(mount_point.resolve()).replace(" ", "\\040")
    return any(line.split()[4] == wanted for line in Path("/proc/self/mountinfo").read_text().splitlines())


def unmount(mount_point: Path) -> None:
    """Take it out of the tree, at once if it is free and behind the users' backs if it isn't after a while."""

    def tried() -> bool:
        return not is_mounted(mount_point) or (
            subprocess.run(["umount", str(mount_point)], capture_output=True, check=False).returncode == 0
        )

    if not wait_for(tried, 5.0):
        run("umount", "--lazy", str(mount_point))


@contextlib.contextmanager
def mounted(mount_point: Path, *argv: str) -> Iterator[Path]:
    """Run a mount command, yield the folder, and unmount it whatever happens."""
    mount_point.mkdir(parents=True, exist_ok=True)
    run(*argv)
    try:
        yield mount_point
    finally:
        unmount(mount_point)
