"""docs/loader.md: its commands and its Python run as they stand, and the package installs without torch."""

import os
import re
import shlex
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.checkpoints.synthetic import make_synthetic

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "loader.md").read_text()
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "loader"), "PYTHONDONTWRITEBYTECODE": "1"}


def commands() -> list[str]:
    blocks = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    lines = [line.removeprefix("$ ").split("  #")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line.startswith("modelweights-loader ")]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    make_synthetic(tmp_path / "my-checkpoint", 2**20, 2)
    return tmp_path


def test_the_page_has_its_commands() -> None:
    assert len(commands()) == 8


@pytest.mark.parametrize("command", [command for command in commands() if "--watch" not in command])
def test_a_command_runs_as_it_stands(command: str, home: Path) -> None:
    words = shlex.split(command.replace("~", str(home)))[1:]
    argv = [sys.executable, "-m", "modelweights_loader", *words]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=ENVIRONMENT, timeout=120)
    assert done.returncode == 0, done


def test_the_example_in_python_runs_as_it_stands(home: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=ENVIRONMENT, cwd=home, timeout=60
    )
    lines = done.stdout.splitlines()
    assert re.fullmatch(r"\d+ of \d+ bytes, .* s left", lines[0])
    assert re.fullmatch(r"read \d+ bytes by sendfile; 0 files failed", lines[1])
    assert lines[2].startswith("100.0 % resident by cachestat at 20")


def test_every_option_of_prefetch_is_in_the_table() -> None:
    argv = [sys.executable, "-m", "modelweights_loader", "prefetch", "--help"]
    told = subprocess.run(argv, capture_output=True, text=True, check=True, env=ENVIRONMENT).stdout
    own = set(re.findall(r"^  (--[a-z-]+)", told, re.MULTILINE)) - {"--root", "--report", "--results"}
    assert own == set(re.findall(r"`(--[a-z-]+)`", PAGE.split("## Prefetch")[1].split("Blocks of all")[0]))


def test_a_newcomer_installs_it_and_stages_with_one_command(home: Path) -> None:
    """The package alone, in a fresh environment without torch; what pip builds, from what the developers' has."""
    wheels = home / "wheels"
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(wheels)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=120)
    venv.create(home / "venv", with_pip=True)
    (wheel,) = wheels.iterdir()
    install: list[str | Path] = [home / "venv" / "bin" / "pip", "install", "--quiet", "--no-index", "--no-deps", wheel]
    subprocess.run(install, check=True, timeout=120, capture_output=True)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    argv: list[str | Path] = [
        home / "venv" / "bin" / "modelweights-loader",
        "stage",
        home / "my-checkpoint",
        "--mode",
        "Structure",
    ]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=clean, cwd="/", timeout=60)
    assert done.returncode == 0, done
    assert "100.0 % of 1.0 MiB resident, by cachestat" in done.stdout


@pytest.mark.parametrize("link", re.findall(r"\]\(#([^)]+)\)", PAGE))
def test_links_lead_to_headings(link: str) -> None:
    headings = [
        heading.lower().replace(" ", "-").replace(",", "") for heading in re.findall(r"^## (.*)$", PAGE, re.MULTILINE)
    ]
    assert link in headings
