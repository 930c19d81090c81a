"""The command `residency`: a table for people, JSON for programs, again and again with --watch, and a clean end."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.checkpoints.synthetic import make_synthetic
from tests.unit.loader.conftest import LOADER, evict, run_loader

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DEADLINE_SECONDS = 20.0
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(LOADER), "PYTHONDONTWRITEBYTECODE": "1"}
RFC_3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Has a file in the page cache, and locked there: a kernel may take single pages back while the command starts."""
    libc = ctypes.CDLL(None, use_errno=True)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        pages = (ctypes.c_char * len(mapped)).from_buffer(mapped)
        try:
            assert libc.mlock(pages, ctypes.c_size_t(len(mapped))) == 0, os.strerror(ctypes.get_errno())
            yield
        finally:
            # Or the mapping could not be closed.
            del pages


@pytest.fixture
def model(disk: Path) -> Iterator[Path]:
    folder = make_synthetic(disk / "model", 2**22, shards=2)
    evict(folder)
    with held(folder / "model-00001-of-00002.safetensors"):
        yield folder


def _watch(model: Path, *arguments: str, stdout: int = subprocess.PIPE) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "modelweights_loader", "residency", str(model), "--watch", "0.1", *arguments]
    return subprocess.Popen(
        command,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
        # A shell starts what runs in the background with SIGINT ignored, and so would this test's child be.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - the test has one thread
    )


def test_a_table_has_a_bar_per_shard_the_method_and_the_time(model: Path) -> None:
    lines = run_loader("residency", model).stdout.splitlines()
    assert lines[0].startswith(f"model-00001-of-00002.safetensors  [{'#' * 20}] 100.0 %")
    assert lines[1].startswith(f"model-00002-of-00002.safetensors  [{'.' * 20}]   0.0 %")
    assert re.fullmatch(r"total: 50\.0 % of 4\.0 MiB, by cachestat, measured at .*", lines[2])
    assert RFC_3339.fullmatch(lines[2].split()[-1])


def test_json_has_bytes_percent_method_error_and_time_for_all_and_each(model: Path) -> None:
    told = json.loads(run_loader("residency", model, "--json").stdout)
    assert RFC_3339.fullmatch(told["residencyMeasuredAt"])
    assert (told["residencyMethod"], told["residencyError"], told["residentPercent"]) == ("cachestat", 0.0, 50.0)
    assert told["residentBytes"] == sum(file["residentBytes"] for file in told["files"])
    assert [file["residentPercent"] for file in told["files"]] == [100.0, 0.0]
    assert {"path", "sizeBytes", "residentBytes", "residentPercent", "errorBytes", "method"} == set(told["files"][0])


@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_watch_gives_one_line_each_time_and_sees_changes(model: Path, arguments: list[str]) -> None:
    with _watch(model, *arguments) as process:
        assert process.stdout is not None
        try:
            first = process.stdout.readline()
            # Of all, not of the shard that was there before: a look may fall into the read.
            whole = '"residentPercent": 100.0, "residencyMethod"' if arguments else " 100.0 % of "
            with held(model / "model-00002-of-00002.safetensors"):
                later = next(line for line in process.stdout if whole in line)
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=DEADLINE_SECONDS)
        finally:
            process.kill()
    assert (process.returncode, said) == (0, "")
    for line, percent in ((first, 50.0), (later, 100.0)):
        if arguments:
            assert json.loads(line)["residentPercent"] == percent
        else:
            assert re.match(rf"\S+Z {percent} % of 4\.0 MiB resident, by cachestat\n", line)


def test_sigterm_ends_watching_in_one_line(model: Path) -> None:
    with _watch(model) as process:
        assert process.stdout is not None
        try:
            process.stdout.readline()
            process.send_signal(signal.SIGTERM)
            _, said = process.communicate(timeout=DEADLINE_SECONDS)
        finally:
            process.kill()
    assert (process.returncode, said) == (143, "residency: Terminated: terminated by SIGTERM\n")


def test_a_closed_pipe_ends_watching_without_a_word(model: Path) -> None:
    with _watch(model, "--json") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            process.stdout.readline()
            process.stdout.close()
            code = process.wait(DEADLINE_SECONDS)
            said = process.stderr.read()
        finally:
            process.kill()
    assert (code, said) == (1, "")


def test_a_terminal_is_drawn_over_and_over(model: Path) -> None:
    master, terminal = pty.openpty()
    seen = b""
    try:
        with _watch(model, stdout=terminal) as process:
            try:
                deadline = time.monotonic() + DEADLINE_SECONDS
                while seen.count(b"total: 50.0 %") < 3 and time.monotonic() < deadline:
                    if select.select([master], [], [], 1)[0]:
                        seen += os.read(master, 65536)
                process.send_signal(signal.SIGINT)
                process.wait(DEADLINE_SECONDS)
            finally:
                process.kill()
    finally:
        os.close(master)
        os.close(terminal)
    assert process.returncode == 0
    assert seen.count(b"\x1b[H") >= 3
    assert b"\n\x1b[J\x1b[H" in seen.replace(b"\r", b"")


@pytest.mark.parametrize("seconds", ["0", "nan", "now"])
def test_odd_intervals_are_refused(model: Path, seconds: str) -> None:
    ran = run_loader("residency", model, "--watch", seconds)
    assert (ran.code, "number of seconds from 0.1" in ran.stderr) == (2, True)
