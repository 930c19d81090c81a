"""Swaps two names again and again from a process of its own, as one would who races the loader."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import random
import subprocess
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_REST_SECONDS = (0.0, 0.0002, 0.001)


@contextlib.contextmanager
def swapping(first: Path, second: Path) -> Iterator[None]:
    """Exchanges two entries all the time, each time at once: no moment is there at which one of them is lacking.

    Args:
        first: Such as a folder.
        second: Such as a link to another one.
    """
    argv = [sys.executable, "-m", __name__, os.fspath(first), os.fspath(second)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"swapping\n"
            yield
        finally:
            rounds, _ = process.communicate(timeout=10)
    assert (process.returncode, int(rounds) > 0) == (0, True)


def _swap(first: str, second: str) -> int:
    """Until its input is closed. Rests in between, or whoever is raced sees two halves of a swap only."""
    library = ctypes.CDLL(None, use_errno=True)
    os.set_blocking(0, False)
    print("swapping", flush=True)
    rounds = 0
    while True:
        with contextlib.suppress(BlockingIOError):
            if os.read(0, 1) == b"":
                return rounds
        if library.renameat2(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE):
            # The loader may have renamed or removed one of them.
            if ctypes.get_errno() != errno.ENOENT:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        else:
            rounds += 1
        time.sleep(random.choice(_REST_SECONDS))  # noqa: S311 - no secret


if __name__ == "__main__":
    print(_swap(*sys.argv[1:]))
