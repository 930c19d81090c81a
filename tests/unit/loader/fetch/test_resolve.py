"""`resolve` finds the revision and writes nothing else; `fetch --resolved` takes that one and no other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from modelweights_loader.errors import WillNotWorkError
from modelweights_loader.fetch.listing import list_pinned, run_pinned
from modelweights_loader.fetch.retry import Backoff
from modelweights_loader.sources.contract import Listing, SourceChangedError, SourceUnavailableError
from tests.unit.loader.conftest import LOADER, run_loader
from tests.unit.loader.fetch.scripted_source import make_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

COMMIT = "a" * 40


@pytest.fixture
def source(disk: Path) -> Path:
    folder = disk / "source"
    folder.mkdir()
    for path, content in make_checkpoint().items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_bytes(content)
    return folder


def test_what_was_resolved_is_fetched(disk: Path, source: Path) -> None:
    home, results, given = disk / "home", disk / "results", ("--source", f"file://{source}", "--results")
    resolved = run_loader("resolve", home, *given, results)
    assert (0, "Resolved", "resolve") == (resolved.code, resolved.report["reason"], resolved.report["step"])
    assert {"revision", "described"} == set(resolved.report) - {"step", "exitCode", "reason", "message", "seconds"}
    assert resolved.report["revision"].startswith("sha256:")
    assert str(source) in resolved.report["described"]
    assert not home.exists()
    written = json.loads((results / "resolve.json").read_text())
    assert (resolved.report["revision"], str(home)) == (written["revision"], written["path"])
    fetched = run_loader("fetch", home, *given, results, "--resolved", "--disk-reserve", "0")
    assert (0, "Fetched", written["revision"]) == (fetched.code, fetched.report["reason"], fetched.report["revision"])
    again = run_loader("fetch", home, *given, results, "--resolved", "--disk-reserve", "0")
    assert (0, "AlreadyThere") == (again.code, again.report["reason"])


def test_what_changed_since_it_was_resolved_is_not_fetched(disk: Path, source: Path) -> None:
    home, results, given = disk / "home", disk / "results", ("--source", f"file://{source}", "--results")
    assert 0 == run_loader("resolve", home, *given, results).code
    (source / "config.json").write_text('{"changed": true}')
    refused = run_loader("fetch", home, *given, results, "--resolved")
    assert (20, "SourceChanged") == (refused.code, refused.report["reason"])
    pinned = json.loads((results / "resolve.json").read_text())["revision"]
    gone = run_loader("resolve", home, *given, results, "--revision", pinned)
    assert (20, "SourceChanged") == (gone.code, gone.report["reason"])
    # And what an earlier run found is no answer any more.
    assert "Usage" == run_loader("fetch", home, *given, results, "--resolved").report["reason"]


@pytest.mark.parametrize(
    "found",
    [
        None,
        {"exitCode": 0, "revision": COMMIT, "path": "/elsewhere"},
        {"exitCode": 10, "revision": COMMIT},
        {"exitCode": 0},
        {"exitCode": 0, "revision": "main"},
        {"exitCode": 0, "revision": 1},
    ],
    ids=["none", "of another home", "failed", "no revision", "a branch", "a number"],
)
def test_resolved_without_an_answer_is_refused(disk: Path, source: Path, found: dict[str, object] | None) -> None:
    results = disk / "results"
    results.mkdir()
    if found is not None:
        (results / "resolve.json").write_text(json.dumps(found))
    ended = run_loader(
        "fetch",
        disk / "home",
        "--source",
        f"file://{source}",
        "--resolved",
        "--results",
        results,
        "--disk-reserve",
        "0",
    )
    assert (2, "Usage") == (ended.code, ended.report["reason"])
    assert "run resolve first" in ended.report["message"]
    assert not (disk / "home").exists()


def test_resolved_needs_results_and_takes_no_revision(disk: Path, source: Path) -> None:
    results = ("--results", disk / "results")
    given = ("--source", f"file://{source}")
    assert 0 == run_loader("resolve", disk / "home", *given, *results).code
    for more in ((), ("--revision", COMMIT, *results)):
        ended = run_loader("fetch", disk / "home", *given, "--resolved", *more)
        assert (2, "Usage") == (ended.code, ended.report["reason"])
        assert "takes no --revision" in ended.report["message"]


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (("--source", "nonsense"), 2, "Usage"),
        (("--source", "file:///nowhere/at/all"), 20, "NotFound"),
        (("--source", "s3://bucket/x", "--credentials-dir", "/nowhere"), 20, "SecretMissing"),
    ],
)
def test_reasons_are_those_of_fetch(disk: Path, arguments: tuple[str, ...], code: int, reason: str) -> None:
    for command in ("resolve", "fetch"):
        ended = run_loader(command, disk / "home", *arguments)
        assert (code, reason) == (ended.code, ended.report["reason"]), command


def test_a_name_that_no_checkpoint_has_is_refused(disk: Path, source: Path) -> None:
    (source / "a\nb").write_bytes(b"x")
    ended = run_loader("resolve", disk / "home", "--source", f"file://{source}")
    assert (20, "UnsafePath") == (ended.code, ended.report["reason"])


class _Away:
    """Is away so many times."""

    def __init__(self, times: int) -> None:
        self.left = times

    def list_files(self) -> Listing:
        self.left -= 1
        if self.left >= 0:
            raise SourceUnavailableError("it is away")
        return Listing(COMMIT, (), "it")


def test_a_source_that_is_away_is_asked_again_and_again() -> None:
    told: list[str] = []
    assert list_pinned(_Away(3), Backoff(4, 0.001), told.append).revision == COMMIT
    assert len(told) == 3
    with pytest.raises(SourceUnavailableError):
        list_pinned(_Away(4), Backoff(4, 0.001), told.append)


def test_a_source_that_changes_while_it_is_listed_is_listed_once_more_unless_it_is_pinned() -> None:
    def change() -> int:
        tries.append(1)
        if len(tries) < 2:
            raise SourceChangedError("it changed")
        return len(tries)

    tries: list[int] = []
    assert run_pinned(change, "main", lambda _: None) == 2
    tries.clear()
    with pytest.raises(WillNotWorkError, match="it changed"):
        run_pinned(change, COMMIT, lambda _: None)
    assert len(tries) == 1


def test_resolve_imports_no_library_that_it_needs_not(source: Path, disk: Path) -> None:
    script = (
        "import sys; from modelweights_loader.cli import main; "
        f"code = main(['resolve', {str(disk / 'home')!r}, '--source', {f'file://{source}'!r}]); "
        "print(code, sorted({name.partition('.')[0] for name in sys.modules} "
        "& {'torch', 'numpy', 'fastsafetensors', 'safetensors', 'kopf', 'modelweights_operator', 'huggingface_hub'}))"
    )
    environment = {**os.environ, "PYTHONPATH": str(LOADER)}
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60, env=environment
    )
    assert ran.stdout.splitlines()[-1] == "0 []"
