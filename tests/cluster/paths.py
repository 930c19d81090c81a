"""Where things lie: the cache that outlives clusters, and the folder of one instance. Imports nothing of the package."""

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
REPOSITORY = PACKAGE.parents[1]


def cache_root() -> Path:
    """Return the folder outside the clone that holds built programs, images and instances."""
    chosen = os.environ.get("MODELWEIGHTS_CACHE")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "modelweights"


def registry_storage() -> Path:
    """Return the registry's folder: shared by all instances, so that images survive ``down``."""
    return cache_root() / "registry"


@dataclass(frozen=True)
class InstancePaths:
    """The files of one instance; all below one folder that ``down`` deletes."""

    name: str

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z][a-z0-9-]{0,15}", self.name):
            raise ValueError(f"instance name {self.name!r}: a letter, then up to 15 of a-z, 0-9 and -")

    @property
    def root(self) -> Path:
        return cache_root() / "instances" / self.name

    @property
    def lock(self) -> Path:
        """Held while the instance is brought up or down; outside of root, which is deleted."""
        return cache_root() / "instances" / f".{self.name}.lock"

    @property
    def kubeconfig(self) -> Path:
        return self.root / "kubeconfig"

    @property
    def state(self) -> Path:
        return self.root / "state.json"

    @property
    def supervisor(self) -> Path:
        """Which process supervises the instance: known before there is a state."""
        return self.root / "supervisor.json"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def pki(self) -> Path:
        return self.root / "pki"

    @property
    def control(self) -> Path:
        return self.root / "control.sock"

    @property
    def cgroup(self) -> str:
        """Name of the instance's cgroup, at the top of every hierarchy.

        The folder is in it: another cache (a build server's, another user's) may hold an instance of the same name.
        """
        return f"mwk-{self.name}-{hashlib.sha256(os.fsencode(self.root)).hexdigest()[:6]}"

    def node(self, name: str) -> Path:
        return self.root / "nodes" / name
