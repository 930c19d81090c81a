"""Keeps the registry's folder, which all instances share and which outlives them, from growing for ever.

Called by `lifecycle` before an instance starts. Each change of code adds a layer, and nothing refers to the old ones; the
images are in the build store too, so that emptying the folder costs one push.
"""

import shutil
from pathlib import Path

from tests.cluster.paths import InstancePaths, cache_root, registry_storage
from tests.cluster.state import Process

LIMIT_BYTES = 3 * 10**9


def bound_registry(limit_bytes: int = LIMIT_BYTES) -> bool:
    """Empty the registry where it takes more than `limit_bytes` and no instance uses it; return whether it was."""
    storage = registry_storage()
    if not storage.is_dir() or _size_bytes(storage) <= limit_bytes or _is_used():
        return False
    shutil.rmtree(storage)
    return True


def _size_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _is_used() -> bool:
    folders = [path for path in (cache_root() / "instances").glob("[a-z]*") if path.is_dir()]
    supervisors = [Process.read(InstancePaths(folder.name).supervisor) for folder in folders]
    return any(supervisor is not None and supervisor.alive() for supervisor in supervisors)
