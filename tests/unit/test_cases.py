"""The table in docs/cases.md names tests that there are."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROWS = [line for line in (ROOT / "docs/cases.md").read_text().splitlines() if line.startswith("|")]
NAMED = sorted(set(re.findall(r"`([a-z_/]+\.py)::(\w+)", "\n".join(ROWS))))


@cache
def functions(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / "tests" / path).read_text())
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef))


@pytest.mark.parametrize(("path", "name"), NAMED)
def test_the_test_is_there(path: str, name: str) -> None:
    assert name in functions(path)


def test_each_case_has_one() -> None:
    numbers = {int(number) for row in ROWS if "::" in row for number in re.findall(r"^\| (\d+)", row)}
    assert numbers >= {6, 7, 8, 11, 13, *range(20, 27), 28}
