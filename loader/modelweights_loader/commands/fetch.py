"""The command `fetch`: brings a checkpoint from its source to this node.

Called by `cli`. See the package for what it must not import.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from modelweights_loader.commands.options import (
    add_command,
    parse_reserve,
    parse_seconds,
    parse_size,
    parse_threads,
)
from modelweights_loader.commands.source import add_source, make_source_options
from modelweights_loader.errors import UsageError
from modelweights_loader.outcome import Outcome, say
from modelweights_loader.sources.contract import DEFAULT_CONNECTIONS

if TYPE_CHECKING:
    from modelweights_loader.commands.options import Commands
    from modelweights_loader.fetch.fetching import FetchOptions, FetchResult

_MAX_CONNECTIONS = 64
# Each takes 67 of the 1024 bytes of a report.
_MAX_LEFTOVERS = 6


def add(commands: Commands) -> None:
    """Adds the command.

    Args:
        commands: Where to.
    """
    command = add_command(
        commands,
        "fetch",
        run,
        "bring a checkpoint to this node, verified",
        what="home: the checkpoint goes into a folder below it, named by its digest",
    )
    add_source(command)
    command.add_argument(
        "--resolved", action="store_true", help="take the revision from DIR/resolve.json of --results, not --revision"
    )
    command.add_argument(
        "--include", metavar="PATTERN", action="append", default=[], help="fetch these, not the default"
    )
    command.add_argument("--exclude", metavar="PATTERN", action="append", default=[], help="and none of these")
    command.add_argument("--layout", choices=("Plain", "HuggingFaceCache"), default="Plain", help="(default Plain)")
    command.add_argument(
        "--disk-reserve",
        metavar="BYTES|PERCENT",
        type=parse_reserve,
        default=None,
        help="keep so much of the disk free: 50Gi or 5%% (default 5%%)",
    )
    command.add_argument(
        "--num-connections",
        metavar="N",
        type=_parse_connections,
        default=DEFAULT_CONNECTIONS,
        help=f"1 to {_MAX_CONNECTIONS} at a time (default {DEFAULT_CONNECTIONS})",
    )
    command.add_argument(
        "--max-bytes-per-second", metavar="N", type=parse_size, default=0, help="of all together (default: no bound)"
    )
    command.add_argument(
        "--lock-seconds", metavar="N", type=parse_seconds, default=300.0, help="wait for another fetch (default 300)"
    )
    command.add_argument("--verify", action="store_true", help="hash what is published already")
    command.add_argument("--dry-run", action="store_true", help="show what would be fetched; write nothing")


def _parse_connections(text: str) -> int:
    number = parse_threads(text)
    if number > _MAX_CONNECTIONS:
        message = f"{number} connections is outside of 1 to {_MAX_CONNECTIONS}"
        raise argparse.ArgumentTypeError(message)
    return number


def run(arguments: argparse.Namespace) -> Outcome:
    """Fetches, or shows what would be fetched.

    Args:
        arguments: path, and what `add` adds.

    Returns:
        The outcome.

    Raises:
        LoaderError: It failed; its kind and reason say how.
    """
    from modelweights_loader.sources.extra_ca import open_ca_file  # noqa: PLC0415 - see the package's docstring

    with open_ca_file(arguments.ca_file, arguments.extra_ca_env) as ca_file:
        return _run(arguments, ca_file)


def _run(arguments: argparse.Namespace, ca_file: str | None) -> Outcome:
    from modelweights_loader.fetch.fetching import PLANNED, fetch  # noqa: PLC0415 - see the package's docstring
    from modelweights_loader.progress import make_progress_printer  # noqa: PLC0415
    from modelweights_loader.sources.open_source import open_when_asked  # noqa: PLC0415

    revision = _find_revision(arguments)
    options = make_source_options(arguments, ca_file, revision, arguments.num_connections)
    source = open_when_asked(arguments.source, options)
    try:
        result = fetch(
            arguments.path,
            source,
            _fetch_options(arguments, revision),
            make_progress_printer("fetch", sys.stderr),
            lambda line: say(f"fetch: {line}", sys.stderr),
        )
    finally:
        source.close()
    if result.reason == PLANNED:
        return _show_plan(arguments, result)
    figures = {**_figures(result, arguments.path), **_disk_figures(arguments.path)}
    return Outcome(result.reason, _describe(result, arguments.path), figures)


def _disk_figures(home: str) -> dict[str, object]:
    from modelweights_loader.fetch.plan import measure_disk  # noqa: PLC0415 - see the package's docstring
    from modelweights_loader.memory import Reserve  # noqa: PLC0415

    return measure_disk(home, Reserve()).figures()


def _find_revision(arguments: argparse.Namespace) -> str:
    """What was asked for, or what `resolve` found in this run."""
    if not arguments.resolved:
        revision: str = arguments.revision
        return revision
    from modelweights_loader.fetch.listing import is_pinned  # noqa: PLC0415 - see the package's docstring
    from modelweights_loader.report import read_result  # noqa: PLC0415

    if arguments.results is None or arguments.revision:
        message = "--resolved needs --results, where the step resolve left its result, and takes no --revision"
        raise UsageError(message)
    result = read_result(arguments.results, "resolve", arguments.path)
    found = result.get("revision")
    if result.get("exitCode") != 0 or not isinstance(found, str) or not is_pinned(found):
        message = f"{arguments.results} holds no revision for {arguments.path} that resolve found; run resolve first"
        raise UsageError(message)
    return found


def _fetch_options(arguments: argparse.Namespace, revision: str) -> FetchOptions:
    from modelweights_loader.fetch.fetching import DEFAULT_RESERVE, FetchOptions  # noqa: PLC0415 - see the package
    from modelweights_loader.fetch.workers import DownloadOptions  # noqa: PLC0415

    return FetchOptions(
        url=arguments.source,
        revision=revision,
        endpoint=arguments.endpoint,
        include=tuple(arguments.include),
        exclude=tuple(arguments.exclude),
        layout=arguments.layout,
        reserve=arguments.disk_reserve or DEFAULT_RESERVE,
        download=DownloadOptions(
            num_connections=arguments.num_connections, max_bytes_per_second=arguments.max_bytes_per_second
        ),
        dry_run=arguments.dry_run,
        verify=arguments.verify,
        lock_seconds=arguments.lock_seconds,
    )


def _figures(result: FetchResult, home: str) -> dict[str, object]:
    """The figures of the report, most important first."""
    from modelweights_loader.fetch.published import list_others  # noqa: PLC0415 - see the package's docstring

    published = result.published
    new_bytes = result.size_bytes - result.reused_bytes
    return {
        "folder": None if published is None else published.folder,
        "revision": result.revision,
        "manifestDigest": None if published is None else published.manifest_digest,
        "sizeBytes": result.size_bytes,
        "fileCount": result.file_count,
        "fetchedBytes": result.fetched_bytes,
        "fetchSeconds": round(result.seconds, 3),
        # Others than this one, whose time may be over; the next fetch says of what doesn't fit.
        "leftovers": None if published is None else list_others(home, published.folder)[:_MAX_LEFTOVERS],
        "reusedBytes": result.reused_bytes,
        "bytesPerSecond": round(new_bytes / result.seconds) if result.seconds else 0,
        "retries": result.retries,
        "described": result.described,
        "pageCache": result.page_cache or None,
    }


def _describe(result: FetchResult, home: str) -> str:
    from modelweights_loader.fetch.fetching import ALREADY_THERE, PAGES_KEPT  # noqa: PLC0415 - see the package
    from modelweights_loader.quantity import format_bytes, format_seconds  # noqa: PLC0415

    size = format_bytes(result.size_bytes)
    where = f"in {os.path.join(home, result.published.folder)}" if result.published is not None else ""
    if result.reason == ALREADY_THERE:
        return f"{result.described}: all {result.file_count} files ({size}) are there already, {where}"
    new_bytes = result.size_bytes - result.reused_bytes
    rate = f" ({format_bytes(new_bytes / max(result.seconds, 1e-9))}/s)" if new_bytes else ""
    reused = f", {format_bytes(result.reused_bytes)} of it were here already" if result.reused_bytes else ""
    retries = f", {result.retries} attempts failed" if result.retries else ""
    pages = "" if result.page_cache in {"", PAGES_KEPT} else "; not all of it stays in the page cache, it doesn't fit"
    return (
        f"{result.described}: {result.file_count} files, {size}{reused}, in {format_seconds(result.seconds)}"
        f"{rate}{retries}, {where}{pages}"
    )


def _show_plan(arguments: argparse.Namespace, result: FetchResult) -> Outcome:
    from modelweights_loader.fetch.fetching import DEFAULT_RESERVE  # noqa: PLC0415 - see the package
    from modelweights_loader.fetch.plan import check_room, find_existing_parent  # noqa: PLC0415
    from modelweights_loader.quantity import format_bytes  # noqa: PLC0415

    plan = result.plan
    if plan is None:
        return Outcome(result.reason, result.described, _figures(result, arguments.path))
    width = max((len(one.file.path) for one in plan.files), default=0)
    for one in plan.files:
        size = format_bytes(one.file.size_bytes) if one.file.size_bytes >= 0 else "?"
        say(f"{one.file.path:{width}}  {size:>10}  {one.state}", sys.stdout)
    check_room(find_existing_parent(arguments.path), plan, arguments.disk_reserve or DEFAULT_RESERVE)
    missing = plan.size_bytes - plan.have_bytes
    message = (
        f"{result.described}: {len(plan.files)} files, {format_bytes(plan.size_bytes)}, of which "
        f"{format_bytes(missing)} would be fetched"
    )
    return Outcome(result.reason, message, _figures(result, arguments.path))
