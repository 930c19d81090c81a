"""Measures what a load costs this process: memory of its own at the peak, and bytes fetched from storage.

Called by `load.worker`, in the load process. Must not import torch.
"""

from __future__ import annotations

import threading

_SAMPLE_SECONDS = 0.005


def read_storage_bytes() -> int | None:
    """Reads what the kernel has fetched from storage for this process so far.

    Returns:
        Bytes, or None where /proc does not say.
    """
    try:
        with open("/proc/self/io", "rb", buffering=0) as file:
            text = file.read()
    except OSError:
        return None
    for line in text.splitlines():
        if line.startswith(b"read_bytes:"):
            return int(line.split()[1])
    return None


def read_own_memory() -> int:
    """Reads how much memory is this process's own: anonymous and shared, without pages of files.

    Returns:
        Bytes; 0 where /proc does not say.
    """
    try:
        with open("/proc/self/status", "rb", buffering=0) as file:
            text = file.read()
    except OSError:
        return 0
    wanted = (b"RssAnon:", b"RssShmem:")
    return sum(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith(wanted))


class PeakMemory:
    """Samples this process's own memory in a thread while it is entered."""

    def __init__(self) -> None:
        self.base_bytes = 0
        self.peak_bytes = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> PeakMemory:
        """Starts sampling.

        Returns:
            Itself.
        """
        self.base_bytes = self.peak_bytes = read_own_memory()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stops sampling."""
        self._done.set()
        self._thread.join()

    def look(self) -> None:
        """Takes one sample now, for moments that are known to be high."""
        self.peak_bytes = max(self.peak_bytes, read_own_memory())

    def _run(self) -> None:
        while not self._done.wait(_SAMPLE_SECONDS):
            self.look()
