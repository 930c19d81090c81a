"""What a command has to say when it is done, and the report that is made of it.

Used by `cli` and every module of `commands`. Must not import torch.
"""

from __future__ import annotations

import os
import sys
from typing import Any, NamedTuple, TextIO


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
    say(f"{step}: warning: {' '.join(message.split())}", sys.stderr)


def say(line: str, stream: TextIO, end: str = "\n") -> None:
    """Prints a line about the work, which goes on also when nobody listens any more, as in `… | head`.

    Args:
        line: Any text.
        stream: Where to.
        end: Printed as it is.

    Raises:
        OSError: The disk behind the stream is full.
    """
    try:
        print(make_printable(line), end=end, file=stream, flush=True)
    except BrokenPipeError:
        silence(stream)


def silence(stream: TextIO) -> None:
    """Leads a stream to /dev/null, with what is buffered in it: at exit it would be tried once more.

    Args:
        stream: Of the process.
    """
    null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    os.dup2(null, stream.fileno())
    os.close(null)


def make_printable(text: str) -> str:
    """Makes one line of a text, without what a terminal would obey: file names may hold anything.

    Args:
        text: Any.

    Returns:
        The same where it is printable.
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )


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
