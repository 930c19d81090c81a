"""Parses and prints amounts: bytes with Kubernetes suffixes, durations, rates.

Called by `cli` (arguments), `prefetch` (bounds) and everything that prints. Must not import torch.
"""

from __future__ import annotations

import re

_SUFFIXES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_QUANTITY = re.compile(r"([0-9]{1,15})(Ki|Mi|Gi|Ti|k|M|G|T)?")

KIB = 2**10
MIB = 2**20
GIB = 2**30

MAX_BLOCK_BYTES = GIB
MAX_THREADS = 256
MAX_IN_FLIGHT_BYTES = 4 * GIB
# More than any group of GPUs that loads one checkpoint; a bound so that a slip of the pen is no endless list.
MAX_WORLD_SIZE = 65536


def parse_bytes(text: str) -> int:
    """Parses a Kubernetes quantity of bytes.

    Suffixes mean what they mean to Kubernetes: `16Mi` is 16777216, `16M` is 16000000. Engines read `M` differently,
    which is why everything printed for an engine is a plain integer.

    Args:
        text: Digits, then nothing or one of k, M, G, T, Ki, Mi, Gi, Ti.

    Returns:
        The number of bytes.

    Raises:
        ValueError: The text is no such quantity.
    """
    match = _QUANTITY.fullmatch(text)
    if match is None:
        msg = f"{text!r} is not an amount of bytes; write for example 16Mi, 16M or 16777216"
        raise ValueError(msg)
    return int(match.group(1)) * _SUFFIXES[match.group(2) or ""]


def check_block_bytes(block_bytes: int) -> int:
    """Checks the bounds of a prefetch block.

    Any number of bytes within them will do: reading rounds it up to whole pages, since the page cache holds nothing less.

    Args:
        block_bytes: Size of a block in bytes.

    Returns:
        The same number.

    Raises:
        ValueError: Outside of 1 byte to 1Gi.
    """
    if not 1 <= block_bytes <= MAX_BLOCK_BYTES:
        msg = f"a block of {block_bytes} bytes is outside of 1 byte to 1Gi (1073741824)"
        raise ValueError(msg)
    return block_bytes


def check_threads(num_threads: int) -> int:
    """Checks the bounds of the number of prefetch threads.

    Args:
        num_threads: Number of threads.

    Returns:
        The same number.

    Raises:
        ValueError: Outside of 1 to 256.
    """
    if not 1 <= num_threads <= MAX_THREADS:
        msg = f"{num_threads} threads is outside of 1 to {MAX_THREADS}"
        raise ValueError(msg)
    return num_threads


def check_in_flight(num_threads: int, block_bytes: int) -> None:
    """Checks that all threads' blocks together stay within 4Gi.

    Args:
        num_threads: Number of threads.
        block_bytes: Size of a block in bytes.

    Raises:
        ValueError: The product is more than 4Gi.
    """
    product = num_threads * block_bytes
    if product > MAX_IN_FLIGHT_BYTES:
        msg = f"{num_threads} threads x {block_bytes} bytes is {product} bytes in flight, more than 4Gi (4294967296)"
        raise ValueError(msg)


def check_stripe(rank: int, world_size: int) -> None:
    """Checks which part of the files is to be read, files[rank::world_size].

    Args:
        rank: Of this process in its group, from 0.
        world_size: Number of processes in the group.

    Raises:
        ValueError: No such group, or no such rank in it.
    """
    if not 1 <= world_size <= MAX_WORLD_SIZE:
        msg = f"a world size of {world_size} is outside of 1 to {MAX_WORLD_SIZE}"
        raise ValueError(msg)
    if not 0 <= rank < world_size:
        msg = f"rank {rank} is outside of 0 to {world_size - 1}, the world size is {world_size}"
        raise ValueError(msg)


def format_bytes(size_bytes: float) -> str:
    """Prints bytes for people, in binary units.

    Args:
        size_bytes: Number of bytes.

    Returns:
        For example `86.7 MiB`.
    """
    value = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < KIB:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= KIB
    return f"{value:.1f} TiB"


def format_seconds(seconds: float) -> str:
    """Prints a duration for people.

    Args:
        seconds: Duration in seconds.

    Returns:
        For example `0.3 s`, `2 min 5 s` or `1 h 2 min`.
    """
    minute, hour = 60, 3600
    if seconds < minute:
        return f"{seconds:.1f} s"
    if seconds < hour:
        return f"{int(seconds) // minute} min {int(seconds) % minute} s"
    return f"{int(seconds) // hour} h {int(seconds) % hour // minute} min"
