"""Puts tables of figures into documents, between markers. Called by `__main__`.

A marker is `<!-- table NAME -->`, its end `<!-- end -->`, each on a line of its own; what is between them is replaced.
A benchmark's sentence on when and where is the table `BENCHMARK about`.
"""

import json
import re
from pathlib import Path
from typing import Any, Final

from tests.bench.benchmarks import ALL
from tests.bench.figures import describe_result

DOCUMENTS: Final = (Path("docs/benchmarks.md"), Path("docs/tuning.md"))
_MARKED: Final = re.compile(
    r"(?P<start><!-- table (?P<name>[^>]+) -->\n).*?(?P<end>^<!-- end -->$)", re.DOTALL | re.MULTILINE
)


def make_tables(result: dict[str, Any]) -> dict[str, str]:
    """All tables of one benchmark, by name."""
    name = result["benchmark"]
    return {f"{name} about": describe_result(result), **ALL[name].make_tables(result)}


def make_all_tables(file: Path) -> dict[str, str]:
    """All tables of one JSON file, by name."""
    return make_tables(json.loads(file.read_text()))


def format_result(result: dict[str, Any]) -> str:
    """All tables of one benchmark as they are printed after it ran."""
    return "\n\n".join(f"{name}\n\n{table}" for name, table in make_tables(result).items())


def list_markers(text: str) -> list[str]:
    """Names of the tables that a document shows."""
    return [found["name"] for found in _MARKED.finditer(text)]


def fill_in(text: str, tables: dict[str, str]) -> str:
    """Replace what is between markers whose table is known; leave others as they are."""

    def replace(found: re.Match[str]) -> str:
        table = tables.get(found["name"])
        return found[0] if table is None else f"{found['start']}\n{table}\n\n{found['end']}"

    return _MARKED.sub(replace, text)


def render(figures: list[Path]) -> None:
    """Put the tables of these JSON files into the documents, in the current folder."""
    tables: dict[str, str] = {}
    for file in figures:
        tables |= make_all_tables(file)
    for document in DOCUMENTS:
        document.write_text(fill_in(document.read_text(), tables))
