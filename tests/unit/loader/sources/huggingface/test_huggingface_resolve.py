"""The command `resolve` with a hub: the branch's commit, and no byte of a file; then `fetch --resolved` of that commit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.servers.hub import Fault, Hub
from tests.servers.repositories import NAME, WEIGHTS, make_repository
from tests.unit.loader.conftest import run_loader

if TYPE_CHECKING:
    from pathlib import Path


def test_the_commit_that_was_resolved_is_fetched_also_when_the_branch_has_moved(tmp_path: Path, disk: Path) -> None:
    root = tmp_path / "hub"
    folder = make_repository(root, refs={"main": "one", "next": "two"})
    with Hub(root) as hub:
        one = hub.commit_of(folder / "one")
        given = ("--source", f"hf://{NAME}", "--endpoint", hub.url, "--results", disk / "results")
        resolved = run_loader("resolve", disk / "home", *given, "--revision", "main")
        assert (0, one) == (resolved.code, resolved.report["revision"]), resolved.stderr
        assert f"{NAME} at {one}" in resolved.report["described"]
        assert not hub.bytes_sent[f"data /repos/{NAME}/one/{WEIGHTS}"]
        assert not (disk / "home").exists()
        hub.refs[NAME] = {"main": "two"}
        fetched = run_loader("fetch", disk / "home", *given, "--resolved", "--disk-reserve", "0")
        assert (0, "Fetched", one) == (fetched.code, fetched.report["reason"], fetched.report["revision"])
        published = disk / "home" / fetched.report["folder"] / WEIGHTS
        assert published.read_bytes() == (folder / "one" / WEIGHTS).read_bytes()
        assert hub.bytes_sent[f"data /repos/{NAME}/one/{WEIGHTS}"]


def test_a_token_that_the_hub_refuses_is_said_as_by_fetch(tmp_path: Path, disk: Path) -> None:
    make_repository(tmp_path / "hub", private=True)
    (tmp_path / "token").write_text("hf_wrong")
    with Hub(tmp_path / "hub") as hub:
        given = ("--source", f"hf://{NAME}", "--endpoint", hub.url, "--token-file", tmp_path / "token")
        ended = [run_loader(command, disk / "home", *given) for command in ("resolve", "fetch")]
    assert (20, "Unauthorized") == (ended[0].code, ended[0].report["reason"])
    assert (20, "Unauthorized") == (ended[1].code, ended[1].report["reason"])


def test_a_hub_that_is_busy_is_asked_again(tmp_path: Path, disk: Path) -> None:
    make_repository(tmp_path / "hub")
    with Hub(tmp_path / "hub") as hub:
        hub.set_faults(Fault("api", "status", status=503, times=1))
        given = ("--source", f"hf://{NAME}", "--endpoint", hub.url)
        resolved = run_loader("resolve", disk / "home", *given)
    assert 0 == resolved.code, resolved.stderr
    assert "asked again in" in resolved.stderr
