"""Gives files that are on this node already a second name where they are to be published. Called by `fetching`.

A hard link costs nothing; where there can't be one, as between the subvolumes of a file system, a copy is made, which shares
its blocks with the file where the file system can do that, and is hashed.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from modelweights_loader.errors import NoRoomError
from modelweights_loader.fetch.folders import Folder, saying
from modelweights_loader.fetch.plan import FETCH, Plan, PlannedFile
from modelweights_loader.fetch.published import Places

if TYPE_CHECKING:
    from modelweights_loader.fetch.journal import Finished

_PIECE_BYTES = 2**26
_COPY_BYTES = 2**20
_NO_COPY_CALL = frozenset({errno.ENOSYS, errno.EXDEV, errno.EOPNOTSUPP, errno.EINVAL})


def link_reusable(home: Folder, files: Folder, plan: Plan) -> Plan:
    """Gives whole files of earlier runs a second name, or a copy; what can have neither is fetched. Blocks for the copies.

    Args:
        home: Of the ModelWeights.
        files: Where the names are to be.
        plan: What is to be done.

    Returns:
        The plan as it is now.

    Raises:
        LoaderError: There is no room for a copy.
    """
    return Plan(tuple(_reuse(home, files, one) for one in plan.files), plan.needed_bytes)


def _reuse(home: Folder, files: Folder, planned: PlannedFile) -> PlannedFile:
    if not planned.link or planned.finished is None:
        return planned
    with files.holding(planned.file.path, make=True) as (target, name):
        target.unlink(name)
        try:
            with home.holding(planned.link) as (source, known_name):
                source.link(known_name, target, name)
        except OSError:
            finished = _copy(home, planned.link, planned.finished, target, name)
            if finished is None:
                target.unlink(name)
                return PlannedFile(planned.file, FETCH, 0)
            return planned._replace(finished=finished)
    return planned


def _copy(home: Folder, place: str, known: Finished, target: Folder, name: str) -> Finished | None:
    """Copies a file; None where that fails, or gives other bytes than are known."""
    try:
        with home.holding(place) as (folder, known_name):
            descriptor = folder.open(known_name, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        copy = target.create(name)
        try:
            with saying("write", f"{target.shown}/{name}"):
                _copy_bytes(descriptor, copy, known.size_bytes)
                os.fchmod(copy, 0o644)
                os.fsync(copy)
                status = os.fstat(copy)
        finally:
            os.close(copy)
    except NoRoomError:
        target.unlink(name)
        raise
    finally:
        os.close(descriptor)
    with Places(target) as places:
        is_same = places.hash(name) == known.sha256
    return known._replace(mtime_ns=status.st_mtime_ns) if is_same else None


def _copy_bytes(source: int, target: int, size_bytes: int) -> None:
    """With one call of the kernel for many, which shares blocks or copies within it; else by hand."""
    position = 0
    try:
        while position < size_bytes and (
            count := os.copy_file_range(source, target, min(_PIECE_BYTES, size_bytes - position), position, position)
        ):
            position += count
    except OSError as error:
        if error.errno not in _NO_COPY_CALL:
            raise
    buffer = memoryview(bytearray(_COPY_BYTES))
    while position < size_bytes and (got := os.preadv(source, [buffer[: size_bytes - position]], position)):
        piece = buffer[:got]
        while piece:
            written = os.pwrite(target, piece, position)
            position += written
            piece = piece[written:]
