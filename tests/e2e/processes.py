"""Processes on nodes: the steps of a staging pod, held in mid-run, and the operator's, ended as a crash would."""

import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from tests.cluster.providers import Cluster
from tests.e2e.client import path_of
from tests.e2e.site import Site
from tests.installation import NAMESPACE, condition
from tests.json_client import Json
from tests.polling import poll

_FREEZE: Final = r"""
step=$1 path=$2 give_up=$3
exec 9<> <(:)
while [[ ! -e $give_up ]]; do
  for process in /proc/[0-9]*; do
    { mapfile -d '' -t words <"$process/cmdline"; } 2>/dev/null
    if [[ ${words[1]-} == */modelweights-loader && ${words[2]-} == "$step" && ${words[3]-} == "$path" ]]; then
      kill -STOP "${process#/proc/}"
      echo "${process#/proc/}"
      echo "${words[@]}"
      ls "$process/root/run/secrets" "$process/root/var/run/secrets" 2>/dev/null | tr '\n' ' '; echo
      echo status; cat "$process/status"
      echo mounts; cat "$process/mountinfo"
      exit
    fi
  done
  read -rt 0.02 -u 9
done
rm "$give_up"
"""
"""Builtins only until it is found, since a step lives for less than a second; looks every 20 ms."""

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
    give_up = f"/tmp/not-frozen-{uuid.uuid4().hex}"  # noqa: S108 - on the node
    argv = ["timeout", str(_SECONDS_FOR_A_STEP), "nice", "-n", "-10", "bash", "-c", _FREEZE]
    found = pool.submit(
        cluster.node_exec, node, [*argv, "freeze", step, path, give_up], timeout=_SECONDS_FOR_A_STEP + 10
    )
    try:
        yield lambda: _parse(found.result())
    finally:
        if not found.done():
            cluster.node_exec(node, ["touch", give_up])
        text = found.result()
        if text:
            cluster.node_exec(node, ["kill", "-CONT", _parse(text).pid], check=False)


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


class OperatorProcess:
    """The operator's process on its node, and what is seen of its return."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._pod = poll("the operator is ready", self._ready_pod, seconds=90)
        self._node: str = self._pod["spec"]["nodeName"]
        argv = ["pgrep", "-o", "-f", "python -m modelweights_operato[r]"]
        self._pid = site.cluster.node_exec(self._node, argv).strip()

    @property
    def restarts(self) -> int:
        """How often the kubelet restarted it in this pod; the next restart after one is delayed."""
        count: int = self._pod["status"]["containerStatuses"][0]["restartCount"]
        return count

    def signal(self, name: str) -> None:
        """Send a signal, as STOP or KILL."""
        self._site.cluster.node_exec(self._node, ["kill", f"-{name}", self._pid])

    def kill(self) -> None:
        """End it as a crash does, by SIGKILL; where the kubelet would delay its restart, with its pod."""
        restarts = self.restarts
        self.signal("KILL")
        if restarts:
            self._site.client.remove(path_of("Pod", NAMESPACE, self._pod["metadata"]["name"]), grace_seconds=0)

    def await_return(self) -> None:
        """Wait until another process than this one is ready."""
        poll("the operator is back", self._is_replaced, seconds=60, every=0.1)

    def _is_replaced(self) -> bool:
        pod = self._ready_pod()
        return pod is not None and _started(pod) != _started(self._pod)

    def _ready_pod(self) -> Json | None:
        living = [pod for pod in self._site.operator_pods() if "deletionTimestamp" not in pod["metadata"]]
        ready = [pod for pod in living if condition(pod, "Ready").get("status") == "True" and _started(pod)]
        return ready[0] if len(living) == 1 and ready else None


def _started(pod: Json) -> str:
    """The ID of the container that runs in a pod, "" for none."""
    statuses = pod["status"].get("containerStatuses") or [{}]
    return str(statuses[0].get("containerID", "")) if "running" in statuses[0].get("state", {}) else ""
