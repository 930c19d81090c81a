"""The load process: loads every tensor with fastsafetensors' ParallelLoader and says what it got.

Started by `load_process` as `python -m modelweights_loader._load_worker`, so that a crash, a hang or a kill is a result
and not the end of the caller. The only module that imports torch, and it does so before it knows what to load: the
import takes seconds, in which the caller reads headers and hashes.

One JSON object per line: stdin carries one request, the original stdout carries `ready`, `warning` and `result` events.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import sys
import time
from typing import Any

# By safetensors' names; torch's attribute of it. A name that is missing here, or that torch lacks, has its own reason.
TORCH_NAMES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "I16": "int16",
    "U16": "uint16",
    "I32": "int32",
    "U32": "uint32",
    "I64": "int64",
    "U64": "uint64",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
    "C64": "complex64",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F4": "float4_e2m1fn_x2",
}
# 1 MiB bounce buffers stay in the processor's cache: up to twice the rate of the default 16 MiB.
_BOUNCE_BUFFER_KIB = 1024
# Lower bound of what is loaded at a time; a tensor larger than that is loaded alone.
_MIN_BATCH_BYTES = 64 * 2**20


def main() -> int:
    """Runs one load. The exit code is 0 whenever a result was written, good or bad."""
    # fastsafetensors prints to stdout: keep the pipe for events, and send prints where the log is.
    events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def emit(event: dict[str, Any]) -> None:
        events.write(json.dumps(event) + "\n")
        events.flush()

    # Allocations of an import are nearly all kept: collecting garbage in between only costs time.
    gc.disable()
    try:
        emit({"event": "ready", **_import_libraries()})
    except Exception as error:  # noqa: BLE001 - a process's edge; a broken installation raises anything
        emit(_failure("LoaderMissing", error))
        return 0
    gc.enable()
    line = sys.stdin.readline()
    if not line:
        # The caller has found a bad header in the meantime.
        return 0
    emit(_answer(json.loads(line), emit))
    return 0


def _import_libraries() -> dict[str, str]:
    import fastsafetensors  # noqa: PLC0415 - see the module's docstring
    import torch  # noqa: PLC0415 - see the module's docstring

    return {"torchVersion": str(torch.__version__), "fastsafetensorsVersion": str(fastsafetensors.__version__)}


def _failure(kind: str, error: BaseException) -> dict[str, Any]:
    number = error.errno if isinstance(error, OSError) else None
    said = f"{type(error).__name__}: {error}"
    return {"event": "result", "ok": False, "kind": kind, "error": said, "errno": number}


def _answer(request: dict[str, Any], emit: Any) -> dict[str, Any]:
    try:
        lacking = find_lacking_dtype(request["dtypes"])
        if lacking is not None:
            return {"event": "result", "ok": False, "kind": "DtypeUnsupported", "error": lacking, "errno": None}
        return _load_with_retry(request, emit)
    except MemoryError as error:
        return _failure("NoMemory", error)
    except Exception as error:  # noqa: BLE001 - fastsafetensors raises plain Exceptions; the caller maps them
        return _failure("LoadFailed", error)


def find_lacking_dtype(dtypes: list[str]) -> str | None:
    """Finds the first dtype that the libraries at hand can't load.

    Args:
        dtypes: Names as in headers.

    Returns:
        A sentence that names the dtype and the library that lacks it, or None.
    """
    import fastsafetensors  # noqa: PLC0415 - see the module's docstring
    import torch  # noqa: PLC0415 - see the module's docstring
    from fastsafetensors.st_types import DType  # noqa: PLC0415 - see the module's docstring

    known = {member.value for member in DType}
    for name in dtypes:
        if not hasattr(torch, TORCH_NAMES.get(name, "")):
            return f"torch {torch.__version__} has no type for {name}"
        if name not in known:
            return f"fastsafetensors {fastsafetensors.__version__} cannot load {name}"
    return None


def _load_with_retry(request: dict[str, Any], emit: Any) -> dict[str, Any]:
    """Loads, and once more from scratch without GPUDirect Storage when that is what failed."""
    wants_gds = request["device"] != "cpu" and request["gds"] == "Auto"
    try:
        return _load(request, nogds=not wants_gds)
    except Exception as error:
        if not wants_gds or not mentions_gds(error):
            raise
        emit({"event": "warning", "message": f"GPUDirect Storage failed ({error}); loading once more without it"})
    return {**_load(request, nogds=True), "gds": "Failed"}


def mentions_gds(error: Exception) -> bool:
    """Whether an error is about GPUDirect Storage, as vLLM decides it, plus the one that is no RuntimeError.

    Args:
        error: What the loader raised.

    Returns:
        True when a load without GPUDirect Storage is worth a try.
    """
    said = str(error).lower()
    return "gds" in said and (isinstance(error, RuntimeError) or "[fail] init_gds()" in said)


def _load(request: dict[str, Any], *, nogds: bool) -> dict[str, Any]:
    import fastsafetensors  # noqa: PLC0415 - see the module's docstring
    import torch  # noqa: PLC0415 - see the module's docstring

    names = {getattr(torch, attribute): name for name, attribute in TORCH_NAMES.items() if hasattr(torch, attribute)}
    started = time.monotonic()
    loader = fastsafetensors.ParallelLoader(
        None,
        request["files"],
        queue_size=request["queueSize"],
        use_tqdm_on_load=False,
        device=request["device"],
        bbuf_size_kb=_BOUNCE_BUFFER_KIB,
        max_threads=request["maxThreads"],
        nogds=nogds,
        # Bounds the memory by the largest tensor and not by the largest shard.
        max_batch_bytes=max(_MIN_BATCH_BYTES, request["largestTensorBytes"]) if nogds else None,
        # Tensors are looked at and dropped: no second copy of each.
        borrowed_tensors=True,
        accumulate_resident=False,
    )
    tensors: list[tuple[str, str, list[int]]] = []
    with contextlib.closing(loader):
        # The iterator is closed before the loader, or its buffers stay.
        with contextlib.closing(loader.iterate_weights()) as weights:
            for name, tensor in weights:
                tensors.append((name, names.get(tensor.dtype, str(tensor.dtype)), list(tensor.shape)))
        if request["device"] != "cpu":
            torch.cuda.synchronize()
    seconds = time.monotonic() - started
    gds = "NotUsed" if nogds else "Used"
    return {"event": "result", "ok": True, "tensors": tensors, "loadSeconds": seconds, "gds": gds}


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    # Torch's teardown takes a third of a second and nothing here needs it.
    os._exit(code)
