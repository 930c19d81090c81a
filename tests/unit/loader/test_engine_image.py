"""The package dropped into an engine's image: nothing but Python, torch and fastsafetensors; and torch in its place only."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.loader.conftest import LOADER

# What torch itself can't be imported without.
OF_TORCH = (
    "typing_extensions",
    "sympy",
    "mpmath",
    "filelock",
    "fsspec",
    "jinja2",
    "markupsafe",
    "networkx",
    "setuptools",
)
FORBIDDEN = ("torch", "fastsafetensors", "safetensors", "numpy", "pickle", "_pickle")


def _link_packages(folder: Path, *names: str) -> Path:
    """A folder of packages that holds those and no others."""
    folder.mkdir()
    for name in names:
        found = importlib.util.find_spec(name)
        assert found is not None, f"{name} is not installed: run tests/setup.sh"
        origin = Path(str(found.origin))
        source = origin.parent if origin.name == "__init__.py" else origin
        (folder / source.name).symlink_to(source)
    # Libraries of CUDA builds lie beside torch, and it finds them by their place.
    site = Path(str(importlib.util.find_spec("torch").origin)).parents[1]  # type: ignore[union-attr] # found above
    for extra in ("nvidia", "triton", "torchgen", "functorch"):
        if (site / extra).exists():
            (folder / extra).symlink_to(site / extra)
    # fastsafetensors asks for its own version there.
    for metadata in site.glob("fastsafetensors-*.dist-info"):
        (folder / metadata.name).symlink_to(metadata)
    return folder


def _run_in_image(folder: Path, tmp_path: Path, search: list[Path]) -> subprocess.CompletedProcess[str]:
    """Runs the loader on an interpreter that has no packages but those, as the load process does then too."""
    wrapper = tmp_path / "python"
    wrapper.symlink_to(Path(sys.executable).resolve())
    report = tmp_path / "report.json"
    return subprocess.run(
        [wrapper, "-m", "modelweights_loader", "validate", folder, "--mode", "Full", "--report", report],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(map(str, search)), "PYTHONNOUSERSITE": "1"},
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_without_safetensors_it_loads_and_says_that_this_was_not_tried(split: Path, tmp_path: Path) -> None:
    packages = _link_packages(tmp_path / "packages", "torch", "fastsafetensors", *OF_TORCH)
    ran = _run_in_image(split, tmp_path, [LOADER, packages])
    assert ran.returncode == 0, ran.stderr
    figures = json.loads((tmp_path / "report.json").read_bytes())
    assert figures["verdicts"] == {"parallelLoader": "Accepts", "safetensors": "NotTried"}
    assert "safetensorsVersion" not in figures
    assert figures["comparedBytes"] == figures["loadedBytes"]


def _find_pythons() -> list[str]:
    """Every Python of 3.10 and newer on this machine, one for each version."""
    found: dict[str, str] = {}
    versions = Path.home() / ".pyenv" / "versions"
    candidates = [sys.executable, *(str(path) for path in sorted(versions.glob("*/bin/python3")))]
    candidates += [path for minor in range(10, 16) if (path := shutil.which(f"python3.{minor}"))]
    for path in candidates:
        said = subprocess.run(
            [path, "-c", "import sys; print(*sys.version_info[:2])"], check=False, capture_output=True, text=True
        )
        if said.returncode == 0 and tuple(map(int, said.stdout.split())) >= (3, 10):
            found.setdefault(said.stdout.strip(), path)
    return list(found.values())


@pytest.mark.parametrize("python", _find_pythons())
def test_every_python_reads_headers_and_hashes_without_any_package(split: Path, python: str) -> None:
    ran = subprocess.run(
        [python, "-S", "-m", "modelweights_loader", "validate", str(split), "--mode", "Structure"],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(LOADER), "PYTHONDONTWRITEBYTECODE": "1"},
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stderr
    assert "24 tensors of 12 shards" in ran.stdout
    # How far it is, and nothing else.
    assert [line for line in ran.stderr.splitlines() if " %, " not in line] == []


def test_without_the_libraries_the_load_says_what_to_install(split: Path, tmp_path: Path) -> None:
    ran = _run_in_image(split, tmp_path, [LOADER])
    assert (ran.returncode, json.loads((tmp_path / "report.json").read_bytes())["reason"]) == (20, "LoaderMissing")
    assert "install torch and fastsafetensors" in ran.stderr


@pytest.mark.parametrize("mode", ["Load", "Structure", "None"])
def test_the_calling_process_imports_neither_torch_nor_pickle(split: Path, mode: str) -> None:
    script = (
        "import sys; from modelweights_loader.cli import main; code = main(sys.argv[1:]); "
        f"print([name for name in {FORBIDDEN!r} if name in sys.modules], code)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script, "validate", str(split), "--mode", mode],
        env={**os.environ, "PYTHONPATH": str(LOADER)},
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.stdout.splitlines()[-1] == "[] 0"


def test_only_modules_of_the_load_process_name_the_libraries() -> None:
    """And nothing in the package unpickles."""
    for path in sorted((LOADER / "modelweights_loader").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        lines = [line.strip() for line in text.splitlines()]
        importing = [line for line in lines if line.startswith(("import ", "from "))]
        named = [line for line in importing if line.split()[1].split(".")[0] in FORBIDDEN]
        if path.parent.name != "load":
            assert named == [], path
        assert not [line for line in named if "pickle" in line], path
        assert "torch.load(" not in text, path


def test_the_modules_of_the_load_process_import_torch_only_in_functions() -> None:
    script = (
        "import glob, importlib, os, sys; "
        f"names = [os.path.basename(path)[:-3] for path in glob.glob({str(LOADER)!r} + '/modelweights_loader/load/*.py')]; "
        "[importlib.import_module('modelweights_loader.load.' + name) for name in names if name != '__init__']; "
        f"print(len(names) > 5, [name for name in {FORBIDDEN!r} if name in sys.modules])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(LOADER)},
        check=True,
        capture_output=True,
        text=True,
    )
    assert ran.stdout.strip() == "True []"
