"""Bad and odd checkpoints, made by code, each with what is to be said of it.

`python -m tests.corpus make DIR` makes them, `… table` asks everybody and writes docs/bad-input.md. Standard library only,
but for the readers that are asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.corpus import files, folders, headers, indexes

if TYPE_CHECKING:
    from pathlib import Path

    from tests.corpus.case import Case

CASES: dict[str, Case] = {
    case.name: case for module in (headers, files, folders, indexes) for case in module.list_cases()
}


def make(case: Case, base: Path) -> Path:
    """Makes a case below base, an empty folder that every user may enter.

    Returns:
        What is to be validated.
    """
    folder = base / "m"
    folder.mkdir(parents=True)
    case.build(folder)
    return base / case.path
