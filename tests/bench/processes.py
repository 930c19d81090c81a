"""Runs a program as a whole process and says what it cost. Called by the benchmarks of the loader."""

import ast
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

PROGRAMS: Final = Path(__file__).parent / "programs"
PYTHON: Final = sys.executable
LOADER: Final = (PYTHON, "-m", "modelweights_loader")


class BenchmarkError(Exception):
    """Something that is measured didn't work, or the conditions don't hold; the message says which."""


class Cost(NamedTuple):
    """What a process cost, with all processes that it waited for.

    cpu_seconds is its user and system time; machine_cpu_seconds is what all processors did meanwhile, which adds the
    kernel's own threads and servers of file systems (and whatever else runs). anonymous_bytes is the peak of memory
    without pages of files, of the process and its descendants together, 0 where it wasn't asked for.
    """

    seconds: float
    cpu_seconds: float
    machine_cpu_seconds: float
    max_rss_bytes: int
    anonymous_bytes: int
    output: str
    errors: str


def measure(
    argv: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    groups: Sequence[Path] = (),
    sample: bool = False,
    timeout_seconds: float = 900,
) -> Cost:
    """Run a program to its end.

    Args:
        argv: The program and its arguments.
        environment: Added to this process's.
        groups: Control groups to run it in.
        sample: Follow its anonymous memory, every 5 ms.
        timeout_seconds: After that it is killed and BenchmarkError raised.
    """
    with tempfile.TemporaryDirectory() as folder:
        result, output, errors = (Path(folder) / name for name in ("result", "output", "errors"))
        procs = ",".join(str(group / "cgroup.procs") for group in groups)
        launcher = [
            PYTHON,
            "-I",
            "-S",
            str(PROGRAMS / "launcher.py"),
            str(result),
            str(int(sample)),
            procs,
            "--",
            *argv,
        ]
        with output.open("wb") as to, errors.open("wb") as to_errors:
            process = subprocess.Popen(
                launcher,
                stdin=subprocess.DEVNULL,
                stdout=to,
                stderr=to_errors,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )
            try:
                process.wait(timeout_seconds)
            except BaseException as error:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                if isinstance(error, subprocess.TimeoutExpired):
                    raise BenchmarkError(f"{' '.join(argv)[:500]} took longer than {timeout_seconds:g} s") from error
                raise
        said = errors.read_text(errors="replace")
        if not result.exists():
            raise BenchmarkError(f"{' '.join(argv)[:500]} could not be started: {said[-1000:]}")
        figures = ast.literal_eval(result.read_text())
        if figures.pop("exit_code") != 0:
            raise BenchmarkError(f"{' '.join(argv)[:500]} failed: {said[-1000:]}{output.read_text()[-500:]}")
        return Cost(**figures, output=output.read_text(errors="replace"), errors=said)
