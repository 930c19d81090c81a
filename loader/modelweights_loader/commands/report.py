"""The command `report`: measures residency once more, cools the pages, writes the marker, sums up.

Called by `cli`; `stage` calls `publish_checkpoint`. See the package for what it must not import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from modelweights_loader.commands.options import add_command, add_fetched, add_policy, find, parse_place
from modelweights_loader.outcome import Outcome

if TYPE_CHECKING:
    import argparse

    from modelweights_loader.checkpoint import Checkpoint
    from modelweights_loader.commands.options import Commands
    from modelweights_loader.publish import PublishOptions


def add(commands: Commands) -> None:
    """Adds the command.

    Args:
        commands: Where to.
    """
    command = add_command(commands, "report", run, "measure residency, cool the pages, write the marker, sum up")
    add_fetched(command)
    add_policy(command)
    add_arguments(command)


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Adds the options of its own.

    Args:
        command: Its parser, or that of a command that includes it.
    """
    command.add_argument("--marker-dir", metavar="DIR", type=parse_place, help="write the marker there")
    command.add_argument(
        "--marker-root", metavar="DIR", type=parse_place, help="the marker's path is relative to this (default --root)"
    )
    command.add_argument("--node-boot-id", metavar="ID", default="", help="copied into the marker")
    command.add_argument(
        "--pages",
        choices=("Cold", "Normal"),
        default="Normal",
        help="Cold moves them to the kernel's inactive list, so that the kubelet doesn't count them as used (default Normal)",
    )
    # What staging pods of version 0.1 pass.
    command.add_argument("--cool", dest="pages", action="store_const", const="Cold", help="the same as --pages Cold")


def run(arguments: argparse.Namespace) -> Outcome:
    """Measures once more, cools, marks and sums up.

    Args:
        arguments: path, root, results, policy, min_resident_percent, unknown_residency, marker_dir, marker_root,
            node_boot_id, pages.

    Returns:
        The outcome.

    Raises:
        LoaderError: The policy is not met.
    """
    return publish_checkpoint(find(arguments), arguments, arguments.results)


def publish_checkpoint(
    checkpoint: Checkpoint,
    arguments: argparse.Namespace,
    results: str | None,
    earlier: dict[str, dict[str, Any]] | None = None,
) -> Outcome:
    """Like `run`, for files that are found already.

    Args:
        checkpoint: What was staged.
        arguments: See there.
        results: Where the earlier steps left their results.
        earlier: Results that are at hand; they count more.

    Returns:
        The outcome.

    Raises:
        LoaderError: See there.
    """
    from modelweights_loader.publish import publish  # noqa: PLC0415 - see the package's docstring

    figures, said = publish(arguments.path, checkpoint, _publish_options(arguments, results, earlier))
    return Outcome("Staged", said, figures)


def _publish_options(
    arguments: argparse.Namespace, results: str | None, earlier: dict[str, dict[str, Any]] | None
) -> PublishOptions:
    from modelweights_loader.publish import PublishOptions  # noqa: PLC0415 - see the package's docstring

    return PublishOptions(
        policy=arguments.policy,
        min_resident_percent=arguments.min_resident_percent,
        results=results,
        marker_dir=arguments.marker_dir,
        marker_root=arguments.marker_root or arguments.root,
        node_boot_id=arguments.node_boot_id,
        pages=arguments.pages,
        unknown_residency=arguments.unknown_residency,
        earlier=earlier or {},
        fetched=getattr(arguments, "fetched", False),
    )
