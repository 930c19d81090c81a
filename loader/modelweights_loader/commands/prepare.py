"""The command `prepare`: makes the folders of a root on a node, with the owner and mode that staging needs.

Called by `cli`. See the package for what it must not import.
"""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING

from modelweights_loader.commands.options import add_command
from modelweights_loader.errors import error_from_os
from modelweights_loader.outcome import Outcome

if TYPE_CHECKING:
    from modelweights_loader.commands.options import Commands

_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def add(commands: Commands) -> None:
    """Adds the command.

    Args:
        commands: Where to.
    """
    command = add_command(
        commands,
        "prepare",
        run,
        "give a root on this node, and the folders in it, the owner and mode that staging needs; as root",
        what="root of a storage class, or of hostPath sources; must be there",
    )
    command.add_argument(
        "--namespace",
        metavar="NAME",
        type=_parse_namespace,
        action="append",
        default=[],
        help="make a folder for it; can be repeated",
    )


def _parse_namespace(text: str) -> str:
    if not _NAMESPACE.fullmatch(text):
        message = f"{text[:80]!r} is no name of a namespace"
        raise argparse.ArgumentTypeError(message)
    return text


def run(arguments: argparse.Namespace) -> Outcome:
    """Prepares.

    Args:
        arguments: path, namespace.

    Returns:
        The outcome.

    Raises:
        LoaderError: A link is in the place of a folder, or this user may not.
    """
    from modelweights_loader.interruptible import call  # noqa: PLC0415 - see the package's docstring
    from modelweights_loader.prepare import prepare  # noqa: PLC0415

    try:
        changed = call(lambda: prepare(arguments.path, arguments.namespace))
    except FileNotFoundError as error:
        raise error_from_os(error, arguments.path, "find") from error
    said = f"made or changed {', '.join(changed[:10])}" if changed else "all was right already"
    return Outcome("Prepared", f"{arguments.path}: {said}", {"changed": len(changed)})
