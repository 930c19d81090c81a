"""Hashes the files that count and makes the manifest digest, the identity of a checkpoint's bytes.

Called by `validate`, beside the load processes. Where everything fits into the page cache, files are hashed as fast as
idle processors allow. Where it does not, the hasher keeps close to the load, so that what one of them read is still in
memory for the other, and hardly a byte comes from the disk twice. Must not import torch.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from modelweights_loader.errors import (
    BadCheckpointError,
    TryAgainError,
    WillNotWorkError,
    describe_os_error,
    error_from_os,
)
from modelweights_loader.expected_hashes import GIT_BLOB, Expected, expect_from_cache, start_git_blob
from modelweights_loader.opening import open_found
from modelweights_loader.progress import Progress
from modelweights_loader.small_files import write_atomically

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from modelweights_loader.checkpoint import Checkpoint, CheckpointFile

MANIFEST_VERSION = 1
# Stays in the processor's second-level cache between the copy and the hash.
_PIECE_BYTES = 2**18
# The load and its imports come first: hashing takes what they leave.
_NICENESS = 10


class Pace(NamedTuple):
    """How a hasher keeps close to the load.

    Attributes:
        lanes: The shards that each rank reads from storage, in the order in which it does.
        data_offsets: By shard's path: where tensors begin. The load counts tensors' bytes only.
        distance_bytes: How far the hasher may be ahead of what the load has given. The load waits for the hasher when
            that is behind.
    """

    lanes: Sequence[Sequence[CheckpointFile]]
    data_offsets: Mapping[str, int]
    distance_bytes: int


class _Lane:
    """Files of one thread: counts tensors' bytes that were hashed, and those that may be."""

    def __init__(self, files: Sequence[CheckpointFile], allowed_bytes: float) -> None:
        self.pending = list(reversed(files))
        self.hashed_bytes = 0
        self.allowed_bytes = allowed_bytes


