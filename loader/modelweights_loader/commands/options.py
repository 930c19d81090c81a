"""Options that several commands share, and the checks of their values.

Used by the modules beside it. Must not import torch.
"""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, NoReturn

from modelweights_loader.errors import UsageError
from modelweights_loader.quantity import MAX_WORLD_SIZE, check_block_bytes, check_threads, parse_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from modelweights_loader.checkpoint import Checkpoint
    from modelweights_loader.memory import Reserve
    from modelweights_loader.outcome import Outcome

    # What add_subparsers returns has no public name.
    Commands = argparse._SubParsersAction["Parser"]  # noqa: SLF001 - see above

POLICIES = ("BestEffort", "Required")
UNKNOWN_RESIDENCY = ("Fail", "Accept")
_MAX_QUEUE_SIZE = 64
_MAX_RANKS = 64


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, as every other error."""

    def error(self, message: str) -> NoReturn:
        """Ends the process with what is wrong.

        Args:
            message: Of argparse.
        """
        command = self.prog.split()[-1]
        self.exit(UsageError.exit_code, f"{command}: Usage: {message} (see --help)\n")


def add_command(
    commands: Commands,
    name: str,
    run: Callable[[argparse.Namespace], Outcome],
    summary: str,
    path: str | None = None,
    what: str = "folder of the checkpoint",
) -> argparse.ArgumentParser:
    """Adds a command with the options that all of them have.

    Args:
        commands: Where to.
        name: Of the command, of its report and of its result file.
        run: What it does with the parsed arguments.
        summary: One line of help.
        path: `?` when PATH may be left out.
        what: What PATH is.

    Returns:
        The command's own parser, for its further options.
    """
    command = commands.add_parser(name, help=summary, description=summary, allow_abbrev=False)
    command.add_argument("path", metavar="PATH", nargs=path, type=parse_path, help=what)
    command.add_argument(
        "--root", metavar="DIR", type=parse_place, help="PATH and its links must stay below this folder"
    )
    # For staging pods: what must be mounted at --root, by its last names, such as namespace/name.
    command.add_argument("--part", default="", help=argparse.SUPPRESS)
    command.add_argument(
        "--report", metavar="FILE", type=parse_place, help="write one JSON object of at most 1024 bytes there, in place"
    )
    command.add_argument(
        "--results",
        metavar="DIR",
        type=parse_place,
        help="write DIR/<step>.json in full; later steps read earlier ones",
    )
    command.set_defaults(run=run)
    return command


def add_policy(command: argparse.ArgumentParser) -> None:
    """Adds what decides whether too little residency is an error.

    Args:
        command: Its parser.
    """
    command.add_argument(
        "--policy", choices=POLICIES, default="BestEffort", help="Required fails when not resident (default BestEffort)"
    )
    command.add_argument(
        "--min-resident-percent",
        metavar="PERCENT",
        type=parse_percent,
        default=95.0,
        help="what Required asks for (default 95)",
    )
    command.add_argument(
        "--unknown-residency",
        choices=UNKNOWN_RESIDENCY,
        default="Fail",
        help="what Required does where nobody may measure residency (default Fail)",
    )


def add_fetched(command: argparse.ArgumentParser) -> None:
    """Adds what has a step take what `fetch` published.

    Args:
        command: Its parser.
    """
    command.add_argument(
        "--fetched",
        action="store_true",
        help="PATH is the home of `fetch`; the checkpoint is the folder below it that DIR/fetch.json of --results names",
    )


def parse_path(text: str) -> str:
    """Refuses an empty path: it would mean the current folder, and comes from a variable that isn't set.

    Args:
        text: As given.

    Returns:
        The same.

    Raises:
        argparse.ArgumentTypeError: It is empty.
    """
    return _refuse_empty(text, "PATH is empty")


def parse_place(text: str) -> str:
    """Refuses an empty name of a file or folder, for the same reason.

    Args:
        text: As given.

    Returns:
        The same.

    Raises:
        argparse.ArgumentTypeError: It is empty.
    """
    return _refuse_empty(text, "it is empty")


def _refuse_empty(text: str, message: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError(message)
    return text


def parse_digest(text: str) -> str:
    """Parses a manifest digest.

    Args:
        text: As given.

    Returns:
        The same.

    Raises:
        argparse.ArgumentTypeError: It is none.
    """
    name, _, digits = text.partition(":")
    if name != "sha256" or len(digits) != 64 or set(digits) - set("0123456789abcdef"):  # noqa: PLR2004 - 256 bits
        message = f"{text!r} is not sha256: and 64 hex digits"
        raise argparse.ArgumentTypeError(message)
    return text


def parse_threads(text: str) -> int:
    """Parses a number of prefetch threads.

    Args:
        text: As given.

    Returns:
        1 to 256.

    Raises:
        argparse.ArgumentTypeError: Out of bounds, or no number.
    """
    return _convert(lambda: check_threads(int(text)))


def parse_block_size(text: str) -> int:
    """Parses the size of a prefetch block.

    Args:
        text: As given.

    Returns:
        Bytes.

    Raises:
        argparse.ArgumentTypeError: Out of bounds, or no number.
    """
    return _convert(lambda: check_block_bytes(parse_bytes(text)))


def parse_size(text: str) -> int:
    """Parses an amount of bytes.

    Args:
        text: As given.

    Returns:
        Bytes.

    Raises:
        argparse.ArgumentTypeError: It is none.
    """
    return _convert(lambda: parse_bytes(text))


def _convert(convert: Callable[[], int]) -> int:
    """Argparse prints the words of this error alone."""
    try:
        return convert()
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def parse_reserve(text: str) -> Reserve:
    """Parses how much memory is to stay free.

    Args:
        text: Bytes, or a percentage with its sign.

    Returns:
        The reserve.

    Raises:
        argparse.ArgumentTypeError: Out of bounds, or neither.
    """
    from modelweights_loader.memory import Reserve  # noqa: PLC0415 - see the package's docstring

    if text.endswith("%"):
        return Reserve(percent=parse_percent(text.removesuffix("%")))
    try:
        return Reserve(percent=0, size_bytes=parse_bytes(text))
    except ValueError as error:
        message = f"{error}; or a percentage such as 10%"
        raise argparse.ArgumentTypeError(message) from error


def parse_interval(text: str) -> float:
    """Parses the seconds from one measurement to the next.

    Args:
        text: As given.

    Returns:
        0.1 to 86400.

    Raises:
        argparse.ArgumentTypeError: Out of bounds, or no number.
    """
    return _checked(float, text, "a number of seconds", 0.1, 86400)


def parse_rank(text: str) -> int:
    """Parses a rank, or a number of ranks.

    Args:
        text: As given.

    Returns:
        0 to 65536.

    Raises:
        argparse.ArgumentTypeError: Out of bounds, or no number.
    """
    return int(_checked(int, text, "a number of ranks", 0, MAX_WORLD_SIZE))


def parse_percent(text: str) -> float:
    """Parses a percentage.

    Args:
        text: As given.

    Returns:
        0 to 100.

    Raises:
        argparse.ArgumentTypeError: Out of bounds, or no number.
    """
    return _checked(float, text, "a percentage", 0, 100)


def parse_seconds(text: str) -> float:
    """Parses a number of seconds.

    Args:
        text: As given.

    Returns:
        Seconds.

    Raises:
        argparse.ArgumentTypeError: Out of bounds, or no number.
    """
    return _checked(float, text, "a number of seconds", 0, 10**7)


def parse_queue_size(text: str) -> int:
    """Parses ParallelLoader's queue size.

    Args:
        text: As given.

    Returns:
        -1 to 64.

    Raises:
        argparse.ArgumentTypeError: Out of bounds, or no number.
    """
    return int(_checked(int, text, "a queue size", -1, _MAX_QUEUE_SIZE))


def parse_world_size(text: str) -> int:
    """Parses the number of ranks in a group.

    Args:
        text: As given.

    Returns:
        1 to 64.

    Raises:
        argparse.ArgumentTypeError: Out of bounds, or no number.
    """
    return int(_checked(int, text, "a number of ranks", 1, _MAX_RANKS))


def _checked(convert: Callable[[str], float], text: str, what: str, low: float, high: float) -> float:
    try:
        value = convert(text)
    except ValueError:
        value = None
    # NaN compares false with everything, so it is refused too.
    if value is None or not low <= value <= high:
        message = f"{text!r} is not {what} from {low:g} to {high:g}"
        raise argparse.ArgumentTypeError(message)
    return value


def check_outputs(arguments: argparse.Namespace) -> None:
    """Makes sure that nothing is written between the checkpoint's files, before anything else is looked at.

    Args:
        arguments: path; report, results and marker_dir, where there are any.

    Raises:
        UsageError: A report, result or marker would lie in the checkpoint.
    """
    from modelweights_loader.interruptible import call  # noqa: PLC0415 - see the package's docstring

    if arguments.path is not None:
        # The time-out of `wait` holds from the start; other commands have one for the load alone.
        timeout_seconds = arguments.timeout_seconds if arguments.command == "wait" else 0.0
        call(lambda: _refuse_places(arguments, arguments.path, set()), timeout_seconds)


def find(arguments: argparse.Namespace, path: str | None = None) -> Checkpoint:
    """Finds the checkpoint that a command is about.

    Args:
        arguments: path, root; report, results and fetched, where there are any.
        path: Where it lies, for commands that know better than these.

    Returns:
        Its files.

    Raises:
        LoaderError: See `find_checkpoint`.
        UsageError: A report or result would be written over one of the checkpoint's files.
    """
    from modelweights_loader.checkpoint import find_checkpoint  # noqa: PLC0415 - see the package's docstring
    from modelweights_loader.interruptible import call  # noqa: PLC0415

    if path is None:
        path = _find_fetched(arguments) if getattr(arguments, "fetched", False) else arguments.path
    checkpoint = call(lambda: find_checkpoint(path, arguments.root))
    # A snapshot's files lie elsewhere in its cache.
    call(lambda: _refuse_places(arguments, checkpoint.path, {file.real_path for file in checkpoint.files}))
    return checkpoint


def _find_fetched(arguments: argparse.Namespace) -> str:
    """The folder that `fetch` published in this run."""
    from modelweights_loader.errors import WillNotWorkError  # noqa: PLC0415 - see the package's docstring
    from modelweights_loader.report import read_result  # noqa: PLC0415

    if arguments.results is None:
        message = "--fetched needs --results, where the step fetch left its result"
        raise UsageError(message)
    result = read_result(arguments.results, "fetch", arguments.path)
    folder = result.get("folder")
    if result.get("exitCode") != 0 or not isinstance(folder, str):
        message = f"{arguments.results} holds no result of a fetch to {arguments.path} that went well; run fetch first"
        raise WillNotWorkError(message, reason="NotFetched")
    return os.path.join(arguments.path, folder)


def _refuse_places(arguments: argparse.Namespace, folder: str, files: set[str]) -> None:
    inside = ""
    for name in ("report", "results", "manifest", "marker_dir"):
        written = getattr(arguments, name, None)
        if not written:
            continue
        # A link is taken for what it leads to. Nothing is looked at where nothing is written.
        inside = inside or os.path.realpath(folder)
        place = os.path.realpath(written)
        lies_in = place.startswith(inside.rstrip(os.sep) + os.sep) or (
            name in {"results", "marker_dir"} and place == inside
        )
        # The folder of the markers may lie in the model, where that is the root of the storage: its name is hidden.
        if place in files or (lies_in and not (name == "marker_dir" and _is_marker_folder(place))):
            # Nothing must be written for this error either.
            arguments.report = arguments.results = None
            message = (
                f"--{name.replace('_', '-')} {written} lies in the checkpoint {folder}, whose files are hashed and never "
                "changed; name another place"
            )
            raise UsageError(message)


def _is_marker_folder(place: str) -> bool:
    from modelweights_loader.marker import MARKER_FOLDER  # noqa: PLC0415 - see the package's docstring

    return os.path.basename(place) == MARKER_FOLDER
