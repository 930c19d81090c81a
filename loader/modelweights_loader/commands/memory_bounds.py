"""How much of a checkpoint may be in the page cache: memory, and what the administrator leaves to it.

Used by `prefetch` and `refresh`. See the package for what it must not import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from modelweights_loader.commands.options import parse_reserve, parse_size

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from modelweights_loader.memory import MemoryRoom


def add_bounds(command: argparse.ArgumentParser) -> None:
    """Adds the bounds.

    Args:
        command: Its parser.
    """
    command.add_argument(
        "--reserve-memory",
        metavar="BYTES|PERCENT",
        type=parse_reserve,
        default=None,
        help="of the available memory keep so much free: 8Gi or 10%% (default 10%%)",
    )
    command.add_argument(
        "--max-resident",
        metavar="BYTES",
        type=parse_size,
        default=None,
        help="of this checkpoint keep no more in the page cache, whatever memory is free (default: no such bound)",
    )
    command.add_argument(
        "--max-resident-because", metavar="TEXT", default="", help="said where --max-resident is what bounds it"
    )


def measure_bounds(arguments: argparse.Namespace, size_bytes: int, measure_resident: Callable[[], int]) -> MemoryRoom:
    """Measures how many bytes of a checkpoint can be in the page cache at once.

    Args:
        arguments: reserve_memory, max_resident, max_resident_because.
        size_bytes: Of all files that are to be there.
        measure_resident: How many of them are there already. Asked only where memory has no room for all of them:
            that costs time which a roomy node need not pay.

    Returns:
        The smallest bound.
    """
    from modelweights_loader.memory import MemoryRoom, measure_room  # noqa: PLC0415 - see the package's docstring

    room = measure_room(0, reserve=arguments.reserve_memory)
    if room.room_bytes < size_bytes:
        room = measure_room(measure_resident(), reserve=arguments.reserve_memory)
    if arguments.max_resident is None or arguments.max_resident >= room.room_bytes:
        return room
    because = f": {arguments.max_resident_because}" if arguments.max_resident_because else ""
    return MemoryRoom(arguments.max_resident, f"--max-resident{because}")
