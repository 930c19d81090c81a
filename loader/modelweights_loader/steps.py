"""The steps behind the commands: each takes parsed arguments and returns reason, message and figures.

Called by `cli`. Heavy modules are imported inside the steps that need them, so that `wait` starts in milliseconds.
Must not import torch.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import argparse

    from modelweights_loader.checkpoint import Checkpoint
    from modelweights_loader.load_process import LoadProcess
    from modelweights_loader.prefetch import FailedFile
    from modelweights_loader.publish import PublishOptions


class Outcome(NamedTuple):
    """What a step that did its work has to say; quiet ones print their own output."""

    reason: str
    message: str
    figures: dict[str, object]
    quiet: bool = False


def warn(step: str, message: str) -> None:
    """Prints a warning in one line to standard error.

    Args:
        step: Who warns.
        message: Any text; line ends are taken out.
    """
    print(f"{step}: warning: {' '.join(message.split())}", file=sys.stderr, flush=True)


def _find(arguments: argparse.Namespace) -> Checkpoint:
    from modelweights_loader.checkpoint import find_checkpoint  # noqa: PLC0415 - see the module's docstring

    return find_checkpoint(arguments.path, arguments.root)


def run_prefetch(arguments: argparse.Namespace) -> Outcome:
    """Reads the shards into the page cache.

    Args:
        arguments: path, root, num_threads, block_size, policy, min_resident_percent.

    Returns:
        The outcome.

    Raises:
        LoaderError: No room, a policy that is not met, or a checkpoint that is not there.
    """
    return prefetch_checkpoint(_find(arguments), arguments)


def prefetch_checkpoint(checkpoint: Checkpoint, arguments: argparse.Namespace) -> Outcome:
    """Like `run_prefetch`, for files that are found already.

    Args:
        checkpoint: What to read.
        arguments: See there.

    Returns:
        The outcome.

    Raises:
        LoaderError: See there.
    """
    from modelweights_loader.prefetch import prefetch  # noqa: PLC0415 - see the module's docstring
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
    from modelweights_loader.errors import NoRoomError  # noqa: PLC0415 - see the module's docstring
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
    from modelweights_loader.errors import TryAgainError, error_from_os  # noqa: PLC0415 - see the module's docstring

    shown = f"{checkpoint.path}/{failure.path}"
    if failure.error is None:
        message = f"cannot read {shown} ({failure.cause}); wait until nothing writes there"
        raise TryAgainError(message, reason="FileChanged", figures=figures)
    error = error_from_os(failure.error, shown, "read")
    error.figures = figures
    raise error from failure.error


def run_validate(arguments: argparse.Namespace) -> Outcome:
    """Proves that the checkpoint loads.

    Args:
        arguments: path, root, mode, queue_size, device, gds, timeout_seconds.

    Returns:
        The outcome.

    Raises:
        LoaderError: The load failed; its kind and reason say how.
    """
    from modelweights_loader.load_process import LoadProcess  # noqa: PLC0415 - see the module's docstring

    # Before anything else is looked at: importing torch takes longer than all of it.
    process = LoadProcess() if arguments.mode == "Load" else None
    try:
        return validate_checkpoint(_find(arguments), arguments, process)
    finally:
        if process is not None:
            process.kill()


def validate_checkpoint(checkpoint: Checkpoint, arguments: argparse.Namespace, process: LoadProcess | None) -> Outcome:
    """Like `run_validate`, for files that are found already and a load process that runs already.

    Args:
        checkpoint: What to load.
        arguments: See there.
        process: From `LoadProcess()`, or None for modes that load nothing.

    Returns:
        The outcome.

    Raises:
        LoaderError: See there.
    """
    from modelweights_loader.validate import ValidateOptions, validate  # noqa: PLC0415 - see the module's docstring

    options = ValidateOptions(
        mode=arguments.mode,
        queue_size=arguments.queue_size,
        device=arguments.device,
        gds=arguments.gds,
        timeout_seconds=arguments.timeout_seconds,
    )
    figures = validate(checkpoint, options, process, lambda message: warn("validate", message))
    count = f"{figures['tensorCount']} tensors of {figures['shardCount']} shards"
    said = {
        "Load": f"ParallelLoader loaded {count} in {figures.get('loadSeconds')} s",
        "Structure": f"the headers of {count} are good; nothing was loaded",
        "None": "nothing was checked but that all files can be read",
    }[arguments.mode]
    reason = {"Load": "Validated", "Structure": "StructureValidated", "None": "NotValidated"}[arguments.mode]
    return Outcome(reason, f"{said}; {figures['manifestDigest']}", figures)


def run_report(arguments: argparse.Namespace) -> Outcome:
    """Measures once more, cools, marks and sums up.

    Args:
        arguments: path, root, results, policy, min_resident_percent, marker_dir, marker_root, node_boot_id, cool.

    Returns:
        The outcome.

    Raises:
        LoaderError: The policy is not met.
    """
    return publish_checkpoint(_find(arguments), arguments, arguments.results)


def publish_checkpoint(checkpoint: Checkpoint, arguments: argparse.Namespace, results: str | None) -> Outcome:
    """Like `run_report`, for files that are found already.

    Args:
        checkpoint: What was staged.
        arguments: See there.
        results: Where the earlier steps left their results.

    Returns:
        The outcome.

    Raises:
        LoaderError: See there.
    """
    from modelweights_loader.publish import publish  # noqa: PLC0415 - see the module's docstring

    figures, said = publish(arguments.path, checkpoint, _publish_options(arguments, results))
    return Outcome("Staged", said, figures)


def _publish_options(arguments: argparse.Namespace, results: str | None) -> PublishOptions:
    from modelweights_loader.publish import PublishOptions  # noqa: PLC0415 - see the module's docstring

    return PublishOptions(
        policy=arguments.policy,
        min_resident_percent=arguments.min_resident_percent,
        results=results,
        marker_dir=arguments.marker_dir,
        marker_root=arguments.marker_root or arguments.root,
        node_boot_id=arguments.node_boot_id,
        cool=arguments.cool,
    )


def run_stage(arguments: argparse.Namespace) -> Outcome:
    """Does everything: checks the structure, prefetches, validates, reports.

    Args:
        arguments: Those of all three steps.

    Returns:
        The outcome of the last one, with the figures of all.

    Raises:
        LoaderError: The first step that fails.
    """
    import tempfile  # noqa: PLC0415 - see the module's docstring

    from modelweights_loader.load_process import LoadProcess  # noqa: PLC0415
    from modelweights_loader.report import write_result  # noqa: PLC0415
    from modelweights_loader.structure import read_structure  # noqa: PLC0415

    # Its imports run behind the prefetch, which hardly uses the processor.
    process = LoadProcess() if arguments.mode == "Load" else None
    with tempfile.TemporaryDirectory(prefix="modelweights-") as own:
        results = arguments.results or own
        try:
            checkpoint = _find(arguments)
            if arguments.mode != "None":
                # A bad header ends it here, before gigabytes are read.
                read_structure(checkpoint)
            for step in ("prefetch", "validate"):
                started = time.monotonic()
                if step == "prefetch":
                    outcome = prefetch_checkpoint(checkpoint, arguments)
                else:
                    outcome = validate_checkpoint(checkpoint, arguments, process)
                seconds = time.monotonic() - started
                write_result(results, step, make_report(step, outcome, seconds))
                print(f"{step}: {outcome.message}", flush=True)
            return publish_checkpoint(checkpoint, arguments, results)
        finally:
            if process is not None:
                process.kill()


def run_residency(arguments: argparse.Namespace) -> Outcome:
    """Prints what is in the page cache.

    Args:
        arguments: path, root, json.

    Returns:
        The outcome; everything is printed already.

    Raises:
        LoaderError: The checkpoint is not there.
    """
    from modelweights_loader.residency import measure  # noqa: PLC0415 - see the module's docstring
    from modelweights_loader.residency_table import describe_json, format_table  # noqa: PLC0415

    residency = measure(_find(arguments).shards)
    print(json.dumps(describe_json(residency), indent=1) if arguments.json else format_table(residency))
    figures: dict[str, object] = {"files": len(residency.files), "sizeBytes": residency.size_bytes}
    return Outcome("Measured", "measured", figures | residency.figures(), quiet=True)


def run_wait(arguments: argparse.Namespace) -> Outcome:
    """Waits for the marker.

    Args:
        arguments: path, root, digest, timeout_seconds.

    Returns:
        The outcome.

    Raises:
        LoaderError: No marker folder, or the time is over.
    """
    from modelweights_loader.checkpoint import resolve_below  # noqa: PLC0415 - see the module's docstring
    from modelweights_loader.wait import wait  # noqa: PLC0415

    resolve_below(arguments.path, arguments.root)
    marker = wait(
        arguments.path,
        digest=arguments.digest,
        timeout_seconds=arguments.timeout_seconds,
        say=lambda line: print(f"wait: {line}", file=sys.stderr, flush=True),
    )
    figures: dict[str, object] = {"manifestDigest": marker.manifest_digest, "sizeBytes": marker.size_bytes}
    return Outcome("Staged", f"{arguments.path} is staged ({marker.manifest_digest}, {marker.staged_at})", figures)


def run_flags(arguments: argparse.Namespace) -> Outcome:
    """Prints the settings for engines.

    Args:
        arguments: path (may be None), results, json.

    Returns:
        The outcome; everything is printed already.

    Raises:
        UsageError: Neither a path nor results.
    """
    from modelweights_loader.errors import UsageError  # noqa: PLC0415 - see the module's docstring
    from modelweights_loader.flags import format_settings, make_settings  # noqa: PLC0415
    from modelweights_loader.report import read_result  # noqa: PLC0415

    if arguments.path is None and arguments.results is None:
        message = "flags needs PATH or --results DIR"
        raise UsageError(message)
    if arguments.path is not None:
        _find(arguments)
    settings = make_settings(read_result(arguments.results, "prefetch"), read_result(arguments.results, "validate"))
    print(json.dumps(settings._asdict(), indent=1) if arguments.json else format_settings(settings))
    return Outcome("Printed", "printed", {"proven": settings.proven}, quiet=True)


def make_report(step: str, outcome: Outcome, seconds: float, exit_code: int = 0) -> dict[str, object]:
    """Makes the report of a step.

    Args:
        step: Its name.
        outcome: What it said.
        seconds: How long it took.
        exit_code: What the process ends with.

    Returns:
        The report, figures last.
    """
    head: dict[str, Any] = {
        "step": step,
        "exitCode": exit_code,
        "reason": outcome.reason,
        "message": outcome.message,
        "seconds": round(seconds, 3),
    }
    return {**head, **outcome.figures}
