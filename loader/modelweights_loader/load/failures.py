"""Sorts what the libraries raise: their errors are plain Exceptions, so words have to do.

Used by `load.worker` to tell a refusal from a disturbance, and by `load_process` for reasons. Must not import torch.
"""

from __future__ import annotations

import errno
import os

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
GROUP_UNSUPPORTED = "GroupUnsupported"

# The first two are about threads. The last one is the dynamic linker's, while torch is imported.
_NO_MEMORY_WORDS = (
    *("can't start new thread", "resource temporarily unavailable"),
    *("out of memory", "can't allocate memory", "cannot allocate memory", "bad_alloc", "failed to map segment"),
)
# C++ and Rust put the system's words into errors of their own, and lose the number.
_SYSTEM_WORDS = {
    os.strerror(number).lower(): number
    for number in (
        *(errno.EIO, errno.ENFILE, errno.EMFILE, errno.ENOSPC, errno.EDQUOT, errno.ESTALE, errno.EREMOTEIO),
        *(errno.ENOTCONN, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENODEV, errno.ENXIO),
        *(errno.EBUSY, errno.EUCLEAN, errno.EBADMSG, errno.ENOENT, errno.EACCES, errno.EPERM),
    )
}
# Of the words above: a library that is not there, or may not be read, is an installation's fault.
_INSTALLATION_NUMBERS = (errno.ENOENT, errno.EACCES, errno.EPERM)
# In this order: what ranks say of each other mentions devices and reads too.
_WORDS = (
    # Gloo lacks some types. Before 0.5.0 tensors are sent as what they are and not as bytes, since then only empty ones.
    (GROUP_UNSUPPORTED, ("invalid scalar type",)),
    (RANK_LOST, ("gloo", "connection closed by peer", "connection reset by peer", "rendezvous")),
)
_WORDS_WITHOUT_NUMBER = (
    (DEVICE_UNAVAILABLE, ("cuda", "nvidia", "gpu runtime library")),
    (READ_FAILED, ("submit_nogds_read", "wait_nogds_read", "pread", "nogds mmap", "failed to open file")),
)


def classify_error(error: BaseException) -> str:
    """Finds the reason of what a library raised.

    Args:
        error: Anything.

    Returns:
        One of the reasons above.
    """
    number = error.errno if isinstance(error, OSError) else None
    return classify(name_kind(error), describe(error), number)


def name_kind(error: BaseException) -> str:
    """Says what the type of an error alone tells.

    Args:
        error: What a library raised.

    Returns:
        A kind for `classify`.
    """
    if isinstance(error, MemoryError):
        return NO_MEMORY
    return LOADER_MISSING if isinstance(error, ImportError) else LOAD_FAILED


def describe(error: BaseException) -> str:
    """Says an error in words.

    Args:
        error: Anything.

    Returns:
        Its type and its message.
    """
    return f"{type(error).__name__}: {error}"


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
    if kind not in {LOAD_FAILED, LOADER_MISSING}:
        return kind
    said_number = next((known for words, known in _SYSTEM_WORDS.items() if words in lowered), None)
    if kind == LOADER_MISSING:
        return kind if said_number in {None, *_INSTALLATION_NUMBERS} else READ_FAILED
    if number is None and not any(word in lowered for _, words in _WORDS for word in words):
        number = said_number
    if number in {errno.EACCES, errno.EPERM}:
        return FORBIDDEN
    known = _WORDS if number is not None else (*_WORDS, *_WORDS_WITHOUT_NUMBER)
    found = next((reason for reason, words in known if any(word in lowered for word in words)), None)
    if found is None and number is not None:
        return READ_FAILED
    return found or (DEVICE_UNAVAILABLE if "hip" in lowered.split() else LOAD_FAILED)


def find_refusal(error: BaseException) -> str | None:
    """Tells a library's refusal of the checkpoint from a disturbance.

    Args:
        error: What it raised.

    Returns:
        Its words when it refused, None when it could not find out, for lack of memory and the like.
    """
    return describe(error) if is_refusal(classify_error(error)) else None


def is_refusal(reason: str) -> bool:
    """Whether a library refused the checkpoint itself, rather than lacked memory, storage or a device.

    Args:
        reason: From `classify`.

    Returns:
        True for what would be the same on every healthy machine with these versions.
    """
    return reason in {LOAD_FAILED, DTYPE_UNSUPPORTED}
