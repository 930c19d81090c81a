"""The command `resolve`: finds out which revision a source has now, and writes nothing but that.

Called by `cli`. See the package for what it must not import.

    resolve --> <results>/resolve.json --> fetch --resolved
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from modelweights_loader.commands.options import add_command
from modelweights_loader.commands.source import add_source, make_source_options
from modelweights_loader.outcome import Outcome, say

if TYPE_CHECKING:
    import argparse

    from modelweights_loader.commands.options import Commands

_REASON = "Resolved"


def add(commands: Commands) -> None:
    """Adds the command.

    Args:
        commands: Where to.
    """
    command = add_command(
        commands,
        "resolve",
        run,
        "find out which revision a source has, for `fetch --resolved`",
        what="home that `fetch` is to be given; it needn't be there",
    )
    add_source(command)


def run(arguments: argparse.Namespace) -> Outcome:
    """Lists the source and pins it.

    Args:
        arguments: path, and what `add` adds.

    Returns:
        The outcome, with the revision.

    Raises:
        LoaderError: As `fetch` has it when it lists.
    """
    from modelweights_loader.fetch.listing import list_pinned, run_pinned  # noqa: PLC0415 - see the package's docstring
    from modelweights_loader.fetch.retry import Backoff  # noqa: PLC0415
    from modelweights_loader.sources.extra_ca import open_ca_file  # noqa: PLC0415
    from modelweights_loader.sources.open_source import open_source  # noqa: PLC0415

    def tell(line: str) -> None:
        say(f"resolve: {line}", sys.stderr)

    with open_ca_file(arguments.ca_file, arguments.extra_ca_env) as ca_file:
        options = make_source_options(arguments, ca_file, arguments.revision, num_connections=1)
        source = open_source(arguments.source, options)
        try:
            listing = run_pinned(lambda: list_pinned(source, Backoff(), tell), arguments.revision, tell)
        finally:
            source.close()
    figures: dict[str, object] = {"revision": listing.revision, "described": listing.described}
    return Outcome(_REASON, f"{listing.described}: {len(listing.files)} files are listed", figures)
