"""Runs one program and writes what it cost. Started by `processes.measure` as `python -I -S launcher.py OPTIONS -- PROGRAM …`.

A process of its own and as small as Python gets, because the kernel counts the memory of whoever starts a program
into the program's peak. Must not import more than it needs.
"""

# ruff: noqa: PTH123, PTH208 - pathlib would add to what the program seems to need

import os
import sys
import threading
import time

_SAMPLE_SECONDS = 0.005
_SCAN_EVERY = 10


def main() -> int:
    """Options: file for the result, 1 to sample memory, cgroup.procs files separated by commas."""
    result_file, sample, groups = sys.argv[1:4]
    argv = sys.argv[sys.argv.index("--") + 1 :]
    for group in filter(None, groups.split(",")):
        with open(group, "w") as file:
            file.write("0")
    busy = _read_busy_seconds()
    started = time.monotonic()
    pid = os.posix_spawnp(argv[0], argv, os.environ)
    sampler = _Sampler(pid) if sample == "1" else None
    _, status, usage = os.wait4(pid, 0)
    seconds = time.monotonic() - started
    figures = {
        "exit_code": os.waitstatus_to_exitcode(status),
        "seconds": seconds,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "machine_cpu_seconds": _read_busy_seconds() - busy,
        "max_rss_bytes": usage.ru_maxrss * 1024,
        "anonymous_bytes": sampler.stop() if sampler else 0,
    }
    with open(result_file, "w") as file:
        file.write(repr(figures))
    return 0


def _read_busy_seconds() -> float:
    """What all processors of the machine have worked so far: user, nice, system, irq, softirq."""
    with open("/proc/stat") as file:
        ticks = [int(field) for field in file.readline().split()[1:]]
    return (sum(ticks[:3]) + sum(ticks[5:7])) / os.sysconf("SC_CLK_TCK")


class _Sampler(threading.Thread):
    """Follows the memory that a process and its descendants have for themselves, without pages of files."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._pid, self._peak_bytes, self._stopped = pid, 0, threading.Event()
        self.start()

    def stop(self) -> int:
        self._stopped.set()
        self.join()
        return self._peak_bytes

    def run(self) -> None:
        tree, turn = [self._pid], 0
        while not self._stopped.wait(_SAMPLE_SECONDS):
            if turn % _SCAN_EVERY == 0:
                tree = _find_tree(self._pid)
            turn += 1
            self._peak_bytes = max(self._peak_bytes, sum(map(_read_anonymous_bytes, tree)))


def _find_tree(root: int) -> list[int]:
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as file:
                    # The command in parentheses may hold anything.
                    parents[int(name)] = int(file.read().rpartition(")")[2].split()[1])
            except OSError:
                continue
    tree = [root]
    for pid in tree:
        tree.extend(child for child, parent in parents.items() if parent == pid)
    return tree


def _read_anonymous_bytes(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/status") as file:
            return sum(int(line.split()[1]) * 1024 for line in file if line.startswith(("RssAnon:", "RssShmem:")))
    except OSError:
        return 0


if __name__ == "__main__":
    sys.exit(main())