class ManifestHasher:
    """Hashes in threads from its construction on; `digest` waits for them."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        num_threads: int | None = None,
        expected: Mapping[str, Expected] | None = None,
        pace: Pace | None = None,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> None:
        """Starts the threads.

        Args:
            checkpoint: Whose files to hash.
            num_threads: Default: one per processor that this process may use, at most one per file. With a pace it is
                one per lane.
            expected: By path: what hashes should be. Blobs of a Hugging Face cache are checked against their names also.
            pace: Keeps close to the load; None goes ahead.
            on_progress: Told at every tenth, by one of the threads at a time.
        """
        self._root = checkpoint.path
        self._expected = expected or {}
        self._pace = pace
        self._lines: dict[str, dict[str, object]] = {}
        self._error: BaseException | None = None
        self._cancelled = False
        self._moved = threading.Condition()
        self._on_progress = on_progress
        self._telling = threading.Lock()
        self._size_bytes = sum(file.size_bytes for file in checkpoint.files)
        self._done_bytes = self._told_tenths = 0
        self._began = time.monotonic()
        self.checked_count = 0
        shards = set(checkpoint.shards)
        # In load order: where the files are cold, what is hashed is in memory when the load comes to it.
        ordered = [*(file for file in checkpoint.files if file not in shards), *checkpoint.shards]
        if pace is None:
            count = max(1, min(num_threads or len(os.sched_getaffinity(0)), len(ordered)))
            self._lanes = [_Lane(ordered, float("inf"))] * count
        else:
            paced = {file for lane in pace.lanes for file in lane}
            rest = [file for file in ordered if file not in paced]
            lanes = [[*(rest if number == 0 else []), *lane] for number, lane in enumerate(pace.lanes)]
            self._lanes = [_Lane(lane, pace.distance_bytes) for lane in lanes]
        self._threads = [threading.Thread(target=self._run, args=(lane,), daemon=True) for lane in self._lanes]
        for thread in self._threads:
            thread.start()

    def keep_pace(self, rank: int, loaded_bytes: int, deadline: float) -> None:
        """Lets the hasher of a rank's files go on, and holds the rank back until it has caught up.

        Args:
            rank: Whose load has come further.
            loaded_bytes: Of tensors, in load order.
            deadline: Of the monotonic clock; waits no longer.
        """
        if self._pace is None:
            return
        lane = self._lanes[min(rank, len(self._lanes) - 1)]
        distance = self._pace.distance_bytes
        with self._moved:
            lane.allowed_bytes = max(lane.allowed_bytes, loaded_bytes + distance)
            self._moved.notify_all()
            while lane.hashed_bytes < loaded_bytes and self._error is None and not self._cancelled:
                if not self._moved.wait(max(0.0, deadline - time.monotonic())):
                    return

    def release(self) -> None:
        """Lets the hasher go ahead: the load is done."""
        with self._moved:
            for lane in self._lanes:
                lane.allowed_bytes = float("inf")
            self._moved.notify_all()

    def digest(self, deadline: float = float("inf")) -> str:
        """Waits for all hashes.

        Args:
            deadline: Of the monotonic clock.

        Returns:
            `sha256:` and 64 hex digits, over the canonical JSON of the list of {path, sha256, size}, sorted by path. The
            tensor counts of a manifest are not in it: they follow from the bytes.

        Raises:
            WillNotWorkError: A file can't be read.
            TryAgainError: The storage failed or hangs, or a file changed its size.
            BadCheckpointError: A file has another hash than its source says.
        """
        self.release()
        for thread in self._threads:
            thread.join(min(max(0.0, deadline - time.monotonic()), threading.TIMEOUT_MAX))
            if thread.is_alive():
                message = f"the files of {self._root} could not be hashed in time; check the storage, or give more time"
                raise TryAgainError(message, reason="HashTimeout")
        if self._error is not None:
            raise self._error
        return digest_of(self.lines())

    def lines(self) -> list[dict[str, object]]:
        """Returns {path, sha256, size} per file, sorted by path; complete after `digest`."""
        return [self._lines[path] for path in sorted(self._lines)]

    def cancel(self) -> None:
        """Makes the threads end soon, without waiting for them."""
        with self._moved:
            self._cancelled = True
            self._moved.notify_all()

    def _run(self, lane: _Lane) -> None:
        if self._pace is None:
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        buffer = memoryview(bytearray(_PIECE_BYTES))
        while self._error is None and not self._cancelled:
            try:
                file = lane.pending.pop()
            except IndexError:
                return
            try:
                self._lines[file.path] = {
                    "path": file.path,
                    "size": file.size_bytes,
                    "sha256": self._hash(file, buffer, lane),
                }
            except Exception as error:  # noqa: BLE001 - carried over to the thread that asks for the digest
                with self._moved:
                    self._error = error
                    self._moved.notify_all()

    def _hash(self, file: CheckpointFile, buffer: memoryview, lane: _Lane) -> str:
        shown = f"{self._root}/{file.path}"
        checks = _Checks(file, [self._expected.get(file.path), expect_from_cache(file)])
        data_offset = 0 if self._pace is None else self._pace.data_offsets.get(file.path, file.size_bytes)
        done = 0
        try:
            with open(open_found(file.real_path), "rb", buffering=0) as raw:
                if self._pace is not None:
                    # Or what both have read already counts as active, and pushes out what only the load has read.
                    os.posix_fadvise(raw.fileno(), 0, 0, os.POSIX_FADV_NOREUSE)
                while done < file.size_bytes and self._may_go_on(lane) and (got := raw.readinto(buffer)):
                    checks.update(buffer[:got])
                    if self._pace is not None:
                        self._count(lane, max(0, done + got - data_offset) - max(0, done - data_offset))
                    done += got
                    self._tell(got)
        except OSError as error:
            raise error_from_os(error, shown, "read") from error
        if self._cancelled:
            return ""
        if done != file.size_bytes:
            message = f"{shown} changed its size while it was hashed; wait until nothing writes there"
            raise TryAgainError(message, reason="FileChanged")
        self.checked_count += checks.compare(shown)
        return checks.sha256.hexdigest()

    def _tell(self, count_bytes: int) -> None:
        if self._on_progress is None:
            return
        with self._telling:
            self._done_bytes += count_bytes
            tenths = 10 * self._done_bytes // self._size_bytes
            if tenths > self._told_tenths:
                self._told_tenths = tenths
                rate = self._done_bytes / max(time.monotonic() - self._began, 1e-9)
                left = (self._size_bytes - self._done_bytes) / rate
                self._on_progress(Progress(self._done_bytes, self._size_bytes, rate, left))

    def _may_go_on(self, lane: _Lane) -> bool:
        if self._pace is not None and lane.hashed_bytes >= lane.allowed_bytes:
            with self._moved:
                self._moved.wait_for(lambda: self._cancelled or lane.hashed_bytes < lane.allowed_bytes)
        return not self._cancelled

    def _count(self, lane: _Lane, count: int) -> None:
        with self._moved:
            lane.hashed_bytes += count
            self._moved.notify_all()


class _Checks:
    """The hashes of one file: sha256 always, git's where it is expected."""

    def __init__(self, file: CheckpointFile, expected: Sequence[Expected | None]) -> None:
        self.sha256 = hashlib.sha256()
        self._expected = [one for one in expected if one is not None]
        self._git: Any = None
        if any(one.algorithm == GIT_BLOB for one in self._expected):
            self._git = start_git_blob(file.size_bytes)

    def update(self, piece: memoryview) -> None:
        self.sha256.update(piece)
        if self._git is not None:
            self._git.update(piece)

    def compare(self, shown: str) -> int:
        for one in self._expected:
            got = (self._git if one.algorithm == GIT_BLOB else self.sha256).hexdigest()
            if got != one.digest:
                message = (
                    f"{shown} has the {one.algorithm} {got}, but {one.source} says {one.digest}; "
                    "remove the file and download it again"
                )
                raise BadCheckpointError(message, reason="HashMismatch")
        return 1 if self._expected else 0


