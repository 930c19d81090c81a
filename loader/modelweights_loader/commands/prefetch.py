"""The command `prefetch`: reads the shards into the page cache.

Called by `cli`; `stage` calls `prefetch_checkpoint`. See the package for what it must not import.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from modelweights_loader.commands.options import add_command, add_policy, find, parse_block_size, parse_threads
from modelweights_loader.outcome import Outcome, warn

if TYPE_CHECKING:
    import argparse

    from modelweights_loader.checkpoint import Checkpoint
    from modelweights_loader.commands.options import Commands
    from modelweights_loader.prefetch import FailedFile


def add(commands: Commands) -> None:
    """Adds the command.

    Args:
        commands: Where to.
    """
    command = add_command(commands, "prefetch", run, "read the shards into the page cache")
    add_arguments(command)
    add_policy(command)


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Adds the options of its own.

    Args:
        command: Its parser, or that of a command that includes it.
    """
    command.add_argument("--num-threads", metavar="N", type=parse_threads, default=8, help="1 to 256 (default 8)")
    command.add_argument(
        "--block-size",
        metavar="BYTES",
        type=parse_block_size,
        default=16 * 2**20,
        help="16Mi, 16M or bytes; 4Ki to 1Gi in steps of 4Ki, threads x block at most 4Gi (default 16Mi)",
    )


def run(arguments: argparse.Namespace) -> Outcome:
    """Reads the shards into the page cache.

    Args:
        arguments: path, root, num_threads, block_size, policy, min_resident_percent.

    Returns:
        The outcome.

    Raises:
        LoaderError: No room, a policy that is not met, or a checkpoint that is not there.
    """
    return prefetch_checkpoint(find(arguments), arguments)


def prefetch_checkpoint(checkpoint: Checkpoint, arguments: argparse.Namespace) -> Outcome:
    """Like `run`, for files that are found already.

    Args:
        checkpoint: What to read.
        arguments: See there.

    Returns:
        The outcome.

    Raises:
        LoaderError: See there.
    """
    from modelweights_loader.prefetch import prefetch  # noqa: PLC0415 - see the package's docstring
    from modelweights_loader.progress import make_progress_printer  # noqa: PLC0415
    from modelweights_loader.publish import check_policy, describe_residency  # noqa: PLC0415
    from modelweights_loader.quantity import format_bytes, format_seconds  # noqa: PLC0415
    from modelweights_loader.residency import measure  # noqa: PLC0415

    limit_bytes, limited = _limit(checkpoint, arguments)
    result = prefetch(
        checkpoint.shards,
        num_threads=arguments.num_threads,
        block_bytes=arguments.block_size,
        limit_bytes=limit_bytes,
        on_progress=make_progress_printer("prefetch", sys.stderr),
    )
    for failure in result.failures:
        warn("prefetch", f"{checkpoint.path}/{failure.path} could not be read ({failure.cause}); the others were")
    residency = measure(checkpoint.shards)
    figures: dict[str, object] = {
        "files": len(checkpoint.shards),
        "sizeBytes": checkpoint.size_bytes,
        "readBytes": result.read_bytes,
        "readSeconds": round(result.seconds, 3),
        "bytesPerSecond": round(result.bytes_per_second),
        **residency.figures(),
        "numThreads": arguments.num_threads,
        "blockSize": arguments.block_size,
        "failedFiles": [failure.path for failure in result.failures] or None,
    }
    if result.failures and arguments.policy == "Required":
        _refuse_failure(checkpoint, result.failures[0], figures)
    check_policy(residency, arguments.policy, arguments.min_resident_percent, checkpoint.path, figures)
    rate = f"{format_bytes(result.bytes_per_second)}/s"
    said = f"read {format_bytes(result.read_bytes)} in {format_seconds(result.seconds)} ({rate})"
    failed = f", {len(result.failures)} of {len(checkpoint.shards)} files failed" if result.failures else ""
    partly = bool(result.failures or limited)
    message = f"{said}{failed}{limited}; {describe_residency(residency)}"
    return Outcome("PrefetchedPartly" if partly else "Prefetched", message, figures)


def _limit(checkpoint: Checkpoint, arguments: argparse.Namespace) -> tuple[int | None, str]:
    """How many bytes to read at most, and what to say about it."""
    from modelweights_loader.errors import NoRoomError  # noqa: PLC0415 - see the package's docstring
    from modelweights_loader.memory import measure_room  # noqa: PLC0415
    from modelweights_loader.quantity import format_bytes  # noqa: PLC0415
    from modelweights_loader.residency import measure  # noqa: PLC0415

    room = measure_room(0)
    if room.room_bytes < checkpoint.size_bytes:
        # Only now: measuring what is there already costs time that a roomy node need not pay.
        room = measure_room(measure(checkpoint.shards).resident_bytes or 0)
    if room.room_bytes >= checkpoint.size_bytes:
        return None, ""
    fits = f"{format_bytes(room.room_bytes)} of {format_bytes(checkpoint.size_bytes)} fit into memory ({room.bound_by})"
    if arguments.policy == "Required":
        message = f"{checkpoint.path}: only {fits}; raise the pod's memory limit, or take a node with more memory"
        raise NoRoomError(message, reason="NoMemory", figures={"sizeBytes": checkpoint.size_bytes})
    warn("prefetch", f"only {fits}: the first files in load order are read, the rest is not")
    return room.room_bytes, f", only {fits}"


def _refuse_failure(checkpoint: Checkpoint, failure: FailedFile, figures: dict[str, object]) -> None:
    from modelweights_loader.errors import TryAgainError, error_from_os  # noqa: PLC0415 - see the package's docstring

    shown = f"{checkpoint.path}/{failure.path}"
    if failure.error is None:
        message = f"cannot read {shown} ({failure.cause}); wait until nothing writes there"
        raise TryAgainError(message, reason="FileChanged", figures=figures)
    error = error_from_os(failure.error, shown, "read")
    error.figures = figures
    raise error from failure.error
