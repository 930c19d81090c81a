"""Runs programs for the providers, with a time-out always and an error that shows what they said."""

import subprocess
from collections.abc import Mapping, Sequence

from tests.cluster.errors import CommandError, MissingToolError


def run(
    argv: Sequence[str],
    *,
    input: str | None = None,  # noqa: A002 - as subprocess.run names it
    check: bool = True,
    timeout: float = 60,
    env: Mapping[str, str] | None = None,
) -> str:
    """Run a program and return its standard output.

    Args:
        argv: the program and its arguments.
        input: text for its standard input; none is an empty one.
        check: raise CommandError on an exit status other than 0. Otherwise the output is followed by standard error.
        timeout: seconds until it is killed and CommandError is raised.
        env: the whole environment, if not this process's own.
    """
    try:
        finished = subprocess.run(
            argv,
            input=input if input is not None else "",
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=timeout,
            env=env,
        )
    except subprocess.TimeoutExpired as error:
        raise CommandError(f"{' '.join(argv)[:200]}: no end after {timeout:g} s", -1) from error
    except FileNotFoundError as error:
        raise MissingToolError(f"{argv[0]} is not installed") from error
    if finished.returncode == 0:
        return finished.stdout
    if not check:
        return finished.stdout + finished.stderr
    said = (finished.stderr or finished.stdout).strip()[-3000:]
    message = f"{' '.join(argv)[:300]}: exit status {finished.returncode}\n{said}"
    raise CommandError(message, finished.returncode, finished.stdout, finished.stderr)
