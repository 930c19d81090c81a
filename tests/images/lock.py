"""Pins what the images install: `python -m tests.images lock`, after a change of the extras in pyproject.toml.

Four files, because torch comes from three places: `loader.txt` is what each loader image installs, `loader-pip.txt` is
what torch's CPU wheels need beside themselves (their own hashes aren't in the default index), `loader-cuda.txt` is the
default index' torch with all of its CUDA libraries.
"""

from __future__ import annotations

import subprocess
import tomllib
from typing import TYPE_CHECKING

from tests.images.inputs import REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Iterable

PYTHON_VERSION = "3.13"
# What Debian brings with its torch; the other kinds of torch install it with theirs.
_WITH_TORCH = ("torch", "numpy")
_PREFIXES_OF_CUDA = ("nvidia-", "cuda-", "triton")


def lock() -> None:
    """Write requirements/operator.txt and requirements/loader*.txt."""
    extras = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    _write("operator.txt", _compile(extras["operator"]))
    everything = _compile([*extras["loader"], *extras["sources"]])
    pins = [line.split(" ")[0] for line in everything.splitlines() if line[:1].isalnum()]
    with_torch = [line for line in extras["loader"] if line.startswith(_WITH_TORCH)]
    own = [line for line in (*extras["loader"], *extras["sources"]) if not line.startswith(_WITH_TORCH)]
    cuda = [pin.split("==")[0] for pin in pins if pin.startswith(_PREFIXES_OF_CUDA)]
    _write("loader.txt", _compile(own, pins))
    _write("loader-pip.txt", _compile(with_torch, pins, leave_out=["torch", *cuda]))
    _write("loader-cuda.txt", _compile(with_torch, pins))


def torch_version() -> str:
    """Return the torch that is pinned for CUDA; the Dockerfile's TORCH_VERSION is to be the same."""
    text = (REPOSITORY / "requirements/loader-cuda.txt").read_text()
    return next(line.split("==")[1].split(" ")[0] for line in text.splitlines() if line.startswith("torch=="))


def _compile(wanted: Iterable[str], pins: Iterable[str] = (), leave_out: Iterable[str] = ()) -> str:
    command = ["uv", "pip", "compile", "--quiet", "--generate-hashes", "--no-emit-index-url", "--no-header"]
    command += ["--no-annotate", "--python-version", PYTHON_VERSION, "--python-platform", "x86_64-manylinux_2_28"]
    command += [word for name in leave_out for word in ("--no-emit-package", name)]
    # Constraints come by a file only; a requirement that names them all would install them all.
    constraints = REPOSITORY / "requirements" / ".constraints"
    constraints.write_text("\n".join(pins))
    try:
        command += ["--constraints", str(constraints), "-"]
        return subprocess.run(
            command, input="\n".join(wanted), text=True, check=True, stdout=subprocess.PIPE, cwd=REPOSITORY
        ).stdout
    finally:
        constraints.unlink()


def _write(name: str, text: str) -> None:
    lines = [line for line in text.splitlines() if not line.startswith("# The following packages were excluded")]
    (REPOSITORY / "requirements" / name).write_text("\n".join(lines) + "\n")
