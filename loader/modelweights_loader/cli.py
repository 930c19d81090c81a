"""The command line `modelweights-loader`: parses, runs one step, writes its report, chooses the exit code.

Called as a console script, as `python -m modelweights_loader`, and by the staging pods. Thin on purpose: what a command
does is in `commands`. Must not import torch.
"""

from __future__ import annotations

import contextlib
import errno
import io
import math
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, TextIO

from modelweights_loader import __version__
from modelweights_loader.commands import (
    clean,
    fetch,
    flags,
    prefetch,
    prepare,
    refresh,
    report,
    residency,
    resolve,
    stage,
    tune,
    validate,
    wait,
)
from modelweights_loader.commands.options import Parser, check_outputs
from modelweights_loader.errors import (
    EXIT_INTERRUPTED,
    EXIT_TERMINATED,
    InterruptedByUserError,
    LoaderError,
    NoRoomError,
    TerminatedError,
    TryAgainError,
    describe_os_error,
)
from modelweights_loader.interruptible import has_left_behind
from modelweights_loader.outcome import Outcome, make_report, say, silence
from modelweights_loader.quantity import check_in_flight

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

# In the order of the help text: that of the staging pods, then those for people.
_STEPS = ("prefetch", "validate", "tune", "report", "stage")
_COMMANDS = (resolve, fetch, prefetch, validate, tune, report, refresh, residency, wait, stage, clean, prepare, flags)


_INTERRUPTED = InterruptedByUserError("interrupted; the same command goes on with what is there")
_SIGNAL_PAUSE_SECONDS = 0.5
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        argv: Arguments without the program's name; default: those of the process.

    Returns:
        The exit code.
    """
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        handler = _make_signal_handler()
        signal.signal(signal.SIGTERM, handler)
        if before[signal.SIGINT] is signal.default_int_handler:
            signal.signal(signal.SIGINT, handler)
        _secure_streams()
        return _leave_if_ended(_run(_parse(argv)), is_own_process=argv is None)
    except SystemExit as ended:
        # argparse has printed help (0) or what is wrong (2).
        return int(ended.code or 0)
    except KeyboardInterrupt:
        # Before there was a step to report on.
        return InterruptedByUserError.exit_code
    except TerminatedError as error:
        return error.exit_code
    except BrokenPipeError:
        # The reader of our output went away, as in `… | head`; nothing is left to say and nobody to say it to.
        silence(sys.stdout)
        return 1
    finally:
        # Callers in the same process, and their children, must not inherit ignored signals. A process of our own is over.
        if argv is not None:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            for number, earlier in before.items():
                signal.signal(number, earlier)


def _leave_if_ended(exit_code: int, *, is_own_process: bool) -> int:
    """Ends the process at once where threads may still wait for a server: Python, or a library in them, would complain later."""
    if not is_own_process or not (exit_code in (EXIT_INTERRUPTED, EXIT_TERMINATED) or has_left_behind()):
        return exit_code
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(exit_code)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = build_parser()
    arguments = parser.parse_args(argv)
    if hasattr(arguments, "block_size"):
        try:
            check_in_flight(arguments.num_threads, arguments.block_size)
        except ValueError as error:
            parser.error(str(error))
    return arguments


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
        say(line, stream)
    except OSError:
        silence(stream)


def _run(arguments: argparse.Namespace) -> int:
    started = time.monotonic()
    # From the end of the step on only a few writes are left: a signal must not tear them.
    try:
        exit_code, outcome = _attempt(arguments)
        _ignore_signals()
    except (KeyboardInterrupt, TerminatedError) as late:
        _ignore_signals()
        exit_code, outcome = _describe(late if isinstance(late, TerminatedError) else _INTERRUPTED)
    if exit_code:
        _say(f"{arguments.command}: {outcome.reason}: {outcome.message}", sys.stderr)
    elif not outcome.quiet:
        _say(f"{arguments.command}: {outcome.message}", sys.stdout)
    return _write_reports(arguments, outcome, time.monotonic() - started, exit_code)


def _attempt(arguments: argparse.Namespace) -> tuple[int, Outcome]:
    """Runs the step; the exit code, and what there is to say."""
    run: Callable[[argparse.Namespace], Outcome] = arguments.run
    try:
        check_outputs(arguments)
        if getattr(arguments, "part", ""):
            from modelweights_loader.part import check_part  # noqa: PLC0415 - of staging pods alone

            check_part(arguments.root or arguments.path, arguments.part)
        if arguments.results is not None and arguments.command != "flags":
            from modelweights_loader.report import remove_results  # noqa: PLC0415 - `wait` rarely needs it

            remove_results(arguments.results, _STEPS if arguments.command == "stage" else (arguments.command,))
        return 0, run(arguments)
    except KeyboardInterrupt:
        return _describe(_INTERRUPTED)
    except LoaderError as error:
        return _describe(error)
    except BrokenPipeError:
        raise
    except Exception as error:  # noqa: BLE001 - the process's edge: one line, never a traceback
        return _describe(_unexpected(error))


def _write_reports(arguments: argparse.Namespace, outcome: Outcome, seconds: float, exit_code: int) -> int:
    report = make_report(arguments.command, outcome, seconds, exit_code)
    try:
        if arguments.results is not None and arguments.command != "flags":
            from modelweights_loader.report import write_result  # noqa: PLC0415 - `wait` rarely needs it

            write_result(arguments.results, arguments.command, report, arguments.path)
        if arguments.report is not None:
            from modelweights_loader.report import write_report  # noqa: PLC0415 - `wait` rarely needs it

            write_report(arguments.report, report)
    except LoaderError as error:
        _say(f"{arguments.command}: {error.reason}: {error.message}", sys.stderr)
        return exit_code or error.exit_code
    return exit_code


def _describe(error: LoaderError) -> tuple[int, Outcome]:
    return error.exit_code, Outcome(error.reason, error.message, error.figures)


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


def _make_signal_handler() -> Callable[[int, object], None]:
    """Makes what raises at a signal, but not at each of many: one that comes on the way out would end in a traceback."""
    last = -math.inf

    def handle(number: int, _frame: object) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < _SIGNAL_PAUSE_SECONDS:
            return
        last = now
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        message = "terminated by SIGTERM"
        raise TerminatedError(message)

    return handle


def _ignore_signals() -> None:
    # Not SIG_IGN alone: Python would complain of a signal that has come already and finds no handler. Blocked as well, since
    # Python takes its handlers away before the process has ended.
    for number in _SIGNALS:
        signal.signal(number, lambda _number, _frame: None)
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)


def build_parser() -> Parser:
    """Makes the parser of all commands.

    Returns:
        The parser; it ends the process on wrong arguments.
    """
    parser = Parser(
        prog="modelweights-loader",
        description="Stages a checkpoint on this machine: page cache, proof that it loads, marker.",
        epilog="Exit codes: 0 done, 2 usage, 10 try again, 20 will not work as asked, 30 the checkpoint is bad, 40 no room.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=Parser)
    for command in _COMMANDS:
        command.add(commands)
    return parser
