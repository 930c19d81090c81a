"""The command `validate`: proves that the checkpoint loads.

Called by `cli`; `stage` calls `validate_checkpoint`. See the package for what it must not import.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from modelweights_loader.commands.options import (
    add_command,
    add_fetched,
    find,
    parse_queue_size,
    parse_seconds,
    parse_world_size,
)
from modelweights_loader.load.contract import FASTSAFETENSORS, LOAD_FORMATS
from modelweights_loader.outcome import Outcome, warn

if TYPE_CHECKING:
    import argparse

    from modelweights_loader.checkpoint import Checkpoint
    from modelweights_loader.commands.options import Commands
    from modelweights_loader.load_process import LoadProcess

# As in `validate`, which is not imported for it.
_LOADING_MODES = ("Load", "Full")


def add(commands: Commands) -> None:
    """Adds the command.

    Args:
        commands: Where to.
    """
    command = add_command(commands, "validate", run, "prove that every tensor loads, and hash the files")
    add_fetched(command)
    add_arguments(command)


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Adds the options of its own.

    Args:
        command: Its parser, or that of a command that includes it.
    """
    command.add_argument(
        "--mode",
        choices=(*_LOADING_MODES, "Structure", "None"),
        default="Load",
        help="Load (default) every tensor; Full compares every bit too; Structure: headers only; None: hashes only",
    )
    command.add_argument(
        "--load-format",
        choices=LOAD_FORMATS,
        default=FASTSAFETENSORS,
        help="which library loads and decides (default fastsafetensors); the other one's verdict is reported too",
    )
    command.add_argument(
        "--queue-size",
        metavar="N",
        type=parse_queue_size,
        help="-1 serial, 0 pipeline, or more; default: 0, or -1 when a tensor has more than 512 MiB",
    )
    command.add_argument(
        "--world-size",
        dest="ranks",
        metavar="N",
        type=parse_world_size,
        default=1,
        help="load as a group of N ranks (default 1)",
    )
    command.add_argument("--odirect", action="store_true", help="read past the page cache, as fastsafetensors does")
    command.add_argument("--expect", metavar="FILE", default="", help="hashes to compare: a manifest, or of sha256sum")
    command.add_argument(
        "--manifest", metavar="FILE", default="", help="write paths, sizes, hashes, tensor counts, outside of PATH"
    )
    command.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where tensors go (default cpu)")
    command.add_argument(
        "--gds", choices=("Auto", "Never"), default="Auto", help="GPUDirect Storage, with cuda only (default Auto)"
    )
    command.add_argument(
        "--timeout-seconds", metavar="N", type=parse_seconds, default=0.0, help="0 (default) grows with the bytes"
    )


def run(arguments: argparse.Namespace) -> Outcome:
    """Proves that the checkpoint loads.

    Args:
        arguments: path, root, and what `add_arguments` adds.

    Returns:
        The outcome.

    Raises:
        LoaderError: The load failed; its kind and reason say how.
    """
    # Before anything else is looked at: importing torch takes longer than all of it.
    process = start_process(arguments)
    try:
        return validate_checkpoint(find(arguments), arguments, process)
    finally:
        if process is not None:
            process.kill()


def is_loading(arguments: argparse.Namespace) -> bool:
    """Says whether the mode loads anything.

    Args:
        arguments: mode.

    Returns:
        False for those that look at headers at most.
    """
    return arguments.mode in _LOADING_MODES


def start_process(arguments: argparse.Namespace) -> LoadProcess | None:
    """Starts the load process, for modes that need one.

    Args:
        arguments: mode.

    Returns:
        The process, or None. The caller ends it.
    """
    from modelweights_loader.load_process import LoadProcess  # noqa: PLC0415 - see the package's docstring

    return LoadProcess() if is_loading(arguments) else None


def validate_checkpoint(checkpoint: Checkpoint, arguments: argparse.Namespace, process: LoadProcess | None) -> Outcome:
    """Like `run`, for files that are found already and a load process that runs already.

    Args:
        checkpoint: What to load.
        arguments: See there.
        process: From `LoadProcess()`, or None for modes that load nothing.

    Returns:
        The outcome.

    Raises:
        LoaderError: See there.
    """
    from modelweights_loader.progress import make_progress_printer  # noqa: PLC0415 - see the package's docstring
    from modelweights_loader.validate import ValidateOptions, validate  # noqa: PLC0415 - see the package's docstring

    options = ValidateOptions(
        mode=arguments.mode,
        load_format=arguments.load_format,
        queue_size=arguments.queue_size,
        device=arguments.device,
        gds=arguments.gds,
        timeout_seconds=arguments.timeout_seconds,
        world_size=arguments.ranks,
        odirect=arguments.odirect,
        expect_file=arguments.expect,
        manifest_file=arguments.manifest,
    )
    show_progress = make_progress_printer("validate", sys.stderr)
    figures = validate(checkpoint, options, process, lambda message: warn("validate", message), show_progress)
    count = f"{figures['tensorCount']} tensors of {figures['shardCount']} shards"
    library = "ParallelLoader" if options.load_format == FASTSAFETENSORS else "safetensors"
    who = library if options.world_size == 1 else f"{library} on {options.world_size} ranks"
    said = {
        "Load": f"{who} loaded {count} in {figures.get('loadSeconds')} s",
        "Full": f"{who} loaded {count}, every bit as in the files, in {figures.get('loadSeconds')} s",
        "Structure": f"the headers of {count} are good; nothing was loaded",
        "None": "nothing was checked but that all files can be read",
    }[arguments.mode]
    reason = {"Structure": "StructureValidated", "None": "NotValidated"}.get(arguments.mode, "Validated")
    compared = f"; {figures['comparedHashes']} hashes as expected" if figures["comparedHashes"] else ""
    return Outcome(reason, f"{said}{compared}; {figures['manifestDigest']}", figures)
