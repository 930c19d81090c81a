"""Reports, results and markers: whole or not at all, nothing stays of a writer that was killed, and nothing hangs."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from modelweights_loader.errors import WillNotWorkError
from modelweights_loader.marker import name_marker, read_marker
from modelweights_loader.report import read_result, write_report
from modelweights_loader.small_files import read_regular, write_atomically, write_in_place
from tests.filesystems import mount_tmpfs, show_bindfs
from tests.unit.loader.conftest import LOADER

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# Writes for ever; each content is one letter, so that a torn file would show.
WRITER = """
import itertools, sys
from modelweights_loader.small_files import write_atomically
for letter in itertools.cycle("abcdefgh"):
    write_atomically(sys.argv[1], letter.encode() * 100000)
    print(letter, flush=True)
"""


@pytest.fixture(params=["O_TMPFILE", "without O_TMPFILE", "without links"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    def refuse_link(*_: object, **__: object) -> None:
        raise OSError(1, "no links")

    if request.param == "without links":
        monkeypatch.setattr(os, "link", refuse_link)
    if request.param == "without O_TMPFILE":
        real_open = os.open

        def refuse(path: str, flags: int, mode: int = 0o777) -> int:
            if flags & os.O_TMPFILE == os.O_TMPFILE:
                raise OSError(95, "no O_TMPFILE")
            return real_open(path, flags, mode)

        monkeypatch.setattr(os, "open", refuse)
    return str(request.param)


@pytest.mark.usefixtures("way")
def test_new_and_old_files_are_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for content in (b"first", b"second"):
        write_atomically(str(path), content, 0o640)
        assert (path.read_bytes(), path.stat().st_mode & 0o777) == (content, 0o640)
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.usefixtures("way")
def test_a_failure_changes_nothing_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_atomically(str(path), b"kept")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        write_atomically(str(path), b"lost")
    assert (path.read_bytes(), os.listdir(tmp_path)) == (b"kept", ["file"])


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_atomically(str(tmp_path / "gone" / "file"), b"")


def test_what_killed_writers_left_goes_and_what_others_write_stays(tmp_path: Path) -> None:
    dead, alive, foreign = tmp_path / ".file.1a.part", tmp_path / ".file.2b.part", tmp_path / ".other.3c.part"
    for path in (dead, alive, foreign):
        path.write_bytes(b"half")
    (tmp_path / ".file.fifo.part").symlink_to("/dev/tty")
    with alive.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        write_atomically(str(tmp_path / "file"), b"new")
    assert sorted(os.listdir(tmp_path)) == [".file.2b.part", ".file.fifo.part", ".other.3c.part", "file"]


@pytest.mark.usefixtures("way")
def test_many_writers_at_once_leave_one_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    failed: list[BaseException] = []

    def write(letter: bytes) -> None:
        try:
            for _ in range(20):
                write_atomically(str(path), letter * 5000)
        except BaseException as error:  # noqa: BLE001 - shown below
            failed.append(error)

    threads = [threading.Thread(target=write, args=(bytes([code]),)) for code in b"abcdef"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert failed == []
    assert len(set(path.read_bytes())) == 1
    assert os.listdir(tmp_path) == ["file"]


def test_killed_at_any_moment_the_file_is_whole_and_the_next_write_tidies_up(tmp_path: Path) -> None:
    path = tmp_path / "file"
    environment = {**os.environ, "PYTHONPATH": str(LOADER)}
    for round_ in range(30):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, env=environment
        ) as writer:
            assert writer.stdout is not None
            for _ in range(1 + round_ % 5):
                writer.stdout.read(2)
            writer.send_signal(signal.SIGKILL)
        content = path.read_bytes()
        assert (len(content), len(set(content))) == (100000, 1)
        assert len(os.listdir(tmp_path)) <= 2
    write_atomically(str(path), b"end")
    assert os.listdir(tmp_path) == ["file"]


def test_file_systems_without_unnamed_files(disk: Path) -> None:
    (disk / "source").mkdir()
    with show_bindfs(disk / "source", disk / "mount") as folder:
        for content in (b"first", b"second"):
            write_atomically(str(folder / "file"), content)
        assert ((folder / "file").read_bytes(), os.listdir(folder)) == (b"second", ["file"])


def test_a_fifo_that_nobody_reads_is_an_error_and_no_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(WillNotWorkError, match="ENXIO"):
        write_report(str(tmp_path / "fifo"), {"step": "report"})


def test_a_fifo_that_somebody_reads_gets_the_report(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    reader = os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_report(str(tmp_path / "fifo"), {"step": "report"})
        assert json.loads(os.read(reader, 4096)) == {"step": "report"}
    finally:
        os.close(reader)


def test_a_fifo_as_marker_or_result_is_said_or_passed_over(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name_marker("model"))
    with pytest.raises(ValueError, match="no regular file"):
        read_marker(str(tmp_path), "model")
    os.mkfifo(tmp_path / "validate.json")
    assert read_result(str(tmp_path), "validate", "/m") == {}
    with pytest.raises(ValueError, match="no regular file"):
        read_regular("/dev/zero")


@pytest.mark.parametrize("device", ["/dev/null", "/dev/stdout", "/dev/stderr"])
def test_devices_as_reports_do_not_hang(single: Path, device: str) -> None:
    command = [sys.executable, "-m", "modelweights_loader", "validate", str(single), "--mode", "Structure"]
    environment = {**os.environ, "PYTHONPATH": str(LOADER)}
    ended = subprocess.run(
        [*command, "--report", device], capture_output=True, text=True, check=False, timeout=60, env=environment
    )
    assert ended.returncode == 0, ended
    assert ('"step":"validate"' in ended.stdout, '"step":"validate"' in ended.stderr) == (
        device == "/dev/stdout",
        device == "/dev/stderr",
    )


def test_a_block_device_is_not_overwritten(disk: Path) -> None:
    device = disk / "device"
    # Block device 7:255, the last loop device: nothing is behind it.
    os.mknod(device, 0o60600, os.makedev(7, 255))
    with pytest.raises(OSError, match=r"block device|No such device"):
        write_in_place(str(device), b"report")


def test_a_bind_mounted_termination_log_is_written(tmp_path: Path) -> None:
    """As the kubelet mounts it: a file of the host over a file in the container."""
    (tmp_path / "host").write_bytes(b"x" * 5000)
    (tmp_path / "log").touch()
    with mount_tmpfs(tmp_path / "elsewhere", 2**20) as folder:
        (folder / "log").touch()
        bind = ("mount", "--bind", str(tmp_path / "host"), str(folder / "log"))
        subprocess.run(bind, check=True)
        try:
            write_report(str(folder / "log"), {"step": "report"})
        finally:
            subprocess.run(("umount", str(folder / "log")), check=True)
    assert json.loads((tmp_path / "host").read_bytes()) == {"step": "report"}


@pytest.mark.parametrize(
    "arguments",
    [
        lambda model: ("--report", model / "report.json"),
        lambda model: ("--report", model / "sub" / "report.json"),
        lambda model: ("--results", model),
        lambda model: ("--results", model / "results"),
    ],
)
def test_nothing_is_written_between_the_checkpoints_files(
    single: Path, arguments: Callable[[Path], tuple[str, Path]]
) -> None:
    from modelweights_loader.cli import main  # noqa: PLC0415 - the command line, in this process

    before = sorted(os.listdir(single))
    words = [str(word) for word in arguments(single)]
    assert main(["validate", str(single), "--mode", "Structure", *words]) == 2
    assert sorted(os.listdir(single)) == before


def test_beside_the_checkpoint_is_fine(single: Path, tmp_path: Path) -> None:
    from modelweights_loader.cli import main  # noqa: PLC0415 - the command line, in this process

    words = ["--results", str(tmp_path / "results"), "--report", str(single) + ".json"]
    assert main(["validate", str(single), "--mode", "Structure", *words]) == 0
    assert read_regular(str(single) + ".json")
