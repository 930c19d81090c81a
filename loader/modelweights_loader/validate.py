"""Proves that a checkpoint loads: strict headers, then a real load in a process of its own, then the manifest digest.

Called by `commands`. Order matters for time: the load process starts first, because its imports take seconds; headers are
read and files hashed meanwhile. Must not import torch.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from modelweights_loader.errors import BadCheckpointError
from modelweights_loader.load_process import LoadProcess, choose_timeout
from modelweights_loader.manifest import ManifestHasher
from modelweights_loader.structure import Structure, read_structure

if TYPE_CHECKING:
    from collections.abc import Callable

    from modelweights_loader.checkpoint import Checkpoint
    from modelweights_loader.safetensors_header import Header

MODE_LOAD = "Load"
MODE_STRUCTURE = "Structure"
MODE_NONE = "None"
MODES = (MODE_LOAD, MODE_STRUCTURE, MODE_NONE)

# More reader threads than this gain nothing from a page cache.
_MAX_LOAD_THREADS = 8


class ValidateOptions(NamedTuple):
    """How to validate; timeout_seconds 0 grows with the bytes."""

    mode: str = MODE_LOAD
    queue_size: int = 0
    device: str = "cpu"
    gds: str = "Auto"
    timeout_seconds: float = 0


def validate(
    checkpoint: Checkpoint,
    options: ValidateOptions,
    process: LoadProcess | None = None,
    on_warning: Callable[[str], None] | None = None,
) -> dict[str, object]:
    """Validates a checkpoint. Blocks until done.

    Args:
        checkpoint: From `find_checkpoint`.
        options: How.
        process: A load process that was started even earlier; this function ends it in any case.
        on_warning: Gets what the load process warns of.

    Returns:
        The figures of the step.

    Raises:
        LoaderError: Any of its kinds.
    """
    with contextlib.ExitStack() as stack:
        if options.mode == MODE_LOAD:
            process = stack.enter_context(process or LoadProcess())
        structure = None if options.mode == MODE_NONE else read_structure(checkpoint)
        hasher = ManifestHasher(checkpoint)
        stack.callback(hasher.cancel)
        figures: dict[str, object] = {
            "mode": options.mode,
            "shardCount": len(checkpoint.shards),
            "fileCount": len(checkpoint.files),
            "sizeBytes": checkpoint.size_bytes,
            "tensorCount": None if structure is None else structure.tensor_count,
        }
        if options.mode == MODE_LOAD and structure is not None and process is not None:
            figures |= _load(checkpoint, structure, options, process, on_warning)
        figures["manifestDigest"] = hasher.digest()
    return figures


def _load(
    checkpoint: Checkpoint,
    structure: Structure,
    options: ValidateOptions,
    process: LoadProcess,
    on_warning: Callable[[str], None] | None,
) -> dict[str, object]:
    dtypes = {tensor.dtype for header in structure.headers.values() for tensor in header.tensors.values()}
    request: dict[str, Any] = {
        # A shard without tensors (an empty header) has nothing to load and trips older loaders.
        "files": [shard.real_path for shard in checkpoint.shards if structure.headers[shard.path].tensors],
        "dtypes": sorted(dtypes),
        "queueSize": options.queue_size,
        "device": options.device,
        "gds": options.gds,
        "largestTensorBytes": structure.largest_tensor_bytes,
        "maxThreads": min(_MAX_LOAD_THREADS, len(os.sched_getaffinity(0))),
    }
    timeout_seconds = options.timeout_seconds or choose_timeout(checkpoint.size_bytes)
    result = process.load(request, timeout_seconds, on_warning)
    compare_with_headers(checkpoint.path, structure.headers, result["tensors"])
    return {
        "loadSeconds": round(float(result["loadSeconds"]), 3),
        "queueSize": options.queue_size,
        "odirect": False,
        "gds": result["gds"],
        **process.versions,
    }


def compare_with_headers(path: str, headers: dict[str, Header], loaded: list[list[Any]]) -> None:
    """Compares what was loaded with what the headers promise.

    Args:
        path: The checkpoint, for messages.
        headers: By shard.
        loaded: [name, dtype, shape] per tensor that the loader gave.

    Raises:
        BadCheckpointError: A tensor is missing, too many, given twice, or of another dtype or shape.
    """
    got: dict[str, tuple[str, list[int]]] = {}
    for name, dtype, shape in loaded:
        if name in got:
            _refuse(f"{path}: tensor {name} was loaded twice", "TensorInTwoShards")
        got[name] = (dtype, shape)
    for shard, header in headers.items():
        for name, tensor in header.tensors.items():
            found = got.pop(name, None)
            if found is None:
                _refuse(f"{path}/{shard}: tensor {name} was not loaded", "TensorMissing")
            wanted = (tensor.dtype, _loaded_shape(tensor.dtype, tensor.shape))
            if found != wanted:
                said = f"loaded as {found[0]} {found[1]}, but its header says {wanted[0]} {wanted[1]}"
                _refuse(f"{path}/{shard}: tensor {name} was {said}", "TensorDiffers")
    for name in got:
        _refuse(f"{path}: tensor {name} was loaded, but no header has it", "TensorSurplus")


def _loaded_shape(dtype: str, shape: tuple[int, ...]) -> list[int]:
    """Torch counts pairs of four-bit numbers, the header single ones."""
    return [*shape[:-1], shape[-1] // 2] if dtype == "F4" and shape else list(shape)


def _refuse(what: str, reason: str) -> NoReturn:
    message = f"{what}; the loader and the file disagree, download it again"
    raise BadCheckpointError(message, reason=reason)
