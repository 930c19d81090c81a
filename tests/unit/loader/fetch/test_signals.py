"""SIGTERM and Ctrl-C end a fetch soon, whatever it waits for: a source that doesn't answer, or one that is to be asked again."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pytest

from modelweights_loader.errors import InterruptedByUserError, NoRoomError, TerminatedError
from modelweights_loader.fetch.retry import Backoff
from tests.unit.loader.conftest import LOADER

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from modelweights_loader.errors import LoaderError

# Far longer than the test waits: nothing but the signal ends it.
_STALL_SECONDS = "600"
_URLS = {
    "https": ("--source", "http://127.0.0.1:{port}/"),
    "a file by https": ("--source", "http://127.0.0.1:{port}/model.safetensors"),
    "hf": ("--source", "hf://org/tiny", "--endpoint", "http://127.0.0.1:{port}"),
    "s3": ("--source", "s3://b/p", "--endpoint", "http://127.0.0.1:{port}", "--anonymous"),
}


@contextmanager
def listen(*, full: bool) -> Iterator[int]:
    """A port that takes connections and says nothing; or one whose queue is full, so that connecting hangs."""
    with ExitStack() as opened:
        server = opened.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0 if full else 100))
        port = server.getsockname()[1]
        for _ in range(8 if full else 0):
            client = opened.enter_context(socket.socket())
            client.settimeout(0)
            client.connect_ex(("127.0.0.1", port))
        yield port


def count_connecting(port: int) -> int:
    """Connections to that port that are made, or being made."""
    with open("/proc/net/tcp", encoding="ascii") as file:
        return sum(line.split()[2].endswith(f":{port:04X}") for line in file)


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("kind", _URLS)
def test_a_source_that_does_not_answer(tmp_path: Path, kind: str, *, full: bool) -> None:
    with listen(full=full) as port:
        before = count_connecting(port)
        command = [sys.executable, "-m", "modelweights_loader", "fetch", str(tmp_path / "home")]
        command += [word.format(port=port) for word in _URLS[kind]]
        with subprocess.Popen(
            [*command, "--stall-seconds", _STALL_SECONDS],
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(LOADER)},
        ) as process:
            deadline = time.monotonic() + 60
            while count_connecting(port) == before and time.monotonic() < deadline:
                time.sleep(0.02)
            process.send_signal(signal.SIGTERM)
            try:
                _, complained = process.communicate(timeout=30)
            finally:
                process.kill()
    assert (143, [b"fetch: Terminated: terminated by SIGTERM"]) == (process.returncode, complained.splitlines()[-1:])


@pytest.mark.parametrize("error", [TerminatedError("x"), InterruptedByUserError("x"), NoRoomError("x")])
def test_what_is_no_fault_of_the_source_is_not_tried_again(error: LoaderError) -> None:
    assert Backoff(8, 0.5).next_wait(error) is None
