"""The command `flags`: prints engine settings that make the staging count.

Called by `cli`. See the package for what it must not import.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from modelweights_loader.commands.options import add_command, find
from modelweights_loader.outcome import Outcome

if TYPE_CHECKING:
    import argparse

    from modelweights_loader.commands.options import Commands


def add(commands: Commands) -> None:
    """Adds the command.

    Args:
        commands: Where to.
    """
    command = add_command(commands, "flags", run, "print engine settings that make the staging count", path="?")
    command.add_argument("--json", action="store_true", help="for programs")
    command.add_argument(
        "--engine", choices=("vllm", "sglang", "all"), default="all", help="for one engine only (default all)"
    )


def run(arguments: argparse.Namespace) -> Outcome:
    """Prints the settings for engines.

    Args:
        arguments: path (may be None), results, json, engine.

    Returns:
        The outcome; everything is printed already.

    Raises:
        UsageError: Neither a path nor results.
    """
    from modelweights_loader.errors import UsageError  # noqa: PLC0415 - see the package's docstring
    from modelweights_loader.flags import ENGINES, format_settings, make_settings  # noqa: PLC0415
    from modelweights_loader.report import read_result  # noqa: PLC0415

    if arguments.path is None and arguments.results is None:
        message = "flags needs PATH or --results DIR"
        raise UsageError(message)
    if arguments.path is not None:
        find(arguments)
    prefetch, validated, tuned = (
        read_result(arguments.results, step, arguments.path) for step in ("prefetch", "validate", "tune")
    )
    engines = ENGINES if arguments.engine == "all" else (arguments.engine,)
    settings = make_settings(prefetch, validated, tuned, engines)
    print(json.dumps(settings.as_json(), indent=1) if arguments.json else format_settings(settings))
    return Outcome("Printed", "printed", {"proven": settings.proven}, quiet=True)
