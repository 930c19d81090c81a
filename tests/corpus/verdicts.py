"""Asks about a case: the loader's command in a process of its own, safetensors and ParallelLoader in children of their own.

Used by the table and by the unit tests.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from tests.corpus import make
from tests.corpus.choice import choose_files

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from tests.corpus.case import Case

_LOADER = Path(__file__).resolve().parents[2] / "loader"
_READERS = Path(__file__).with_name("readers.py")
_FORKED_COMMAND = Path(__file__).with_name("forked_command.py")
_USER = 65532
_DEADLINE_SECONDS = 120
# Some libraries add a stack with their own paths.
_MAX_WORDS = 120
# `python -m modelweights_loader`, and then how much memory this took: the kernel's figure for the process would include
# what was there before it became this program.
_MEASURED = """
import os, runpy
try:
    runpy.run_module("modelweights_loader", run_name="__main__", alter_sys=True)
finally:
    with open("/proc/self/status") as status, open(os.environ["PEAK_FILE"], "w") as file:
        file.write(next(line for line in status if line.startswith("VmHWM")).split()[1])
"""


class Ours(NamedTuple):
    """How the command ended."""

    exit_code: int
    stderr: str
    report: dict[str, Any]
    peak_bytes: int


class Command:
    """The loader's command, ready to start: `python -m modelweights_loader` without the time that this takes."""

    def __init__(self) -> None:
        """Starts the program."""
        self._process = subprocess.Popen(
            [sys.executable, str(_FORKED_COMMAND)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd="/",
            env={**os.environ, "PYTHONPATH": str(_LOADER), "PYTHONDONTWRITEBYTECODE": "1"},
        )

    def run(self, argv: list[str], stderr: Path, peak: Path) -> int:
        """Runs it, one at a time.

        Returns:
            The exit code, negative for a signal.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = {"argv": argv, "stderr": str(stderr), "peak": str(peak), "seconds": _DEADLINE_SECONDS}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def __enter__(self) -> Self:
        """Nothing more: it runs already."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends the program."""
        self._process.communicate()


def ask_ours(case: Case, base: Path, path: Path, command: Command) -> Ours:
    """Runs `validate --mode Structure` on a case that is made already."""
    more = [argument.format(base=base) for argument in case.arguments]
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        folder = Path(name)
        folder.chmod(0o777)
        report, stderr, peak = folder / "report.json", folder / "stderr", folder / "peak"
        argv = ["validate", str(path), "--mode", "Structure", "--report", str(report), *more]
        run = _run_as_user if case.as_user and os.geteuid() == 0 else command.run
        exit_code = run(argv, stderr, peak)
        content = json.loads(report.read_bytes()) if report.exists() else {}
        return Ours(exit_code, stderr.read_text(errors="backslashreplace"), content, int(peak.read_text()) * 1024)


def _run_as_user(argv: list[str], stderr: Path, peak: Path) -> int:
    """From the start: another user may not be able to read what a fork of ours would still import."""
    with stderr.open("wb") as said:
        return subprocess.run(
            [_find_python_for_user(), "-c", _MEASURED, *argv],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=said,
            check=False,
            timeout=_DEADLINE_SECONDS,
            cwd="/",
            env={**os.environ, "PYTHONPATH": str(_LOADER), "PYTHONDONTWRITEBYTECODE": "1", "PEAK_FILE": str(peak)},
            user=_USER,
            group=_USER,
            extra_groups=[],
        ).returncode


def _find_python_for_user() -> str:
    """That of an environment below a home of root's can't be started by others."""
    for python in (sys.executable, shutil.which("python3", path="/usr/bin:/usr/local/bin")):
        if python is None:
            continue
        try:
            subprocess.run([python, "-c", ""], check=True, user=_USER, group=_USER, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            continue
        return python
    message = "no python3 that another user can start: install one (Debian: apt-get install python3)"
    raise FileNotFoundError(message)


class Said(NamedTuple):
    """What another reader does: `accepts`, `rejects`, `hangs`, `dies` (of the signal that it said) or `no file`."""

    verdict: str
    words: str


class Reader:
    """Another reader, in a process of its own that is asked case by case."""

    def __init__(self, kind: str) -> None:
        """Starts `safetensors` or `parallel`."""
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, str(_READERS), kind],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd="/",
            env={**os.environ, "FASTSAFETENSORS_ODIRECT": "0"},
        )

    def ask(self, case: Case, base: Path, path: Path, seconds: float) -> Said:
        """Asks about the files that an engine would choose at path; who has no answer after these seconds, hangs."""
        user = _USER if case.as_user and os.geteuid() == 0 else 0
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        with self._lock:
            process.stdin.write(json.dumps([choose_files(path), user, seconds]) + "\n")
            process.stdin.flush()
            answer = json.loads(process.stdout.readline())
        return Said(answer["verdict"], " ".join(answer["said"].replace(f"{base}/", "").split())[:_MAX_WORDS])

    def __enter__(self) -> Self:
        """Nothing more: it runs already."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends the process."""
        self._process.communicate()


@contextlib.contextmanager
def made(case: Case, parent: Path) -> Iterator[tuple[Path, Path]]:
    """Makes a case and takes it away afterwards: its base, and what is to be validated."""
    base = parent / case.name
    try:
        path = make(case, base)
        yield base, path
    finally:
        shutil.rmtree(base)
