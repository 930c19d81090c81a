"""Listings come from strangers: what a name may not be, and that nothing is written for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from modelweights_loader.errors import WillNotWorkError
from modelweights_loader.fetch.names import check_files
from modelweights_loader.sources import bounds
from modelweights_loader.sources.contract import Listing, RemoteFile
from tests.unit.loader.fetch.scripted_source import COMMIT, ScriptedSource, make_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.loader.fetch.conftest import Fetch

HOSTILE = [
    "../up.json",
    "a/../../up.json",
    "a/./b.json",
    "/etc/passwd",
    "a//b.json",
    "a/",
    "",
    ".",
    "..",
    "nul\0.json",
    "line\nend.json",
    "tab\t.json",
    "escape\x1b[2J.json",
    "turned\u202egnp.json",
    "zero\u200bwidth.json",
    "lone\ud800.json",
    "back\\slash.json",
    ".git/config",
    "a/.GIT/hooks/x.py",
    ".fetch/lock",
    ".modelweights/x.json",
    " leading.json",
    "trailing /x.json",
    "x" * 256,
    "é" * 128,
    "/".join("abcdefghi"),
]


@pytest.mark.parametrize("path", HOSTILE, ids=ascii)
def test_hostile_name_is_refused_before_anything_is_written(home: Path, fetch_it: Fetch, path: str) -> None:
    source = ScriptedSource(make_checkpoint() | {path: b"x"})
    with pytest.raises(WillNotWorkError) as caught:
        fetch_it(source)
    assert ("UnsafePath", 20, []) == (caught.value.reason, caught.value.exit_code, source.reads)
    assert repr(path[:200]) in caught.value.message
    assert ["lock"] == [entry.name for entry in (home / ".fetch").iterdir()]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("config.json", "config.json"),
        ("config.json", "Config.JSON"),
        ("caf\u00e9.json", "cafe\u0301.json"),
        ("stra\u00dfe.json", "STRASSE.json"),
        ("a", "a/b.json"),
        ("A", "a/b.json"),
        ("a/x.json", "A/y.json"),
    ],
)
def test_two_names_that_are_one_somewhere_are_refused(first: str, second: str) -> None:
    for order in ((first, second), (second, first)):
        with pytest.raises(WillNotWorkError) as caught:
            check_files([RemoteFile(path, 1) for path in order])
        assert "UnsafePath" == caught.value.reason


@pytest.mark.parametrize("size", [-2, 2**62, -(2**63)])
def test_sizes_that_no_file_has_are_refused(size: int) -> None:
    with pytest.raises(WillNotWorkError, match=r"'x\.json'.*bytes") as caught:
        check_files([RemoteFile("x.json", size)])
    assert "UnsafePath" == caught.value.reason


def test_numbers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    check_files(RemoteFile(f"{number}.json", 1) for number in range(20_000))
    monkeypatch.setattr(bounds, "MAX_FILES", 100)
    with pytest.raises(WillNotWorkError) as caught:
        check_files(RemoteFile(f"{number}.json", 1) for number in range(101))
    assert "TooManyFiles" == caught.value.reason
    with pytest.raises(WillNotWorkError) as caught:
        check_files(RemoteFile(f"{number}.json", 2**43) for number in range(9))
    assert "TooManyFiles" == caught.value.reason


@pytest.mark.parametrize("name", ["../up", "a/b/c", "-x/y", "org/..", ".hidden/x", "a b/c", "org/na\0me"])
def test_name_of_a_repository_makes_no_path_of_its_own(fetch_it: Fetch, name: str) -> None:
    with pytest.raises(WillNotWorkError) as caught:
        fetch_it(ScriptedSource(make_checkpoint(), name=name), layout="HuggingFaceCache")
    assert "NoRepositoryName" == caught.value.reason


@pytest.mark.parametrize("revision", ["../../x", "main", "", "g" * 40, "sha256:" + "/" * 64])
def test_revision_makes_no_path_of_its_own(home: Path, fetch_it: Fetch, revision: str) -> None:
    class Moved(ScriptedSource):
        def list_files(self) -> Listing:
            return super().list_files()._replace(revision=revision)

    with pytest.raises(WillNotWorkError) as caught:
        fetch_it(Moved(make_checkpoint()), layout="HuggingFaceCache")
    assert "UnsafePath" == caught.value.reason
    assert ["lock"] == [entry.name for entry in (home / ".fetch").iterdir()]


@pytest.mark.parametrize(
    "asked",
    [
        "../../../outside",
        "/etc/x",
        "a/../../b",
        "-x",
        "main/x",
        "main.part",
        "a" * 300,
        "b/" * 9 + "b",
        "refs/pr/1",
        "v1.0",
    ],
)
def test_ref_that_was_asked_for_stays_below_refs(home: Path, fetch_it: Fetch, asked: str) -> None:
    published = fetch_it(ScriptedSource(make_checkpoint()), layout="HuggingFaceCache", revision=asked).published
    assert published is not None
    refs = home / published.folder / "../../refs"
    found = {str(path.relative_to(refs)): path.read_text() for path in refs.rglob("*") if path.is_file()}
    assert {"main": COMMIT, **({asked: COMMIT} if asked in {"refs/pr/1", "v1.0"} else {})} == found
