"""Takes the tensors that a library gives: counts, names, compares, and keeps pace with whoever reads beside.

Called by `load.worker`, in the load process. Must not import torch itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from modelweights_loader.load.compare import BitComparer
from modelweights_loader.load.contract import FASTSAFETENSORS, LoadedTensor
from modelweights_loader.load.dtypes import name_dtypes
from modelweights_loader.safetensors_header import read_header

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from modelweights_loader.load.contract import LoadRequest


class Intake:
    """What came so far in one attempt; a new attempt takes a new one, so that nothing counts twice."""

    def __init__(self, request: LoadRequest, load_format: str, keep_pace: Callable[[int], None]) -> None:
        """Starts with nothing.

        Args:
            request: What to look at.
            load_format: Which library gives the tensors.
            keep_pace: Called with the bytes so far; returns when more may be read.
        """
        self.tensors: list[LoadedTensor] = []
        self.tensor_count = 0
        self.loaded_bytes = 0
        self.comparer = BitComparer(request.files) if request.compare else None
        self._listed = request.list_tensors
        self._dtypes = name_dtypes()
        self._pace_bytes = request.pace_bytes
        self._keep_pace = keep_pace
        self._own: set[str] | None = None
        if request.pace_bytes and request.world_size > 1 and load_format == FASTSAFETENSORS:
            # Each rank reads every nth file and gets the rest from the others.
            own = request.files[request.rank :: request.world_size]
            self._own = {name for path in own for name in read_header(path, is_found=True).tensors}
        self._own_bytes = 0
        self._said_bytes = 0

    def take(self, weights: Iterable[tuple[str, Any]]) -> None:
        """Takes all tensors.

        Args:
            weights: Names and tensors, each good until the next.
        """
        for name, tensor in weights:
            size_bytes = tensor.numel() * tensor.element_size()
            self.tensor_count += 1
            self.loaded_bytes += size_bytes
            if self._listed:
                dtype = self._dtypes.get(tensor.dtype, str(tensor.dtype))
                self.tensors.append(LoadedTensor(name, dtype, list(tensor.shape), size_bytes))
            if self.comparer is not None:
                self.comparer.compare(name, tensor)
            if self._own is None or name in self._own:
                self._own_bytes += size_bytes
            if self._pace_bytes and self._own_bytes - self._said_bytes >= self._pace_bytes:
                self._said_bytes = self._own_bytes
                self._keep_pace(self._own_bytes)

    def close(self) -> None:
        """Closes what it has opened."""
        if self.comparer is not None:
            self.comparer.close()
