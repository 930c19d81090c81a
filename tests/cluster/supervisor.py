"""The process outside of an instance: starts its namespaces, waits for their end and cleans up.

Started by ``up`` as ``python -m tests.cluster.supervisor NAME``, in a session of its own, with the files of the instance
already written. If it is killed itself, the instance ends with it and the next ``up`` or ``down`` cleans up.
"""

import ctypes
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

from tests.cluster.embedded_files import write_instance
from tests.cluster.leftovers import remove_leftovers
from tests.cluster.paths import InstancePaths
from tests.cluster.state import Process, State

_PR_SET_PDEATHSIG = 1


def _die_with_parent() -> None:
    """Ask the kernel to kill this process when the supervisor dies, however that happens."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _listen() -> socket.socket:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(128)
    return listener


def _first_child(pid: int) -> int:
    """Return the process id of unshare's only child, the instance's init."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        found = children.read_text().split()
        if found:
            return int(found[0])
        time.sleep(0.005)
    raise ProcessLookupError(f"unshare ({pid}) started nothing")


def _start(instance: InstancePaths, api: socket.socket, registry: socket.socket) -> subprocess.Popen[bytes]:
    argv = ["unshare", "--fork", "--kill-child", "--pid", "--mount", "--net", "--ipc", "--propagation", "private"]
    with (instance.logs / "init.log").open("ab") as log:
        return subprocess.Popen(
            [*argv, str(instance.root / "bin" / "init"), str(instance.root / "plan.json")],
            cwd=instance.root,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[api.fileno(), registry.fileno()],
            preexec_fn=_die_with_parent,  # noqa: PLW1509 - this process has no threads
        )


def supervise(name: str) -> int:
    """Run an instance until it ends or this process is told to end it."""
    instance = InstancePaths(name)
    api, registry = _listen(), _listen()
    write_instance(instance, api, registry)
    running = _start(instance, api, registry)

    def end(_signal: int, _frame: FrameType | None) -> None:
        running.kill()  # unshare dies, --kill-child kills init, and the kernel all that is in its PID namespace.

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    init = _first_child(running.pid)
    state = State(Process.of(init), api.getsockname()[1], registry.getsockname()[1])
    state.write(instance.state)
    api.close()
    registry.close()
    running.wait()
    state.init.end(10, signal.SIGKILL)
    instance.state.unlink(missing_ok=True)
    remove_leftovers(instance, keep_logs=True)
    return 0


if __name__ == "__main__":
    sys.exit(supervise(sys.argv[1]))
