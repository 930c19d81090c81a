"""Checks that this machine can run the embedded cluster, and installs what Debian has for it when it may."""

import ctypes
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.errors import MissingToolError


@dataclass(frozen=True)
class Tool:
    """A program (or a file) that must be there, and the Debian package that holds it."""

    probe: str
    package: str

    def present(self) -> bool:
        if self.probe.startswith("/"):
            return Path(self.probe).exists()
        # Not every user's PATH has the administrators' folders.
        return shutil.which(self.probe, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") is not None


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


def _can_watch_files() -> bool:
    """Whether the kernel gives this user as many inotify instances as a cluster takes."""
    libc = ctypes.CDLL(None)
    taken = [libc.inotify_init1(os.O_CLOEXEC) for _ in range(WATCHES)]
    for descriptor in taken:
        if descriptor >= 0:
            os.close(descriptor)
    return all(descriptor >= 0 for descriptor in taken)


def ensure_requirements() -> None:
    """Install missing Debian packages; raise MissingToolError, naming them, where that is not possible."""
    reason = reason_against()
    if reason:
        raise MissingToolError(reason)
    if not _can_watch_files():
        raise MissingToolError(
            f"of the machine's inotify instances fewer than {WATCHES} are free, so kubelet and containerd couldn't start: "
            "take down other clusters, or raise the limit by `sysctl fs.inotify.max_user_instances=1024`"
        )
    packages = sorted({tool.package for tool in TOOLS if not tool.present()})
    if not packages:
        return
    wanted = " ".join(packages)
    if shutil.which("apt-get") is None:
        raise MissingToolError(f"install these programs first (named as Debian's packages): {wanted}")
    print(f"installing {wanted}", flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "-y", "-q", "--no-install-recommends", *packages]
    for argv in (["apt-get", "update", "-q"], install):
        finished = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
        if finished.returncode != 0:
            raise MissingToolError(f"apt-get could not install {wanted}:\n{finished.stderr.strip()[-1500:]}")
