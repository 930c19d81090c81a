"""A refresh has the marker say whether what it is about is warm; it changes nothing else in it, and makes none."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from modelweights_loader import cli
from modelweights_loader.checkpoint import find_checkpoint
from modelweights_loader.errors import WillNotWorkError
from modelweights_loader.marker import MARKER_FOLDER, Marker, read_boot_id, read_marker, write_marker
from modelweights_loader.prefetch import prefetch
from modelweights_loader.warmth import mark_warmth
from tests.checkpoints.synthetic import make_synthetic
from tests.unit.loader.conftest import evict, run_loader

if TYPE_CHECKING:
    from pathlib import Path

DIGEST = f"sha256:{'a' * 64}"
SIZE = 8 * 2**20
NOT_WARMED = ("--max-resident", "1Mi")


@pytest.fixture
def root(disk: Path) -> Path:
    """A prepared root with a model in `ns/m`."""
    (disk / MARKER_FOLDER).mkdir()
    make_synthetic(disk / "ns" / "m", SIZE, shards=2)
    return disk


def _write(root: Path, path: str = "ns/m", *, warm: bool = True, digest: str = DIGEST, boot_id: str = "") -> Marker:
    marker = Marker(path, digest, boot_id or read_boot_id(), "node-boot", SIZE, 3, "2026-01-01T00:00:00Z", warm)
    write_marker(str(root / MARKER_FOLDER), marker)
    return marker


def _read(root: Path, path: str = "ns/m") -> Marker | None:
    return read_marker(str(root / MARKER_FOLDER), path)


def _options(root: Path) -> tuple[str, ...]:
    return ("--root", str(root), "--marker-dir", str(root / MARKER_FOLDER))


@pytest.mark.parametrize(
    ("given", "warm"),
    [
        ((), True),
        (NOT_WARMED, False),
        ((*NOT_WARMED, "--min-resident-percent", "1"), True),
    ],
    ids=["all is warmed", "too little", "little is enough"],
)
@pytest.mark.parametrize("before", [True, False])
def test_the_marker_says_whether_as_much_as_is_asked_for_is_warm(
    root: Path,
    given: tuple[str, ...],
    warm: bool,  # noqa: FBT001 - a parameter of the table
    before: bool,  # noqa: FBT001
) -> None:
    marker = _write(root, warm=before)
    evict(root / "ns" / "m")
    ran = run_loader("refresh", root / "ns" / "m", *_options(root), *given)
    assert (ran.code, ran.report["marker"]) == (0, "Written")
    assert _read(root) == marker._replace(warm=warm)
    assert len(os.listdir(root / MARKER_FOLDER)) == 1


def test_it_is_marked_before_the_policy_makes_an_error_of_it(root: Path) -> None:
    _write(root)
    evict(root / "ns" / "m")
    ran = run_loader("refresh", root / "ns" / "m", *_options(root), *NOT_WARMED, "--policy", "Required")
    assert (ran.code, ran.report["marker"]) == (40, "Written")
    found = _read(root)
    assert found is not None
    assert not found.warm


@pytest.mark.parametrize(("unknown", "warm"), [("Accept", True), ("Fail", False)])
def test_where_nobody_may_measure_the_caller_says_what_follows(
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    unknown: str,
    warm: bool,  # noqa: FBT001
) -> None:
    marker = _write(root, warm=not warm)
    monkeypatch.setattr("modelweights_loader.residency.measure.__defaults__", ((),))
    assert cli.main(["refresh", str(root / "ns" / "m"), *_options(root), "--unknown-residency", unknown]) == 0
    assert _read(root) == marker._replace(warm=warm)


@pytest.mark.parametrize(("path", "boot_id"), [("ns/other", ""), ("ns/m", "older")], ids=["none", "another boot"])
def test_what_was_never_proven_in_this_boot_stays_unmarked(root: Path, path: str, boot_id: str) -> None:
    marker = _write(root, path, boot_id=boot_id)
    evict(root / "ns" / "m")
    ran = run_loader("refresh", root / "ns" / "m", *_options(root), *NOT_WARMED)
    assert (ran.code, ran.report["marker"]) == (0, "NoMarker")
    assert _read(root, path) == marker
    assert len(os.listdir(root / MARKER_FOLDER)) == 1


@pytest.mark.parametrize("spoil", ["garbage", "folder gone"])
def test_a_marker_that_can_t_be_changed_is_said_and_no_error(root: Path, spoil: str) -> None:
    prefetch(find_checkpoint(str(root / "ns" / "m")).shards)
    options = list(_options(root))
    if spoil == "garbage":
        (root / MARKER_FOLDER / "ns%2Fm.json").write_text("{")
    else:
        options[-1] = str(root / "nowhere")
    ran = run_loader("refresh", root / "ns" / "m", *options)
    expected = ("NotWritable", True) if spoil == "garbage" else ("NoMarker", False)
    assert (ran.code, ran.report["marker"], "not changed" in ran.report["message"]) == (0, *expected)


def test_without_a_marker_folder_none_is_looked_for(root: Path) -> None:
    marker = _write(root, warm=False)
    ran = run_loader("refresh", root / "ns" / "m", "--root", str(root))
    assert (ran.code, ran.report.get("marker"), _read(root)) == (0, None, marker)


def test_of_a_home_the_markers_of_the_digest_are_changed_and_no_others(root: Path) -> None:
    model = root / "ns" / "m"
    home = root / "ns" / "home"
    assert run_loader("fetch", home, "--source", f"file://{model}").code == 0
    folder = next(entry.name for entry in home.iterdir() if len(entry.name) == len("0" * 64))
    fetched = _write(root, f"ns/home/{folder}", digest=f"sha256:{folder}")
    other = _write(root)
    evict(home / folder)
    ran = run_loader("refresh", home, "--digest", f"sha256:{folder}", *_options(root), *NOT_WARMED)
    assert (ran.code, ran.report["marker"]) == (0, "Written")
    assert (_read(root, f"ns/home/{folder}"), _read(root)) == (fetched._replace(warm=False), other)


def test_all_revisions_in_a_cache_that_have_these_files_are_marked(root: Path) -> None:
    paths = [f"ns/home/{'a' * 64}/models--x/snapshots/{name}" for name in ("one", "two", "three")]
    for path in paths:
        (root / path).mkdir(parents=True)
    markers = [_write(root, path) for path in paths[:2]]
    differs = _write(root, paths[2], digest="sha256:b")
    folder = str(root / MARKER_FOLDER)
    assert mark_warmth(str(root / paths[0]), str(root), folder, digest=DIGEST, warm=False) == ("Written", "")
    assert [_read(root, path) for path in paths] == [*(each._replace(warm=False) for each in markers), differs]


def test_a_path_that_leads_out_of_the_root_is_refused(root: Path) -> None:
    (root / "link").symlink_to("/etc")
    with pytest.raises(WillNotWorkError, match="out of the root"):
        mark_warmth(str(root / "link"), str(root), str(root / MARKER_FOLDER), digest=None, warm=True)
