"""Engines read what was fetched, and what was written for `wait`, as another user than the loader."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from modelweights_loader import marker as markers
from modelweights_loader.fetch.fetching import FetchOptions, fetch
from modelweights_loader.memory import Reserve
from tests.unit.loader.fetch.scripted_source import ScriptedSource, make_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

OTHER_UID = 4711
BECOME = f"""
import os, sys
os.setgroups([])
os.setresgid({OTHER_UID}, {OTHER_UID}, {OTHER_UID})
os.setresuid({OTHER_UID}, {OTHER_UID}, {OTHER_UID})
"""
"""Within the process: its interpreter may lie where only its owner may go."""
READ = """
count = 0
for folder, _, names in os.walk(sys.argv[1], onerror=lambda error: sys.exit(str(error))):
    for name in names:
        with open(os.path.join(folder, name), "rb") as file:
            count += len(file.read())
print(count)
"""
WRITE = """
for folder, _, names in os.walk(sys.argv[1]):
    for path in (folder, *(os.path.join(folder, name) for name in names)):
        if os.access(path, os.W_OK):
            sys.exit(path)
"""


def _run_as_other(program: str, folder: Path) -> str:
    """Without any group of the loader's, as a pod with a user of its own."""
    done = subprocess.run([sys.executable, "-I", "-c", BECOME + program, str(folder)], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().strip()


@pytest.mark.parametrize("layout", ["Plain", "HuggingFaceCache"])
def test_what_was_fetched_is_readable_for_all_and_writable_for_the_loader_alone(disk: Path, layout: str) -> None:
    source = ScriptedSource(make_checkpoint((30_000, 20_000)))
    home = disk / "home"
    result = fetch(str(home), source, FetchOptions("hf://org/tiny", layout=layout, reserve=Reserve()))
    assert result.published is not None
    folder = home / result.published.folder
    wanted = sum(len(content) for path, content in source.contents.items() if path != "README.md")
    assert str(wanted) == _run_as_other(READ, folder)
    assert _run_as_other(WRITE, home) == ""


def test_a_marker_is_readable_for_all(disk: Path) -> None:
    folder = disk / markers.MARKER_FOLDER
    folder.mkdir()
    marker = markers.Marker("team/m/0", "sha256:" + "0" * 64, "boot", "boot", 1, 1, "2026-01-01T00:00:00Z")
    markers.write_marker(str(folder), marker)
    assert os.stat(folder / markers.name_marker("team/m/0")).st_size == int(_run_as_other(READ, folder))
