"""Compares loaded tensors bit for bit with the file's own bytes and with what safetensors gives.

Called by `load.worker` in mode Full, in the load process. Imports torch only inside functions.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

from modelweights_loader.load import failures
from modelweights_loader.load.plain import is_installed, view_bytes
from modelweights_loader.safetensors_header import read_header

if TYPE_CHECKING:
    from collections.abc import Sequence

_PIECE_BYTES = 4 * 2**20


class BitsDifferError(Exception):
    """A loaded tensor is not what its file holds; the message names tensor, file and byte."""


class BitComparer:
    """Compares tensors one by one, in bounded memory; with safetensors only where it is there and accepts them."""

    def __init__(self, files: Sequence[str]) -> None:
        """Reads the headers.

        Args:
            files: All shards.
        """
        import torch  # noqa: PLC0415 - see the module's docstring

        self.compared_bytes = 0
        self.safetensors_refusal = "" if is_installed() else "not installed"
        self._files = list(files)
        self._places = {
            name: (index, header.data_offset + tensor.begin)
            for index, header in enumerate(read_header(path, is_found=True) for path in self._files)
            for name, tensor in header.tensors.items()
        }
        self._current = -1
        self._descriptor = -1
        self._opened: Any = None
        self._stack = contextlib.ExitStack()
        self._buffer = bytearray(_PIECE_BYTES)
        self._raw = torch.frombuffer(self._buffer, dtype=torch.uint8)

    def compare(self, name: str, tensor: Any) -> None:
        """Compares one tensor.

        Args:
            name: As in the header.
            tensor: On any device.

        Raises:
            BitsDifferError: It differs, or no file holds it.
            OSError: The file can't be read.
        """
        import torch  # noqa: PLC0415 - see the module's docstring

        if name not in self._places:
            message = f"tensor {name} is in no header"
            raise BitsDifferError(message)
        index, offset = self._places[name]
        self._open(index)
        path = self._files[index]
        flat = view_bytes(tensor)
        other = self._ask_safetensors(name, tensor, path)
        for begin in range(0, flat.numel(), _PIECE_BYTES):
            piece = flat[begin : begin + _PIECE_BYTES].cpu()
            count = piece.numel()
            self._read(path, offset + begin, count)
            if not torch.equal(piece, self._raw[:count]):
                message = f"tensor {name} is not what {path} holds from byte {offset + begin}"
                raise BitsDifferError(message)
            if other is not None and not torch.equal(piece, other[begin : begin + count]):
                message = f"tensor {name} of {path} is not what safetensors gives, from its byte {begin}"
                raise BitsDifferError(message)
            self.compared_bytes += count

    def close(self) -> None:
        """Closes the files."""
        self._opened = None
        self._stack.close()
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._current = self._descriptor = -1

    def _open(self, index: int) -> None:
        if index == self._current:
            return
        self.close()
        path = self._files[index]
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._current = index
        if not self.safetensors_refusal:
            from safetensors import safe_open  # noqa: PLC0415 - see the module's docstring

            try:
                self._opened = self._stack.enter_context(safe_open(path, framework="pt", device="cpu"))
            except Exception as error:  # noqa: BLE001 - its errors are of many types
                self._note_refusal(error)

    def _note_refusal(self, error: Exception) -> None:
        """Goes on without safetensors when it refuses the file; what is the machine's fault ends the comparison."""
        refusal = failures.find_refusal(error)
        if refusal is None:
            raise error
        self.safetensors_refusal = refusal

    def _ask_safetensors(self, name: str, tensor: Any, path: str) -> Any:
        """The same tensor's bytes as safetensors gives them, or None when it refuses."""
        if self.safetensors_refusal:
            return None
        try:
            other = self._opened.get_tensor(name)
        except Exception as error:  # noqa: BLE001 - its errors are of many types
            self._note_refusal(error)
            return None
        if (other.dtype, other.shape) != (tensor.dtype, tensor.shape):
            message = f"tensor {name} of {path} has another dtype or shape than safetensors gives"
            raise BitsDifferError(message)
        return view_bytes(other)

    def _read(self, path: str, offset: int, count: int) -> None:
        done = 0
        with memoryview(self._buffer) as view:
            while done < count:
                got = os.preadv(self._descriptor, [view[done:count]], offset + done)
                if got == 0:
                    message = f"{path} ends at byte {offset + done}: it has shrunk"
                    raise BitsDifferError(message)
                done += got
