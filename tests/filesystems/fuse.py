"""File systems in user space that show a folder: sshfs, bindfs, mergerfs, rclone.

Their programs stay in the foreground, as children of this process, so that they can be ended when a test fails. sshfs
speaks with a real SFTP server through a pipe in place of a connection: no key, no daemon, nothing listens.
"""

import contextlib
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from tests.filesystems.tools import DEADLINE_SECONDS, FileSystemError, ensure_tools, is_mounted, unmount
from tests.polling import wait_for

_END_SECONDS = 5.0


@contextlib.contextmanager
def show_sshfs(source: Path, mount_point: Path, *options: str, direct_io: bool = False) -> Iterator[Path]:
    """Show a folder through sshfs: SFTP, what a network file system in user space is like.

    Args:
        source: The folder that is shown.
        mount_point: Folder to mount on, made if it isn't there.
        options: Further mount options, such as `kernel_cache`.
        direct_io: Pass the page cache by.
    """
    ensure_tools("sshfs")
    with tempfile.TemporaryDirectory() as folder:
        # sshfs adds the arguments of ssh, which this drops.
        server = Path(folder) / "server"
        server.write_text(f"#!/bin/sh\nexec {shlex.quote('/usr/lib/openssh/sftp-server')}\n")
        server.chmod(0o700)
        chosen = [f"ssh_command={server}", *options, *(["direct_io"] if direct_io else [])]
        argv = ["sshfs", "-f", "-o", ",".join(chosen), f"localhost:{source}", str(mount_point)]
        with _serve(argv, mount_point):
            yield mount_point


@contextlib.contextmanager
def show_bindfs(source: Path, mount_point: Path, *options: str, direct_io: bool = False) -> Iterator[Path]:
    """Show a folder through bindfs; arguments as `show_sshfs`."""
    ensure_tools("bindfs")
    chosen = [*options, *(["direct_io"] if direct_io else [])]
    argv = ["bindfs", "-f", *(["-o", ",".join(chosen)] if chosen else []), str(source), str(mount_point)]
    with _serve(argv, mount_point):
        yield mount_point


@contextlib.contextmanager
def show_mergerfs(source: Path, mount_point: Path, *options: str, direct_io: bool = False) -> Iterator[Path]:
    """Show a folder through mergerfs, which keeps the page cache over an open unless direct_io; arguments as `show_sshfs`."""
    ensure_tools("mergerfs")
    chosen = [f"cache.files={'off' if direct_io else 'full'}", *options]
    with _serve(["mergerfs", "-f", "-o", ",".join(chosen), str(source), str(mount_point)], mount_point):
        yield mount_point


@contextlib.contextmanager
def show_rclone(source: Path, mount_point: Path, *flags: str) -> Iterator[Path]:
    """Show a folder through `rclone mount`, read-only, without a cache on disk.

    Args:
        source: The folder that is shown.
        mount_point: Folder to mount on, made if it isn't there.
        flags: Of rclone, such as `--bwlimit=300M`.
    """
    ensure_tools("rclone")
    with tempfile.TemporaryDirectory() as folder:
        own = ["--config", "", "--cache-dir", folder, "--temp-dir", folder]
        with _serve(["rclone", "mount", "--read-only", *own, *flags, str(source), str(mount_point)], mount_point):
            yield mount_point


@contextlib.contextmanager
def _serve(argv: Sequence[str], mount_point: Path) -> Iterator[None]:
    mount_point.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile() as log:
        server = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        try:
            wait_for(lambda: is_mounted(mount_point) or server.poll() is not None, DEADLINE_SECONDS)
            if not is_mounted(mount_point):
                raise FileSystemError(f"{shlex.join(argv)} mounted nothing: {_read(log)}")
            yield
        finally:
            if is_mounted(mount_point):
                unmount(mount_point)
            _end(server)


def _read(log: IO[bytes]) -> str:
    log.seek(0)
    return log.read().decode(errors="replace").strip()[-1000:]


def _end(server: subprocess.Popen[bytes]) -> None:
    """The server ends by itself once it is unmounted; one that doesn't is made to."""
    for number in (None, signal.SIGTERM, signal.SIGKILL):
        if number is not None:
            server.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(_END_SECONDS)
            return
