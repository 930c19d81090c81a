"""The command `tune`: times the ways in which engines can load the checkpoint here, and says which is fastest.

Called by `cli`; `stage` calls `tune_checkpoint`. See the package for what it must not import.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from modelweights_loader.commands.options import (
    add_command,
    add_fetched,
    find,
    parse_queue_size,
    parse_seconds,
    parse_size,
)
from modelweights_loader.load.contract import LOAD_FORMATS
from modelweights_loader.outcome import Outcome

if TYPE_CHECKING:
    from modelweights_loader.checkpoint import Checkpoint
    from modelweights_loader.commands.options import Commands

_MOST_ROUNDS = 20


def add(commands: Commands) -> None:
    """Adds the command.

    Args:
        commands: Where to.
    """
    command = add_command(commands, "tune", run, "time the ways to load on this node, and choose the fastest")
    add_fetched(command)
    add_arguments(command)
    command.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    command.add_argument("--gds", choices=("Auto", "Never"), default="Auto", help="GPUDirect Storage, with cuda only")


def add_arguments(command: argparse.ArgumentParser, prefix: str = "--") -> None:
    """Adds the options of its own.

    Args:
        command: Its parser, or that of a command that includes it.
        prefix: In front of each option, so that they are clear in a command that includes it.
    """
    command.add_argument(
        f"{prefix}max-seconds",
        dest="tune_max_seconds",
        metavar="N",
        type=parse_seconds,
        default=120.0,
        help="time for all of it, imports of torch included (default 120)",
    )
    command.add_argument(
        f"{prefix}sample-bytes",
        dest="tune_sample_bytes",
        metavar="BYTES",
        type=parse_size,
        default=4 * 2**30,
        help="load the first whole shards up to this, at least one (default 4Gi)",
    )
    command.add_argument(
        f"{prefix}max-rounds",
        dest="tune_max_rounds",
        metavar="N",
        type=_parse_rounds,
        default=5,
        help="loads of each way at most, as time allows (3 to 20, default 5)",
    )
    command.add_argument(
        f"{prefix}queue-sizes",
        dest="tune_queue_sizes",
        metavar="LIST",
        type=_parse_queue_sizes,
        default=(-1, 0, 1, 2),
        help="ParallelLoader's, as in --queue-sizes=-1,0,1 (default -1,0,1,2; what memory does not allow is left away)",
    )
    command.add_argument(
        f"{prefix}load-formats",
        dest="tune_load_formats",
        metavar="LIST",
        type=_parse_formats,
        default=LOAD_FORMATS,
        help="which formats, with commas (default fastsafetensors,safetensors)",
    )


def _parse_queue_sizes(text: str) -> tuple[int, ...]:
    # The default is what every engine has: it is always among those that are timed.
    return tuple(sorted({0, *(parse_queue_size(word) for word in text.split(","))}))


def _parse_rounds(text: str) -> int:
    from modelweights_loader.tune_choice import MIN_ROUNDS  # noqa: PLC0415 - see the package's docstring

    # Fewer say nothing about the next one.
    if not (text.isascii() and text.isdecimal() and MIN_ROUNDS <= int(text[:9]) <= _MOST_ROUNDS):
        message = f"{text!r} is not a number of rounds from {MIN_ROUNDS} to {_MOST_ROUNDS}"
        raise argparse.ArgumentTypeError(message)
    return int(text)


def _parse_formats(text: str) -> tuple[str, ...]:
    words = tuple(dict.fromkeys(text.split(",")))
    if not set(words) <= set(LOAD_FORMATS):
        message = f"{text!r} is no list of {' and '.join(LOAD_FORMATS)}"
        raise argparse.ArgumentTypeError(message)
    return words


def run(arguments: argparse.Namespace) -> Outcome:
    """Times the ways to load.

    Args:
        arguments: path, root, tune_max_seconds, tune_max_rounds, tune_sample_bytes, tune_queue_sizes, tune_load_formats, device, gds.

    Returns:
        The outcome. Too little time or memory for any way is an outcome too, and no error.

    Raises:
        LoaderError: A checkpoint that is not there, or bad.
    """
    return tune_checkpoint(find(arguments), arguments)


def tune_checkpoint(checkpoint: Checkpoint, arguments: argparse.Namespace) -> Outcome:
    """Like `run`, for files that are found already.

    Args:
        checkpoint: What to load.
        arguments: See there.

    Returns:
        The outcome.

    Raises:
        LoaderError: See there.
    """
    from modelweights_loader.quantity import format_bytes  # noqa: PLC0415 - see the package's docstring
    from modelweights_loader.tune import TuneOptions, tune  # noqa: PLC0415
    from modelweights_loader.tune_choice import format_table  # noqa: PLC0415

    options = TuneOptions(
        max_seconds=arguments.tune_max_seconds,
        sample_bytes=arguments.tune_sample_bytes,
        queue_sizes=arguments.tune_queue_sizes,
        load_formats=arguments.tune_load_formats,
        device=arguments.device,
        gds=arguments.gds,
        max_rounds=arguments.tune_max_rounds,
    )
    result = tune(checkpoint, options, lambda line: print(f"tune: {line}", file=sys.stderr, flush=True))
    print(format_table(list(result.timings)))
    for line in result.advice:
        print(f"tune: {line}")
    best = result.choice.best
    if best is None:
        refusals = [timing.refusal for timing in result.timings if timing.refusal]
        why = f" ({refusals[0]})" if refusals else ""
        message = f"no way to load could be timed often enough{why}; the settings stay those that were validated"
        return Outcome("NotTuned", message, result.figures())
    rate = f"{format_bytes(best.bytes_per_second)}/s"
    message = f"fastest here: {best.candidate}, {best.median_seconds:.2f} s, {rate}, median of {len(best.seconds)}"
    return Outcome("Tuned", message, result.figures())
