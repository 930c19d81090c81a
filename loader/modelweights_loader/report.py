"""The report of a step: one JSON object of at most 1 KiB for a termination log, and the full result for later steps.

Called by `commands`. Must not import torch.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from modelweights_loader.errors import WillNotWorkError, describe_os_error
from modelweights_loader.small_files import read_regular, write_atomically, write_in_place

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_REPORT_BYTES = 1024
_ELLIPSIS = "…"
_PATH = "path"


def encode_report(report: dict[str, object], limit_bytes: int = MAX_REPORT_BYTES) -> bytes:
    """Encodes a report within a limit: cuts the message, then drops figures from the end.

    Args:
        report: step, exitCode, reason, message, seconds, then figures by importance.
        limit_bytes: Of the JSON in UTF-8.

    Returns:
        One JSON object.
    """
    kept = {key: value for key, value in report.items() if value is not None}
    encoded = _encode(kept)
    if len(encoded) <= limit_bytes:
        return encoded
    message = str(kept.get("message", ""))
    while len(kept) > 1 and len(_encode({**kept, "message": _ELLIPSIS})) > limit_bytes:
        kept.pop(next(key for key in reversed(kept) if key != "message"))
    low, high = 0, len(message)
    while low < high:
        middle = (low + high + 1) // 2
        fits = len(_encode({**kept, "message": message[:middle] + _ELLIPSIS})) <= limit_bytes
        low, high = (middle, high) if fits else (low, middle - 1)
    return _encode({**kept, "message": message[:low] + _ELLIPSIS})


def _encode(report: dict[str, object]) -> bytes:
    # File names that are no UTF-8 arrive with lone surrogates, each of which becomes a question mark.
    return json.dumps(report, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def write_report(path: str, report: dict[str, object]) -> None:
    """Writes a report in place, with one write.

    A Kubernetes termination log is a bind-mounted file: nothing can be renamed over it.

    Args:
        path: The file.
        report: See `encode_report`.

    Raises:
        WillNotWorkError: It can't be written.
    """
    try:
        write_in_place(path, encode_report(report))
    except OSError as error:
        message = f"cannot write the report {path} ({describe_os_error(error)}); pass a file that can be written"
        raise WillNotWorkError(message, reason="ReportNotWritable") from error


def write_result(folder: str, step: str, report: dict[str, object], path: str) -> None:
    """Writes DIR/<step>.json in full, whole or not at all.

    Args:
        folder: The results folder; created when missing.
        step: Names the file.
        report: See `encode_report`; not cut here.
        path: The checkpoint that it is about.

    Raises:
        WillNotWorkError: It can't be written.
    """
    try:
        os.makedirs(folder, exist_ok=True)
        # As it is named: a storage that no longer answers must not be asked for links now.
        text = json.dumps({**report, _PATH: os.path.abspath(path)}, ensure_ascii=True, indent=1) + "\n"
        write_atomically(os.path.join(folder, f"{step}.json"), text.encode())
    except OSError as error:
        message = (
            f"cannot write the results to {folder} ({describe_os_error(error)}); pass a folder that can be written"
        )
        raise WillNotWorkError(message, reason="ResultsNotWritable") from error


def remove_results(folder: str, steps: Iterable[str]) -> None:
    """Removes what earlier runs left, so that nobody takes it for that of the run that begins.

    Args:
        folder: The results folder.
        steps: Whose results. What can't be removed can't be written either, which is said then.
    """
    for step in steps:
        try:
            os.unlink(os.path.join(folder, f"{step}.json"))
        except OSError:
            continue


def read_result(folder: str | None, step: str, path: str | None) -> dict[str, Any]:
    """Reads what an earlier step left.

    Args:
        folder: The results folder, or None.
        step: Whose result.
        path: The checkpoint that it must be about; None takes any.

    Returns:
        Its report in full; empty when there is none or it can't be read.
    """
    if folder is None:
        return {}
    try:
        parsed = json.loads(read_regular(os.path.join(folder, f"{step}.json")))
        wanted = None if path is None else os.path.abspath(path)
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(parsed, dict):
        return {}
    about = parsed.pop(_PATH, None)
    return parsed if wanted is None or about in (None, wanted) else {}
