"""The command `prefetch`: reads the shards into the page cache.

Called by `cli`; `stage` calls `prefetch_checkpoint`. See the package for what it must not import.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from modelweights_loader.commands.memory_bounds import add_bounds, measure_bounds
from modelweights_loader.commands.options import (
    add_command,
    add_fetched,
    add_policy,
    find,
    parse_block_size,
    parse_rank,
    parse_threads,
)
from modelweights_loader.outcome import Outcome, warn

if TYPE_CHECKING:
    import argparse

    from modelweights_loader.checkpoint import Checkpoint, CheckpointFile
    from modelweights_loader.commands.options import Commands
    from modelweights_loader.page_cache import CacheProbe
    from modelweights_loader.prefetch import FailedFile, PrefetchResult
    from modelweights_loader.residency import Residency

MODES = ("PageCache", "None")


def add(commands: Commands) -> None:
    """Adds the command.

    Args:
        commands: Where to.
    """
    command = add_command(commands, "prefetch", run, "read the shards into the page cache")
    add_fetched(command)
    add_arguments(command)
    command.add_argument("--rank", metavar="N", type=parse_rank, default=0, help="read files[RANK::WORLD_SIZE] only")
    command.add_argument("--world-size", metavar="N", type=parse_rank, default=1, help="1 (default) to 65536")
    add_policy(command)


def add_arguments(command: argparse.ArgumentParser, mode_option: str = "--mode") -> None:
    """Adds the options of its own, but for those of a group.

    Args:
        command: Its parser, or that of a command that includes it.
        mode_option: What the option is called there.
    """
    command.add_argument(
        mode_option,
        dest="prefetch_mode",
        choices=MODES,
        default="PageCache",
        help="None reads nothing, for machines whose GPU shares this memory, or that have little (default PageCache)",
    )
    command.add_argument("--num-threads", metavar="N", type=parse_threads, default=8, help="1 to 256 (default 8)")
    command.add_argument(
        "--block-size",
        metavar="BYTES",
        type=parse_block_size,
        default=16 * 2**20,
        help="16Mi, 16M or bytes; 1 byte to 1Gi, read in whole pages; threads x block at most 4Gi (default 16Mi)",
    )
    add_bounds(command)
    command.add_argument(
        "--past-page-cache",
        choices=("Stop", "Read"),
        default="Stop",
        help="what to do where the file system keeps nothing in the page cache (default Stop)",
    )
    command.set_defaults(rank=0, world_size=1)


def run(arguments: argparse.Namespace) -> Outcome:
    """Reads the shards into the page cache.

    Args:
        arguments: path, root, prefetch_mode, num_threads, block_size, reserve_memory, max_resident, past_page_cache, rank,
            world_size, policy, min_resident_percent, unknown_residency.

    Returns:
        The outcome.

    Raises:
        LoaderError: No room, a policy that is not met, or a checkpoint that is not there.
    """
    _check_stripe(arguments)
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
    from modelweights_loader.interruptible import call  # noqa: PLC0415 - see the package's docstring
    from modelweights_loader.prefetch import prefetch, take_stripe  # noqa: PLC0415
    from modelweights_loader.progress import make_progress_printer  # noqa: PLC0415
    from modelweights_loader.residency import measure  # noqa: PLC0415

    if arguments.prefetch_mode == "None":
        message = "prefetch is off (mode None): nothing was read and no memory is taken"
        return Outcome("PrefetchOff", message, {"sizeBytes": checkpoint.size_bytes, "readBytes": 0})
    files = take_stripe(checkpoint.shards, arguments.rank, arguments.world_size)
    in_memory = call(lambda: _measure_memory_files(files))
    if in_memory is not None:
        return _say_in_memory(files, arguments, in_memory)
    limit_bytes, limited = _limit(checkpoint, files, arguments)
    result = prefetch(
        files,
        num_threads=arguments.num_threads,
        block_bytes=arguments.block_size,
        limit_bytes=limit_bytes,
        on_progress=make_progress_printer("prefetch", sys.stderr),
        stop_when_useless=arguments.policy == "Required" or arguments.past_page_cache == "Stop",
    )
    for failure in result.failures:
        warn("prefetch", f"{checkpoint.path}/{failure.path} could not be read ({failure.cause})")
    residency = call(lambda: measure(files))
    figures = _describe(files, arguments, residency, result)
    if result.useless is not None:
        return _say_useless(checkpoint, arguments, result.useless, result, figures)
    return _say_read(checkpoint, arguments, result, residency, figures, limited)


def _check_stripe(arguments: argparse.Namespace) -> None:
    from modelweights_loader.errors import UsageError  # noqa: PLC0415 - see the package's docstring
    from modelweights_loader.quantity import check_stripe  # noqa: PLC0415

    try:
        check_stripe(arguments.rank, arguments.world_size)
    except ValueError as error:
        raise UsageError(str(error)) from error


def _describe(
    files: tuple[CheckpointFile, ...], arguments: argparse.Namespace, residency: Residency, result: PrefetchResult
) -> dict[str, object]:
    """The figures of the report, most important first."""
    grouped = arguments.world_size > 1
    looked = result.useless or next(iter(result.probes), None)
    return {
        "files": len(files),
        "sizeBytes": sum(file.size_bytes for file in files),
        "readBytes": result.read_bytes,
        "readSeconds": round(result.seconds, 3),
        "bytesPerSecond": round(result.bytes_per_second),
        **residency.figures(),
        "readWay": "+".join(result.ways) or None,
        "fileSystem": "+".join(dict.fromkeys(system.type for system in result.file_systems)) or None,
        "pageCache": None if looked is None else looked.kept,
        "rank": arguments.rank if grouped else None,
        "worldSize": arguments.world_size if grouped else None,
        "numThreads": arguments.num_threads,
        "blockSize": arguments.block_size,
        "failedFiles": [failure.path for failure in result.failures] or None,
    }


def _say_read(
    checkpoint: Checkpoint,
    arguments: argparse.Namespace,
    result: PrefetchResult,
    residency: Residency,
    figures: dict[str, object],
    limited: str,
) -> Outcome:
    from modelweights_loader.publish import check_policy, describe_residency  # noqa: PLC0415 - see the package
    from modelweights_loader.quantity import format_bytes, format_seconds  # noqa: PLC0415

    if result.failures and arguments.policy == "Required":
        _refuse_failure(checkpoint, result.failures[0], figures)
    minimum, unknown = arguments.min_resident_percent, arguments.unknown_residency
    check_policy(residency, arguments.policy, minimum, checkpoint.path, figures, unknown=unknown)
    rate = f"{format_bytes(result.bytes_per_second)}/s"
    stripe = _describe_stripe(arguments, len(result.files), len(checkpoint.shards))
    place = next((f" over the network, from {system}" for system in result.file_systems if system.is_network), "")
    said = f"read {format_bytes(result.read_bytes)}{stripe}{place} in {format_seconds(result.seconds)} ({rate})"
    failed = f", {len(result.failures)} of {len(result.files)} files failed" if result.failures else ""
    partly = bool(result.failures or limited)
    message = f"{said}{failed}{limited}; {describe_residency(residency)}"
    return Outcome("PrefetchedPartly" if partly else "Prefetched", message, figures)


def _describe_stripe(arguments: argparse.Namespace, count: int, total: int) -> str:
    if arguments.world_size == 1:
        return ""
    return f" (rank {arguments.rank} of {arguments.world_size}: {count} of {total} files)"


def _say_useless(
    checkpoint: Checkpoint,
    arguments: argparse.Namespace,
    useless: CacheProbe,
    result: PrefetchResult,
    figures: dict[str, object],
) -> Outcome:
    """An error for policy Required, else a warning: no pod starts sooner for what was read."""
    from modelweights_loader.errors import WillNotWorkError  # noqa: PLC0415 - see the package's docstring
    from modelweights_loader.quantity import format_bytes  # noqa: PLC0415

    said = f"{checkpoint.path}: {useless}; {useless.file_system.remedy}"
    if arguments.policy == "Required":
        raise WillNotWorkError(said, reason="PageCacheBypassed", figures=figures)
    how = "stopped after a look at" if result.stopped else "read all the same:"
    warn("prefetch", said)
    return Outcome("PageCacheBypassed", f"{how} {format_bytes(result.read_bytes)}; {said}", figures)


def _measure_memory_files(files: tuple[CheckpointFile, ...]) -> Residency | None:
    """The residency of files that are in memory by their very file system, None if any is not, or is swapped out."""
    from modelweights_loader.file_systems import detect  # noqa: PLC0415 - see the package's docstring
    from modelweights_loader.residency import measure  # noqa: PLC0415

    if not files or not all(detect(file.real_path).is_memory for file in files):
        return None
    residency = measure(files)
    return residency if residency.resident_bytes == residency.size_bytes else None


def _say_in_memory(files: tuple[CheckpointFile, ...], arguments: argparse.Namespace, residency: Residency) -> Outcome:
    from modelweights_loader.file_systems import detect  # noqa: PLC0415 - see the package's docstring
    from modelweights_loader.page_cache import KEPT, CacheProbe  # noqa: PLC0415
    from modelweights_loader.prefetch import PrefetchResult  # noqa: PLC0415

    found = detect(files[0].real_path)
    nothing = PrefetchResult(0, 0, 0.0, (), probes=(CacheProbe(KEPT, found, 0),))
    figures = _describe(files, arguments, residency, nothing)
    return Outcome("Prefetched", f"all of it is in memory already ({found}): nothing was read", figures)


def _limit(
    checkpoint: Checkpoint, files: tuple[CheckpointFile, ...], arguments: argparse.Namespace
) -> tuple[int | None, str]:
    """How many bytes to read at most, and what to say about it."""
    from modelweights_loader.errors import NoRoomError  # noqa: PLC0415 - see the package's docstring
    from modelweights_loader.interruptible import call  # noqa: PLC0415
    from modelweights_loader.quantity import format_bytes  # noqa: PLC0415
    from modelweights_loader.residency import measure  # noqa: PLC0415

    size_bytes = sum(file.size_bytes for file in files)
    room = measure_bounds(arguments, size_bytes, lambda: call(lambda: measure(files)).resident_bytes or 0)
    if room.room_bytes >= size_bytes:
        return None, ""
    fits = f"{format_bytes(room.room_bytes)} of {format_bytes(size_bytes)} fit into memory ({room.bound_by})"
    if arguments.policy == "Required":
        message = (
            f"{checkpoint.path}: only {fits}; raise the pod's memory limit, take a node with more memory, or change what "
            "bounds it"
        )
        raise NoRoomError(message, reason="NoMemory", figures={"sizeBytes": size_bytes, "roomBytes": room.room_bytes})
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
