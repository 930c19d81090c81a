"""Removes what `fetch` made: checkpoints by their digests, or all of a home. Called by `commands.clean`.

Killed at any moment, the next run goes on. Whoever waits for a checkpoint, or holds it, sees it whole or not at all:

    lock of the home --> lock of the checkpoint (nobody holds it) --> markers --> renamed below .fetch --> record --> removed

Nothing is reached by a path twice: each step is taken from the folder before it, and no link is followed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

from modelweights_loader.errors import TryAgainError, UsageError, WillNotWorkError
from modelweights_loader.fetch.folders import Folder, open_home, saying
from modelweights_loader.fetch.lock import LOCK_NAME, HomeRemovedError, hold_lock
from modelweights_loader.fetch.published import FETCH_FOLDER, PUBLISHED_FOLDER, read_published
from modelweights_loader.marker import name_marker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_GONE = "gone"
"""Below `.fetch`: what is no checkpoint any more, and goes."""
_SNAPSHOTS = re.compile(r"models--[A-Za-z0-9._-]+")
# A checkpoint has 8 levels at most. Each costs an open folder, and whoever writes there could make any number.
_MAX_DEPTH = 24
_MARKER_PREFIX_CHARACTERS = 180
# Rounds: folders are found full again where somebody moves things about, or NFS keeps what is open elsewhere.
_MAX_STUCK = 20
# Others that remove the same home at the same time.
_MAX_TURNS = 5


class CleanOptions(NamedTuple):
    """What goes.

    Attributes:
        digests: 64 hex digits each; of no meaning with everything.
        everything: All checkpoints, all that was begun, and the home.
        root: The home lies below it, and no link between them is followed; None: the folder that holds the home.
        marker_dir: Where markers lie; None where there are none.
        marker_root: Markers name what they are about from here on.
        lock_seconds: How long to wait for a fetch into this home.
    """

    digests: tuple[str, ...] = ()
    everything: bool = False
    root: str | None = None
    marker_dir: str | None = None
    marker_root: str | None = None
    lock_seconds: float = 300.0


class CleanResult(NamedTuple):
    """What went.

    Attributes:
        removed: Digests of checkpoints that were there.
        freed_bytes: On the disk; a file that has another name elsewhere frees nothing.
        left: With everything: names in the home that `fetch` didn't make, which stay.
        disk_free_bytes: Afterwards, for users that aren't root.
        disk_total_bytes: Of the disk.
    """

    removed: tuple[str, ...]
    freed_bytes: int
    left: tuple[str, ...]
    disk_free_bytes: int
    disk_total_bytes: int


def clean(path: str, options: CleanOptions, say: Callable[[str], None] = lambda _: None) -> CleanResult:
    """Removes checkpoints. Blocks. What isn't there is fine.

    Args:
        path: The home.
        options: What goes.
        say: Told what people should know meanwhile.

    Returns:
        What went.

    Raises:
        TryAgainError: InUse: somebody holds one of them, all others are gone; Locked: a fetch is under way.
        WillNotWorkError: Something was planted there, or it may not be removed.
        UsageError: The home doesn't lie below the root.
    """
    place = os.path.abspath(path)
    top = os.path.abspath(options.root or os.path.dirname(place))
    relative = os.path.relpath(place, top)
    if relative == "." or relative.split("/")[0] == "..":
        message = f"{place} doesn't lie below the root {top}"
        raise UsageError(message)
    run = _Run(options, os.path.relpath(place, os.path.abspath(options.marker_root or top)), say)
    try:
        with open_home(top, make=False) as root:
            try:
                with root.holding(relative) as (parent, name):
                    if parent.status(name) is not None:
                        run.clean_home(parent, name)
                    else:
                        # Nothing was ever fetched there, or all of it went before.
                        run.remove_markers(None, ())
                    # In a pod, the root itself may be no part of what is mounted.
                    return run.result(parent)
            except FileNotFoundError:
                # Not even the folder of its namespace.
                run.remove_markers(None, ())
            return run.result(root)
    except FileNotFoundError as error:
        message = f"{top} isn't there; check the path and what is mounted"
        raise WillNotWorkError(message, reason="NotFound") from error


class _Run:
    def __init__(self, options: CleanOptions, marked: str, say: Callable[[str], None]) -> None:
        self._options, self._marked, self._say = options, marked, say
        self._removed: list[str] = []
        self._left: list[str] = []
        self._freed_bytes = 0

    def result(self, folder: Folder) -> CleanResult:
        status = os.fstatvfs(folder.descriptor)
        return CleanResult(
            removed=tuple(self._removed),
            freed_bytes=self._freed_bytes,
            left=tuple(self._left),
            disk_free_bytes=status.f_bavail * status.f_frsize,
            disk_total_bytes=status.f_blocks * status.f_frsize,
        )

    def clean_home(self, parent: Folder, name: str) -> None:
        for _ in range(_MAX_TURNS):
            with contextlib.suppress(HomeRemovedError):
                return self._clean_once(parent, name)
        return self._clean_once(parent, name)

    def _clean_once(self, parent: Folder, name: str) -> None:
        with parent.folder(name) as home, home.folder(FETCH_FOLDER, make=True) as own:
            with hold_lock(own, self._options.lock_seconds, self._say):
                held = self._clean_locked(home, own)
                if self._options.everything and not held:
                    self._remove_own(own)
            if self._options.everything and not held:
                self._remove_home(parent, name, home)
        if held:
            message = (
                f"{', '.join(digest[:12] for digest in held)} below {home.shown} is held by a pod or process that uses it; "
                "end that first"
            )
            raise TryAgainError(message, reason="InUse", figures=self._figures(held))

    def _figures(self, held: Sequence[str]) -> dict[str, object]:
        return {
            "inUse": [digest[:12] for digest in held],
            "removed": [digest[:12] for digest in self._removed],
            "freedBytes": self._freed_bytes,
        }

    def _clean_locked(self, home: Folder, own: Folder) -> list[str]:
        """Removes checkpoints; those that somebody holds, stay and are told."""
        wanted = self._options.digests
        if self._options.everything:
            wanted = tuple(name for name in home.names() if PUBLISHED_FOLDER.fullmatch(name))
        with own.folder(_GONE, make=True) as gone:
            self._empty(gone)
            held = [digest for digest in dict.fromkeys(wanted) if not self._remove(home, own, gone, digest)]
        own.remove_tree(_GONE)
        if self._options.everything and not held:
            self.remove_markers(None, ())
        return held

    def _remove(self, home: Folder, own: Folder, gone: Folder, digest: str) -> bool:
        """Removes one checkpoint; False where somebody holds it."""
        with contextlib.ExitStack() as opened:
            if home.has_subfolder(digest):
                folder = opened.enter_context(home.folder(digest))
                if not _take(folder):
                    return False
                self.remove_markers(folder, (digest, *_list_snapshots(folder, digest)))
                home.rename(digest, gone, digest)
                home.sync()
                self._removed.append(digest)
            else:
                # Whatever else has this name, nobody could load it.
                self.remove_markers(None, (digest,))
                home.unlink(digest)
            _forget(own, digest)
            self._empty(gone)
        return True

    def remove_markers(self, folder: Folder | None, places: Sequence[str]) -> None:
        """Takes markers away, so that nobody starts to wait for what goes.

        Args:
            folder: The checkpoint's, for messages; None for what isn't there.
            places: Below the home; with everything also all others that lie there.
        """
        if self._options.marker_dir is None:
            return
        try:
            with open_home(self._options.marker_dir, make=False) as markers:
                for place in places:
                    markers.unlink(name_marker(f"{self._marked}/{place}"))
                prefix = quote(f"{self._marked}/", safe="")
                if folder is None and self._options.everything and len(prefix) <= _MARKER_PREFIX_CHARACTERS:
                    for name in markers.names():
                        if name.startswith(prefix):
                            markers.unlink(name)
        except FileNotFoundError:
            # A root that was never prepared takes no markers.
            return

    def _empty(self, gone: Folder) -> None:
        """Removes all that is in a folder, however deep it goes and whoever exchanges what meanwhile."""
        moved = stuck = 0
        while names := gone.names():
            before = moved
            for name in names:
                for deep, deep_name in _remove_levels(gone, name, self._count):
                    moved += 1
                    deep.rename(deep_name, gone, f"deep-{moved}-{os.getpid()}")
            stuck = stuck + 1 if moved == before else 0
            if stuck > _MAX_STUCK:
                message = f"{gone.shown} can't be emptied, something is put there again and again; end what does"
                raise TryAgainError(message, reason="WriteFailed")

    def _count(self, status: os.stat_result) -> None:
        if status.st_nlink == 1:
            self._freed_bytes += status.st_blocks * 512

    def _remove_own(self, own: Folder) -> None:
        """All that `fetch` notes, and what it had begun; the lock last, since who waits for it looks whether it is still there."""
        with own.folder(_GONE, make=True) as gone:
            for name in own.names():
                if name not in (LOCK_NAME, _GONE):
                    own.rename(name, gone, name)
            self._empty(gone)
        own.remove_tree(_GONE)
        own.unlink(LOCK_NAME)

    def _remove_home(self, parent: Folder, name: str, home: Folder) -> None:
        """Folders that aren't empty stay: another fetch has just begun, or somebody else put something there."""
        with contextlib.suppress(OSError):
            os.rmdir(FETCH_FOLDER, dir_fd=home.descriptor)
        self._left = home.names()
        if not self._left:
            with contextlib.suppress(OSError):
                os.rmdir(name, dir_fd=parent.descriptor)


