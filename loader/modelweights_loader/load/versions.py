"""Which versions of fastsafetensors load right, and what each of them can do.

Called by `load.worker`. ParallelLoader takes unknown keyword arguments in silence, so what a version can't do must not be
passed to it. Found by installing and running each version that the package index has. Must not import torch.
"""

from __future__ import annotations

import re
from typing import NamedTuple

OLDEST = (0, 2)


class Support(NamedTuple):
    """What a version can do; refusal is empty when it is supported.

    Attributes:
        batches: Takes max_batch_bytes: memory is bounded by the largest tensor and not by the largest shard.
        borrowed: Takes borrowed_tensors: no second copy of a tensor that is only looked at.
        odirect: Reads past the page cache unless the environment says otherwise.
        refusal: Why it is not supported, in words.
    """

    batches: bool
    borrowed: bool
    odirect: bool
    refusal: str


def parse_version(text: str) -> tuple[int, ...]:
    """Parses the numbers in front of a version.

    Args:
        text: For example `0.3.3` or `0.5.0.dev1+cu12`.

    Returns:
        Its numbers, at least one.
    """
    found = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(part) for part in found.group().split(".")) if found else (0,)


def find_support(version: str) -> Support:
    """Finds what a version of fastsafetensors can do.

    Args:
        version: As the package says it. Newer ones than we know count as the newest that we know.

    Returns:
        What it can do, or why it is refused.
    """
    number = parse_version(version)
    return Support(
        batches=number >= (0, 4),
        borrowed=number >= (0, 5),
        odirect=number >= (0, 5),
        refusal=_refuse(version, number),
    )


def _refuse(version: str, number: tuple[int, ...]) -> str:
    if number >= OLDEST:
        return ""
    return f"fastsafetensors {version} has no ParallelLoader, which came with 0.2.0; install fastsafetensors 0.5.0"
