"""Processes on nodes: the steps of a staging pod, held in mid-run, and the operator's, ended as a crash would."""

import re
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from tests.cluster.providers import Cluster

_FREEZE: Final = """
until pid=$(pgrep -o -f "$1"); do sleep 0.05; done
kill -STOP "$pid"
echo "$pid"
tr '\\0' ' ' <"/proc/$pid/cmdline"; echo
ls "/proc/$pid/root/run/secrets" "/proc/$pid/root/var/run/secrets" 2>/dev/null | tr '\\n' ' '; echo
echo status; cat "/proc/$pid/status"
echo mounts; cat "/proc/$pid/mountinfo"
"""
_SECONDS_FOR_A_STEP: Final = 90


@dataclass(frozen=True)
class FrozenStep:
    """A loader's process as the node's kernel knows it."""

    pid: str
    arguments: list[str]
    run_secrets: str
    status: dict[str, str]
    mounts: list[str]

    def option(self, name: str) -> str:
        """The value of one of its options."""
        return self.arguments[self.arguments.index(name) + 1]


@contextmanager
def freeze_step(
    cluster: Cluster, node: str, step: str, path: str, pool: Executor
) -> Iterator[Callable[[], FrozenStep]]:
    """Hold a step's process (SIGSTOP) as soon as it starts, until the end of the block.

    Gives a function that waits for it; what starts the staging belongs between.
    """
    # The brackets keep the pattern from finding the shell that looks for it.
    pattern = f"modelweights-loader [{step[0]}]{step[1:]} {re.escape(path)} "
    argv = ["timeout", str(_SECONDS_FOR_A_STEP), "sh", "-c", _FREEZE, "sh", pattern]
    found = pool.submit(cluster.node_exec, node, argv, timeout=_SECONDS_FOR_A_STEP + 10)
    try:
        yield lambda: _parse(found.result())
    finally:
        pid = _parse(found.result()).pid
        cluster.node_exec(node, ["kill", "-CONT", pid], check=False)


def _parse(text: str) -> FrozenStep:
    head, _, rest = text.partition("status\n")
    status, _, mounts = rest.partition("mounts\n")
    pid, arguments, secrets = head.splitlines()[:3]
    fields = (line.partition(":") for line in status.splitlines())
    return FrozenStep(
        pid=pid,
        arguments=arguments.split(),
        run_secrets=secrets,
        status={name: value.strip() for name, _, value in fields},
        mounts=mounts.splitlines(),
    )
