"""The load process: loads every tensor as an engine would, and says what it got.

Started by `load_process` in a Python of its own, with the caller's process number, so that a crash, a hang or a kill is a
result and not the end of the caller. It imports torch before it knows what to load: that takes seconds, in which the
caller reads headers and hashes. Never unpickles.

One JSON object per line. In come requests (`contract.LoadRequest`), one after the other, and `go` after each `progress`.
Out go `ready`, `warning`, `progress` and `result`. After a result that is not ok the process ends: what a library left
behind is not worth trusting.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any, NoReturn

from modelweights_loader.load import failures, gds, parallel, plain
from modelweights_loader.load.compare import BitsDifferError
from modelweights_loader.load.contract import (
    ACCEPTS,
    FASTSAFETENSORS,
    NOT_TRIED,
    PARALLEL_LOADER_VERDICT,
    REFUSES,
    SAFETENSORS,
    SAFETENSORS_VERDICT,
    LoadRequest,
    LoadResult,
)
from modelweights_loader.load.dtypes import find_lacking_in_fastsafetensors, find_lacking_in_torch
from modelweights_loader.load.group import join_group
from modelweights_loader.load.intake import Intake
from modelweights_loader.load.lifetime import end_with_parent
from modelweights_loader.load.measure import PeakMemory, read_storage_bytes
from modelweights_loader.load.versions import find_support

if TYPE_CHECKING:
    from collections.abc import Callable

    from modelweights_loader.load.versions import Support

_ODIRECT = "FASTSAFETENSORS_ODIRECT"


class LoadError(Exception):
    """A load failed for a reason that is known; kind is one of `failures`."""

    def __init__(self, kind: str, said: str) -> None:
        super().__init__(said)
        self.kind = kind


class Pipe:
    """Both ends of the talk with the caller."""

    def __init__(self) -> None:
        # fastsafetensors prints to stdout: keep the pipe for events, and send prints where the log is.
        self._out = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        # libcufile closes descriptor 0 when its driver can't be opened: keep the pipe elsewhere.
        self._in = os.fdopen(os.dup(0), encoding="utf-8")
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)

    def emit(self, event: dict[str, Any]) -> None:
        """Sends one event."""
        self._out.write(json.dumps(event) + "\n")
        self._out.flush()

    def read(self) -> str:
        """Waits for one line; empty when the caller has closed."""
        return self._in.readline()

    def keep_pace(self, done_bytes: int) -> None:
        """Reports progress and waits until it may go on."""
        self.emit({"event": "progress", "bytes": done_bytes})
        self.read()


def start() -> NoReturn:
    """Is the process: serves the caller that the command line names, and ends."""
    code = main(int(sys.argv[1]))
    sys.stderr.flush()
    # Torch's teardown takes a third of a second and nothing here needs it.
    os._exit(code)


def main(parent_pid: int) -> int:
    """Serves requests until the caller closes its end.

    Args:
        parent_pid: Of the caller, whose end is the end of this process too.

    Returns:
        0 whenever each request got a result, good or bad.
    """
    end_with_parent(parent_pid)
    pipe = Pipe()
    # Allocations of an import are nearly all kept: collecting garbage in between only costs time.
    gc.disable()
    try:
        pipe.emit({"event": "ready", **import_libraries()})
    except Exception as error:  # noqa: BLE001 - a process's edge; a broken installation raises anything
        pipe.emit(describe_failure(LoadError(failures.LOADER_MISSING, failures.describe(error))))
        return 0
    gc.enable()
    while line := pipe.read():
        if not answer(LoadRequest(**json.loads(line)), pipe.emit, pipe.keep_pace):
            break
    return 0


def import_libraries() -> dict[str, str]:
    """Imports what loads need.

    Returns:
        Versions; without safetensors' where it is not installed.
    """
    import fastsafetensors  # noqa: PLC0415 - see the module's docstring
    import torch  # noqa: PLC0415 - see the module's docstring

    versions = {"torchVersion": str(torch.__version__), "fastsafetensorsVersion": str(fastsafetensors.__version__)}
    if plain.is_installed():
        import safetensors  # noqa: PLC0415 - see the module's docstring

        versions["safetensorsVersion"] = str(safetensors.__version__)
    return versions


def describe_failure(error: BaseException, verdicts: dict[str, str] | None = None, **more: object) -> dict[str, Any]:
    """Makes the result event of a load that failed.

    Args:
        error: Why.
        verdicts: Of both libraries, as far as known.
        more: Further members.

    Returns:
        The event.
    """
    number = error.errno if isinstance(error, OSError) else None
    if isinstance(error, LoadError):
        kind, said = error.kind, str(error)
    elif isinstance(error, BitsDifferError):
        kind, said = failures.BITS_DIFFER, str(error)
    else:
        kind, said = failures.name_kind(error), failures.describe(error)
    known = {"kind": kind, "error": said, "errno": number, "verdicts": verdicts or {}}
    return {"event": "result", "ok": False, **known, **more}


def answer(request: LoadRequest, emit: Callable[[dict[str, Any]], None], keep_pace: Callable[[int], None]) -> bool:
    """Loads what a request asks for.

    Args:
        request: What and how.
        emit: Gets warnings, and the result last.
        keep_pace: See `intake.Intake`.

    Returns:
        Whether the load was good.
    """
    load = Load(request, emit, keep_pace)
    try:
        emit({"event": "result", "ok": True, **load.run()._asdict()})
    except Exception as error:  # noqa: BLE001 - fastsafetensors raises plain Exceptions; the caller maps them
        failure = describe_failure(error)
        if failures.is_refusal(failures.classify(failure["kind"], failure["error"], failure["errno"])):
            load.refuse(failure["error"])
        # Said before the error is let go: with it the loader is closed, and 0.2.0 may hang there.
        emit(describe_failure(error, load.verdicts, refusals=load.refusals))
        return False
    return True


class Load:
    """One request on its way: verdicts and refusals are as far as they are known."""

    def __init__(
        self, request: LoadRequest, emit: Callable[[dict[str, Any]], None], keep_pace: Callable[[int], None]
    ) -> None:
        self.verdicts = {PARALLEL_LOADER_VERDICT: NOT_TRIED, SAFETENSORS_VERDICT: NOT_TRIED}
        self.refusals: dict[str, str] = {}
        self._request = request
        self._emit = emit
        self._keep_pace = keep_pace
        self._own, self._other = PARALLEL_LOADER_VERDICT, SAFETENSORS_VERDICT
        if request.load_format != FASTSAFETENSORS:
            self._own, self._other = self._other, self._own

    def run(self) -> LoadResult:
        """Loads, and asks the other library when that is wanted."""
        request = self._request
        lacking = find_lacking_in_torch(request.dtypes)
        if lacking is not None:
            raise LoadError(failures.DTYPE_UNSUPPORTED, lacking)
        read_before = read_storage_bytes()
        with PeakMemory() as memory:
            started = time.monotonic()
            intake, how = self._load()
            seconds = time.monotonic() - started
            memory.look()
        read_after = read_storage_bytes()
        self._ask_other(intake)
        return LoadResult(
            tensors=intake.tensors,
            tensor_count=intake.tensor_count,
            loaded_bytes=intake.loaded_bytes,
            load_seconds=seconds,
            read_bytes=None if read_before is None or read_after is None else read_after - read_before,
            peak_bytes=memory.peak_bytes,
            base_bytes=memory.base_bytes,
            ranks=request.world_size,
            compared_bytes=0 if intake.comparer is None else intake.comparer.compared_bytes,
            verdicts=self.verdicts,
            refusals=self.refusals,
            **how,
        )

    def refuse(self, said: str) -> None:
        """Notes that the library which loads has refused, and asks the other one."""
        self.verdicts[self._own] = REFUSES
        self.refusals[self._own] = said
        self._ask_other(None)

    def _load(self) -> tuple[Intake, dict[str, Any]]:
        request = self._request
        if request.load_format == FASTSAFETENSORS:
            loaded = self._load_parallel()
        elif request.compare and not self._find_parallel_refusal():
            # Full: ParallelLoader gives every tensor, and safetensors' own is compared with it.
            loaded = self._load_parallel()
            if loaded[0].comparer is not None and loaded[0].comparer.safetensors_refusal:
                raise LoadError(failures.LOAD_FAILED, loaded[0].comparer.safetensors_refusal)
        else:
            loaded = self._load_plain()
        self.verdicts[self._own] = ACCEPTS
        return loaded

    def _load_plain(self) -> tuple[Intake, dict[str, Any]]:
        if not plain.is_installed():
            raise LoadError(failures.LOADER_MISSING, "safetensors is not installed")
        intake = Intake(self._request, SAFETENSORS, self._keep_pace)
        intake.take(plain.iterate_plain(self._request))
        intake.close()
        return intake, {"gds": gds.NOT_USED, "nogds": True, "odirect": False, "max_batch_bytes": 0}

    def _load_parallel(self) -> tuple[Intake, dict[str, Any]]:
        request = self._request
        support = _require_support()
        lacking = find_lacking_in_fastsafetensors(request.dtypes)
        if lacking is not None:
            raise LoadError(failures.DTYPE_UNSUPPORTED, lacking)
        # The library looks at it whenever it opens a file.
        os.environ[_ODIRECT] = "1" if request.odirect else "0"
        group = join_group(request)
        decision = _decide_gds(request)
        if not decision.use:
            return self._attempt(support, group, nogds=True)
        try:
            return self._attempt(support, group, nogds=False)
        except Exception as error:
            if not gds.mentions_gds(error):
                raise
            self._emit(_warning(f"GPUDirect Storage failed ({error}); loading once more without it"))
        intake, how = self._attempt(support, group, nogds=True)
        return intake, {**how, "gds": gds.FAILED}

    def _attempt(self, support: Support, group: Any, *, nogds: bool) -> tuple[Intake, dict[str, Any]]:
        """Loads from the first tensor on; what an attempt before this one took is gone with it."""
        request = self._request
        batch_bytes = parallel.choose_batch_bytes(request, support, nogds=nogds)
        intake = Intake(request, FASTSAFETENSORS, self._keep_pace)
        intake.take(parallel.iterate_parallel(request, support, group, batch_bytes, nogds=nogds))
        intake.close()
        if request.device != "cpu":
            import torch  # noqa: PLC0415 - see the module's docstring

            torch.cuda.synchronize()
        return intake, {
            "gds": gds.NOT_USED if nogds else gds.USED,
            "nogds": nogds,
            "odirect": request.odirect and support.odirect,
            "max_batch_bytes": batch_bytes,
        }

    def _find_parallel_refusal(self) -> str | None:
        refusal = _require_support().refusal or parallel.find_refusal(self._request)
        if refusal:
            self.verdicts[PARALLEL_LOADER_VERDICT], self.refusals[PARALLEL_LOADER_VERDICT] = REFUSES, refusal
        return refusal

    def _ask_other(self, intake: Intake | None) -> None:
        """Fills in the other library's verdict."""
        if self.verdicts[self._other] != NOT_TRIED or not (self._request.both_verdicts or self._request.compare):
            return
        if self._other == SAFETENSORS_VERDICT and not plain.is_installed():
            return
        if self._other == PARALLEL_LOADER_VERDICT:
            refusal = parallel.find_refusal(self._request) if not find_support(_fastsafetensors()).refusal else None
        elif intake is not None and intake.comparer is not None:
            refusal = intake.comparer.safetensors_refusal
        else:
            refusal = plain.find_refusal(self._request)
        if refusal is not None:
            self.verdicts[self._other] = REFUSES if refusal else ACCEPTS
        if refusal:
            self.refusals[self._other] = refusal


def _fastsafetensors() -> str:
    import fastsafetensors  # noqa: PLC0415 - see the module's docstring

    return str(fastsafetensors.__version__)


def _require_support() -> Support:
    support = find_support(_fastsafetensors())
    if support.refusal:
        raise LoadError(failures.LOADER_UNSUPPORTED, support.refusal)
    return support


def _decide_gds(request: LoadRequest) -> gds.GdsDecision:
    gpu = False
    if request.gds == gds.AUTO and request.device.startswith("cuda"):
        import torch  # noqa: PLC0415 - see the module's docstring

        gpu = torch.cuda.is_available()
    return gds.decide(request.gds, request.device, request.world_size, gds.observe(gpu=gpu))


def _warning(message: str) -> dict[str, Any]:
    return {"event": "warning", "message": message}
