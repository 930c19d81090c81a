"""Checks all shards of a checkpoint together: headers, index, tensors that two shards hold.

Called by `validate` and `stage` before any loader sees a shard. Must not import torch.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from modelweights_loader.errors import BadCheckpointError
from modelweights_loader.safetensors_header import Header, read_header

if TYPE_CHECKING:
    from modelweights_loader.checkpoint import Checkpoint


_MAX_THREADS = 16
# Waiting as long as working is reason enough for threads; a few milliseconds are none, others use the cores too.
_MIN_WAIT_SECONDS = 0.005


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
    for shard, header in zip(checkpoint.shards, _read_headers(checkpoint), strict=True):
        headers[shard.path] = header
        # Sets and dicts as a whole here and below: a loop over all tensors takes several times as long.
        if not owners.keys().isdisjoint(header.tensors.keys()):
            tensor = next(name for name in header.tensors if name in owners)
            message = (
                f"{checkpoint.path}: tensor {tensor} is in {owners[tensor]} and in {shard.path}; an engine would take "
                "either, remove the shard that does not belong there"
            )
            raise BadCheckpointError(message, reason="TensorInTwoShards")
        owners.update(dict.fromkeys(header.tensors, shard.path))
    if not owners:
        message = f"{checkpoint.path}: none of {len(headers)} shards holds a tensor; download it again"
        raise BadCheckpointError(message, reason="NoTensors")
    if checkpoint.weight_map is not None and checkpoint.weight_map != owners:
        _compare_with_index(checkpoint, owners, checkpoint.weight_map)
    return Structure(headers)


class _Reading:
    """What the threads share that read headers."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self.pending = list(enumerate(checkpoint.shards))[::-1]
        self.headers: dict[int, Header] = {}
        self.errors: dict[int, Exception] = {}

    def read_next(self) -> bool:
        """Reads one; False when there is no further one to read."""
        try:
            number, shard = self.pending.pop()
        except IndexError:
            return False
        try:
            self.headers[number] = read_header(shard.real_path, f"{self._checkpoint.path}/{shard.path}", is_found=True)
        except Exception as error:  # noqa: BLE001 - carried over to the thread that asked
            self.errors[number] = error
        return not self.errors

    def read_all(self) -> None:
        while self.read_next():
            pass


def _read_headers(checkpoint: Checkpoint) -> list[Header]:
    """Reads them, in threads once storage makes this one wait: a thousand shards there are a thousand times its latency.

    Not before, since parsing takes turns at the interpreter's lock, and each turn costs. Shards begin in order and are
    read to their end, so the error that is raised is always that of the first bad shard.
    """
    reading = _Reading(checkpoint)
    threads: list[threading.Thread] = []
    began, worked_before = time.monotonic(), time.thread_time()
    try:
        while reading.read_next():
            worked = time.thread_time() - worked_before
            if not threads and time.monotonic() - began > 2 * worked + _MIN_WAIT_SECONDS:
                # Daemons: a server that does not answer must not keep a process from ending that was told to.
                count = min(_MAX_THREADS - 1, len(reading.pending))
                threads = [threading.Thread(target=reading.read_all, daemon=True) for _ in range(count)]
                for thread in threads:
                    thread.start()
        for thread in threads:
            thread.join()
    finally:
        reading.pending.clear()
    if reading.errors:
        raise reading.errors[min(reading.errors)]
    return [reading.headers[number] for number in range(len(checkpoint.shards))]


def _compare_with_index(checkpoint: Checkpoint, owners: dict[str, str], weight_map: dict[str, str]) -> None:
    for tensor, shard in weight_map.items():
        owner = owners.get(tensor)
        if owner == shard:
            continue
        if owner is None:
            _refuse(checkpoint, f"puts tensor {tensor} into {shard}, which does not hold it")
        _refuse(checkpoint, f"puts tensor {tensor} into {shard}, but it is in {owner}")
    if len(owners) != len(weight_map):
        # Engines load every tensor of a listed shard, so this would come as a surprise there.
        tensor, owner = next(item for item in owners.items() if item[0] not in weight_map)
        count = len(owners) - len(weight_map)
        _refuse(checkpoint, f"does not list tensor {tensor}, which is in {owner} ({count} such)")


def _refuse(checkpoint: Checkpoint, what: str) -> NoReturn:
    message = f"{checkpoint.path}: {checkpoint.index_name} {what}; download index and shards of one revision"
    raise BadCheckpointError(message, reason="IndexMismatch")