def _take(folder: Folder) -> bool:
    """Locks a checkpoint against those that hold it; freed when the folder is closed."""
    try:
        fcntl.flock(folder.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        # A file system that locks no folders: nobody can hold one there either.
        return True
    return True


def _list_snapshots(folder: Folder, digest: str) -> list[str]:
    """Where else below the home a checkpoint is, that markers may be about: the snapshots of a Hugging Face cache."""
    found = []
    for cache in folder.names():
        if _SNAPSHOTS.fullmatch(cache) and folder.has_subfolder(cache):
            with contextlib.suppress(FileNotFoundError, WillNotWorkError), folder.folder(f"{cache}/snapshots") as below:
                found += [f"{digest}/{cache}/snapshots/{name}" for name in below.names()]
    return found


def _forget(own: Folder, digest: str) -> None:
    """Removes the records by which `fetch` finds it."""
    for name in own.names():
        if name.endswith(".json"):
            published = read_published(own, name)
            if published is not None and published.manifest_digest == f"sha256:{digest}":
                own.unlink(name)


def _remove_levels(
    folder: Folder, name: str, count: Callable[[os.stat_result], None], depth: int = 0
) -> Iterator[tuple[Folder, str]]:
    """Removes an entry and what is in it; yields what lies too deep, to be moved away before the next one is asked for."""
    status = folder.status(name)
    if status is None:
        return
    if not stat.S_ISDIR(status.st_mode):
        count(status)
        folder.unlink(name)
        return
    if depth >= _MAX_DEPTH:
        yield folder, name
        return
    try:
        inner = folder.folder(name)
    except FileNotFoundError:
        return
    except WillNotWorkError:
        # A link in the place of what was a folder a moment ago: it goes, and where it leads to stays.
        folder.unlink(name)
        return
    with inner:
        for entry in inner.names():
            yield from _remove_levels(inner, entry, count, depth + 1)
    _remove_folder(folder, name)


def _remove_folder(folder: Folder, name: str) -> None:
    """One that isn't empty stays; whoever needs it gone looks again."""
    with contextlib.suppress(FileNotFoundError), saying("remove", f"{folder.shown}/{name}"):
        try:
            os.rmdir(name, dir_fd=folder.descriptor)
        except OSError as error:
            if error.errno not in {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR}:
                raise
