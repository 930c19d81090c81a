"""Sorts what the libraries raise: their errors are plain Exceptions, so words have to do.

Used by `load.worker` to tell a refusal from a disturbance, and by `load_process` for reasons. Must not import torch.
"""

from __future__ import annotations

import errno

LOADER_MISSING = "LoaderMissing"
LOADER_UNSUPPORTED = "LoaderUnsupported"
DTYPE_UNSUPPORTED = "DtypeUnsupported"
LOAD_FAILED = "LoadFailed"
NO_MEMORY = "NoMemory"
BITS_DIFFER = "TensorBitsDiffer"
FORBIDDEN = "Forbidden"
READ_FAILED = "ReadFailed"
DEVICE_UNAVAILABLE = "DeviceUnavailable"
RANK_LOST = "RankLost"

# The last one is the dynamic linker's, while torch is imported.
_NO_MEMORY_WORDS = ("out of memory", "can't allocate memory", "cannot allocate memory", "failed to map segment")
_STORAGE_WORDS = ("submit_nogds_read", "wait_nogds_read", "pread")
_DEVICE_WORDS = ("cuda", "nvidia", "gpu runtime library")
_GROUP_WORDS = ("gloo", "connection closed by peer", "connection reset by peer", "rendezvous")


def classify(kind: str, said: str, number: int | None) -> str:
    """Finds the reason of a load that failed.

    Args:
        kind: What the load process calls it: one of the reasons above.
        said: The error in words.
        number: errno, where there was one.

    Returns:
        One of the reasons above.
    """
    lowered = said.lower()
    if kind == NO_MEMORY or number == errno.ENOMEM or any(words in lowered for words in _NO_MEMORY_WORDS):
        return NO_MEMORY
    if kind != LOAD_FAILED:
        return kind
    if number in {errno.EACCES, errno.EPERM}:
        return FORBIDDEN
    if any(words in lowered for words in _GROUP_WORDS):
        return RANK_LOST
    if number is not None:
        return READ_FAILED
    if any(words in lowered for words in _DEVICE_WORDS) or "hip" in lowered.split():
        return DEVICE_UNAVAILABLE
    if any(words in lowered for words in _STORAGE_WORDS):
        return READ_FAILED
    return LOAD_FAILED


def is_refusal(reason: str) -> bool:
    """Whether a library refused the checkpoint itself, rather than lacked memory, storage or a device.

    Args:
        reason: From `classify`.

    Returns:
        True for what would be the same on every healthy machine with these versions.
    """
    return reason in {LOAD_FAILED, DTYPE_UNSUPPORTED}
