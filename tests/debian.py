"""Installs what tests need of Debian's packages, when this machine may. Used by tests/cluster, tests/filesystems, tests/bench."""

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


class MissingPackagesError(Exception):
    """Programs that are needed are not there, and can't be installed; the message names the packages."""


@dataclass(frozen=True)
class Tool:
    """A program (or a file) that must be there, and the Debian package that holds it."""

    probe: str
    package: str

    def present(self) -> bool:
        return self.find() is not None

    def find(self) -> str | None:
        """Its path, or None. Not every user's PATH has the administrators' folders."""
        if self.probe.startswith("/"):
            return self.probe if Path(self.probe).exists() else None
        return shutil.which(self.probe, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def ensure(tools: Iterable[Tool]) -> None:
    """Install the packages of those tools that are missing. Asks nobody and takes no time when all are there.

    Args:
        tools: What is needed.

    Raises:
        MissingPackagesError: They can't be installed here, or the installation failed.
    """
    wanted = list(tools)
    if all(tool.present() for tool in wanted):
        return
    # Several test runs may start at once; dpkg takes one at a time.
    with (Path(tempfile.gettempdir()) / f"modelweights-packages.{os.geteuid()}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        packages = sorted({tool.package for tool in wanted if not tool.present()})
        if packages:
            _install(packages)
    missing = [tool.probe for tool in wanted if not tool.present()]
    if missing:
        raise MissingPackagesError(f"still missing after the installation: {', '.join(missing)}")


def _install(packages: list[str]) -> None:
    named = " ".join(packages)
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise MissingPackagesError(f"install these programs first, as root (named as Debian's packages): {named}")
    print(f"installing {named}", flush=True)
    # The machine's lists of packages may be missing or old: only then are they fetched.
    install = ["install", "-y", "--no-install-recommends", *packages]
    if _apt_get(*install) is None:
        return
    refused = _apt_get("update") or _apt_get(*install)
    if refused is not None:
        raise MissingPackagesError(f"apt-get could not install {named}:\n{refused[-1500:]}")


def _apt_get(*arguments: str, folder: str | None = None) -> str | None:
    """Runs it, in a folder; returns what it complained about, or None when it succeeded."""
    argv = ["apt-get", "-q", "-o", "DPkg::Lock::Timeout=300", *arguments]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    finished = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False, cwd=folder)
    return None if finished.returncode == 0 else finished.stderr.strip() or f"exit code {finished.returncode}"


def extract(tool: Tool, file: str, cache: Path) -> Path:
    """Take a program out of a package without installing it, which might start what the package is for.

    Args:
        tool: What is needed. One that is there already is taken.
        file: Its path in the package.
        cache: Folder that keeps it, for the next time too.

    Returns:
        The program.

    Raises:
        MissingPackagesError: The package can't be had.
    """
    there, kept = tool.find(), cache / tool.package / file
    if there is not None:
        return Path(there)
    if kept.exists():
        return kept
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise MissingPackagesError(f"install {tool.probe} first (Debian's package: {tool.package})")
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        refused = _download(tool.package, folder)
        if refused is not None:
            raise MissingPackagesError(f"apt-get could not download {tool.package}:\n{refused[-1500:]}")
        package = next(Path(folder).glob("*.deb"))
        unpacked = Path(folder) / "unpacked"
        subprocess.run(["dpkg-deb", "--extract", package, unpacked], check=True, timeout=120)
        kept.parent.mkdir(parents=True, exist_ok=True)
        # Two at once: either one's is the same.
        (unpacked / file).replace(kept)
    return kept


def _download(package: str, folder: str) -> str | None:
    # Without lists of packages there is nothing to download from.
    if _apt_get("download", package, folder=folder) is None:
        return None
    return _apt_get("update") or _apt_get("download", package, folder=folder)
