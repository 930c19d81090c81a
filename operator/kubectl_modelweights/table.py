"""What a command answers, and how it is drawn: with colours and bars on a terminal, as plain columns elsewhere. Called by `cli`.

The commands make `Answer`s and know nothing of terminals. rich is imported only when it draws.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TextIO

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

GOOD: Final = "green"
BUSY: Final = "cyan"
WAITS: Final = "yellow"
BAD: Final = "bold red"
FAINT: Final = "dim"

_GAP: Final = "   "
_BAR_WIDTHS: Final = ((110, 12), (80, 6))
"""From which width of the terminal on bars are how wide; on narrower ones there is no room for any."""


@dataclass(frozen=True)
class Cell:
    """A piece of a row.

    Attributes:
        text: What it says.
        style: How a terminal shows it, "" as any text.
        part: Between 0 and 1: drawn as a bar in front of the text, on a terminal only; None for no bar.
    """

    text: str
    style: str = ""
    part: float | None = None


@dataclass(frozen=True)
class Table:
    """Rows below headings; the last column takes the room that is left."""

    headings: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True)
class Line:
    """A sentence, or a label and a sentence."""

    text: str
    label: str = ""
    style: str = ""


Block = Table | Line


@dataclass(frozen=True)
class Answer:
    """What a command found.

    Attributes:
        blocks: For people.
        data: The same for programs.
        exit_code: Of the command.
    """

    blocks: tuple[Block, ...]
    data: Any = field(default_factory=dict)
    exit_code: int = 0


def plain(blocks: Sequence[Block]) -> str:
    """Columns in capitals' headings with blanks in between, as kubectl prints them; no line is cut."""
    return "\n".join(_plain_block(block) for block in blocks)


def _plain_block(block: Block) -> str:
    if isinstance(block, Line):
        return f"{block.label + ':':<10}{block.text}" if block.label else block.text
    rows = [block.headings, *([cell.text for cell in row] for row in block.rows)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        _GAP.join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def encode(data: Any, output: str) -> str:
    """The answer for programs, as `json` or `yaml`."""
    if output == "json":
        return json.dumps(data, indent=2)
    import yaml  # noqa: PLC0415 - only when asked for

    return str(yaml.safe_dump(data, sort_keys=False)).rstrip("\n")


def draws(stream: TextIO, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether colours and bars are welcome: on a terminal that can, unless NO_COLOR says otherwise."""
    return stream.isatty() and not environment.get("NO_COLOR") and environment.get("TERM", "") not in ("", "dumb")


def console(stream: TextIO) -> "Console":
    """The terminal."""
    from rich.console import Console  # noqa: PLC0415 - takes its time

    return Console(file=stream, highlight=False, markup=False, emoji=False)


def renderable(blocks: Sequence[Block], width: int) -> "RenderableType":
    """For a console of rich that is so many columns wide."""
    from rich.console import Group  # noqa: PLC0415 - takes its time

    bar_width = next((bar for least, bar in _BAR_WIDTHS if width >= least), 0)
    return Group(*(_rich_block(block, bar_width) for block in blocks))


def _rich_block(block: Block, bar_width: int) -> "RenderableType":
    from rich import box  # noqa: PLC0415 - takes its time
    from rich.table import Table as Grid  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    if isinstance(block, Line):
        if not block.label:
            return Text(block.text, style=block.style)
        grid = Grid.grid(padding=(0, 1))
        grid.add_column(style="bold", no_wrap=True, min_width=9)
        grid.add_column(ratio=1)
        grid.add_row(f"{block.label}:", Text(block.text, style=block.style))
        return grid
    drawn = Grid(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    # All may wrap: the widest, mostly the last, gives way first, and none vanishes.
    for heading in block.headings:
        drawn.add_column(heading, overflow="fold")
    for row in block.rows:
        drawn.add_row(*(_rich_cell(cell, bar_width) for cell in row))
    return drawn


def _rich_cell(cell: Cell, bar_width: int) -> "RenderableType":
    from rich.text import Text  # noqa: PLC0415 - takes its time

    if cell.part is None or not bar_width:
        return Text(cell.text, style=cell.style)
    filled = round(min(max(cell.part, 0.0), 1.0) * bar_width)
    return Text.assemble(
        ("━" * filled, cell.style or BUSY), ("━" * (bar_width - filled), "bright_black"), " ", (cell.text, cell.style)
    )
