"""Writes the table of all cases into docs/bad-input.md, and what the other readers said into verdicts.json.

Called by `python -m tests.corpus table`, and by a unit test that compares.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.corpus import CASES
from tests.corpus.verdicts import Command, Reader, Said, ask_ours, made

if TYPE_CHECKING:
    from tests.corpus.case import Case

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "bad-input.md"
RECORDED = Path(__file__).with_name("verdicts.json")
_BEGIN, _END = "<!-- written by `python -m tests.corpus table` -->", "<!-- end -->"
_HANGS_AFTER_SECONDS = 10


def read_recorded() -> dict[str, dict[str, Said]]:
    """What was said when the table was written: by case, then by reader."""
    content: dict[str, Any] = json.loads(RECORDED.read_text(encoding="utf-8"))
    return {name: {reader: Said(*said) for reader, said in row.items()} for name, row in content.items()}


def write_table(names: list[str]) -> list[str]:
    """Asks everybody about the cases of these names, by default about all, and writes what was said.

    Returns:
        Where the loader does not do what the case says.
    """
    wrong: list[str] = []
    recorded = read_recorded() if names else {}
    with (
        tempfile.TemporaryDirectory(dir="/var/tmp") as folder,
        Reader("safetensors") as safetensors,
        Reader("parallel") as parallel,
        Command() as command,
    ):
        Path(folder).chmod(0o755)
        for case in (case for case in CASES.values() if not names or case.name in names):
            with made(case, Path(folder)) as (base, path):
                ours = ask_ours(case, base, path, command)
                if (ours.exit_code, ours.report.get("reason")) != (case.exit_code, case.reason):
                    wrong.append(f"{case.name}: {ours.exit_code} {ours.stderr}")
                recorded[case.name] = {
                    "safetensors": safetensors.ask(case, base, path, _HANGS_AFTER_SECONDS),
                    "parallel": parallel.ask(case, base, path, _HANGS_AFTER_SECONDS),
                }
                print(case.name, *(said.verdict for said in recorded[case.name].values()), flush=True)
    lines = (f"{json.dumps(name)}: {json.dumps(row)}" for name, row in recorded.items() if name in CASES)
    RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    text = DOCUMENT.read_text(encoding="utf-8")
    before, _, after = text.partition(_BEGIN)
    DOCUMENT.write_text(f"{before}{render(recorded)}{after.partition(_END)[2]}", encoding="utf-8")
    return wrong


def render(recorded: dict[str, dict[str, Said]]) -> str:
    """The generated part of the document."""
    stricter: dict[str, list[str]] = {}
    for case in CASES.values():
        if case.exit_code and recorded[case.name]["safetensors"].verdict == "accepts":
            stricter.setdefault(case.why, []).append(f"`{case.name}`")
    lines = [
        _BEGIN,
        "",
        f"### Stricter than safetensors, in {sum(map(len, stricter.values()))} of {len(CASES)} cases",
        "",
    ]
    lines += [f"- {why[:1].upper()}{why[1:]}: {', '.join(names)}." for why, names in stricter.items()]
    lines += ["", "### All cases", "", "| case | what | ours | exit code | reason | safetensors | ParallelLoader |"]
    lines += ["|---|---|---|---|---|---|---|"]
    lines += [_row(case, recorded[case.name]) for case in CASES.values()]
    return "\n".join([*lines, "", _END])


def _row(case: Case, said: dict[str, Said]) -> str:
    verdict = {0: "good", 30: "bad"}.get(case.exit_code, "refused")
    cells = [f"`{case.name}`", case.what, verdict, str(case.exit_code), case.reason]
    cells += [f"dies of {answer.words}" if answer.verdict == "dies" else answer.verdict for answer in said.values()]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