def digest_of(lines: list[dict[str, object]]) -> str:
    """Makes the digest of a manifest.

    Args:
        lines: {path, sha256, size} per file, sorted by path.

    Returns:
        `sha256:` and 64 hex digits.
    """
    return f"sha256:{hashlib.sha256(_encode(lines)).hexdigest()}"


def encode_manifest(lines: list[dict[str, object]], tensor_counts: Mapping[str, int]) -> bytes:
    """Encodes a manifest: the same bytes for the same files.

    Args:
        lines: {path, sha256, size} per file, sorted by path.
        tensor_counts: By shard's path; empty when no header was read.

    Returns:
        One JSON object {digest, files, version} with sorted keys and without spaces, and a line end.
    """
    files = [
        {**line, "tensorCount": tensor_counts[str(line["path"])]} if line["path"] in tensor_counts else line
        for line in lines
    ]
    return _encode({"version": MANIFEST_VERSION, "digest": digest_of(lines), "files": files}) + b"\n"


def write_manifest(path: str, content: bytes) -> None:
    """Writes a manifest, whole or not at all.

    Args:
        path: The file.
        content: From `encode_manifest`.

    Raises:
        WillNotWorkError: It can't be written.
    """
    try:
        write_atomically(path, content)
    except OSError as error:
        message = f"cannot write the manifest {path} ({describe_os_error(error)}); pass a file that can be written"
        raise WillNotWorkError(message, reason="ManifestNotWritable") from error


def _encode(value: object) -> bytes:
    # A file name that is no UTF-8 counts with the bytes that it has on disk.
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode(errors="surrogateescape")
