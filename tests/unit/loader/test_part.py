"""What is mounted in a staging pod must be the part of its namespace."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from modelweights_loader.errors import WillNotWorkError
from modelweights_loader.part import check_part
from tests.unit.loader.conftest import run_loader

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def mounted(disk: Path) -> Iterator[Path]:
    """As in a pod: `mounts/own` is `root/team/llama`, and `mounts/link` what a link in the place of `root/team/home` led to."""
    for name in ("root/team/llama", "root/other/llama", "mounts/own", "mounts/link", "mounts/a b"):
        (disk / name).mkdir(parents=True)
    (disk / "root/team/home").symlink_to("../other/llama")
    done = []
    try:
        for source, name in (("team/llama", "own"), ("team/home", "link"), ("team/llama", "a b")):
            subprocess.run(["mount", "--bind", disk / "root" / source, disk / "mounts" / name], check=True)
            done.append(name)
        yield disk / "mounts"
    finally:
        for name in done:
            subprocess.run(["umount", disk / "mounts" / name], check=True)


@pytest.mark.parametrize("name", ["own", "a b"])
def test_the_own_part_is_let_in(mounted: Path, name: str) -> None:
    check_part(str(mounted / name), "team/llama")


@pytest.mark.parametrize(
    ("name", "part", "found"),
    [
        ("link", "team/home", "/root/other/llama is mounted"),
        ("link", "team/llama", "/root/other/llama is mounted"),
        ("own", "other/llama", "/root/team/llama is mounted"),
        ("own", "am/llama", "/root/team/llama is mounted"),
        ("own", "team", "/root/team/llama is mounted"),
        ("none", "team/llama", "nothing is mounted"),
    ],
)
def test_anything_else_is_refused(mounted: Path, name: str, part: str, found: str) -> None:
    with pytest.raises(WillNotWorkError) as caught:
        check_part(str(mounted / name), part)
    assert (caught.value.reason, found in caught.value.message) == ("UnsafePath", True)


@pytest.mark.parametrize("command", ["fetch", "prefetch", "validate", "report"])
def test_no_step_looks_at_what_is_not_its_part(mounted: Path, command: str) -> None:
    source = ["--source", "hf://org/tiny"] if command == "fetch" else []
    ran = run_loader(command, mounted / "link", "--root", mounted / "link", "--part", "team/home", *source)
    assert (ran.code, ran.report["reason"]) == (20, "UnsafePath")
    assert "remove it there" in ran.report["message"]
    assert list((mounted / "link").iterdir()) == []
