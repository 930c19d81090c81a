"""One file on its way: who writes which range of it, and the hash that follows the writing. Called by `workers`.

Ranges are claimed in ascending order. The frontier is the end of what is hashed; it lies in the first claim that isn't over:

    0 ........ hashed ........ frontier ... written ... | claim of another worker: written in part | claim | not claimed yet

Its worker hashes each piece from its own hand; the others sum up theirs, chunk by chunk, so that a kill doesn't cost them. When that claim is over, the worker goes on through those behind it that are
over too, reading them from the page cache where they were just written, and leaves the next one to its own worker.
"""

from __future__ import annotations

import hashlib
import os
import threading
import zlib
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from modelweights_loader.errors import BadCheckpointError, TryAgainError
from modelweights_loader.expected_hashes import start_git_blob
from modelweights_loader.fetch.folders import Folder, refuse_planted, saying
from modelweights_loader.fetch.journal import Chunk
from modelweights_loader.fetch.write_back import allocate

if TYPE_CHECKING:
    from collections.abc import Callable

    from modelweights_loader.sources.contract import RemoteFile

# Stays in the processor's second-level cache between the copy and the hash.
_PIECE_BYTES = 2**18
_ALLOCATE_FROM_BYTES = 2**20
# So much of each connection's work a kill may cost.
_NOTE_BYTES = 2**22
UNKNOWN_END = 2**62


class Claim:
    """A range that one worker fetches.

    Attributes:
        transfer: Of which file.
        position: Up to where it is written.
        end: Where it ends; moved down when another worker takes the rest of it.
        is_over: All of it is written.
        is_cancelled: What it gives is of no use any more.
        chunk_begin: Where what is summed up in crc32 begins, or -1.
        crc32: Of what was written since.
    """

    def __init__(self, transfer: Transfer, begin: int, end: int) -> None:
        self.transfer = transfer
        self.position = begin
        self.end = end
        self.is_over = False
        self.is_cancelled = False
        self.chunk_begin = -1
        self.crc32 = 0


class Digests(NamedTuple):
    """Of a whole file; git_blob is "" where nobody asked for it."""

    sha256: str
    git_blob: str


