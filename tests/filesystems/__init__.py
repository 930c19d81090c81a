"""Real file systems for tests and benchmarks, each a context manager that yields the mounted folder and cleans up.

Used by unit tests of the loader and by tests/bench. All need root, for loop devices or for mounting; `ensure_tools`
installs the programs. What is read through `show_*` is a folder that is there already, so that one set of files can be
seen through every file system.
"""

from tests.filesystems.fuse import show_bindfs, show_mergerfs, show_rclone, show_sshfs
from tests.filesystems.loop import mount_image, mount_memory_disk, mount_overlay, mount_tmpfs
from tests.filesystems.tools import FileSystemError, ensure_tools

__all__ = [
    "FileSystemError",
    "ensure_tools",
    "mount_image",
    "mount_memory_disk",
    "mount_overlay",
    "mount_tmpfs",
    "show_bindfs",
    "show_mergerfs",
    "show_rclone",
    "show_sshfs",
]
