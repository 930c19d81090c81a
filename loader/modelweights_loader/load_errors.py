"""Turns every way that a load process can end badly into an error with a reason and a remedy.

Called by `load_process`. Pure. Must not import torch.
"""

from __future__ import annotations

import signal
from typing import Any

from modelweights_loader.errors import BadCheckpointError, LoaderError, NoRoomError, TryAgainError, WillNotWorkError
from modelweights_loader.load import failures
from modelweights_loader.load.contract import ACCEPTS, PARALLEL_LOADER_VERDICT, REFUSES, SAFETENSORS_VERDICT

_SIGNALS = {
    signal.SIGSEGV: ("LoadSegfault", "usually memory that could not be had; give the pod more memory"),
    signal.SIGBUS: ("LoadBusError", "a file shrank or its storage failed while it was read; check the storage"),
    signal.SIGABRT: ("LoadAborted", "see the log above for what the library said"),
    signal.SIGKILL: ("LoadKilled", "usually out of memory; raise the memory limit of the pod"),
}
_OTHER_WAYS = {
    PARALLEL_LOADER_VERDICT: "ParallelLoader accepts it: set --load-format fastsafetensors, and the same in the engine",
    SAFETENSORS_VERDICT: "safetensors accepts it: set --load-format safetensors, and the same in the engine",
}

_INSTALL = "install torch and fastsafetensors (the extra [loader] of this package), or use --mode Structure, which loads nothing"


def name_signal(number: int) -> str:
    """Names a signal.

    Args:
        number: Its number.

    Returns:
        For example `SIGSEGV`; real-time signals have no name.
    """
    return next((known.name for known in signal.Signals if known == number), f"signal {number}")


def error_from_exit(code: int, who: str = "the load process") -> LoaderError:
    """Says how a load process ended that gave no result.

    Args:
        code: As `subprocess` gives it: negative for a signal.
        who: Which process.

    Returns:
        The error to raise.
    """
    if code >= 0:
        message = f"{who} ended with exit code {code} and no result; see the log above"
        return TryAgainError(message, reason="LoadNoResult")
    number = -code
    known = {int(key): said for key, said in _SIGNALS.items()}
    reason, remedy = known.get(number, ("LoadSignalled", "see the log above"))
    message = f"{who} was ended by {name_signal(number)}: {remedy}"
    return (NoRoomError if number == signal.SIGKILL else TryAgainError)(message, reason=reason)


def error_from_result(event: dict[str, Any], who: str = "") -> LoaderError:
    """Maps what a library raised.

    Args:
        event: The result event of a load that failed.
        who: Which rank, or nothing when there is one only.

    Returns:
        The error to raise; the verdicts of both libraries are its figures.
    """
    verdicts: dict[str, str] = event.get("verdicts") or {}
    said = f"{who}: {event['error']}" if who else str(event["error"])
    reason = failures.classify(str(event["kind"]), str(event["error"]), event.get("errno"))
    error = _map(reason, said, _find_other_way(verdicts))
    if verdicts:
        error.figures = {"verdicts": verdicts, "refusals": event.get("refusals") or {}}
    return error


def _find_other_way(verdicts: dict[str, str]) -> str:
    """The other library as the remedy, when one refuses what the other accepts."""
    if REFUSES not in verdicts.values():
        return ""
    return next((_OTHER_WAYS[name] for name, verdict in verdicts.items() if verdict == ACCEPTS), "")


def _map(reason: str, said: str, other_way: str) -> LoaderError:
    known: dict[str, tuple[type[LoaderError], str]] = {
        failures.NO_MEMORY: (NoRoomError, f"not enough memory to load ({said}); give more memory"),
        failures.LOADER_MISSING: (
            WillNotWorkError,
            f"the libraries that load can't be imported ({said}); {_INSTALL}",
        ),
        failures.LOADER_UNSUPPORTED: (WillNotWorkError, said),
        failures.DTYPE_UNSUPPORTED: (
            WillNotWorkError,
            f"{said} (the checkpoint itself is not at fault); {other_way or 'use a newer version of it'}",
        ),
        failures.FORBIDDEN: (WillNotWorkError, f"a file may not be read ({said}); make it readable"),
        failures.READ_FAILED: (TryAgainError, f"the storage failed while loading ({said}); check it"),
        failures.DEVICE_UNAVAILABLE: (WillNotWorkError, f"the device can't be used ({said}); use --device cpu"),
        failures.RANK_LOST: (TryAgainError, f"the ranks lost each other ({said}); see the log above"),
        failures.GROUP_UNSUPPORTED: (
            WillNotWorkError,
            f"fastsafetensors can't send a dtype over gloo ({said}); load with --world-size 1, or install 0.5.0",
        ),
        failures.BITS_DIFFER: (
            BadCheckpointError,
            f"{said}: library and file disagree, or the file was changed meanwhile; load again, then download it again",
        ),
    }
    kind, message = known.get(
        reason,
        (BadCheckpointError, f"the checkpoint was refused ({said}); {other_way or 'download it again'}"),
    )
    return kind(message, reason=reason)
