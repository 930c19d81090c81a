"""The load process: every way that it can end is a result with a reason of its own, and nothing of it stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from modelweights_loader.errors import LoaderError
from modelweights_loader.load.contract import LoadRequest, LoadResult
from modelweights_loader.load_errors import error_from_exit, error_from_result
from modelweights_loader.load_process import LoadProcess, choose_timeout, load_together
from tests.unit.loader.conftest import LOADER

if TYPE_CHECKING:
    from pathlib import Path

REQUEST = LoadRequest(files=[], dtypes=[])
READY = 'print(\'{"event":"ready"}\', flush=True); input(); '
GOOD: dict[str, Any] = {
    "event": "result",
    "ok": True,
    **LoadResult([], 0, 0, 0.1, 0, 1, 1, "NotUsed", False, True, 0, 2, 0, {}, {})._asdict(),  # noqa: FBT003 - fields
}
ANSWER = f"import json; print(json.dumps({GOOD!r}), flush=True); "
DEADLINE_SECONDS = 30


def _kill(name: str) -> str:
    return f"import os, signal, resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); os.kill(os.getpid(), signal.{name})"


def _start(script: str) -> LoadProcess:
    return LoadProcess((sys.executable, "-c", script))


def _is_gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody has collected yet counts as ended."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def _wait_until_gone(*pids: int) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not all(_is_gone(pid) for pid in pids):
        assert time.monotonic() < deadline, f"of {pids} some still run"
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("script", "code", "reason"),
    [
        (READY + _kill("SIGSEGV"), 10, "LoadSegfault"),
        (READY + _kill("SIGBUS"), 10, "LoadBusError"),
        (READY + _kill("SIGABRT"), 10, "LoadAborted"),
        (READY + _kill("SIGKILL"), 40, "LoadKilled"),
        (READY + _kill("SIGUSR1"), 10, "LoadSignalled"),
        (READY + "raise SystemExit(3)", 10, "LoadNoResult"),
        (READY, 10, "LoadNoResult"),
        ("raise SystemExit(1)", 10, "LoadNoResult"),
        (READY + "print('garbage', flush=True); input()", 10, "LoadNoResult"),
        (READY + "import os, time; os.close(1); time.sleep(60)", 10, "LoadNoResult"),
        (READY + "import time; time.sleep(60)", 10, "LoadTimeout"),
        ("import time; time.sleep(60)", 10, "LoadTimeout"),
    ],
)
def test_each_end_has_its_reason(script: str, code: int, reason: str) -> None:
    timeout = 1.5 if reason == "LoadTimeout" else DEADLINE_SECONDS
    with _start(script) as process, pytest.raises(LoaderError) as caught:
        process.load(REQUEST, timeout_seconds=timeout)
    assert (code, reason) == (caught.value.exit_code, caught.value.reason)


def test_a_file_that_shrinks_under_a_mapping_is_a_bus_error(tmp_path: Path) -> None:
    shard = tmp_path / "shard"
    shard.write_bytes(bytes(2**20))
    script = (
        "import mmap, os, resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); "
        f"file = open({str(shard)!r}, 'r+b'); mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ); "
        f"{READY} os.truncate({str(shard)!r}, 0); mapped[5000]"
    )
    with _start(script) as process, pytest.raises(LoaderError) as caught:
        process.load(REQUEST, DEADLINE_SECONDS)
    assert (10, "LoadBusError") == (caught.value.exit_code, caught.value.reason)


def test_leaving_kills_what_still_runs() -> None:
    with _start("import time; time.sleep(60)") as process:
        pid = process.process.pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_one_process_serves_one_request_after_the_other() -> None:
    with _start(READY + ANSWER + "input(); " + ANSWER) as process:
        assert process.load(REQUEST, DEADLINE_SECONDS).gds == "NotUsed"
        assert process.load(REQUEST, DEADLINE_SECONDS).gds == "NotUsed"


def test_progress_is_held_back_until_it_may_go_on() -> None:
    script = READY + 'print(\'{"event": "progress", "bytes": 7}\', flush=True); assert \'go\' in input(); ' + ANSWER
    seen: list[tuple[int, int]] = []
    with _start(script) as process:
        load_together(
            [process], [REQUEST], DEADLINE_SECONDS, keep_pace=lambda rank, count, _: seen.append((rank, count))
        )
    assert seen == [(0, 7)]


@pytest.mark.parametrize(
    ("scripts", "reason", "named"),
    [
        ((READY + "import time; time.sleep(60)", READY + _kill("SIGKILL")), "LoadKilled", "rank 1"),
        ((_kill("SIGSEGV"), "import time; time.sleep(60)"), "LoadSegfault", "rank 0"),
        ((READY + ANSWER, READY + "raise SystemExit(1)"), "LoadNoResult", "rank 1"),
        ((READY + ANSWER, READY + "import time; time.sleep(60)"), "LoadTimeout", "rank 0: done; rank 1: waiting"),
        ((READY + ANSWER, READY + _kill("SIGSTOP")), "LoadTimeout", "rank 1: stopped"),
    ],
)
def test_a_rank_that_ends_badly_ends_the_others_and_is_named(scripts: tuple[str, str], reason: str, named: str) -> None:
    processes = [_start(script) for script in scripts]
    timeout = 3 if reason == "LoadTimeout" else DEADLINE_SECONDS
    with pytest.raises(LoaderError) as caught:
        load_together(processes, [REQUEST, REQUEST], timeout)
    assert reason == caught.value.reason
    assert named in caught.value.message
    assert all(process.process.poll() is not None for process in processes)


def test_the_rank_that_died_is_named_and_not_the_one_that_noticed() -> None:
    lost = {"event": "result", "ok": False, "kind": "LoadFailed", "error": "[gloo] Connection closed", "errno": None}
    noticed = READY + f"import json; print(json.dumps({lost!r}), flush=True); input()"
    late = READY + "import time; time.sleep(0.3); " + _kill("SIGKILL")
    with pytest.raises(LoaderError) as caught:
        load_together([_start(noticed), _start(late)], [REQUEST, REQUEST], DEADLINE_SECONDS)
    assert "rank 1" in caught.value.message
    assert caught.value.reason == "LoadKilled"


STARTER = """
import sys, time
from modelweights_loader.load_process import LoadProcess
processes = [LoadProcess() for _ in range(2)]
print(*[one.process.pid for one in processes], flush=True)
if sys.argv[1] == "later":
    for one in processes:
        one.read_events("x")
    print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("when", ["at once", "later"])
