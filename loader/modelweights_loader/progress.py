"""How far a step is, and how that is shown: a bar on a terminal, plain lines elsewhere (a pod's log).

Called by `commands` and by what they call. Must not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TextIO

from modelweights_loader.outcome import say
from modelweights_loader.quantity import format_bytes, format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable

_BAR_CELLS = 30


class Progress(NamedTuple):
    """How far a step is: bytes, bytes per second so far, seconds left at that rate (None before the first byte)."""

    done_bytes: int
    total_bytes: int
    bytes_per_second: float
    seconds_left: float | None


def draw_bar(share: float, cells: int = _BAR_CELLS) -> str:
    """Draws a bar of characters.

    Args:
        share: 0 to 1.
        cells: Width in characters.

    Returns:
        For example `#####.....`.
    """
    filled = round(max(0.0, min(1.0, share)) * cells)
    return "#" * filled + "." * (cells - filled)


def describe_progress(progress: Progress) -> str:
    """Says a progress in one line.

    Args:
        progress: Of a step.

    Returns:
        Percent, bytes, rate and the time left.
    """
    share = progress.done_bytes / progress.total_bytes if progress.total_bytes else 1.0
    left = "" if progress.seconds_left is None else f", {format_seconds(progress.seconds_left)} left"
    amount = f"{format_bytes(progress.done_bytes)} of {format_bytes(progress.total_bytes)}"
    return f"{100 * share:.0f} %, {amount}, {format_bytes(progress.bytes_per_second)}/s{left}"


def make_progress_printer(step: str, stream: TextIO) -> Callable[[Progress], None]:
    """Makes the function that shows progress on a stream.

    Args:
        step: The step's name, in front of each line.
        stream: Where to; a bar is drawn when it is a terminal.

    Returns:
        A function for `on_progress` of `prefetch`, `fetch` and `validate`.
    """
    if not stream.isatty():
        return lambda progress: say(f"{step}: {describe_progress(progress)}", stream)

    def redraw(progress: Progress) -> None:
        share = progress.done_bytes / progress.total_bytes if progress.total_bytes else 1.0
        end = "\n" if progress.done_bytes >= progress.total_bytes else ""
        # \x1b[K clears what a longer line left behind.
        print(f"\r{step} [{draw_bar(share)}] {describe_progress(progress)}\x1b[K", end=end, file=stream, flush=True)

    return redraw
