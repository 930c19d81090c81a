"""Proves that a checkpoint loads: strict headers, then a real load in processes of its own, then the manifest digest.

Called by `commands`. Order matters for time: the load process starts first, because its imports take seconds; headers are
read and files hashed meanwhile. Must not import torch.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from modelweights_loader.errors import BadCheckpointError, LoaderError
from modelweights_loader.expected_hashes import read_expectations
from modelweights_loader.flags import Settings
from modelweights_loader.load.contract import FASTSAFETENSORS, MIN_BATCH_BYTES, LoadedTensor, LoadRequest, LoadResult
from modelweights_loader.load_process import LoadProcess, choose_timeout, load_together
from modelweights_loader.manifest import ManifestHasher, Pace, encode_manifest, write_manifest
from modelweights_loader.structure import Structure, read_structure
from modelweights_loader.unchanged import Unchanged

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from modelweights_loader.checkpoint import Checkpoint, CheckpointFile
    from modelweights_loader.progress import Progress
    from modelweights_loader.safetensors_header import Header

MODE_LOAD = "Load"
MODE_FULL = "Full"
MODE_STRUCTURE = "Structure"
MODE_NONE = "None"
MODES = (MODE_LOAD, MODE_FULL, MODE_STRUCTURE, MODE_NONE)
LOADING_MODES = (MODE_LOAD, MODE_FULL)

# More reader threads than this gain nothing from a page cache.
_MAX_LOAD_THREADS = 8
# Two batches of this size stay far below 1 GiB beyond the largest tensor; beyond it, one at a time has to do.
_MAX_PIPELINED_TENSOR_BYTES = 512 * 2**20
# How far the hasher may be ahead of the load where not everything fits into memory: less than the load has in flight.
_PACE_BYTES = 16 * 2**20
# What a load process holds besides batches: Python, torch, bounce buffers.
_PROCESS_BYTES = 512 * 2**20


class ValidateOptions(NamedTuple):
    """How to validate.

    Attributes:
        mode: One of MODES.
        load_format: Which library decides: `fastsafetensors` or `safetensors`.
        queue_size: ParallelLoader's; None chooses by the largest tensor, so that memory stays bounded.
        device: `cpu` or `cuda`.
        gds: `Auto` or `Never`.
        timeout_seconds: 0 grows with the bytes.
        world_size: Ranks of a group.
        odirect: Reads past the page cache, as the library does by default on local disks.
        expect_file: A manifest of ours or what sha256sum prints; empty compares only what a cache's names say.
        manifest_file: Where to write the manifest; empty writes none.
    """

    mode: str = MODE_LOAD
    load_format: str = FASTSAFETENSORS
    queue_size: int | None = None
    device: str = "cpu"
    gds: str = "Auto"
    timeout_seconds: float = 0
    world_size: int = 1
    odirect: bool = False
    expect_file: str = ""
    manifest_file: str = ""


def choose_queue_size(asked: int | None, largest_tensor_bytes: int) -> int:
    """Chooses ParallelLoader's queue size: the pipeline of two batches, unless two of them are too much.

    Args:
        asked: What the user wants, or None.
        largest_tensor_bytes: A batch is at least that large.

    Returns:
        The queue size.
    """
    if asked is not None:
        return asked
    return 0 if largest_tensor_bytes <= _MAX_PIPELINED_TENSOR_BYTES else -1


def choose_batch_bytes(largest_tensor_bytes: int) -> int:
    """Chooses the bound of a batch: memory then grows with the largest tensor and not with the largest shard.

    Args:
        largest_tensor_bytes: Tensors are not split.

    Returns:
        Bytes.
    """
    return max(MIN_BATCH_BYTES, largest_tensor_bytes)


def validate(
    checkpoint: Checkpoint,
    options: ValidateOptions,
    process: LoadProcess | None = None,
    on_warning: Callable[[str], None] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> dict[str, object]:
    """Validates a checkpoint. Blocks until done.

    Args:
        checkpoint: From `find_checkpoint`.
        options: How.
        process: A load process that was started even earlier; this function ends it in any case.
        on_warning: Gets what the load process warns of.
        on_progress: Told at every tenth that is hashed.

    Returns:
        The figures of the step.

    Raises:
        LoaderError: Any of its kinds; its figures hold the verdicts, as far as they are known.
    """
    unchanged = Unchanged(checkpoint)
    try:
        return _prove(checkpoint, options, unchanged, process, on_warning, on_progress)
    except BadCheckpointError as error:
        # What was half of one file and half of another is no verdict on either.
        changed = unchanged.find_change()
        if changed is None:
            raise
        raise changed from error


def _prove(
    checkpoint: Checkpoint,
    options: ValidateOptions,
    unchanged: Unchanged,
    process: LoadProcess | None,
    on_warning: Callable[[str], None] | None,
    on_progress: Callable[[Progress], None] | None,
) -> dict[str, object]:
    with contextlib.ExitStack() as stack:
        processes = _start_processes(stack, options, process)
        expected = read_expectations(options.expect_file, checkpoint) if options.expect_file else None
        structure = None if options.mode == MODE_NONE else read_structure(checkpoint)
        timeout_seconds = options.timeout_seconds or choose_timeout(checkpoint.size_bytes)
        deadline = time.monotonic() + timeout_seconds
        if options.mode in LOADING_MODES and structure is not None:
            load = _Load(checkpoint, structure, options)
            hasher = ManifestHasher(checkpoint, expected=expected, pace=load.pace, on_progress=on_progress)
            stack.callback(hasher.cancel)
            loaded = load.run(processes, timeout_seconds, on_warning, hasher)
        else:
            hasher = ManifestHasher(checkpoint, expected=expected, on_progress=on_progress)
            stack.callback(hasher.cancel)
            loaded = {}
        # By importance: a report that is too long loses the last ones.
        figures: dict[str, object] = {
            "mode": options.mode,
            "manifestDigest": hasher.digest(deadline),
            "sizeBytes": checkpoint.size_bytes,
            "shardCount": len(checkpoint.shards),
            "fileCount": len(checkpoint.files),
            "tensorCount": None if structure is None else structure.tensor_count,
            **loaded,
            "comparedHashes": hasher.checked_count or None,
            "newestChangeNs": unchanged.newest_ns,
        }
        changed = unchanged.find_change()
        if changed is not None:
            raise changed
        if options.manifest_file:
            write_manifest(options.manifest_file, encode_manifest(hasher.lines(), _count_tensors(structure)))
    return figures


def _start_processes(
    stack: contextlib.ExitStack, options: ValidateOptions, process: LoadProcess | None
) -> list[LoadProcess]:
    """As many as there are ranks; the stack ends them in any case."""
    processes = [stack.enter_context(process)] if process is not None else []
    if options.mode in LOADING_MODES:
        while len(processes) < options.world_size:
            processes.append(stack.enter_context(LoadProcess()))
    return processes


def _count_tensors(structure: Structure | None) -> dict[str, int]:
    return {} if structure is None else {path: len(header.tensors) for path, header in structure.headers.items()}


class _Load:
    """One load by one process or a group of them, and what it must have given."""

    def __init__(self, checkpoint: Checkpoint, structure: Structure, options: ValidateOptions) -> None:
        self._checkpoint = checkpoint
        self._structure = structure
        self._options = options
        # A shard without tensors (an empty header) has nothing to load and trips older loaders.
        self._shards = [shard for shard in checkpoint.shards if structure.headers[shard.path].tensors]
        self._batch_bytes = choose_batch_bytes(structure.largest_tensor_bytes)
        self._queue_size = choose_queue_size(options.queue_size, structure.largest_tensor_bytes)
        self.pace = self._choose_pace()

    def run(
        self,
        processes: Sequence[LoadProcess],
        timeout_seconds: float,
        on_warning: Callable[[str], None] | None,
        hasher: ManifestHasher,
    ) -> dict[str, object]:
        """Loads and compares with the headers; returns the figures."""
        with contextlib.ExitStack() as stack:
            store = _make_store(stack) if self._options.world_size > 1 else ""
            requests = [self._make_request(rank, store) for rank in range(self._options.world_size)]
            try:
                results = load_together(processes, requests, timeout_seconds, on_warning, hasher.keep_pace)
            except LoaderError as error:
                error.figures = {**self._describe_versions(processes), **error.figures}
                raise
        # Each rank gets every tensor: its own files' from storage, the others' by broadcast.
        for rank, result in enumerate(results):
            where = self._checkpoint.path if len(results) == 1 else f"{self._checkpoint.path} (rank {rank})"
            compare_with_headers(where, self._structure.headers, result.tensors)
        return {**self._describe(results), **self._describe_versions(processes)}

    def _make_request(self, rank: int, store: str) -> LoadRequest:
        options, group = self._options, self._options.world_size
        device = f"cuda:{rank}" if options.device == "cuda" and group > 1 else options.device
        headers = self._structure.headers.values()
        return LoadRequest(
            files=[shard.real_path for shard in self._shards],
            dtypes=sorted({tensor.dtype for header in headers for tensor in header.tensors.values()}),
            load_format=options.load_format,
            queue_size=self._queue_size,
            odirect=options.odirect,
            max_threads=max(1, min(_MAX_LOAD_THREADS, len(os.sched_getaffinity(0))) // group),
            max_batch_bytes=self._batch_bytes,
            device=device,
            gds=options.gds,
            rank=rank,
            world_size=group,
            store=store,
            compare=options.mode == MODE_FULL,
            both_verdicts=rank == 0,
            pace_bytes=0 if self.pace is None else _PACE_BYTES,
        )

    def _choose_pace(self) -> Pace | None:
        """Keeps hasher and load together when not all of it can be in memory at once."""
        group = self._options.world_size
        needed = group * (_PROCESS_BYTES + 2 * self._batch_bytes)
        if _fits_into_memory(self._checkpoint, needed):
            return None
        # Each rank of ParallelLoader reads every nth file; with safetensors each reads all of them.
        step = group if self._options.load_format == FASTSAFETENSORS else 1
        lanes = [self._shards[rank::step] for rank in range(step)]
        offsets = {shard.path: self._structure.headers[shard.path].data_offset for shard in self._shards}
        return Pace(lanes, offsets, _PACE_BYTES)

    def _describe(self, results: Sequence[LoadResult]) -> dict[str, object]:
        first = results[0]
        read = [result.read_bytes for result in results]
        figures: dict[str, object] = {
            "loadSeconds": round(max(result.load_seconds for result in results), 3),
            "queueSize": self._queue_size,
            "odirect": first.odirect,
            "gds": first.gds,
            "engine": Settings(
                self._options.load_format, self._queue_size, first.odirect, first.nogds, len(results)
            ).as_engine(),
            "verdicts": first.verdicts,
            "refusals": first.refusals or None,
            "loadedBytes": first.loaded_bytes,
            "readBytes": None if None in read else sum(count for count in read if count is not None),
            "peakBytes": sum(result.peak_bytes for result in results),
            "maxBatchBytes": first.max_batch_bytes,
        }
        if self._options.mode == MODE_FULL:
            figures["comparedBytes"] = sum(result.compared_bytes for result in results)
        return figures

    @staticmethod
    def _describe_versions(processes: Sequence[LoadProcess]) -> dict[str, object]:
        return dict(processes[0].versions)


def _fits_into_memory(checkpoint: Checkpoint, needed_bytes: int) -> bool:
    from modelweights_loader.memory import measure_room  # noqa: PLC0415 - only for modes that load
    from modelweights_loader.residency import measure  # noqa: PLC0415 - only for modes that load

    files: tuple[CheckpointFile, ...] = checkpoint.shards
    if checkpoint.size_bytes + needed_bytes <= measure_room(0).room_bytes:
        return True
    # Pages that another control group has read count against that one.
    resident = measure(files).resident_bytes or 0
    return checkpoint.size_bytes + needed_bytes <= measure_room(resident).room_bytes


def _make_store(stack: contextlib.ExitStack) -> str:
    """A file on which the ranks find each other. It has no name, so nothing of it stays, also after SIGKILL."""
    with contextlib.suppress(OSError):
        descriptor = os.memfd_create("modelweights-group")
        stack.callback(os.close, descriptor)
        store = f"/proc/{os.getpid()}/fd/{descriptor}"
        os.close(os.open(store, os.O_RDWR | os.O_CLOEXEC))
        return store
    # No /proc here, or a kernel without such files.
    import tempfile  # noqa: PLC0415 - hardly ever

    return os.path.join(stack.enter_context(tempfile.TemporaryDirectory(prefix="modelweights-group-")), "store")


def compare_with_headers(path: str, headers: dict[str, Header], loaded: Sequence[LoadedTensor]) -> None:
    """Compares what was loaded with what the headers promise.

    Args:
        path: The checkpoint, for messages.
        headers: By shard.
        loaded: What the loader gave.

    Raises:
        BadCheckpointError: A tensor is missing, too many, given twice, or of another dtype, shape or size.
    """
    got: dict[str, LoadedTensor] = {}
    for tensor in loaded:
        if tensor.name in got:
            _refuse(f"{path}: tensor {tensor.name} was loaded twice", "TensorInTwoShards")
        got[tensor.name] = tensor
    for shard, header in headers.items():
        for name, wanted in header.tensors.items():
            found = got.pop(name, None)
            if found is None:
                _refuse(f"{path}/{shard}: tensor {name} was not loaded", "TensorMissing")
            promised = LoadedTensor(
                name, wanted.dtype, _loaded_shape(wanted.dtype, wanted.shape), wanted.end - wanted.begin
            )
            if found != promised:
                said = f"{_describe_tensor(found)}, but its header says {_describe_tensor(promised)}"
                _refuse(f"{path}/{shard}: tensor {name} was loaded as {said}", "TensorDiffers")
    for name in got:
        _refuse(f"{path}: tensor {name} was loaded, but no header has it", "TensorSurplus")


def _describe_tensor(tensor: LoadedTensor) -> str:
    return f"{tensor.dtype} {tensor.shape} of {tensor.size_bytes} bytes"


def _loaded_shape(dtype: str, shape: tuple[int, ...]) -> list[int]:
    """Torch counts pairs of four-bit numbers, the header single ones."""
    return [*shape[:-1], shape[-1] // 2] if dtype == "F4" and shape else list(shape)


def _refuse(what: str, reason: str) -> NoReturn:
    message = f"{what}; the loader and the file disagree, download it again"
    raise BadCheckpointError(message, reason=reason)
