"""The command `clean`: removes from this node what `fetch` made.

Called by `cli`. See the package for what it must not import.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from modelweights_loader.commands.options import add_command, parse_digest, parse_place, parse_seconds
from modelweights_loader.errors import UsageError
from modelweights_loader.outcome import Outcome, say

if TYPE_CHECKING:
    import argparse

    from modelweights_loader.commands.options import Commands
    from modelweights_loader.fetch.cleaning import CleanResult


def add(commands: Commands) -> None:
    """Adds the command.

    Args:
        commands: Where to.
    """
    command = add_command(
        commands,
        "clean",
        run,
        "remove what `fetch` made from this node",
        what="home that `fetch` was given; it needn't be there",
    )
    command.add_argument(
        "--digest",
        metavar="sha256:HEX",
        type=parse_digest,
        action="append",
        default=[],
        help="this checkpoint; can be repeated",
    )
    command.add_argument("--all", action="store_true", help="all of them, what was begun, and the home itself")
    command.add_argument("--marker-dir", metavar="DIR", type=parse_place, help="take away the markers that lie there")
    command.add_argument(
        "--marker-root",
        metavar="DIR",
        type=parse_place,
        help="what the markers' paths are relative to (default: --root)",
    )
    command.add_argument(
        "--lock-seconds", metavar="N", type=parse_seconds, default=300.0, help="wait for a fetch (default 300)"
    )


def run(arguments: argparse.Namespace) -> Outcome:
    """Removes checkpoints.

    Args:
        arguments: path, and what `add` adds.

    Returns:
        The outcome.

    Raises:
        LoaderError: Somebody uses one of them, or it can't be removed.
    """
    from modelweights_loader.fetch.cleaning import CleanOptions, clean  # noqa: PLC0415 - see the package's docstring
    from modelweights_loader.interruptible import call  # noqa: PLC0415

    if arguments.all == bool(arguments.digest):
        message = "name what is to go: --digest, once or several times, or --all"
        raise UsageError(message)
    options = CleanOptions(
        digests=tuple(digest.removeprefix("sha256:") for digest in arguments.digest),
        everything=arguments.all,
        root=arguments.root,
        marker_dir=arguments.marker_dir,
        marker_root=arguments.marker_root,
        lock_seconds=arguments.lock_seconds,
    )
    result = call(lambda: clean(arguments.path, options, lambda line: say(f"clean: {line}", sys.stderr)))
    return Outcome("Cleaned", _describe(result, arguments.path), _figures(result))


def _figures(result: CleanResult) -> dict[str, object]:
    return {
        "freedBytes": result.freed_bytes,
        "diskFreeBytes": result.disk_free_bytes,
        "diskTotalBytes": result.disk_total_bytes,
        "removed": [digest[:12] for digest in result.removed],
        "left": list(result.left) or None,
    }


def _describe(result: CleanResult, home: str) -> str:
    from modelweights_loader.quantity import format_bytes  # noqa: PLC0415 - see the package's docstring

    what = f"removed {', '.join(digest[:12] for digest in result.removed)}" if result.removed else "nothing was there"
    left = f"; left {', '.join(result.left[:5])}, which fetch didn't make" if result.left else ""
    free = f"{format_bytes(result.disk_free_bytes)} of the disk are free"
    return f"{home}: {what}, {format_bytes(result.freed_bytes)} freed; {free}{left}"