class Transfer:
    """One file. Which ranges are claimed is `schedule`'s, under its lock; the rest is guarded by the lock here."""

    def __init__(
        self,
        file: RemoteFile,
        part_bytes: int,
        prefix: tuple[tuple[int, str], ...] = (),
        chunks: tuple[Chunk, ...] = (),
    ) -> None:
        """Begins with nothing opened.

        Args:
            file: As listed.
            part_bytes: Other connections take ranges of that size, and so often it is brought to the disk.
            prefix: Ends and digests that an earlier run left, ascending.
            chunks: What it left behind them.
        """
        self.file = file
        self.part_bytes = part_bytes
        self.note_bytes = _NOTE_BYTES if part_bytes % _NOTE_BYTES == 0 else part_bytes
        self.prefix = prefix
        self.is_resumed = bool(prefix or chunks)
        self._left = {chunk.begin: chunk for chunk in chunks}
        self.descriptor = -1
        self.next_begin = 0
        self.num_active = 0
        self.is_whole = file.size_bytes < 0
        self.must_restart = False
        self.restarts = 0
        self.is_done = False
        self.is_reserved = False
        self.keeps_pages = True
        self.dropped_bytes = 0
        self.counted_bytes = 0
        self._lock = threading.Lock()
        self._claims: deque[Claim] = deque()
        self._forget()

    def _forget(self) -> None:
        self.frontier = 0
        self._sha256: Any = hashlib.sha256()
        self._git: Any = None
        if self.file.git_blob and self.file.size_bytes >= 0:
            self._git = start_git_blob(self.file.size_bytes)

    @property
    def is_small(self) -> bool:
        """Whether it has no part of its own."""
        return 0 <= self.file.size_bytes < self.part_bytes

    def open(self, files: Folder, on_read: Callable[[int], None]) -> None:
        """Opens the file and proves what an earlier run left of it. Blocks for a read of all that. Once is enough.

        Args:
            files: The folder below which its path lies.
            on_read: Told of bytes that are good.

        Raises:
            LoaderError: It can't be opened or has no room.
        """
        if self.descriptor >= 0:
            return
        with files.holding(self.file.path, make=True) as (folder, name):
            shown = f"{folder.shown}/{name}"
            self.descriptor = self.open_file(folder, name)
            if self.is_resumed:
                with saying("read", shown):
                    self._prove_prefix(on_read)
            with saying("write", shown):
                if self.file.size_bytes >= _ALLOCATE_FROM_BYTES and not self.is_reserved:
                    allocate(self.descriptor, self.frontier, self.file.size_bytes)
        self.next_begin = self.frontier

    def open_file(self, folder: Folder, name: str) -> int:
        """Opens what an earlier run, or the reservation, left of the file; else makes it anew.

        Args:
            folder: That holds it.
            name: In there.

        Returns:
            A descriptor for reading and writing; the caller closes it.

        Raises:
            LoaderError: It can't be opened, or has a second name.
        """
        if not (self.is_resumed or self.is_reserved):
            return _create(folder, name)
        descriptor = folder.open(name, os.O_RDWR)
        # A file of two names may be published under the other one.
        if os.fstat(descriptor).st_nlink != 1:
            os.close(descriptor)
            refuse_planted(f"{folder.shown}/{name}")
        return descriptor

    def _prove_prefix(self, on_read: Callable[[int], None]) -> None:
        """Leaves the frontier at the last end up to where the bytes are those of the journal."""
        buffer = memoryview(bytearray(_PIECE_BYTES))
        for end, digest in self.prefix:
            sha256, git, begin = self._sha256.copy(), self._git and self._git.copy(), self.frontier
            while begin < end and (got := os.preadv(self.descriptor, [buffer[: end - begin]], begin)):
                sha256.update(buffer[:got])
                if git is not None:
                    git.update(buffer[:got])
                begin += got
            if begin < end or sha256.hexdigest() != digest:
                break
            on_read(end - self.frontier)
            self._sha256, self._git, self.frontier = sha256, git, end

    def claim(self, end: int) -> Claim:
        """Claims from the last claim's end on. Called under the schedule's lock.

        Args:
            end: Where to.

        Returns:
            The claim.
        """
        claim = Claim(self, self.next_begin, end)
        self.next_begin = end
        self._claims.append(claim)
        return claim

    def write(self, claim: Claim, piece: memoryview) -> list[tuple[int, str]]:
        """Writes a piece at the claim's position, and hashes it when that is the frontier.

        Args:
            claim: Of this transfer.
            piece: Within the claim.

        Returns:
            Ends of parts that are hashed now, with the digest of all before.

        Raises:
            OSError: It can't be written.
        """
        begin = claim.position
        written = 0
        while written < len(piece):
            written += os.pwrite(self.descriptor, piece[written:], begin + written)
        claim.position = begin + written
        if self._claims[0] is not claim:
            return []
        with self._lock:
            return [*self._hash_written(begin), *self._hash(piece)]

    def sum_up(self, claim: Claim, piece: memoryview) -> list[Chunk]:
        """Sums up a piece that was just written behind the frontier.

        Args:
            claim: Of this transfer; its position is the piece's end.
            piece: Of any size.

        Returns:
            Chunks that are whole now. None where the claim is the first: what it writes is hashed.
        """
        if self._claims[0] is claim:
            claim.chunk_begin = -1
            return []
        chunks, begin = [], claim.position - len(piece)
        while piece:
            boundary = (begin // self.note_bytes + 1) * self.note_bytes
            head, piece = piece[: boundary - begin], piece[boundary - begin :]
            if claim.chunk_begin < 0:
                claim.chunk_begin, claim.crc32 = begin, 0
            claim.crc32 = zlib.crc32(head, claim.crc32)
            begin += len(head)
            if begin in (boundary, self.file.size_bytes):
                chunks.append(Chunk(claim.chunk_begin, begin, claim.crc32))
                claim.chunk_begin = -1
        return chunks

    def next_left(self, position: int) -> int:
        """Where the next chunk begins that an earlier run left."""
        return min((begin for begin in self._left.copy() if begin > position), default=UNKNOWN_END)

    def take_left(self, claim: Claim) -> list[tuple[int, str]] | None:
        """Goes over a chunk that an earlier run left at the claim's position, if its bytes are still there. Blocks for a read.

        Args:
            claim: Of this transfer.

        Returns:
            As `write`; None where there is no such chunk.

        Raises:
            OSError: It can't be read.
        """
        chunk = self._left.pop(claim.position, None)
        if chunk is None or not claim.position < chunk.end <= claim.end or not self._is_there(chunk):
            return None
        claim.position, claim.chunk_begin = chunk.end, -1
        if self._claims[0] is not claim:
            return []
        with self._lock:
            return self._hash_written(chunk.end)

    def _is_there(self, chunk: Chunk) -> bool:
        buffer = memoryview(bytearray(_PIECE_BYTES))
        position, crc32 = chunk.begin, 0
        while position < chunk.end and (got := os.preadv(self.descriptor, [buffer[: chunk.end - position]], position)):
            crc32 = zlib.crc32(buffer[:got], crc32)
            position += got
        return (position, crc32) == (chunk.end, chunk.crc32)

    def finish(self, claim: Claim) -> list[tuple[int, str]]:
        """Ends a claim, and hashes on through what others have written behind it.

        Args:
            claim: All of it is written.

        Returns:
            As `write`.

        Raises:
            OSError: What was written can't be read.
        """
        claim.is_over = True
        ends: list[tuple[int, str]] = []
        # Who doesn't get the lock may leave: its holder looks once more after it has let go of it.
        while self._first_is_over() and self._lock.acquire(blocking=False):
            try:
                while self._first_is_over():
                    ends += self._hash_written(self._claims[0].position)
                    self._claims.popleft()
            finally:
                self._lock.release()
        return ends

    def _first_is_over(self) -> bool:
        try:
            return self._claims[0].is_over
        except IndexError:
            return False

    def _hash_written(self, end: int) -> list[tuple[int, str]]:
        if self.frontier >= end:
            return []
        ends: list[tuple[int, str]] = []
        buffer = memoryview(bytearray(_PIECE_BYTES))
        while self.frontier < end:
            got = os.preadv(self.descriptor, [buffer[: end - self.frontier]], self.frontier)
            if not got:
                message = f"{self.file.path} lost bytes that were just written; check the storage, then try again"
                raise TryAgainError(message, reason="WriteFailed")
            ends += self._hash(buffer[:got])
        return ends

    def _hash(self, piece: memoryview) -> list[tuple[int, str]]:
        ends = []
        while piece:
            boundary = (self.frontier // self.note_bytes + 1) * self.note_bytes
            head = piece[: boundary - self.frontier]
            self._sha256.update(head)
            if self._git is not None:
                self._git.update(head)
            self.frontier += len(head)
            piece = piece[len(head) :]
            if self.frontier == boundary:
                ends.append((boundary, self._sha256.copy().hexdigest()))
        return ends

    def is_complete(self) -> bool:
        """Whether all of it is written and hashed. Called under the schedule's lock."""
        return not self._claims and self.frontier >= self.next_begin and self.next_begin >= self.file.size_bytes

    def cancel(self) -> None:
        """Has its workers stop; it begins anew once they have. Called under the schedule's lock."""
        self.must_restart = True
        for claim in self._claims:
            claim.is_cancelled = True

    def restart(self) -> None:
        """Forgets all that was fetched. Nobody works on it.

        Raises:
            OSError: The file can't be emptied.
        """
        self._claims.clear()
        self._left.clear()
        self._forget()
        self.restarts += 1
        self.dropped_bytes = 0
        self.next_begin = 0
        self.must_restart = False
        if self.descriptor >= 0:
            os.ftruncate(self.descriptor, 0)
            if self.is_reserved:
                allocate(self.descriptor, 0, self.file.size_bytes)

    def digests(self) -> Digests:
        """The hashes of the whole file. Blocks for a read of a small one whose size nobody said."""
        if self.file.git_blob and self._git is None:
            # git's hash begins with the size.
            self._git = start_git_blob(self.frontier)
            self._git.update(os.pread(self.descriptor, self.frontier, 0))
        return Digests(self._sha256.hexdigest(), self._git.hexdigest() if self._git is not None else "")

    def close(self) -> None:
        """Closes the file."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def _create(folder: Folder, name: str) -> int:
    """Makes a new file; what has its name, whatever it is, goes and is not written to."""
    try:
        return folder.create(name)
    except FileExistsError:
        folder.unlink(name)
        return folder.create(name)


def find_mismatch(file: RemoteFile, digests: Digests, source: str) -> BadCheckpointError | None:
    """Compares with what the source says.

    Args:
        file: As listed.
        digests: Of what came.
        source: Who says so, in words.

    Returns:
        The error to raise, or None.
    """
    for kind, expected, got in (
        ("sha256", file.sha256, digests.sha256),
        ("git blob hash", file.git_blob, digests.git_blob),
    ):
        if expected and got != expected.lower():
            message = (
                f"{file.path} has the {kind} {got}, but {source} says {expected}, twice in a row; the source or what "
                "lies in between gives wrong bytes, so tell who runs it"
            )
            return BadCheckpointError(message, reason="HashMismatch")
    return None
