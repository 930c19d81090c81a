"""The report of a step: one JSON object of at most 1 KiB for a termination log, and the full result for later steps.

Called by `commands`. Must not import torch.
"""

from __future__ import annotations

import json
import os
from typing import Any

from modelweights_loader.errors import WillNotWorkError, describe_os_error
from modelweights_loader.small_files import read_regular, write_atomically, write_in_place

MAX_REPORT_BYTES = 1024
_ELLIPSIS = "…"


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
    text = json.dumps(report, ensure_ascii=False, separators=(",", ":"))
    # File names that are no UTF-8 arrive with lone surrogates.
    return text.encode("utf-8", "backslashreplace").replace(b"\\u", b"?u") if not _is_clean(text) else text.encode()


def _is_clean(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


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


def write_result(folder: str, step: str, report: dict[str, object]) -> None:
    """Writes DIR/<step>.json in full, whole or not at all.

    Args:
        folder: The results folder; created when missing.
        step: Names the file.
        report: See `encode_report`; not cut here.

    Raises:
        WillNotWorkError: It can't be written.
    """
    try:
        os.makedirs(folder, exist_ok=True)
        text = json.dumps(report, ensure_ascii=True, indent=1) + "\n"
        write_atomically(os.path.join(folder, f"{step}.json"), text.encode())
    except OSError as error:
        message = (
            f"cannot write the results to {folder} ({describe_os_error(error)}); pass a folder that can be written"
        )
        raise WillNotWorkError(message, reason="ResultsNotWritable") from error


def read_result(folder: str | None, step: str) -> dict[str, Any]:
    """Reads what an earlier step left.

    Args:
        folder: The results folder, or None.
        step: Whose result.

    Returns:
        Its report in full; empty when there is none or it can't be read.
    """
    if folder is None:
        return {}
    try:
        parsed = json.loads(read_regular(os.path.join(folder, f"{step}.json")))
    except (OSError, ValueError, RecursionError):
        return {}
    return parsed if isinstance(parsed, dict) else {}
