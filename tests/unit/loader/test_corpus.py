"""Every checkpoint of the corpus: the verdict, exit code and words of the command, and what the other readers say today."""

from __future__ import annotations

import queue
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.corpus import CASES
from tests.corpus.table import DOCUMENT, read_recorded, render
from tests.corpus.verdicts import Command, Ours, Reader, Said, ask_ours, made

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.corpus.case import Case

# Beyond what a good checkpoint takes. A header may have 100 MB, of which one copy is kept.
MAX_MORE_BYTES = 256 * 2**20
# A hang of the other reader; nothing of it depends on speed.
DEADLINE_SECONDS = 120
HANG_SECONDS = 2
RECORDED = read_recorded()


class Answers(NamedTuple):
    """What was said of a case; parallel only where the loader says good."""

    ours: Ours
    safetensors: Said
    parallel: Said | None


@pytest.fixture(scope="module")
def answers() -> Iterator[dict[str, Answers]]:
    """Asks everybody about every case, two cases at a time."""
    with (
        tempfile.TemporaryDirectory(dir="/var/tmp", prefix="corpus-") as folder,
        Reader("safetensors") as safetensors,
        Reader("parallel") as parallel,
        Command() as one,
        Command() as other,
        ThreadPoolExecutor(2) as pool,
    ):
        free: queue.SimpleQueue[Command] = queue.SimpleQueue()
        free.put(one)
        free.put(other)
        parent = Path(folder)
        parent.chmod(0o755)

        def ask(case: Case) -> Answers:
            hangs = RECORDED[case.name]["safetensors"].verdict == "hangs"
            seconds = HANG_SECONDS if hangs else DEADLINE_SECONDS
            with made(case, parent) as (base, path):
                command = free.get()
                ours = ask_ours(case, base, path, command)
                free.put(command)
                theirs = safetensors.ask(case, base, path, seconds)
                loads = parallel.ask(case, base, path, DEADLINE_SECONDS) if ours.exit_code == 0 else None
            return Answers(ours, theirs, loads)

        yield dict(zip(CASES, pool.map(ask, CASES.values()), strict=True))


@pytest.fixture
def case(request: pytest.FixtureRequest) -> Case:
    """One case, by its name."""
    return CASES[request.param]


every_case = pytest.mark.parametrize("case", list(CASES), indirect=True)


@pytest.mark.timeout(900)
def test_everybody_answers(answers: dict[str, Answers]) -> None:
    """The time of all is this test's."""
    assert len(answers) == len(CASES) >= 120


@every_case
def test_exit_code_and_reason(case: Case, answers: dict[str, Answers]) -> None:
    ours = answers[case.name].ours
    assert (case.exit_code, case.reason) == (ours.exit_code, ours.report.get("reason")), ours.stderr


@every_case
def test_one_line_names_the_file(case: Case, answers: dict[str, Answers]) -> None:
    stderr = "".join(line for line in answers[case.name].ours.stderr.splitlines(keepends=True) if " %, " not in line)
    assert stderr.count("\n") == (case.exit_code != 0)
    assert "Traceback" not in stderr
    assert len(stderr) < 2000
    if case.exit_code:
        assert case.says
        assert case.says in stderr


@every_case
def test_memory_is_bounded(case: Case, answers: dict[str, Answers]) -> None:
    assert answers[case.name].ours.peak_bytes < answers["which-two"].ours.peak_bytes + MAX_MORE_BYTES


@every_case
def test_never_good_where_safetensors_says_bad(case: Case, answers: dict[str, Answers]) -> None:
    answer = answers[case.name]
    if answer.ours.exit_code == 0:
        assert answer.safetensors.verdict == "accepts", answer.safetensors.words
    elif answer.safetensors.verdict == "accepts":
        assert case.why, "stricter than safetensors: say why"


@every_case
def test_the_others_say_what_the_table_has(case: Case, answers: dict[str, Answers]) -> None:
    answer, recorded = answers[case.name], RECORDED[case.name]
    remedy = "run `python -m tests.corpus table`"
    assert answer.safetensors.verdict == recorded["safetensors"].verdict, remedy
    if answer.parallel is not None:
        assert answer.parallel.verdict == recorded["parallel"].verdict, f"{answer.parallel.words}: {remedy}"


def test_the_table_is_of_these_cases() -> None:
    assert CASES.keys() == RECORDED.keys()
    assert render(RECORDED) in DOCUMENT.read_text(encoding="utf-8"), "run `python -m tests.corpus table`"
