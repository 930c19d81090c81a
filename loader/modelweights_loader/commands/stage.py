"""The command `stage`: prefetch, validate and report in one go, for laptops.

Called by `cli`. See the package for what it must not import.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from modelweights_loader.commands import prefetch, report, tune, validate
from modelweights_loader.commands.options import add_command, add_policy, find
from modelweights_loader.outcome import Outcome, make_report, say

if TYPE_CHECKING:
    import argparse

    from modelweights_loader.commands.options import Commands


def add(commands: Commands) -> None:
    """Adds the command.

    Args:
        commands: Where to.
    """
    command = add_command(commands, "stage", run, "prefetch, validate and report in one go")
    prefetch.add_arguments(command, mode_option="--prefetch-mode")
    add_policy(command)
    validate.add_arguments(command)
    command.add_argument("--tune", action="store_true", help="time the ways to load, once it is shown to load")
    tune.add_arguments(command, prefix="--tune-")
    report.add_arguments(command)


def run(arguments: argparse.Namespace) -> Outcome:
    """Does everything: checks the structure, prefetches, validates, reports.

    Args:
        arguments: Those of all three steps.

    Returns:
        The outcome of the last one, with the figures of all.

    Raises:
        LoaderError: The first step that fails.
    """
    from modelweights_loader.errors import UsageError  # noqa: PLC0415 - see the package's docstring
    from modelweights_loader.structure import read_structure  # noqa: PLC0415

    if arguments.tune and not validate.is_loading(arguments):
        message = (
            f"--tune times how it loads, and --mode {arguments.mode} loads nothing; use --mode Load, or leave it out"
        )
        raise UsageError(message)
    # Its imports run behind the prefetch, which hardly uses the processor.
    process = validate.start_process(arguments)
    # In memory: a folder for results would stay behind when this process is killed.
    earlier: dict[str, dict[str, Any]] = {}
    try:
        checkpoint = find(arguments)
        if arguments.mode != "None":
            # A bad header ends it here, before gigabytes are read.
            read_structure(checkpoint)
        tuned = ("tune",) if arguments.tune else ()
        for step in ("prefetch", "validate", *tuned):
            started = time.monotonic()
            if step == "prefetch":
                outcome = prefetch.prefetch_checkpoint(checkpoint, arguments)
            elif step == "tune":
                outcome = tune.tune_checkpoint(checkpoint, arguments)
            else:
                outcome = validate.validate_checkpoint(checkpoint, arguments, process)
            earlier[step] = make_report(step, outcome, time.monotonic() - started)
            _write_result(arguments, step, earlier[step])
            say(f"{step}: {outcome.message}", sys.stdout)
        return report.publish_checkpoint(checkpoint, arguments, arguments.results, earlier)
    finally:
        if process is not None:
            process.kill()


def _write_result(arguments: argparse.Namespace, step: str, result: dict[str, Any]) -> None:
    if arguments.results is not None:
        from modelweights_loader.report import write_result  # noqa: PLC0415 - see the package's docstring

        write_result(arguments.results, step, result, arguments.path)
