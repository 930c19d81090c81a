"""The command `residency`: shows how much of a checkpoint is in the page cache.

Called by `cli`. See the package for what it must not import.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING

from modelweights_loader.commands.options import add_command, find, parse_interval
from modelweights_loader.outcome import Outcome

if TYPE_CHECKING:
    import argparse

    from modelweights_loader.checkpoint import Checkpoint
    from modelweights_loader.commands.options import Commands
    from modelweights_loader.residency import Residency

_DEFAULT_INTERVAL_SECONDS = 2.0
# Home, and clear what is below: the screen does not flicker as it does when it is cleared first.
_HOME, _CLEAR_LINE, _CLEAR_REST = "\x1b[H", "\x1b[K\n", "\x1b[J"


def add(commands: Commands) -> None:
    """Adds the command.

    Args:
        commands: Where to.
    """
    command = add_command(commands, "residency", run, "show how much is in the page cache")
    command.add_argument("--json", action="store_true", help="for programs: one object, or one per line with --watch")
    command.add_argument(
        "--watch",
        metavar="SECONDS",
        nargs="?",
        type=parse_interval,
        const=_DEFAULT_INTERVAL_SECONDS,
        help="measure again and again until Ctrl-C (default every 2 seconds)",
    )


def run(arguments: argparse.Namespace) -> Outcome:
    """Prints what is in the page cache.

    Args:
        arguments: path, root, json, watch.

    Returns:
        The outcome; everything is printed already.

    Raises:
        LoaderError: The checkpoint is not there.
    """
    checkpoint = find(arguments)
    residency = _measure(checkpoint)
    if arguments.watch is None:
        _show(residency, as_json=arguments.json, indent=1)
    else:
        residency = _watch(checkpoint, residency, arguments.watch, as_json=arguments.json)
    figures: dict[str, object] = {"files": len(residency.files), "sizeBytes": residency.size_bytes}
    return Outcome("Measured", "measured", figures | residency.figures(), quiet=True)


def _measure(checkpoint: Checkpoint) -> Residency:
    from modelweights_loader.interruptible import call  # noqa: PLC0415 - see the package's docstring
    from modelweights_loader.residency import measure  # noqa: PLC0415

    return call(lambda: measure(checkpoint.shards))


def _watch(checkpoint: Checkpoint, residency: Residency, seconds: float, *, as_json: bool) -> Residency:
    """Shows it in intervals; Ctrl-C is the way to end it and no error."""
    try:
        while True:
            if as_json:
                _show(residency, as_json=True, indent=None)
            elif sys.stdout.isatty():
                _redraw(residency)
            else:
                _show_line(residency)
            time.sleep(seconds)
            residency = _measure(checkpoint)
    except KeyboardInterrupt:
        return residency


def _show(residency: Residency, *, as_json: bool, indent: int | None) -> None:
    from modelweights_loader.residency_table import describe_json, format_table  # noqa: PLC0415 - see the package

    text = json.dumps(describe_json(residency), indent=indent) if as_json else format_table(residency)
    print(text, flush=True)


def _show_line(residency: Residency) -> None:
    from modelweights_loader.publish import describe_residency  # noqa: PLC0415 - see the package's docstring

    print(f"{residency.measured_at} {describe_residency(residency)}", flush=True)


def _redraw(residency: Residency) -> None:
    from modelweights_loader.residency_table import format_table  # noqa: PLC0415 - see the package's docstring

    lines = "".join(line + _CLEAR_LINE for line in format_table(residency).splitlines())
    print(f"{_HOME}{lines}{_CLEAR_REST}", end="", flush=True)
