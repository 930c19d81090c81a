"""The README's commands that need no cluster are run or looked up here; those that need one are run in tests/e2e."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.checkpoints.synthetic import make_synthetic

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def commands(program: str) -> list[str]:
    """The commands of the README's console blocks that start a program, without their comments."""
    blocks = re.findall(r"```console\n(.*?)```", README, re.DOTALL)
    lines = [line.removeprefix("$ ").split("  #")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line.split()[0] == program]


def test_every_program_is_tested_somewhere() -> None:
    """Kubectl and helm: tests/e2e/test_readme.py."""
    blocks = re.findall(r"```console\n(.*?)```", README, re.DOTALL)
    programs = {line.split()[1] for block in blocks for line in block.splitlines() if line.startswith("$ ")}

    assert {"make", "helm", "kubectl", ".venv/bin/modelweights-loader"} == programs


def test_the_two_commands_come_first() -> None:
    assert commands("make")[:2] == ["make demo", "make test"]


@pytest.mark.parametrize("command", commands("make"))
def test_make_has_the_target(command: str) -> None:
    # As a person's shell has it: a make around this one, as in `make test`, would hand on its own settings.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run(
        [*shlex.split(command), "--dry-run"], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")


def test_the_loaders_commands_run_as_they_stand(tmp_path: Path) -> None:
    make_synthetic(tmp_path / "my-checkpoint", 2**20, 2)
    found = commands(".venv/bin/modelweights-loader")

    outputs = [
        subprocess.run(
            [sys.executable, "-m", "modelweights_loader", *shlex.split(command.replace("~", str(tmp_path)))[1:]],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        for command in found
    ]

    assert [done.returncode for done in outputs] == [0] * 2, outputs
    assert "100.0 %" in outputs[1].stdout


@pytest.mark.parametrize("link", re.findall(r"\]\(([^)#]+)\)", README))
def test_links_lead_to_files(link: str) -> None:
    assert (ROOT / link).exists()
