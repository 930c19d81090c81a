"""`python -m tests.fuzz [--seconds N] [--seed N]`: fuzzes the header reader and says what came of it.

Seeds are the corpus' shards. An input that shows a difference is kept in `.fuzz/`, with what to do about it.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from tests.corpus import CASES, make
from tests.corpus.case import SHARD
from tests.fuzz.target import MAX_INPUT_BYTES

REPOSITORY = Path(__file__).resolve().parents[2]
FINDINGS = REPOSITORY / ".fuzz"


class Result(NamedTuple):
    """What came of a run; coverage is libFuzzer's number of places reached, 0 without atheris."""

    executions: int
    coverage: int
    inputs: int
    found: tuple[Path, ...]
    log: str


def write_seeds(folder: Path) -> int:
    """Writes the small shards of the corpus, and returns how many."""
    count = 0
    with tempfile.TemporaryDirectory(dir="/var/tmp") as made:
        for case in CASES.values():
            if case.heavy:
                continue
            make(case, Path(made) / case.name)
            shard = Path(made) / case.name / "m" / SHARD
            if (
                not case.as_user
                and not shard.is_symlink()
                and shard.is_file()
                and shard.stat().st_size <= MAX_INPUT_BYTES
            ):
                (folder / case.name).write_bytes(shard.read_bytes())
                count += 1
    return count


def run(seconds: int, seed: int, findings: Path) -> Result:
    """Fuzzes in a process of its own."""
    findings.mkdir(exist_ok=True)
    before = set(findings.iterdir())
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="fuzz-") as folder:
        corpus = Path(folder)
        write_seeds(corpus)
        command = [sys.executable, "-m", "tests.fuzz.target", str(seconds), str(seed), str(corpus), str(findings)]
        path = f"{REPOSITORY}:{REPOSITORY / 'loader'}"
        ended = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False,
            timeout=seconds + 300, cwd=REPOSITORY, env={"PYTHONPATH": path, "PATH": "/usr/bin:/bin"},
        )  # fmt: skip
        inputs = len(list(corpus.iterdir()))
    found = tuple(sorted(set(findings.iterdir()) - before))
    executions, coverage = _last(r"number_of_executed_units: (\d+)", ended.stderr), _last(r"cov: (\d+)", ended.stderr)
    if ended.returncode != 0 and not found:
        message = f"the fuzzing target ended with {ended.returncode}:\n{ended.stderr[-4000:]}"
        raise RuntimeError(message)
    return Result(executions, coverage, inputs, found, ended.stdout + ended.stderr)


def _last(pattern: str, text: str) -> int:
    return max(map(int, re.findall(pattern, text)), default=0)


def main() -> int:
    """Parses, runs, says."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    result = run(arguments.seconds, arguments.seed, FINDINGS)
    print(f"{result.executions} executions, {result.coverage} places reached, {result.inputs} inputs kept")
    if not result.found:
        print("no difference: never good where safetensors says bad")
        return 0
    print(result.log[-3000:])
    for path in result.found:
        print(f"a difference: {path}; mend the reader, and add the input to tests/corpus as a case")
    return 1


if __name__ == "__main__":
    sys.exit(main())
