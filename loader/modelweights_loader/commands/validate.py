"""The command `validate`: proves that the checkpoint loads.

Called by `cli`; `stage` calls `validate_checkpoint`. See the package for what it must not import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from modelweights_loader.commands.options import add_command, find, parse_queue_size, parse_seconds
from modelweights_loader.outcome import Outcome, warn

if TYPE_CHECKING:
    import argparse

    from modelweights_loader.checkpoint import Checkpoint
    from modelweights_loader.commands.options import Commands
    from modelweights_loader.load_process import LoadProcess


def add(commands: Commands) -> None:
    """Adds the command.

    Args:
        commands: Where to.
    """
    command = add_command(commands, "validate", run, "prove that ParallelLoader loads every tensor")
    add_arguments(command)


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Adds the options of its own.

    Args:
        command: Its parser, or that of a command that includes it.
    """
    command.add_argument("--mode", choices=("Load", "Structure", "None"), default="Load")
    command.add_argument(
        "--queue-size", metavar="N", type=parse_queue_size, default=0, help="-1 serial, 0 pipeline, or more"
    )
    command.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    command.add_argument("--gds", choices=("Auto", "Never"), default="Auto", help="GPUDirect Storage, with cuda only")
    command.add_argument(
        "--timeout-seconds", metavar="N", type=parse_seconds, default=0.0, help="0 (default) grows with the bytes"
    )


def run(arguments: argparse.Namespace) -> Outcome:
    """Proves that the checkpoint loads.

    Args:
        arguments: path, root, mode, queue_size, device, gds, timeout_seconds.

    Returns:
        The outcome.

    Raises:
        LoaderError: The load failed; its kind and reason say how.
    """
    from modelweights_loader.load_process import LoadProcess  # noqa: PLC0415 - see the package's docstring

    # Before anything else is looked at: importing torch takes longer than all of it.
    process = LoadProcess() if arguments.mode == "Load" else None
    try:
        return validate_checkpoint(find(arguments), arguments, process)
    finally:
        if process is not None:
            process.kill()


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
    from modelweights_loader.validate import ValidateOptions, validate  # noqa: PLC0415 - see the package's docstring

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
