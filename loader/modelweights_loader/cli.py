"""The command line `modelweights-loader`: parses, runs one step, writes its report, chooses the exit code.

Called as a console script, as `python -m modelweights_loader`, and by the staging pods. Thin on purpose: what a command
does is in `steps`. Must not import torch.
"""

from __future__ import annotations

import argparse
import errno
import io
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, NoReturn, TextIO

from modelweights_loader import __version__, steps
from modelweights_loader.errors import (
    InterruptedByUserError,
    LoaderError,
    NoRoomError,
    TerminatedError,
    TryAgainError,
    UsageError,
    describe_os_error,
)
from modelweights_loader.quantity import check_block_bytes, check_in_flight, check_threads, parse_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_POLICIES = ("BestEffort", "Required")
_MAX_QUEUE_SIZE = 64


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        argv: Arguments without the program's name; default: those of the process.

    Returns:
        The exit code.
    """
    _secure_streams()
    try:
        parser = _build_parser()
        arguments = parser.parse_args(argv)
        if hasattr(arguments, "block_size"):
            try:
                check_in_flight(arguments.num_threads, arguments.block_size)
            except ValueError as error:
                parser.error(str(error))
    except SystemExit as ended:
        # argparse has printed help (0) or what is wrong (2).
        return int(ended.code or 0)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        signal.signal(signal.SIGTERM, _raise_terminated)
        return _run(arguments)
    except BrokenPipeError:
        # The reader of our output went away, as in `… | head`; nothing is left to say and nobody to say it to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    finally:
        # Callers in the same process, and their children, must not inherit ignored signals.
        for number, handler in before.items():
            signal.signal(number, handler)


def _secure_streams() -> None:
    """Makes output safe whatever we were started with.

    A closed standard stream would have the next file that is opened take its number, and be written to. File names
    may hold what the terminal's encoding doesn't.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number is this one.
            os.open(os.devnull, os.O_RDWR)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - for the process's life
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _say(line: str, stream: TextIO) -> None:
    """Says how it ended. A full disk behind the stream changes nothing about that."""
    try:
        print(line, file=stream, flush=True)
    except BrokenPipeError:
        raise
    except OSError:
        # What is buffered would be tried once more at exit, and change the exit code.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _run(arguments: argparse.Namespace) -> int:
    started = time.monotonic()
    run: Callable[[argparse.Namespace], steps.Outcome] = arguments.run
    exit_code = 0
    try:
        outcome = run(arguments)
    except KeyboardInterrupt:
        exit_code, outcome = _describe(InterruptedByUserError("interrupted"))
    except LoaderError as error:
        exit_code, outcome = _describe(error)
    except BrokenPipeError:
        raise
    except Exception as error:  # noqa: BLE001 - the process's edge: one line, never a traceback
        exit_code, outcome = _describe(_unexpected(error))
    # From here on only a few writes are left: a signal must not tear them.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if exit_code:
        _say(f"{arguments.command}: {outcome.reason}: {outcome.message}", sys.stderr)
    elif not outcome.quiet:
        _say(f"{arguments.command}: {outcome.message}", sys.stdout)
    return _write_reports(arguments, outcome, time.monotonic() - started, exit_code)


def _write_reports(arguments: argparse.Namespace, outcome: steps.Outcome, seconds: float, exit_code: int) -> int:
    report = steps.make_report(arguments.command, outcome, seconds, exit_code)
    try:
        if arguments.results is not None and arguments.command != "flags":
            from modelweights_loader.report import write_result  # noqa: PLC0415 - `wait` rarely needs it

            write_result(arguments.results, arguments.command, report)
        if arguments.report is not None:
            from modelweights_loader.report import write_report  # noqa: PLC0415 - `wait` rarely needs it

            write_report(arguments.report, report)
    except LoaderError as error:
        _say(f"{arguments.command}: {error.reason}: {error.message}", sys.stderr)
        return exit_code or error.exit_code
    return exit_code


def _describe(error: LoaderError) -> tuple[int, steps.Outcome]:
    return error.exit_code, steps.Outcome(error.reason, error.message, error.figures)


def _unexpected(error: Exception) -> LoaderError:
    """Something that nobody thought of: the line names the place, since there is no traceback."""
    known = _lacking(error)
    if known is not None:
        return known
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    place = f" at {os.path.basename(frame.tb_frame.f_code.co_filename)}:{frame.tb_lineno}" if frame else ""
    return LoaderError(f"{type(error).__name__}: {error}{place}; this is a bug, please report it", reason="Unexpected")


def _lacking(error: Exception) -> LoaderError | None:
    """What the machine lacks may show at any line: memory, threads, descriptors, disk."""
    number, said = (error.errno, describe_os_error(error)) if isinstance(error, OSError) else (None, "")
    if isinstance(error, MemoryError) or number in {errno.ENOMEM, errno.EAGAIN} or "start new thread" in str(error):
        message = (
            f"no memory or no thread could be had ({type(error).__name__}: {error}); give more memory, or fewer threads"
        )
        return NoRoomError(message, reason="NoMemory")
    if number in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
        return NoRoomError(f"nothing more can be written ({said}); free disk space", reason="NoRoom")
    if number in {errno.EMFILE, errno.ENFILE}:
        return TryAgainError(f"too few files may be open ({said}); raise the limit (ulimit -n)")
    if isinstance(error, FileNotFoundError) and "temporary directory" in str(error):
        return NoRoomError(f"{error.strerror}; free disk space there, or set TMPDIR to a folder that can be written")
    return None


