"""The load process: every way that it can end is a result with a reason of its own, and nothing of it stays."""

from __future__ import annotations

import os
import signal
import sys
import time

import pytest

from modelweights_loader.errors import LoaderError
from modelweights_loader.load_process import LoadProcess, _error_from_result, choose_timeout, error_from_exit

READY = 'print(\'{"event":"ready"}\', flush=True); input(); '


def _kill(name: str) -> str:
    return f"import os, signal, resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); os.kill(os.getpid(), signal.{name})"


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
        (READY + "import time; time.sleep(60)", 10, "LoadTimeout"),
        ("import time; time.sleep(60)", 10, "LoadTimeout"),
    ],
)
def test_each_end_has_its_reason(script: str, code: int, reason: str) -> None:
    timeout = 1.5 if reason == "LoadTimeout" else 30
    with LoadProcess((sys.executable, "-c", script)) as process, pytest.raises(LoaderError) as caught:
        process.load({}, timeout_seconds=timeout)
    assert (code, reason) == (caught.value.exit_code, caught.value.reason)


def test_leaving_kills_what_still_runs() -> None:
    started = time.monotonic()
    with LoadProcess((sys.executable, "-c", "import time; time.sleep(60)")) as process:
        pid = process._process.pid
    assert time.monotonic() - started < 5
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_the_child_reads_through_the_page_cache() -> None:
    script = (
        "import json, os; input(); "
        "print(json.dumps({'event': 'warning', 'message': os.environ['FASTSAFETENSORS_ODIRECT']}), flush=True); "
        "print(json.dumps({'event': 'result', 'ok': True}), flush=True)"
    )
    said: list[str] = []
    with LoadProcess((sys.executable, "-c", script)) as process:
        assert process.load({}, 30, said.append)["ok"] is True
    assert said == ["0"]


@pytest.mark.parametrize(
    ("kind", "said", "number", "code", "reason"),
    [
        ("LoaderMissing", "ModuleNotFoundError: No module named 'torch'", None, 20, "LoaderMissing"),
        ("LoaderMissing", "ImportError: libtorch_cpu.so: failed to map segment", None, 40, "NoMemory"),
        ("DtypeUnsupported", "torch 2.6 has no type for F8_E8M0", None, 20, "DtypeUnsupported"),
        ("NoMemory", "MemoryError: ", None, 40, "NoMemory"),
        ("LoadFailed", "OutOfMemoryError: CUDA out of memory", None, 40, "NoMemory"),
        ("LoadFailed", "PermissionError: x", 13, 20, "Forbidden"),
        ("LoadFailed", "OSError: x", 5, 10, "ReadFailed"),
        ("LoadFailed", "RuntimeError: Found no NVIDIA driver", None, 20, "DeviceUnavailable"),
        ("LoadFailed", "Exception: submit_io: submit_nogds_read failed, err=-1", None, 10, "ReadFailed"),
        ("LoadFailed", "KeyError: 'data_offsets'", None, 30, "LoadFailed"),
        ("LoadFailed", "RecursionError: maximum recursion depth exceeded", None, 30, "LoadFailed"),
    ],
)
def test_what_the_loader_raises_is_mapped(kind: str, said: str, number: int | None, code: int, reason: str) -> None:
    error = _error_from_result({"kind": kind, "error": said, "errno": number})
    assert (code, reason) == (error.exit_code, error.reason)


def test_the_time_out_grows_with_the_bytes() -> None:
    assert choose_timeout(0) < choose_timeout(10**9) < choose_timeout(10**12)


def test_a_signal_is_named() -> None:
    assert "SIGSEGV" in error_from_exit(-signal.SIGSEGV).message
    # Real-time signals have no names.
    assert "signal 40" in error_from_exit(-40).message
