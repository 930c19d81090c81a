"""Checks that this machine can run the embedded cluster, and installs what Debian has for it when it may."""

import contextlib
import ctypes
import os
import shutil
from pathlib import Path

from tests.cluster.errors import MissingToolError
from tests.debian import MissingPackagesError, Tool, ensure

TOOLS = (
    Tool("unshare", "util-linux"),
    Tool("nsenter", "util-linux"),
    Tool("losetup", "mount"),
    Tool("mkfs.ext4", "e2fsprogs"),
    Tool("ip", "iproute2"),
    Tool("hostname", "hostname"),
    Tool("runc", "runc"),
    Tool("nft", "nftables"),
    Tool("iptables", "iptables"),
    Tool("conntrack", "conntrack"),
    Tool("/usr/lib/cni/bridge", "containernetworking-plugins"),
    Tool("buildah", "buildah"),
    Tool("/usr/bin/busybox", "busybox-static"),
)

WATCHES = 42
"""inotify instances that the programs of one cluster hold; the kernel's default limit is 128 for each user."""
_WATCH_LIMIT = Path("/proc/sys/fs/inotify/max_user_instances")
_ENOUGH_WATCHES = 1024


def reason_against() -> str | None:
    """Return why this machine cannot run the embedded cluster even if all packages were there, or None."""
    if os.geteuid() != 0:
        return "the embedded cluster makes namespaces, mounts and loop devices: run it as root"
    if not Path("/dev/loop-control").exists():
        return "the embedded cluster needs loop devices: load the kernel module `loop`"
    if shutil.which("go") is None:
        return "the embedded cluster builds its programs: install Go 1.26 or newer and put it on PATH"
    filesystems = Path("/proc/filesystems").read_text().split()
    if "overlay" not in filesystems:
        return "the embedded cluster needs overlayfs: load the kernel module `overlay`"
    return None


def can_watch_files(clusters: int = 1) -> bool:
    """Return whether so many clusters get the inotify instances that they take; the kernel's limit is raised where it lacks some."""
    if _are_free(clusters * WATCHES):
        return True
    with contextlib.suppress(OSError):
        # Until the next boot. In a container it may be read-only.
        _WATCH_LIMIT.write_text(str(_ENOUGH_WATCHES))
    return _are_free(clusters * WATCHES)


def _are_free(instances: int) -> bool:
    libc = ctypes.CDLL(None)
    taken = [libc.inotify_init1(os.O_CLOEXEC) for _ in range(instances)]
    for descriptor in taken:
        if descriptor >= 0:
            os.close(descriptor)
    return all(descriptor >= 0 for descriptor in taken)


def ensure_requirements() -> None:
    """Install missing Debian packages; raise MissingToolError, naming them, where that is not possible."""
    reason = reason_against()
    if reason:
        raise MissingToolError(reason)
    if not can_watch_files():
        raise MissingToolError(
            f"of the machine's inotify instances fewer than {WATCHES} are free, so kubelet and containerd couldn't start: "
            "take down other clusters, or raise the limit by `sysctl fs.inotify.max_user_instances=1024`"
        )
    try:
        ensure(TOOLS)
    except MissingPackagesError as error:
        raise MissingToolError(str(error)) from error
