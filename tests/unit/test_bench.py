"""What the benchmarks' figures rest on: what a process costs, whether files are cold, and where tables go."""

import sys
from pathlib import Path

import pytest

from tests.bench.control_groups import limit_memory
from tests.bench.figures import make_table, ratio, spread, verdict
from tests.bench.page_cache import make_cold, resident_share
from tests.bench.processes import PROGRAMS, BenchmarkError, measure
from tests.bench.render import DOCUMENTS, fill_in, list_markers, make_all_tables
from tests.bench.scratch import make_scratch, make_set
from tests.control_groups import read_memory_stat

MIB = 2**20


@pytest.fixture
def disk_path() -> Path:
    """A folder on a real disk: memory-backed files can't be made cold."""
    return Path("/var/tmp")  # noqa: S108 - folders of one's own are made there


def test_a_process_costs_what_it_uses() -> None:
    work = "data = bytearray(100 * 2**20)\nfor offset in range(0, len(data), 4096): data[offset] = 1\nimport time; time.sleep(0.3)"
    cost = measure([sys.executable, "-c", work], sample=True)
    assert cost.seconds >= 0.3
    assert cost.cpu_seconds > 0
    assert 100 * MIB < cost.max_rss_bytes < 200 * MIB
    assert 100 * MIB < cost.anonymous_bytes < 200 * MIB


def test_memory_of_children_counts_together() -> None:
    child = "import time; data = b'x' * (50 * 2**20); time.sleep(0.5)"
    parent = f"import subprocess, sys; data = b'x' * (50 * 2**20); subprocess.run([sys.executable, '-c', {child!r}])"
    assert measure([sys.executable, "-c", parent], sample=True).anonymous_bytes > 100 * MIB


def test_memory_of_the_caller_does_not_count() -> None:
    taken = b"x" * (200 * MIB)
    assert measure(["true"]).max_rss_bytes < 50 * MIB
    assert len(taken) == 200 * MIB


@pytest.mark.parametrize(
    "argv", [["false"], ["no-such-program-at-all"], [sys.executable, "-c", "import os; os.abort()"]]
)
def test_a_program_that_fails_is_an_error(argv: list[str]) -> None:
    with pytest.raises(BenchmarkError):
        measure(argv)


def test_a_program_that_hangs_is_ended() -> None:
    with pytest.raises(BenchmarkError, match="longer than"):
        measure(["sleep", "600"], timeout_seconds=0.5)


def test_files_are_made_cold_and_warm(disk_path: Path) -> None:
    with make_scratch(disk_path, 16 * MIB) as scratch:
        files = make_set(scratch / "set", 16 * MIB, shards=2)
        make_cold(files)
        assert resident_share(files) <= 0.01
        measure([sys.executable, str(PROGRAMS / "engine_prefetch.py"), "2", str(MIB), *map(str, files)])
        assert resident_share(files) == 1
    assert not scratch.exists()


def test_scratch_refuses_a_disk_without_room(disk_path: Path) -> None:
    with pytest.raises(BenchmarkError, match="are needed"), make_scratch(disk_path, 2**60):
        pass


def test_a_memory_group_holds_its_processes_and_is_removed() -> None:
    with limit_memory(64 * MIB) as group:
        measure(["true"], groups=(group,))
        assert "active_file" in read_memory_stat(group)
        with pytest.raises(BenchmarkError):
            measure([sys.executable, "-c", "b'x' * (100 * 2**20)"], groups=(group,))
    assert not group.exists()


def test_figures_are_medians_with_their_spread() -> None:
    assert spread([3.0, 1.0, 2.0]) == "2.00 (1.00-3.00)"
    assert spread([]) == "-"
    # By round: a disturbance that slowed both sides of a round says nothing.
    assert ratio([2.0, 20.0, 3.0], [1.0, 10.0, 1.0]) == 2
    assert verdict("rate", 2.0, 2)[-1] == "met"
    assert verdict("rate", 1.99, 2)[-1] == "**missed**"
    assert verdict("time", 1.2, 1.1, at_most=True)[-1] == "**missed**"
    assert make_table(("a", "b"), [("c", "1")]) == "| a | b |\n|---|--:|\n| c | 1 |"


def test_tables_replace_what_is_between_their_markers_and_nothing_else() -> None:
    text = "before\n<!-- table x y -->\nold\n<!-- end -->\nbetween\n<!-- table z -->\n<!-- end -->\nafter\n"
    filled = fill_in(text, {"x y": "| new |"})
    assert (
        filled
        == "before\n<!-- table x y -->\n\n| new |\n\n<!-- end -->\nbetween\n<!-- table z -->\n<!-- end -->\nafter\n"
    )
    assert fill_in(filled, {"x y": "| new |"}) == filled


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_documents_show_the_tables_of_the_stored_figures(document: Path) -> None:
    """Whoever changes figures or how tables look renders again."""
    root = Path(__file__).parent.parent.parent
    tables: dict[str, str] = {}
    for file in (root / "docs" / "figures").glob("*.json"):
        tables |= make_all_tables(file)
    text = (root / document).read_text()
    assert set(list_markers(text)) - set(tables) == set()
    assert fill_in(text, tables) == text
