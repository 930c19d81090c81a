"""Hashes the files that count and makes the manifest digest, the identity of a checkpoint's bytes.

Called by `validate`, beside the load process. Must not import torch.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from typing import TYPE_CHECKING

from modelweights_loader.errors import TryAgainError, error_from_os

if TYPE_CHECKING:
    from modelweights_loader.checkpoint import Checkpoint, CheckpointFile

# Stays in the processor's second-level cache between the copy and the hash.
_PIECE_BYTES = 2**18


class ManifestHasher:
    """Hashes in threads from its construction on; `digest` waits for them."""

    def __init__(self, checkpoint: Checkpoint, num_threads: int | None = None) -> None:
        """Starts the threads.

        Args:
            checkpoint: Whose files to hash.
            num_threads: Default: one per processor that this process may use, at most one per file.
        """
        self._root = checkpoint.path
        # The largest first, so that the last thread is not left alone with it.
        self._pending = sorted(checkpoint.files, key=lambda file: file.size_bytes)
        self._lines: dict[str, dict[str, object]] = {}
        self._error: BaseException | None = None
        self._cancelled = False
        count = max(1, min(num_threads or len(os.sched_getaffinity(0)), len(self._pending)))
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def digest(self) -> str:
        """Waits for all hashes.

        Returns:
            `sha256:` and 64 hex digits, over the canonical JSON of the list of {path, sha256, size}, sorted by path.

        Raises:
            WillNotWorkError: A file can't be read.
            TryAgainError: The storage failed, or a file changed its size.
        """
        for thread in self._threads:
            thread.join()
        if self._error is not None:
            raise self._error
        return digest_of([self._lines[path] for path in sorted(self._lines)])

    def cancel(self) -> None:
        """Makes the threads end soon, without waiting for them."""
        self._cancelled = True

    def _run(self) -> None:
        buffer = memoryview(bytearray(_PIECE_BYTES))
        while self._error is None and not self._cancelled:
            try:
                file = self._pending.pop()
            except IndexError:
                return
            try:
                self._lines[file.path] = {
                    "path": file.path,
                    "size": file.size_bytes,
                    "sha256": self._hash(file, buffer),
                }
            except Exception as error:  # noqa: BLE001 - carried over to the thread that asks for the digest
                self._error = error

    def _hash(self, file: CheckpointFile, buffer: memoryview) -> str:
        shown = f"{self._root}/{file.path}"
        sha256 = hashlib.sha256()
        left = file.size_bytes
        try:
            with open(file.real_path, "rb", buffering=0) as raw:
                while left > 0 and not self._cancelled and (got := raw.readinto(buffer)):
                    sha256.update(buffer[:got])
                    left -= got
        except OSError as error:
            raise error_from_os(error, shown, "read") from error
        if left != 0 and not self._cancelled:
            message = f"{shown} changed its size while it was hashed; wait until nothing writes there"
            raise TryAgainError(message, reason="FileChanged")
        return sha256.hexdigest()


def digest_of(lines: list[dict[str, object]]) -> str:
    """Makes the digest of a manifest.

    Args:
        lines: {path, sha256, size} per file, sorted by path.

    Returns:
        `sha256:` and 64 hex digits.
    """
    canonical = json.dumps(lines, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    # A file name that is no UTF-8 counts with the bytes that it has on disk.
    return f"sha256:{hashlib.sha256(canonical.encode(errors='surrogateescape')).hexdigest()}"
