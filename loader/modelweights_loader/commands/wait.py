"""The command `wait`: blocks until the marker on this node says that a model is staged.

Called by `cli`. See the package for what it must not import.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from modelweights_loader.commands.options import add_command, parse_seconds
from modelweights_loader.outcome import Outcome, say

if TYPE_CHECKING:
    from modelweights_loader.commands.options import Commands


def add(commands: Commands) -> None:
    """Adds the command.

    Args:
        commands: Where to.
    """
    command = add_command(commands, "wait", run, "block until the marker on this node says that it is staged")
    _add_arguments(command)


def _add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--digest", metavar="sha256:HEX", type=parse_digest, help="only this manifest digest will do")
    command.add_argument(
        "--timeout-seconds", metavar="N", type=parse_seconds, default=0.0, help="0 (default) waits for ever"
    )


def run(arguments: argparse.Namespace) -> Outcome:
    """Waits for the marker.

    Args:
        arguments: path, root, digest, timeout_seconds.

    Returns:
        The outcome.

    Raises:
        LoaderError: No marker folder, or the time is over.
    """
    from modelweights_loader.checkpoint import resolve_below  # noqa: PLC0415 - see the package's docstring
    from modelweights_loader.interruptible import call  # noqa: PLC0415
    from modelweights_loader.wait import wait  # noqa: PLC0415

    call(lambda: resolve_below(arguments.path, arguments.root), arguments.timeout_seconds)
    marker = wait(
        arguments.path,
        digest=arguments.digest,
        timeout_seconds=arguments.timeout_seconds,
        say=lambda line: say(f"wait: {line}", sys.stderr),
    )
    figures: dict[str, object] = {"manifestDigest": marker.manifest_digest, "sizeBytes": marker.size_bytes}
    return Outcome("Staged", f"{arguments.path} is staged ({marker.manifest_digest}, {marker.staged_at})", figures)


def parse_digest(text: str) -> str:
    """Parses a manifest digest.

    Args:
        text: As given.

    Returns:
        The same.

    Raises:
        argparse.ArgumentTypeError: It is none.
    """
    name, _, digits = text.partition(":")
    if name != "sha256" or len(digits) != 64 or set(digits) - set("0123456789abcdef"):  # noqa: PLR2004 - 256 bits
        message = f"{text!r} is not sha256: and 64 hex digits"
        raise argparse.ArgumentTypeError(message)
    return text
