"""Reports: never more than 1 KiB, always one JSON object, written in place."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelweights_loader.errors import WillNotWorkError
from modelweights_loader.report import encode_report, read_result, write_report, write_result
from tests.unit.loader.conftest import LOADER

if TYPE_CHECKING:
    from pathlib import Path


@given(st.text(max_size=3000), st.dictionaries(st.text(min_size=1, max_size=40), st.integers(), max_size=60))
def test_a_report_is_at_most_1024_bytes_whatever_is_in_it(message: str, figures: dict[str, int]) -> None:
    report = {"step": "validate", "exitCode": 30, "reason": "Truncated", "message": message, "seconds": 0.1}
    encoded = encode_report({**figures, **report})
    assert len(encoded) <= 1024
    assert "message" in json.loads(encoded)


def test_a_long_message_is_cut_and_the_figures_stay() -> None:
    report: dict[str, object] = {"step": "validate", "exitCode": 30, "reason": "Truncated", "message": "é" * 2000}
    kept = json.loads(encode_report({**report, "sizeBytes": 7}))
    assert kept["message"].endswith("…")
    assert len(kept["message"]) > 400
    assert (kept["step"], kept["exitCode"], kept["reason"], kept["sizeBytes"]) == ("validate", 30, "Truncated", 7)


def test_names_that_are_no_utf8_do_not_break_a_report() -> None:
    assert json.loads(encode_report({"message": os.fsdecode(b"shard-\xff")}))["message"].startswith("shard-")


@given(st.text(st.characters(exclude_categories=()), max_size=2000))
def test_a_report_is_json_whatever_a_name_holds(name: str) -> None:
    encoded = encode_report({"message": name})
    assert "message" in json.loads(encoded.decode("utf-8"))
    assert len(encoded) <= 1024


def test_a_backslash_beside_a_byte_that_is_no_utf8_stays_json() -> None:
    assert json.loads(encode_report({"message": os.fsdecode(b"a\\u\xff")})) == {"message": "a\\u?"}


def test_a_result_of_another_checkpoint_is_none(tmp_path: Path) -> None:
    write_result(str(tmp_path), "validate", {"manifestDigest": "d"}, "/one")
    for path, expected in (("/one", {"manifestDigest": "d"}), (None, {"manifestDigest": "d"}), ("/two", {})):
        assert read_result(str(tmp_path), "validate", path) == expected


def test_a_report_that_does_not_fit_leaves_no_half_of_it(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    script = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100));"
        "from modelweights_loader.report import write_report; write_report(sys.argv[1], {'message': 'x' * 200})"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script, str(path)],
        env={"PYTHONPATH": str(LOADER), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        check=False,
    )
    assert b"EFBIG" in ended.stderr
    assert path.read_bytes() == b""


def test_a_termination_log_is_written_in_place(tmp_path: Path) -> None:
    path = tmp_path / "termination-log"
    path.write_text("x" * 5000, encoding="ascii")
    inode = path.stat().st_ino
    write_report(str(path), {"step": "report"})
    assert inode == path.stat().st_ino
    assert json.loads(path.read_bytes()) == {"step": "report"}


def test_results_are_read_back_in_full_and_leave_no_temporary_file(tmp_path: Path) -> None:
    report: dict[str, object] = {"step": "prefetch", "message": "x" * 5000}
    write_result(str(tmp_path / "results"), "prefetch", report, "/m")
    assert report == read_result(str(tmp_path / "results"), "prefetch", "/m")
    assert os.listdir(tmp_path / "results") == ["prefetch.json"]


def test_what_can_not_be_read_is_no_result(tmp_path: Path) -> None:
    (tmp_path / "validate.json").write_text("[", encoding="ascii")
    for folder, step in ((str(tmp_path), "validate"), (None, "x"), (str(tmp_path), "gone")):
        assert read_result(folder, step, "/m") == {}


def test_what_can_not_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(WillNotWorkError, match="results"):
        write_result(str(tmp_path / "file"), "prefetch", {}, "/m")
    with pytest.raises(WillNotWorkError, match="report"):
        write_report(str(tmp_path / "gone" / "file"), {})
