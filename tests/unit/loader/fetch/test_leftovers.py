"""What lies in a home beside the checkpoint that a fetch brought is told in its report, which stays within its bound."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from modelweights_loader.commands.fetch import _figures
from modelweights_loader.fetch.fetching import FetchResult
from modelweights_loader.fetch.published import Published, list_others
from modelweights_loader.report import encode_report
from tests.checkpoints.synthetic import make_synthetic
from tests.unit.loader.conftest import run_loader

if TYPE_CHECKING:
    from pathlib import Path


def name(number: int) -> str:
    return f"{number:064x}"


def test_others_are_the_folders_named_by_a_digest(tmp_path: Path) -> None:
    for each in (name(3), name(1), name(2), ".fetch", "f" * 63, "A" * 64, "f" * 65):
        (tmp_path / each).mkdir()
    (tmp_path / name(4)).write_text("no folder")
    (tmp_path / name(5)).symlink_to(tmp_path / name(1))
    assert list_others(str(tmp_path), name(2)) == [name(1), name(3)]
    assert list_others(str(tmp_path), f"{name(2)}/models--org--name/snapshots/{'a' * 40}") == [name(1), name(3)]
    assert list_others(str(tmp_path / "gone"), name(2)) == []


def test_a_fetch_tells_of_them(tmp_path: Path) -> None:
    files, home = make_synthetic(tmp_path / "files", 2**16, shards=1), tmp_path / "home"
    first = run_loader("fetch", home, "--source", files.as_uri())
    assert (first.code, first.report["leftovers"]) == (0, [])
    for number in range(20):
        (home / name(number)).mkdir()
    second = run_loader("fetch", home, "--source", files.as_uri())
    assert second.report["leftovers"] == [name(number) for number in range(6)]
    assert second.report["manifestDigest"] == first.report["manifestDigest"]


def test_six_fit_into_the_longest_report_with_all_that_the_operator_reads(tmp_path: Path) -> None:
    for number in range(6):
        (tmp_path / name(number)).mkdir()
    digest, revision = "f" * 64, f"sha256:{'e' * 64}"
    published = Published(revision, f"sha256:{digest}", digest, "x" * 500, "y", 2**45, ())
    result = FetchResult("AlreadyThere", "x" * 500, revision, 2**45, 10**5, published, fetched_bytes=2**45, seconds=1e5)
    report = {"step": "fetch", "exitCode": 0, "reason": "AlreadyThere", "message": "z" * 2000, "seconds": 123456.789}
    kept = json.loads(encode_report({**report, **_figures(result, str(tmp_path))}))
    assert len(kept["leftovers"]) == 6
    assert {"revision", "manifestDigest", "sizeBytes", "fileCount", "fetchedBytes", "fetchSeconds"} <= kept.keys()
