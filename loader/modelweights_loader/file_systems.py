"""Says which kind of file system a file lies on, and what that means for the page cache.

Called by `prefetch` and `residency` to choose and to find words: what really happens is measured, the type only explains
it. Must not import torch.
"""

from __future__ import annotations

import os
from typing import NamedTuple

# What is never run here, since the kernel or the hardware at hand lacks it: NFS, SMB, Lustre, CephFS, GPFS, BeeGFS, 9p,
# virtiofs, ZFS. They share all code with those that are; only these words differ.
_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "lustre", "ceph", "gpfs", "beegfs", "9p", "afs", "orangefs", "glusterfs"}
_FUSE_NETWORK = {"sshfs", "glusterfs", "ceph-fuse", "juicefs", "s3fs", "rclone", "gcsfuse", "mount-s3", "goofys"}
_MEMORY = {"tmpfs", "ramfs", "hugetlbfs"}
_OWN_CACHE = {"zfs", "gpfs"}
_FUSE = {"fuse", "fuseblk"}


class FileSystem(NamedTuple):
    """What a file lies on: the kernel's name for its type (`fuse.sshfs`, `ext4`; `unknown`), and where it is mounted."""

    type: str
    mount_point: str

    @property
    def is_fuse(self) -> bool:
        """Whether a program in user space answers; its options decide about the page cache."""
        return self.type.partition(".")[0] in _FUSE

    @property
    def is_memory(self) -> bool:
        """Whether all of it is in memory, or swap, anyway."""
        return self.type in _MEMORY

    @property
    def is_network(self) -> bool:
        """Whether reading crosses a network, as far as the type tells."""
        kind, _, subtype = self.type.partition(".")
        return kind in _NETWORK or (kind in _FUSE and subtype in _FUSE_NETWORK)

    @property
    def remedy(self) -> str:
        """What to do where the page cache is passed by."""
        subtype = self.type.partition(".")[2]
        if subtype == "mergerfs":
            return "mount it with -o cache.files=full"
        if subtype == "sshfs":
            return "mount it with -o auto_cache, or kernel_cache where files never change, and without direct_io"
        if subtype == "rclone":
            return "rclone keeps nothing from one open to the next: stage a copy on a local disk"
        if self.is_fuse:
            return (
                "mount it so that the kernel keeps pages from one open to the next (often -o auto_cache or kernel_cache, "
                "never direct_io), or stage a copy on a local disk"
            )
        if self.type in _OWN_CACHE:
            return (
                "it has a cache of its own that nobody can look into: stage a copy on ext4 or xfs, or use --mode None"
            )
        return "mount it without options such as dax or direct I/O, or stage a copy on a local disk"

    def __str__(self) -> str:
        """For messages."""
        return f"{self.type} at {self.mount_point}" if self.mount_point else self.type


UNKNOWN = FileSystem("unknown", "")


def detect(path: str, proc: str = "/proc") -> FileSystem:
    """Finds the file system that a file lies on.

    Opens the file as a mere place (O_PATH): a real open would have some FUSE file systems drop the file's pages.

    Args:
        path: The file, after all links.
        proc: Where procfs is mounted.

    Returns:
        The file system, `UNKNOWN` where nobody says.
    """
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return UNKNOWN
    try:
        return detect_open(descriptor, proc)
    finally:
        os.close(descriptor)


def detect_open(descriptor: int, proc: str = "/proc") -> FileSystem:
    """Finds the file system of an open file, by the number of its mount: exact also where mounts lie on mounts.

    Args:
        descriptor: An open file; O_PATH will do.
        proc: Where procfs is mounted.

    Returns:
        The file system, `UNKNOWN` where nobody says.
    """
    try:
        with open(os.path.join(proc, "self", "fdinfo", str(descriptor)), encoding="ascii") as file:
            mount = next((line.split()[1] for line in file if line.startswith("mnt_id:")), "")
        with open(os.path.join(proc, "self", "mountinfo"), encoding="utf-8", errors="surrogateescape") as file:
            for line in file:
                left, _, right = line.partition(" - ")
                fields = left.split()
                if fields[0] == mount:
                    return FileSystem(right.split()[0], unescape(fields[4]))
    except (OSError, IndexError):
        pass
    return UNKNOWN


def unescape(text: str) -> str:
    """Reads what the kernel writes: space, tab, line end and backslash are three octal digits.

    Args:
        text: A field of a table in procfs.

    Returns:
        What it stands for.
    """
    for code in ("\\040", "\\011", "\\012", "\\134"):
        text = text.replace(code, chr(int(code[1:], 8)))
    return text
