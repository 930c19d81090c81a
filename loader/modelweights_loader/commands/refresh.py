"""The command `refresh`: measures what is in the page cache, reads what is missing, measures again, cools the pages.

Called by `cli`. Loads and hashes nothing; where there is a marker, it says afterwards whether all is warm. See the package for what it must not import.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple

from modelweights_loader.commands.memory_bounds import add_bounds, measure_bounds
from modelweights_loader.commands.options import (
    add_command,
    add_policy,
    find,
    parse_block_size,
    parse_digest,
    parse_place,
    parse_threads,
)
from modelweights_loader.outcome import Outcome, warn

if TYPE_CHECKING:
    import argparse

    from modelweights_loader.checkpoint import Checkpoint
    from modelweights_loader.commands.options import Commands
    from modelweights_loader.prefetch import PrefetchResult
    from modelweights_loader.residency import Residency


def add(commands: Commands) -> None:
    """Adds the command.

    Args:
        commands: Where to.
    """
    command = add_command(commands, "refresh", run, "measure the page cache, and read what is missing in it")
    command.add_argument(
        "--digest",
        metavar="sha256:HEX",
        type=parse_digest,
        help="PATH is the home of `fetch`; the checkpoint is the one in it with this manifest digest",
    )
    command.add_argument(
        "--expect-size", metavar="BYTES", type=int, default=0, help="what all shards had together when it was staged"
    )
    command.add_argument(
        "--expect-files", metavar="N", type=int, default=0, help="how many files there were when it was staged"
    )
    command.add_argument("--num-threads", metavar="N", type=parse_threads, default=8, help="1 to 256 (default 8)")
    command.add_argument(
        "--block-size", metavar="BYTES", type=parse_block_size, default=16 * 2**20, help="as of prefetch (default 16Mi)"
    )
    command.add_argument(
        "--pages", choices=("Cold", "Normal"), default="Normal", help="as of report, after all is read (default Normal)"
    )
    command.add_argument(
        "--marker-dir",
        metavar="DIR",
        type=parse_place,
        help="the marker there, if any, says afterwards whether at least --min-resident-percent is resident",
    )
    command.add_argument(
        "--marker-root", metavar="DIR", type=parse_place, help="the marker's path is relative to this (default --root)"
    )
    add_bounds(command)
    add_policy(command)


class _Work(NamedTuple):
    """What was found before, what was read, what bounded it, and what there is now."""

    before: Residency
    read: PrefetchResult | None
    limited: str
    after: Residency


def run(arguments: argparse.Namespace) -> Outcome:
    """Warms what has cooled.

    Args:
        arguments: path, root, digest, expect_size, expect_files, num_threads, block_size, pages, reserve_memory,
            max_resident, policy, min_resident_percent, unknown_residency, marker_dir, marker_root.

    Returns:
        The outcome.

    Raises:
        LoaderError: A file is gone, was changed or can't be read; or the policy is not met.
    """
    from modelweights_loader.interruptible import call  # noqa: PLC0415 - see the package's docstring
    from modelweights_loader.publish import check_policy, describe_residency  # noqa: PLC0415
    from modelweights_loader.residency import measure  # noqa: PLC0415

    checkpoint = _find(arguments)
    before = call(lambda: measure(checkpoint.shards))
    # After that: headers of cold files are read from disk.
    _check_headers(checkpoint)
    work = _warm(checkpoint, arguments, before)
    said = [_describe_read(work), describe_residency(work.after)]
    figures = _figures(checkpoint, work)
    if arguments.pages == "Cold":
        said += _cool(checkpoint, work, figures)
    said += _mark(checkpoint, arguments, figures)
    minimum, unknown = arguments.min_resident_percent, arguments.unknown_residency
    shown = f"{checkpoint.path}: {work.limited}" if work.limited else checkpoint.path
    check_policy(work.after, arguments.policy, minimum, shown, figures, unknown=unknown)
    useless = work.read.useless if work.read is not None else None
    if useless is not None:
        warn("refresh", f"{checkpoint.path}: {useless}; {useless.file_system.remedy}")
        return Outcome("PageCacheBypassed", f"{useless}; {'; '.join(said)}", figures)
    return Outcome("RefreshedPartly" if work.limited else "Refreshed", "; ".join(said), figures)


def _find(arguments: argparse.Namespace) -> Checkpoint:
    """The files that were staged: all are there, with the sizes that they had."""
    from modelweights_loader.errors import BadCheckpointError  # noqa: PLC0415 - see the package's docstring

    path = None
    if arguments.digest:
        import os  # noqa: PLC0415

        from modelweights_loader.fetch.left import find_left  # noqa: PLC0415
        from modelweights_loader.interruptible import call  # noqa: PLC0415

        path = os.path.join(arguments.path, call(lambda: find_left(arguments.path, arguments.digest)))
    checkpoint = find(arguments, path)
    now = (checkpoint.size_bytes, len(checkpoint.files))
    then = (arguments.expect_size or now[0], arguments.expect_files or now[1])
    if now != then:
        _check_headers(checkpoint)
        message = (
            f"{checkpoint.path} has {now[1]} files with {now[0]} bytes in its shards; it had {then[1]} with {then[0]} when it "
            "was staged; stage it again"
        )
        raise BadCheckpointError(message, reason="FileChanged")
    return checkpoint


def _check_headers(checkpoint: Checkpoint) -> None:
    """A shard that was cut off or swapped tells so by its header, and is named."""
    from modelweights_loader.interruptible import call  # noqa: PLC0415 - see the package's docstring
    from modelweights_loader.structure import read_structure  # noqa: PLC0415

    call(lambda: read_structure(checkpoint))


def _warm(checkpoint: Checkpoint, arguments: argparse.Namespace, before: Residency) -> _Work:
    from modelweights_loader.interruptible import call  # noqa: PLC0415 - see the package's docstring
    from modelweights_loader.missing import find_missing  # noqa: PLC0415
    from modelweights_loader.prefetch import prefetch  # noqa: PLC0415
    from modelweights_loader.progress import make_progress_printer  # noqa: PLC0415
    from modelweights_loader.residency import measure  # noqa: PLC0415

    missing = call(lambda: find_missing(checkpoint.shards, before))
    if not missing:
        return _Work(before, None, "", before)
    limit_bytes, limited = _limit(checkpoint, arguments, before)
    read = prefetch(
        [shard for shard in checkpoint.shards if shard.path in missing],
        num_threads=arguments.num_threads,
        block_bytes=arguments.block_size,
        limit_bytes=limit_bytes,
        on_progress=make_progress_printer("refresh", sys.stderr),
        stop_when_useless=True,
        ranges=missing,
    )
    _refuse_failure(checkpoint, read)
    return _Work(before, read, limited, call(lambda: measure(checkpoint.shards)))


def _limit(checkpoint: Checkpoint, arguments: argparse.Namespace, before: Residency) -> tuple[int | None, str]:
    """How many bytes to read at most, and what bounds it."""
    from modelweights_loader.quantity import format_bytes  # noqa: PLC0415 - see the package's docstring

    resident_bytes = before.resident_bytes or 0
    room = measure_bounds(arguments, checkpoint.size_bytes, lambda: resident_bytes)
    if room.room_bytes >= checkpoint.size_bytes:
        return None, ""
    limited = f"only {format_bytes(room.room_bytes)} of {format_bytes(checkpoint.size_bytes)} fit ({room.bound_by})"
    return max(0, room.room_bytes - resident_bytes), limited


def _refuse_failure(checkpoint: Checkpoint, read: PrefetchResult) -> None:
    from modelweights_loader.errors import BadCheckpointError, error_from_os  # noqa: PLC0415 - see the package

    for failure in read.failures:
        shown = f"{checkpoint.path}/{failure.path}"
        if failure.error is None:
            message = f"{shown} is shorter than it was ({failure.cause}); stage it again"
            raise BadCheckpointError(message, reason="FileChanged")
        raise error_from_os(failure.error, shown, "read") from failure.error


def _describe_read(work: _Work) -> str:
    from modelweights_loader.quantity import format_bytes, format_seconds  # noqa: PLC0415 - see the package

    percent = work.before.percent
    found = "nobody may know what was resident" if percent is None else f"{percent:.1f} % were resident"
    if work.read is None:
        return f"{found}, nothing was read"
    read = f"read {format_bytes(work.read.read_bytes)} in {format_seconds(work.read.seconds)}"
    return f"{found}, {read}{f', {work.limited}' if work.limited else ''}"


def _figures(checkpoint: Checkpoint, work: _Work) -> dict[str, object]:
    """By importance, as a report is cut from its end."""
    percent = work.before.percent
    return {
        "sizeBytes": checkpoint.size_bytes,
        **work.after.figures(),
        "residentBytesBefore": work.before.resident_bytes,
        "residentPercentBefore": None if percent is None else round(percent, 2),
        "fileCount": len(checkpoint.files),
        "readBytes": work.read.read_bytes if work.read is not None else 0,
        "readSeconds": round(work.read.seconds, 3) if work.read is not None else 0.0,
        "cooledBytes": None,
        "marker": None,
    }


def _mark(checkpoint: Checkpoint, arguments: argparse.Namespace, figures: dict[str, object]) -> list[str]:
    """By the figures as reported, so that who reads these judges the same."""
    import os  # noqa: PLC0415 - see the package's docstring

    from modelweights_loader.interruptible import call  # noqa: PLC0415
    from modelweights_loader.publish import UNKNOWN_ACCEPT  # noqa: PLC0415
    from modelweights_loader.warmth import mark_warmth  # noqa: PLC0415

    if arguments.marker_dir is None:
        return []
    percent = figures["residentPercent"]
    if isinstance(percent, (int, float)):
        warm = percent >= arguments.min_resident_percent
    else:
        warm = arguments.unknown_residency == UNKNOWN_ACCEPT
    path = checkpoint.path if arguments.digest else arguments.path
    root = arguments.marker_root or arguments.root or os.path.dirname(os.path.abspath(path))
    figures["marker"], cause = call(
        lambda: mark_warmth(path, root, arguments.marker_dir, digest=arguments.digest, warm=warm)
    )
    return [cause] if cause else []


def _cool(checkpoint: Checkpoint, work: _Work, figures: dict[str, object]) -> list[str]:
    from modelweights_loader.cooling import cool  # noqa: PLC0415 - see the package's docstring
    from modelweights_loader.interruptible import call  # noqa: PLC0415
    from modelweights_loader.quantity import format_bytes  # noqa: PLC0415

    all_read = work.read is not None and not work.limited and not work.read.stopped
    cooling = call(lambda: cool(checkpoint.shards, all_read=all_read))
    figures["cooledBytes"] = cooling.cooled_bytes
    refused = [f"not all cooled ({refusal})" for refusal in cooling.refusals]
    return [f"cooled {format_bytes(cooling.cooled_bytes)}", *refused]
