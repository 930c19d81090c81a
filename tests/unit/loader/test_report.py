"""Reports: never more than 1 KiB, always one JSON object, written in place."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelweights_loader.errors import WillNotWorkError
from modelweights_loader.report import encode_report, read_result, write_report, write_result

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


def test_a_termination_log_is_written_in_place(tmp_path: Path) -> None:
    path = tmp_path / "termination-log"
    path.write_text("x" * 5000, encoding="ascii")
    inode = path.stat().st_ino
    write_report(str(path), {"step": "report"})
    assert inode == path.stat().st_ino
    assert json.loads(path.read_bytes()) == {"step": "report"}


def test_results_are_read_back_in_full_and_leave_no_temporary_file(tmp_path: Path) -> None:
    report: dict[str, object] = {"step": "prefetch", "message": "x" * 5000}
    write_result(str(tmp_path / "results"), "prefetch", report)
    assert report == read_result(str(tmp_path / "results"), "prefetch")
    assert os.listdir(tmp_path / "results") == ["prefetch.json"]


def test_what_can_not_be_read_is_no_result(tmp_path: Path) -> None:
    (tmp_path / "validate.json").write_text("[", encoding="ascii")
    assert {} == read_result(str(tmp_path), "validate") == read_result(None, "x") == read_result(str(tmp_path), "gone")


def test_what_can_not_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(WillNotWorkError, match="results"):
        write_result(str(tmp_path / "file"), "prefetch", {})
    with pytest.raises(WillNotWorkError, match="report"):
        write_report(str(tmp_path / "gone" / "file"), {})