def test_the_load_process_ends_with_its_parent(when: str) -> None:
    """Also when that one is killed, before the child runs a line of its own or after."""
    parent = subprocess.Popen(
        [sys.executable, "-c", STARTER, when],
        env={**os.environ, "PYTHONPATH": str(LOADER)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    with parent.stdout:
        pids = [int(word) for word in parent.stdout.readline().split()]
        if when == "later":
            assert parent.stdout.readline() == "ready\n"
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    assert len(pids) == 2
    _wait_until_gone(*pids)


@pytest.mark.parametrize(
    ("kind", "said", "number", "code", "reason"),
    [
        ("LoaderMissing", "ModuleNotFoundError: No module named 'torch'", None, 20, "LoaderMissing"),
        ("LoaderMissing", "ImportError: libtorch_cpu.so: failed to map segment", None, 40, "NoMemory"),
        ("LoaderUnsupported", "fastsafetensors 0.1.15 has no ParallelLoader", None, 20, "LoaderUnsupported"),
        ("DtypeUnsupported", "torch 2.6 has no type for F8_E8M0", None, 20, "DtypeUnsupported"),
        ("NoMemory", "MemoryError: ", None, 40, "NoMemory"),
        ("LoadFailed", "OutOfMemoryError: CUDA out of memory", None, 40, "NoMemory"),
        ("LoadFailed", "OSError: Cannot allocate memory", 12, 40, "NoMemory"),
        ("LoadFailed", "PermissionError: x", 13, 20, "Forbidden"),
        ("LoadFailed", "OSError: x", 5, 10, "ReadFailed"),
        ("LoadFailed", "RuntimeError: Found no NVIDIA driver", None, 20, "DeviceUnavailable"),
        ("LoadFailed", "Exception: submit_io: submit_nogds_read failed, err=-1", None, 10, "ReadFailed"),
        ("LoadFailed", "RuntimeError: [gloo] Connection closed by peer", None, 10, "RankLost"),
        ("LoadFailed", "RuntimeError: can't start new thread", None, 40, "NoMemory"),
        ("LoadFailed", "RuntimeError: std::bad_alloc", None, 40, "NoMemory"),
        ("LoadFailed", "RuntimeError: unable to open file <a>: Too many open files (24)", None, 10, "ReadFailed"),
        ("LoadFailed", "SafetensorError: Input/output error (os error 5)", None, 10, "ReadFailed"),
        ("LoadFailed", "RuntimeError: Failed to open file: /m/s", None, 10, "ReadFailed"),
        ("LoadFailed", "RuntimeError: unable to open file </m/s>: Permission denied (13)", None, 20, "Forbidden"),
        ("LoaderMissing", "ImportError: libx.so: cannot open: Too many open files", None, 10, "ReadFailed"),
        ("LoaderMissing", "ImportError: libx.so: cannot open: No such file or directory", None, 20, "LoaderMissing"),
        ("LoadFailed", "KeyError: 'data_offsets'", None, 30, "LoadFailed"),
        ("LoadFailed", "RecursionError: maximum recursion depth exceeded", None, 30, "LoadFailed"),
        ("TensorBitsDiffer", "tensor a is not what /m/s holds", None, 30, "TensorBitsDiffer"),
    ],
)
def test_what_the_loader_raises_is_mapped(kind: str, said: str, number: int | None, code: int, reason: str) -> None:
    error = error_from_result({"kind": kind, "error": said, "errno": number})
    assert (code, reason) == (error.exit_code, error.reason)


@pytest.mark.parametrize(
    ("own", "other", "remedy"),
    [
        ("parallelLoader", "safetensors", "--load-format safetensors"),
        ("safetensors", "parallelLoader", "--load-format fastsafetensors"),
    ],
)
@pytest.mark.parametrize("kind", ["LoadFailed", "DtypeUnsupported"])
def test_the_library_that_accepts_is_the_remedy(own: str, other: str, remedy: str, kind: str) -> None:
    event = {"kind": kind, "error": "x", "errno": None, "verdicts": {own: "Refuses", other: "Accepts"}}
    error = error_from_result(event)
    assert remedy in error.message
    assert error.figures["verdicts"] == event["verdicts"]
    both = error_from_result({**event, "verdicts": {own: "Refuses", other: "Refuses"}})
    assert "--load-format" not in both.message


def test_the_time_out_grows_with_the_bytes() -> None:
    assert choose_timeout(0) < choose_timeout(10**9) < choose_timeout(10**12)


def test_a_signal_is_named() -> None:
    assert "SIGSEGV" in error_from_exit(-signal.SIGSEGV).message
    # Real-time signals have no names.
    assert "signal 40" in error_from_exit(-40).message


def test_no_code_of_the_current_folder_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be the checkpoint; an empty entry of PYTHONPATH is the current folder too."""
    for module in ("torch", "fastsafetensors", "argparse", "sitecustomize"):
        (tmp_path / f"{module}.py").write_text("import os; os._exit(77)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep)
    with LoadProcess() as process:
        (ready,) = process.read_events("the load process")
    assert ready["event"] == "ready"
    (tmp_path / "sitecustomize.py").unlink()
    command = (sys.executable, "-m", "modelweights_loader", "validate", "--help")
    environment = {**os.environ, "PYTHONPATH": str(LOADER)}
    said = subprocess.run(command, check=True, capture_output=True, env=environment, timeout=DEADLINE_SECONDS)
    assert b"--mode" in said.stdout


def test_a_time_out_may_be_longer_than_the_kernel_can_wait() -> None:
    with _start(READY + ANSWER) as process:
        assert process.load(REQUEST, 1e7).ranks == 2


@pytest.mark.parametrize("program", ["/nowhere/python", "/etc/passwd"])
def test_an_interpreter_that_this_user_may_not_run_is_said(program: str) -> None:
    with pytest.raises(LoaderError, match=f"let uid .* run {program}") as caught:
        LoadProcess([program])
    assert (caught.value.exit_code, caught.value.reason) == (20, "LoaderMissing")
