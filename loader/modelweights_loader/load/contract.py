"""What the load process is asked and what it answers: the one contract of `load_process` and of the worker.

Used by `load_process`, `validate` and `tune` on one side and by `load.worker` on the other. On the wire a request is the
JSON object of its fields, and so is the answer. Must not import torch.
"""

from __future__ import annotations

from typing import NamedTuple

FASTSAFETENSORS = "fastsafetensors"
SAFETENSORS = "safetensors"
LOAD_FORMATS = (FASTSAFETENSORS, SAFETENSORS)

# The libraries as verdicts name them.
PARALLEL_LOADER_VERDICT = "parallelLoader"
SAFETENSORS_VERDICT = "safetensors"
ACCEPTS = "Accepts"
REFUSES = "Refuses"
NOT_TRIED = "NotTried"

# 1 MiB bounce buffers stay in the processor's cache: up to twice the rate of the library's default of 16 MiB.
BOUNCE_BUFFER_KIB = 1024
# Lower bound of what is loaded at a time; a tensor larger than that is loaded alone.
MIN_BATCH_BYTES = 64 * 2**20


class LoadRequest(NamedTuple):
    """One load: which files, and with which settings.

    Attributes:
        files: Real paths of shards, in load order. Each holds at least one tensor.
        dtypes: Names of the dtypes in them, as headers write them: those that the libraries lack have a reason of
            their own.
        load_format: `fastsafetensors` loads with ParallelLoader, `safetensors` with `safe_open`, every tensor copied.
            It decides what a refusal means; the other one's verdict is in the answer too when `both_verdicts`.
        queue_size: ParallelLoader's: -1 serial, 0 a pipeline of two batches, n > 0 up to n + 2 batches.
        odirect: True reads past the page cache, as the library does by default on local disks. The library looks at
            the environment whenever it opens a file, so this holds for one request, not for the process.
        bounce_buffer_kib: ParallelLoader's bbuf_size_kb.
        max_threads: ParallelLoader's number of reader threads.
        max_batch_bytes: Upper bound of a batch, at least the largest tensor, or the library refuses; 0 leaves it to
            the library (a whole shard at a time, as engines do), None is the default bound: the largest tensor, at
            least 64 MiB.
        device: `cpu`, `cuda` or `cuda:N`.
        gds: `Auto` asks for GPUDirect Storage where device, driver and library are there; `Never` doesn't.
        rank: Of this process in its group.
        world_size: Processes in the group; 1 is no group.
        store: File for the group's rendezvous, new for each group; empty without a group.
        compare: Full: every tensor bit for bit against safetensors (where it is there) and the file's own bytes.
        list_tensors: Whether the answer names each tensor; counts and bytes are in it always.
        both_verdicts: Whether the library that does not load is asked too whether it accepts headers and dtypes.
        pace_bytes: With n > 0 the process reports every n bytes and waits for `LoadProcess` to let it go on, so that
            whoever reads the same files beside it stays near. 0 never waits.
        borrow: Whether tensors that are only looked at may lie in buffers that are used again, or in the library's own;
            False copies each into memory of its own, as engines have it.
    """

    files: list[str]
    dtypes: list[str]
    load_format: str = FASTSAFETENSORS
    queue_size: int = 0
    odirect: bool = False
    bounce_buffer_kib: int = BOUNCE_BUFFER_KIB
    max_threads: int = 2
    max_batch_bytes: int | None = None
    device: str = "cpu"
    gds: str = "Auto"
    rank: int = 0
    world_size: int = 1
    store: str = ""
    compare: bool = False
    list_tensors: bool = True
    both_verdicts: bool = False
    pace_bytes: int = 0
    borrow: bool = True


class LoadedTensor(NamedTuple):
    """A tensor that the library gave, its dtype by the name that headers use."""

    name: str
    dtype: str
    shape: list[int]
    size_bytes: int


class LoadResult(NamedTuple):
    """What a good load measured; a bad one is a `LoaderError` with a reason.

    Attributes:
        tensors: In the order in which they came; empty unless asked for.
        tensor_count: How many came.
        loaded_bytes: Their bytes together.
        load_seconds: From the construction of the loader to its last tensor.
        read_bytes: What the kernel fetched from storage for this process meanwhile: `read_bytes` of /proc/self/io
            after the load less before. Page cache hits are not in it, nor is what other processes read. None where
            /proc does not say.
        peak_bytes: The most memory of its own (RssAnon and RssShmem of /proc/self/status; file pages are the page
            cache's) that the process had during the load, sampled every 5 ms and at the end, imports included.
        base_bytes: The same just before the load.
        gds: `Used`, `NotUsed`, or `Failed` (asked for, failed, loaded without).
        odirect: Whether reads went past the page cache by request; False where this version can't.
        nogds: What was passed to the library.
        max_batch_bytes: The bound that was in force; 0 for none.
        ranks: Processes in the group.
        compared_bytes: Bytes that were compared bit for bit; 0 unless asked for.
        verdicts: {parallelLoader, safetensors}: `Accepts`, `Refuses` or `NotTried`.
        refusals: The words of whichever refuses, by the same keys.
    """

    tensors: list[LoadedTensor]
    tensor_count: int
    loaded_bytes: int
    load_seconds: float
    read_bytes: int | None
    peak_bytes: int
    base_bytes: int
    gds: str
    odirect: bool
    nogds: bool
    max_batch_bytes: int
    ranks: int
    compared_bytes: int
    verdicts: dict[str, str]
    refusals: dict[str, str]
