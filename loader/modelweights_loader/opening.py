"""Opens what was found by its path, and proves that this is what was opened.

Called by all that read a checkpoint. Between finding a file and opening it somebody who may write there can put a link in the
place of a folder on the way; the kernel says where a descriptor really leads. Must not import torch.
"""

from __future__ import annotations

import errno
import os

from modelweights_loader.errors import TryAgainError, describe_os_error

# O_NONBLOCK: opening a FIFO that took the file's place must not hang.
_FILE = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_FOLDER = os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY


def resolve(path: str) -> str:
    """Follows all links.

    Args:
        path: Of a file or folder.

    Returns:
        The real path; what isn't there is taken as it is written.

    Raises:
        TryAgainError: A part of it was exchanged meanwhile.
    """
    try:
        return os.path.realpath(path)
    except OSError as error:
        message = f"{path} changed while it was looked for ({describe_os_error(error)}); stop what writes there"
        raise TryAgainError(message, reason="FileChanged") from error


def open_given(path: str) -> int:
    """Opens a file for reading wherever its path leads, as for a caller who names one.

    Args:
        path: Of the file.

    Returns:
        A descriptor.

    Raises:
        OSError: It can't be opened.
    """
    return os.open(path, _FILE)


def open_found(real_path: str, *, is_folder: bool = False) -> int:
    """Opens a file or folder for reading.

    Args:
        real_path: From `resolve`.
        is_folder: Which of the two.

    Returns:
        A descriptor of what has that very path.

    Raises:
        OSError: It can't be opened, or another one is there by now.
    """
    descriptor = os.open(real_path, _FOLDER if is_folder else _FILE)
    try:
        leads_to = os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        # Without /proc nobody can tell.
        return descriptor
    if leads_to != real_path:
        os.close(descriptor)
        raise OSError(errno.ESTALE, "it is no longer where it was found", real_path)
    return descriptor
