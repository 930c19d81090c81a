"""Asks the engines' own argument parsers, each in a process of its own. Used by the unit tests and by `__main__`."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final, NamedTuple

ENGINES: Final = ("vllm", "sglang")
_PROGRAMS: Final = {engine: Path(__file__).with_name(f"{engine}_program.py") for engine in ENGINES}
_REPOSITORY: Final = Path(__file__).parent.parent.parent
# Their imports take 10 s of processor time each.
_TIMEOUT_SECONDS: Final = 240


class EngineParserError(Exception):
    """The parser of an engine could not be asked at all."""


class Interview(NamedTuple):
    """What one engine said: an answer for each case (`accepted`, `values` by names of ours, `said`: why not), and facts.

    The facts are those of `facts.json`.
    """

    answers: list[dict[str, Any]]
    facts: dict[str, Any]


def ask(engine: str, folder: Path, cases: list[dict[str, Any]]) -> Interview:
    """Asks one engine's parser, all in one process: its imports take longer than anything else.

    Args:
        engine: One of `ENGINES`.
        folder: From `packages.fetch`.
        cases: Each has `argv` (list of words), `environment` (object) and `config` (text of a file, or None).

    Returns:
        The answers and facts.

    Raises:
        EngineParserError: The process gave no answers.
    """
    return Interview(**_talk(engine, folder, {"cases": cases}))


def _talk(engine: str, folder: Path, request: dict[str, Any]) -> dict[str, Any]:
    # Last the project's own: what both programs share.
    search = os.pathsep.join((str(folder / engine), str(folder / "packages"), str(_REPOSITORY)))
    # Nothing of the caller's settings for engines may leak in; nothing may be looked up on a network.
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("VLLM_", "SGLANG_"))}
    environment |= {"PYTHONPATH": search, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "PYTHONWARNINGS": "ignore"}
    try:
        ended = subprocess.run(
            [sys.executable, str(_PROGRAMS[engine])],
            input=json.dumps(request),
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=_TIMEOUT_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise EngineParserError(f"{engine}: no answer within {_TIMEOUT_SECONDS} s") from error
    if ended.returncode != 0:
        raise EngineParserError(f"{engine}: exit code {ended.returncode}\n{ended.stderr.strip()[-2000:]}")
    answer: dict[str, Any] = json.loads(ended.stdout.strip().splitlines()[-1])
    return answer
