"""Kubernetes quantities as plain integers. Called by the API models and the planner; no I/O."""

import re
from typing import Final

_SUFFIXES: Final = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}
_QUANTITY: Final = re.compile(r"^([0-9]{1,15})(Ki|Mi|Gi|Ti|k|M|G|T)?$")


def to_bytes(quantity: int | str) -> int:
    """Read a whole number of bytes from a Kubernetes quantity.

    Args:
        quantity: An integer, or digits with one of the suffixes k, M, G, T (decimal), Ki, Mi, Gi, Ti (binary).

    Returns:
        The number of bytes.

    Raises:
        ValueError: It isn't such a quantity; the message says what is.
    """
    if isinstance(quantity, int):
        return quantity
    match = _QUANTITY.match(quantity)
    if match is None:
        raise ValueError(f"{quantity!r} is not a whole quantity of bytes such as 16777216, 16Mi or 16M")
    return int(match[1]) * _SUFFIXES[match[2] or ""]
