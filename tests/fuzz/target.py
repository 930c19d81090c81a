"""The program that is fuzzed: `python -m tests.fuzz.target SECONDS SEED CORPUS FINDINGS`, started by `tests.fuzz`.

With atheris, libFuzzer keeps the inputs that reach new lines of the loader. Without it (no wheels for the newest Python)
the same changes are made without looking.
"""

from __future__ import annotations

import hashlib
import random
import sys
import time
from pathlib import Path

from tests.fuzz.mutation import mutate

MAX_INPUT_BYTES = 4096


def run_guided(seconds: int, seed: int, corpus: Path, findings: Path) -> None:
    """Fuzzes until the time is over or something is found, and ends the process."""
    import atheris  # noqa: PLC0415 - may be missing

    with atheris.instrument_imports(include=["modelweights_loader"]):
        from tests.fuzz.judge import Judge  # noqa: PLC0415 - instrumented while it is imported

    judge = Judge()

    def change(content: bytes, max_bytes: int, seed: int) -> bytes:
        # libFuzzer's own changes too: they follow what the code compares with.
        return atheris.Mutate(content, max_bytes) if seed % 8 == 0 else mutate(content, seed, max_bytes)

    options = [f"-max_total_time={seconds}", f"-seed={seed}", f"-max_len={MAX_INPUT_BYTES}", "-print_final_stats=1"]
    options += [f"-artifact_prefix={findings}/", "-timeout=60", "-rss_limit_mb=4096"]
    atheris.Setup([sys.argv[0], *options, str(corpus)], judge.compare, custom_mutator=change)
    atheris.Fuzz()


def run_blind(seconds: int, seed: int, corpus: Path, findings: Path) -> None:
    """Does it without coverage."""
    from tests.fuzz.judge import DifferenceError, Judge  # noqa: PLC0415 - as above

    judge = Judge()
    rng = random.Random(seed)  # noqa: S311 - for tests
    inputs = [path.read_bytes() for path in sorted(corpus.iterdir())]
    deadline = time.monotonic() + seconds
    count = 0
    while time.monotonic() < deadline:
        content = mutate(rng.choice(inputs), rng.getrandbits(32), MAX_INPUT_BYTES)
        count += 1
        try:
            judge.compare(content)
        except DifferenceError:
            (findings / f"crash-{hashlib.sha256(content).hexdigest()[:40]}").write_bytes(content)
            raise
    print(f"stat::number_of_executed_units: {count}", file=sys.stderr)


def main() -> None:
    """Chooses the way."""
    seconds, seed = int(sys.argv[1]), int(sys.argv[2])
    corpus, findings = Path(sys.argv[3]), Path(sys.argv[4])
    try:
        import atheris  # noqa: F401, PLC0415 - only to see whether it is there
    except ImportError:
        run_blind(seconds, seed, corpus, findings)
    else:
        run_guided(seconds, seed, corpus, findings)


if __name__ == "__main__":
    main()
