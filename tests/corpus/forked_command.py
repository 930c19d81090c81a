"""A program that runs the loader's command again and again: the interpreter and the modules are loaded once.

Started by `verdicts`, with the loader on PYTHONPATH. Reads one JSON object a line, `argv`, `stderr` and `peak` (files to
write) and `seconds`, and answers with the exit code a line, negative for a signal. Each runs in a fork of its own from
`python -m modelweights_loader` to the end of its interpreter. Imports nothing of this repository's tests.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pkgutil
import runpy
import signal
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    """Answers until the input ends."""
    # The folder of this file has modules of its own.
    del sys.path[0]
    for package in ("modelweights_loader", "modelweights_loader.commands"):
        for module in pkgutil.iter_modules(importlib.import_module(package).__path__, f"{package}."):
            if not module.ispkg and not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            _run(request)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _run(request: dict[str, Any]) -> None:
    """Runs in the fork; always raises SystemExit."""
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.dup2(os.open(request["stderr"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 2)
    # A command that hangs is ended by the kernel.
    signal.alarm(request["seconds"])
    sys.argv[1:] = request["argv"]
    try:
        with contextlib.redirect_stdout(open(1, "w", closefd=False)):
            runpy.run_module("modelweights_loader", run_name="__main__", alter_sys=True)
    finally:
        # What the fork had from its parent counts: hardly more than an interpreter.
        with Path("/proc/self/status").open() as status:
            peak = next(line for line in status if line.startswith("VmHWM")).split()[1]
        Path(request["peak"]).write_text(peak)


if __name__ == "__main__":
    main()
