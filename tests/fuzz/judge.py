"""Compares the loader's header reader with the safetensors library, for any bytes as a file.

Called by the fuzzing target and by the property tests. Never good where the library says bad; and where it is good, the
same tensors at the same bytes.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, deserialize

from modelweights_loader.errors import BadCheckpointError
from modelweights_loader.safetensors_header import Header, read_header

if TYPE_CHECKING:
    from collections.abc import Callable

# The library ships no types.
_deserialize: Callable[[bytes], list[tuple[str, dict[str, Any]]]] = deserialize


class DifferenceError(AssertionError):
    """The two do not agree in a way that matters."""


class Judge:
    """Holds one file in memory that each input is written to, so that the whole way of reading is gone."""

    def __init__(self) -> None:
        """Makes the file."""
        self._descriptor = os.memfd_create("input")
        self.good = self.bad = self.stricter = 0

    def close(self) -> None:
        """Closes the file."""
        os.close(self._descriptor)

    def compare(self, content: bytes) -> Header | None:
        """Reads an input with both.

        Returns:
            The header if the loader's reader says good.

        Raises:
            DifferenceError: The library says bad then, or gives other tensors.
        """
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, content, 0)
        try:
            header = read_header(f"/proc/self/fd/{self._descriptor}", "input")
        except BadCheckpointError:
            self.bad += 1
            return None
        self.good += 1
        try:
            theirs = _deserialize(content)
        except SafetensorError as error:
            message = f"good here, but safetensors says {error}"
            raise DifferenceError(message) from error
        found = {name: (info["dtype"], tuple(info["shape"]), bytes(info["data"])) for name, info in theirs}
        ours = {
            name: (info.dtype, info.shape, content[header.data_offset + info.begin : header.data_offset + info.end])
            for name, info in header.tensors.items()
        }
        if ours != found:
            message = f"good in both, but {ours!r} here and {found!r} there"
            raise DifferenceError(message)
        return header

    def is_good_for_the_library(self, content: bytes) -> bool:
        """Asks the library alone."""
        try:
            _deserialize(content)
        except SafetensorError:
            return False
        return True
