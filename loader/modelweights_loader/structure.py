"""Checks all shards of a checkpoint together: headers, index, tensors that two shards hold.

Called by `validate` and `stage` before any loader sees a shard. Must not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from modelweights_loader.errors import BadCheckpointError
from modelweights_loader.safetensors_header import Header, read_header

if TYPE_CHECKING:
    from modelweights_loader.checkpoint import Checkpoint


class Structure(NamedTuple):
    """Headers of all shards, by the shard's path, in load order."""

    headers: dict[str, Header]

    @property
    def tensor_count(self) -> int:
        """Number of tensors in all shards."""
        return sum(len(header.tensors) for header in self.headers.values())

    @property
    def largest_tensor_bytes(self) -> int:
        """Size of the largest tensor in bytes."""
        return max((t.end - t.begin for header in self.headers.values() for t in header.tensors.values()), default=0)


def read_structure(checkpoint: Checkpoint) -> Structure:
    """Reads every header and compares the shards with the index and with each other.

    Args:
        checkpoint: From `find_checkpoint`.

    Returns:
        All headers.

    Raises:
        BadCheckpointError: A bad header, a tensor in the wrong shard or in two, or no tensor at all.
        WillNotWorkError: A shard vanished or is forbidden.
        TryAgainError: The storage failed.
    """
    headers: dict[str, Header] = {}
    owners: dict[str, str] = {}
    for shard in checkpoint.shards:
        header = read_header(shard.real_path, f"{checkpoint.path}/{shard.path}")
        headers[shard.path] = header
        for tensor in header.tensors:
            if tensor in owners:
                message = (
                    f"{checkpoint.path}: tensor {tensor} is in {owners[tensor]} and in {shard.path}; an engine would "
                    "take either, remove the shard that does not belong there"
                )
                raise BadCheckpointError(message, reason="TensorInTwoShards")
            owners[tensor] = shard.path
    if not owners:
        message = f"{checkpoint.path}: none of {len(headers)} shards holds a tensor; download it again"
        raise BadCheckpointError(message, reason="NoTensors")
    if checkpoint.weight_map is not None:
        _compare_with_index(checkpoint, owners, checkpoint.weight_map)
    return Structure(headers)


def _compare_with_index(checkpoint: Checkpoint, owners: dict[str, str], weight_map: dict[str, str]) -> None:
    # A tensor that the index does not list is no error: engines load every tensor of a listed shard.
    for tensor, shard in weight_map.items():
        owner = owners.get(tensor)
        if owner == shard:
            continue
        if owner is None:
            what = f"{checkpoint.index_name} puts tensor {tensor} into {shard}, which does not hold it"
        else:
            what = f"{checkpoint.index_name} puts tensor {tensor} into {shard}, but it is in {owner}"
        message = f"{checkpoint.path}: {what}; download index and shards of one revision"
        raise BadCheckpointError(message, reason="IndexMismatch")