def _raise_terminated(_number: int, _frame: object) -> NoReturn:
    message = "terminated by SIGTERM"
    raise TerminatedError(message)


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, as every other error."""

    def error(self, message: str) -> NoReturn:
        command = self.prog.split()[-1]
        self.exit(UsageError.exit_code, f"{command}: Usage: {message} (see --help)\n")


def _build_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="modelweights-loader",
        description="Stages a checkpoint on this machine: page cache, proof that it loads, marker.",
        epilog="Exit codes: 0 done, 2 usage, 10 try again, 20 will not work as asked, 30 the checkpoint is bad, 40 no room.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)
    prefetch = _add(commands, "prefetch", steps.run_prefetch, "read the shards into the page cache")
    _add_prefetch(prefetch)
    _add_policy(prefetch)
    _add_validate(_add(commands, "validate", steps.run_validate, "prove that ParallelLoader loads every tensor"))
    report = _add(commands, "report", steps.run_report, "measure residency, cool the pages, write the marker, sum up")
    _add_policy(report)
    _add_report(report)
    residency = _add(commands, "residency", steps.run_residency, "show how much is in the page cache")
    residency.add_argument("--json", action="store_true", help="for programs")
    _add_wait(_add(commands, "wait", steps.run_wait, "block until the marker on this node says that it is staged"))
    stage = _add(commands, "stage", steps.run_stage, "prefetch, validate and report in one go")
    for add in (_add_prefetch, _add_policy, _add_validate, _add_report):
        add(stage)
    flags = _add(commands, "flags", steps.run_flags, "print engine settings that make the staging count", path="?")
    flags.add_argument("--json", action="store_true", help="for programs")
    return parser


def _add(
    commands: argparse._SubParsersAction[_Parser],
    name: str,
    run: Callable[[argparse.Namespace], steps.Outcome],
    summary: str,
    path: str | None = None,
) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=summary, description=summary, allow_abbrev=False)
    command.add_argument("path", metavar="PATH", nargs=path, type=_path, help="folder of the checkpoint")
    command.add_argument("--root", metavar="DIR", help="PATH and its links must stay below this folder")
    command.add_argument("--report", metavar="FILE", help="write one JSON object of at most 1024 bytes there, in place")
    command.add_argument(
        "--results", metavar="DIR", help="write DIR/<step>.json in full; later steps read earlier ones"
    )
    command.set_defaults(run=run)
    return command


def _add_prefetch(command: argparse.ArgumentParser) -> None:
    command.add_argument("--num-threads", metavar="N", type=_threads, default=8, help="1 to 256 (default 8)")
    command.add_argument(
        "--block-size",
        metavar="BYTES",
        type=_block_size,
        default=16 * 2**20,
        help="16Mi, 16M or bytes; 4Ki to 1Gi in steps of 4Ki, threads x block at most 4Gi (default 16Mi)",
    )


def _add_policy(command: argparse.ArgumentParser) -> None:
    command.add_argument("--policy", choices=_POLICIES, default="BestEffort", help="Required fails when not resident")
    command.add_argument(
        "--min-resident-percent",
        metavar="PERCENT",
        type=_percent,
        default=95.0,
        help="what Required asks for (default 95)",
    )


def _add_validate(command: argparse.ArgumentParser) -> None:
    command.add_argument("--mode", choices=("Load", "Structure", "None"), default="Load")
    command.add_argument(
        "--queue-size", metavar="N", type=_queue_size, default=0, help="-1 serial, 0 pipeline, or more"
    )
    command.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    command.add_argument("--gds", choices=("Auto", "Never"), default="Auto", help="GPUDirect Storage, with cuda only")
    command.add_argument(
        "--timeout-seconds", metavar="N", type=_seconds, default=0.0, help="0 (default) grows with the bytes"
    )


def _add_report(command: argparse.ArgumentParser) -> None:
    command.add_argument("--marker-dir", metavar="DIR", help="write the marker there")
    command.add_argument("--marker-root", metavar="DIR", help="the marker's path is relative to this (default --root)")
    command.add_argument("--node-boot-id", metavar="ID", default="", help="copied into the marker")
    command.add_argument("--cool", action="store_true", help="move the pages to the kernel's inactive list")


def _add_wait(command: argparse.ArgumentParser) -> None:
    command.add_argument("--digest", metavar="sha256:HEX", type=_digest, help="only this manifest digest will do")
    command.add_argument(
        "--timeout-seconds", metavar="N", type=_seconds, default=0.0, help="0 (default) waits for ever"
    )


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


def _path(text: str) -> str:
    """An empty one would mean the current folder; it comes from a variable that isn't set."""
    if not text:
        message = "PATH is empty"
        raise argparse.ArgumentTypeError(message)
    return text


def _threads(text: str) -> int:
    try:
        return check_threads(int(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _block_size(text: str) -> int:
    try:
        return check_block_bytes(parse_bytes(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _percent(text: str) -> float:
    return _checked(float, text, "a percentage", 0, 100)


def _seconds(text: str) -> float:
    return _checked(float, text, "a number of seconds", 0, 10**7)


def _queue_size(text: str) -> int:
    return int(_checked(int, text, "a queue size", -1, _MAX_QUEUE_SIZE))


def _digest(text: str) -> str:
    name, _, digits = text.partition(":")
    if name != "sha256" or len(digits) != 64 or set(digits) - set("0123456789abcdef"):  # noqa: PLR2004 - 256 bits
        message = f"{text!r} is not sha256: and 64 hex digits"
        raise argparse.ArgumentTypeError(message)
    return text
