"""Why residency can't be measured: old kernel, seccomp profile, sandbox or another owner, told apart in words."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from modelweights_loader.refusals import describe_cachestat_refusal, describe_refusal
from tests.checkpoints.synthetic import make_synthetic
from tests.unit.loader.conftest import LOADER, run_as_staging_user, run_loader

if TYPE_CHECKING:
    from pathlib import Path

# Makes the kernel answer system call 451 (cachestat) with an errno, as a seccomp profile of a container runtime does.
FILTERED = """
import ctypes, struct, sys
number, arguments = int(sys.argv[1]), sys.argv[2:]
LOAD, JUMP_EQUAL, RETURN, ERRNO, ALLOW = 0x20, 0x15, 0x06, 0x00050000, 0x7FFF0000
steps = [(LOAD, 0, 0, 0), (JUMP_EQUAL, 0, 1, 451), (RETURN, 0, 0, ERRNO | number), (RETURN, 0, 0, ALLOW)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(steps), ctypes.addressof(code)))
libc = ctypes.CDLL(None, use_errno=True)
NO_NEW_PRIVILEGES, SECCOMP, FILTER = 38, 22, 2
assert libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0) == 0, ctypes.get_errno()
assert libc.prctl(SECCOMP, FILTER, ctypes.byref(program), 0, 0) == 0, ctypes.get_errno()
from modelweights_loader.cli import main
raise SystemExit(main(arguments))
"""


def run_filtered(number: int, *arguments: str | Path) -> dict[str, Any]:
    """Runs a command whose cachestat is answered with an errno; returns what it printed."""
    command = [sys.executable, "-c", FILTERED, str(number), *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(LOADER), "PYTHONDONTWRITEBYTECODE": "1"}
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=environment)
    assert ended.returncode == 0, ended
    return {"json": json.loads(ended.stdout)} if "--json" in arguments else {"text": ended.stdout}


@pytest.fixture
def model(disk: Path) -> Path:
    return make_synthetic(disk / "model", 2**22, shards=2)


def test_a_profile_that_does_not_know_the_call(model: Path) -> None:
    told = run_filtered(errno.ENOSYS, "residency", model, "--json")["json"]
    assert (told["residencyMethod"], told["residentPercent"]) == ("mincore", 100.0)
    assert len(told["refusals"]) == 1
    assert told["refusals"][0].startswith("cachestat: ENOSYS: the kernel (")
    assert "the seccomp profile does not know it: update the container runtime" in told["refusals"][0]


def test_a_profile_that_forbids_the_call(model: Path) -> None:
    told = run_filtered(errno.EPERM, "residency", model, "--json")["json"]
    assert told["residencyMethod"] == "mincore"
    assert "EPERM: a seccomp profile forbids it, even for a file of one's own" in told["refusals"][0]


def test_a_file_of_another_user(model: Path) -> None:
    told = run_as_staging_user("residency", model)
    assert told.report["residencyMethod"] == "sample"
    for method in ("cachestat", "mincore"):
        assert f"{method}: EPERM: this user neither owns the file nor may write it" in told.stdout
    assert "seccomp" not in told.stdout


def test_the_sentence_names_the_estimate_its_error_and_the_cause(model: Path) -> None:
    said = run_as_staging_user("prefetch", model).stdout
    assert " resident, estimated by sample, because cachestat: EPERM: this user neither owns" in said
    assert "100.0 % ±0." in said


def test_the_sentence_is_short_where_all_is_well(model: Path) -> None:
    assert run_loader("prefetch", model).stdout.endswith("100.0 % of 4.0 MiB resident, by cachestat\n")


@pytest.mark.parametrize(
    ("release", "seccomp", "says"),
    [
        ("5.15.0-91-generic", "2", "this kernel (5.15.0-91-generic) is older than Linux 6.5, which brought it"),
        ("6.4.16", "0", "older than Linux 6.5"),
        ("6.5.0", "2", "the seccomp profile does not know it"),
        ("7.0-rc1", "2", "the seccomp profile does not know it"),
        ("6.12.1", "0", "a sandbox or its configuration takes it away"),
        ("odd", "2", "the seccomp profile does not know it"),
    ],
)
def test_the_causes_of_enosys(tmp_path: Path, release: str, seccomp: str, says: str) -> None:
    status = tmp_path / "status"
    status.write_text(f"Name:\tpython\nSeccomp:\t{seccomp}\nSeccomp_filters:\t1\n")
    said = describe_cachestat_refusal(errno.ENOSYS, refused_for_own=False, release=release, status=str(status))
    assert said.startswith("ENOSYS: ")
    assert says in said


def test_other_errors_are_named() -> None:
    assert describe_refusal(errno.EACCES) == "EACCES: this user may not read the file"
    assert describe_refusal(errno.EIO) == "EIO: Input/output error"
    assert describe_cachestat_refusal(errno.EBADF, refused_for_own=False).startswith("EBADF: ")
    assert "sandbox" in describe_cachestat_refusal(
        errno.ENOSYS, refused_for_own=False, release="6.12", status="/nonexistent"
    )
