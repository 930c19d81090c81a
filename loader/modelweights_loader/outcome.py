"""What a command has to say when it is done, and the report that is made of it.

Used by `cli` and every module of `commands`. Must not import torch.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple


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
