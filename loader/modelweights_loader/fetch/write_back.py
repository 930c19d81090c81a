"""Calls that Python doesn't offer: starting write-back of a range, room for a file before it is written, syncfs.

Called by `transfer`, `workers` and `syncing`. All are only of help: where the file system or a sandbox refuses them, all goes on.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
from typing import Any

_SYNC_FILE_RANGE_WRITE = 2
_FALLOC_FL_KEEP_SIZE = 1


@functools.cache
def _library() -> Any:
    return ctypes.CDLL(None, use_errno=True)


def start_write_back(descriptor: int, begin: int, length: int) -> None:
    """Has the kernel begin to write dirty pages; it waits only where the disk's queue is full, which slows down who writes.

    Args:
        descriptor: An open file.
        begin: First byte.
        length: In bytes.
    """
    try:
        call = _library().sync_file_range
    except (AttributeError, OSError):
        return
    call(descriptor, ctypes.c_int64(begin), ctypes.c_int64(length), ctypes.c_uint(_SYNC_FILE_RANGE_WRITE))


def allocate(descriptor: int, begin: int, size_bytes: int) -> bool:
    """Takes room on the disk for a file, whose size stays as it is: a full disk shows now and not after hours.

    Args:
        descriptor: Open for writing.
        begin: From here on.
        size_bytes: Up to here.

    Returns:
        Whether it is taken; no file system has to be able to.

    Raises:
        OSError: There is no room. That the file system can't do it is no error; posix_fallocate would write zeros there.
    """
    try:
        call = _library().fallocate
    except (AttributeError, OSError):
        return False
    while size_bytes > begin:
        length = ctypes.c_int64(size_bytes - begin)
        if call(descriptor, _FALLOC_FL_KEEP_SIZE, ctypes.c_int64(begin), length) == 0:
            return True
        number = ctypes.get_errno()
        if number in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
            raise OSError(number, os.strerror(number))
        if number != errno.EINTR:
            return False
    return True


def sync_file_system(descriptor: int) -> bool:
    """Brings all that was written to a file system to its disk, also by others.

    Args:
        descriptor: An open file on it.

    Returns:
        Whether it is there. If not, syncing a single file tells why.
    """
    try:
        call = _library().syncfs
    except (AttributeError, OSError):
        return False
    return bool(call(descriptor) == 0)
