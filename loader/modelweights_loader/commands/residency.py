"""The command `residency`: shows how much of a checkpoint is in the page cache.

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
    command = add_command(commands, "residency", run, "show how much is in the page cache")
    command.add_argument("--json", action="store_true", help="for programs")


def run(arguments: argparse.Namespace) -> Outcome:
    """Prints what is in the page cache.

    Args:
        arguments: path, root, json.

    Returns:
        The outcome; everything is printed already.

    Raises:
        LoaderError: The checkpoint is not there.
    """
    from modelweights_loader.residency import measure  # noqa: PLC0415 - see the package's docstring
    from modelweights_loader.residency_table import describe_json, format_table  # noqa: PLC0415

    residency = measure(find(arguments).shards)
    print(json.dumps(describe_json(residency), indent=1) if arguments.json else format_table(residency))
    figures: dict[str, object] = {"files": len(residency.files), "sizeBytes": residency.size_bytes}
    return Outcome("Measured", "measured", figures | residency.figures(), quiet=True)
