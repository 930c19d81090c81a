"""The command `wait`: blocks until the marker on this node says that a model is staged; then holds it, if asked.

Called by `cli`. See the package for what it must not import.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import TYPE_CHECKING

from modelweights_loader.commands.options import add_command, parse_digest, parse_place, parse_seconds
from modelweights_loader.errors import TerminatedError, UsageError, WillNotWorkError, describe_os_error
from modelweights_loader.outcome import Outcome, say

if TYPE_CHECKING:
    import argparse

    from modelweights_loader.commands.options import Commands
    from modelweights_loader.marker import Marker

_NAP_SECONDS = 2.0


def add(commands: Commands) -> None:
    """Adds the command.

    Args:
        commands: Where to.
    """
    command = add_command(commands, "wait", run, "block until the marker on this node says that it is staged")
    _add_arguments(command)


def _add_arguments(command: argparse.ArgumentParser) -> None:
    which = command.add_mutually_exclusive_group()
    which.add_argument("--digest", metavar="sha256:HEX", type=parse_digest, help="only this manifest digest will do")
    which.add_argument(
        "--newest",
        action="store_true",
        help="PATH holds folders that are named by digests: take the one that was staged last here, whichever it is",
    )
    command.add_argument(
        "--link",
        metavar="FILE",
        type=parse_place,
        help="then make this symbolic link to what is staged; not with --hold",
    )
    command.add_argument(
        "--timeout-seconds", metavar="N", type=parse_seconds, default=0.0, help="0 (default) waits for ever"
    )
    command.add_argument(
        "--hold", action="store_true", help="then hold the files, so that they aren't removed, until SIGTERM or SIGINT"
    )
    command.add_argument(
        "--held-file", metavar="FILE", type=parse_place, help="with --hold: make this file as soon as they are held"
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
    from modelweights_loader.newest import locate  # noqa: PLC0415
    from modelweights_loader.wait import wait  # noqa: PLC0415

    if arguments.held_file and not arguments.hold:
        message = "--held-file needs --hold"
        raise UsageError(message)
    if arguments.hold and (arguments.newest or arguments.link):
        message = "--hold goes with neither --newest nor --link"
        raise UsageError(message)
    call(lambda: resolve_below(arguments.path, arguments.root), arguments.timeout_seconds)
    if arguments.hold:
        return _hold(arguments)
    marker = wait(
        arguments.path,
        digest=arguments.digest,
        timeout_seconds=arguments.timeout_seconds,
        say=_say_to_stderr,
        newest=arguments.newest,
    )
    path = locate(arguments.path, marker) if arguments.newest else arguments.path
    if arguments.link:
        _link(path, arguments.link)
    return Outcome("Staged", f"{path} is staged ({marker.manifest_digest}, {marker.staged_at})", _figures(marker))


def _link(path: str, link: str) -> None:
    """Whole or not at all, in the place of one that an earlier run of the container made."""
    made = f"{link}.part"
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(made)
        os.symlink(path, made)
        os.replace(made, link)
    except OSError as error:
        message = (
            f"cannot make the link {link} ({describe_os_error(error)}); name a file in a folder that can be written"
        )
        raise WillNotWorkError(message, reason="ReportNotWritable") from error


def _figures(marker: Marker) -> dict[str, object]:
    return {"manifestDigest": marker.manifest_digest, "sizeBytes": marker.size_bytes}


def _say_to_stderr(line: str) -> None:
    say(f"wait: {line}", sys.stderr)


def _hold(arguments: argparse.Namespace) -> Outcome:
    """Being ended is how this ends well."""
    from modelweights_loader.hold import wait_and_hold  # noqa: PLC0415 - see the package's docstring
    from modelweights_loader.small_files import write_atomically  # noqa: PLC0415

    held: Marker | None = None
    try:
        with wait_and_hold(
            arguments.path, digest=arguments.digest, timeout_seconds=arguments.timeout_seconds, say=_say_to_stderr
        ) as held:
            try:
                if arguments.held_file:
                    write_atomically(arguments.held_file, b"")
            except OSError as error:
                message = (
                    f"cannot write {arguments.held_file} ({describe_os_error(error)}); pass a file that can be written"
                )
                raise WillNotWorkError(message, reason="ReportNotWritable") from error
            say(f"wait: {arguments.path} is staged and held ({held.manifest_digest})", sys.stdout)
            while True:
                # A signal ends it at once; not pause(), which one that comes just before it would not end.
                time.sleep(_NAP_SECONDS)
    except (TerminatedError, KeyboardInterrupt):
        if held is None:
            raise
        return Outcome("Released", f"{arguments.path} is no longer held", _figures(held))
