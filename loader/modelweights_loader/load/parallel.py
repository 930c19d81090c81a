"""Loads tensors with fastsafetensors' ParallelLoader.

Called by `load.worker`, in the load process. Imports torch and fastsafetensors only inside functions.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from modelweights_loader.load import failures
from modelweights_loader.load.contract import MIN_BATCH_BYTES
from modelweights_loader.safetensors_header import read_header

if TYPE_CHECKING:
    from collections.abc import Iterator

    from modelweights_loader.load.contract import LoadRequest
    from modelweights_loader.load.versions import Support
    from modelweights_loader.safetensors_header import Header


def choose_batch_bytes(request: LoadRequest, support: Support, *, nogds: bool) -> int:
    """Chooses the bound of a batch. A tensor is never split, so the default is at least the largest one.

    Args:
        request: What was asked.
        support: What the version can do.
        nogds: Whether GPUDirect Storage stays unused. With it a whole shard goes at a time, as engines do.

    Returns:
        Bytes, 0 for no bound.
    """
    if not support.batches or not nogds:
        return 0
    if request.max_batch_bytes is not None:
        return request.max_batch_bytes
    headers = (read_header(path, is_found=True) for path in request.files)
    return max(MIN_BATCH_BYTES, *(find_largest_bytes(header) for header in headers))


def find_largest_bytes(header: Header) -> int:
    """Finds the size of a shard's largest tensor.

    Args:
        header: Of the shard.

    Returns:
        Bytes.
    """
    return max((tensor.end - tensor.begin for tensor in header.tensors.values()), default=0)


def iterate_parallel(
    request: LoadRequest, support: Support, group: Any, batch_bytes: int, *, nogds: bool
) -> Iterator[tuple[str, Any]]:
    """Loads every tensor. Each is only to be used until the next one is asked for.

    Args:
        request: Files and settings.
        support: What this version of the library can do.
        group: A process group of torch, or None.
        batch_bytes: From `choose_batch_bytes`.
        nogds: Whether to load without GPUDirect Storage.

    Yields:
        Name and tensor.
    """
    import fastsafetensors  # noqa: PLC0415 - see the module's docstring

    extra: dict[str, Any] = {}
    if batch_bytes:
        extra["max_batch_bytes"] = batch_bytes
    if support.borrowed and group is None and request.borrow:
        # Tensors are looked at and dropped: no second copy of each. Not possible in a group.
        extra |= {"borrowed_tensors": True, "accumulate_resident": False}
    loader = fastsafetensors.ParallelLoader(
        # None is not taken by every version.
        fastsafetensors.SingleGroup() if group is None else group,
        list(request.files),
        queue_size=request.queue_size,
        use_tqdm_on_load=False,
        device=request.device,
        bbuf_size_kb=request.bounce_buffer_kib,
        max_threads=request.max_threads,
        nogds=nogds,
        **extra,
    )
    # The iterator is closed before the loader, or its buffers stay.
    with contextlib.closing(loader), contextlib.closing(loader.iterate_weights()) as weights:
        yield from weights


def find_refusal(request: LoadRequest) -> str | None:
    """Asks whether ParallelLoader accepts headers and dtypes, without reading any tensor.

    Args:
        request: Which files.

    Returns:
        Its words when it refuses, an empty string when it accepts, None when it could not find out, for lack of memory
        and the like.
    """
    from fastsafetensors.common import SafeTensorsMetadata  # noqa: PLC0415 - see the module's docstring
    from fastsafetensors.frameworks import get_framework_op  # noqa: PLC0415 - see the module's docstring

    from modelweights_loader.load.dtypes import find_lacking_in_fastsafetensors  # noqa: PLC0415

    lacking = find_lacking_in_fastsafetensors(request.dtypes)
    if lacking is not None:
        return lacking
    framework = get_framework_op("pytorch")
    for path in request.files:
        try:
            SafeTensorsMetadata.from_file(path, framework)
        except Exception as error:  # noqa: BLE001 - its errors are plain Exceptions
            return failures.find_refusal(error)
    return ""
