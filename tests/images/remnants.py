"""Working containers in our own store: which are in use, and removing what processes left that were killed.

Called by `build` and `base` before a build and by `checks` for the images that they open. A build's containers have names that buildah
chooses, but builds run one at a time, so what is there before one is a remnant. A check may be at work beside a build: it
holds a lock in the name of its container, which dies with it.
"""

from __future__ import annotations

import fcntl
import json
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from tests.images.engine import Buildah, ImageError, run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_CHECK: Final = "check-"
_OURS: Final = "localhost/modelweights-"
"""No build begins with one of these: such a container is a check's, of a checkout from before they had names."""


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Build while nobody else does, whichever checkout it is of.

    Args:
        folder: Of the store, see `Buildah.folder`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def working_container(engine: Buildah, image: str) -> Iterator[str]:
    """Give the name of a container of an image that no build takes for a remnant as long as this process lives."""
    name = f"{_CHECK}{uuid.uuid4().hex}"
    held = _held(engine, name)
    held.parent.mkdir(exist_ok=True)
    with held.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            run(engine.command("from", "--name", name, image))
            yield name
        finally:
            _remove(engine, name)
            held.unlink(missing_ok=True)


def remove_remnants(engine: Buildah) -> list[str]:
    """Remove what dead builds and checks left, with its mounts; while nobody builds, see `one_at_a_time`.

    Returns:
        The names of what was removed.
    """
    listed = json.loads(run(engine.command("containers", "--json")) or "null") or []
    names = [(each["containername"], each["imagename"]) for each in listed]
    dead = [name for name, image in names if not _is_used(engine, name, image)]
    removed = [name for name in dead if _remove(engine, name)]
    for held in (engine.folder / "held").glob("*"):
        if held.name in removed or (held.name not in dict(names) and not _is_locked(held)):
            held.unlink(missing_ok=True)
    if removed:
        print(f"images: removed {len(removed)} working container(s) that builds or checks left")
    return removed


def _held(engine: Buildah, name: str) -> Path:
    return engine.folder / "held" / name


def _is_used(engine: Buildah, name: str, image: str) -> bool:
    return _is_locked(_held(engine, name)) if name.startswith(_CHECK) else image.startswith(_OURS)


def _is_locked(held: Path) -> bool:
    try:
        with held.open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _remove(engine: Buildah, name: str) -> bool:
    try:
        run(engine.command("rm", name))
    except ImageError as error:
        # Another one's end, or a mount that is busy: the next build tries again.
        print(f"images: container {name} stays for now: {error}")
        return False
    return True
