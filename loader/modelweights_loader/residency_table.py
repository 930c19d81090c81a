"""Prints a residency as a table or as JSON.

Called by `commands` for the command `residency`. Must not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from modelweights_loader.outcome import make_printable
from modelweights_loader.progress import draw_bar
from modelweights_loader.quantity import format_bytes
from modelweights_loader.residency import METHOD_SAMPLE

if TYPE_CHECKING:
    from modelweights_loader.residency import FileResidency, Residency

_BAR_CELLS = 20


def format_table(residency: Residency) -> str:
    """Prints one line per shard with a bar, then the total.

    Args:
        residency: As measured.

    Returns:
        Several lines.
    """
    names = [make_printable(file.path) for file in residency.files]
    width = max(map(len, names), default=0)
    lines = []
    for name, file in zip(names, residency.files, strict=True):
        if file.resident_bytes is None:
            lines.append(f"{name:<{width}}  [{'?' * _BAR_CELLS}] unknown  {format_bytes(file.size_bytes):>10}")
            continue
        share = file.resident_bytes / file.size_bytes if file.size_bytes else 1.0
        error = f" ±{100 * file.error_bytes / file.size_bytes:.1f}" if file.error_bytes else ""
        bar = draw_bar(share, _BAR_CELLS)
        lines.append(f"{name:<{width}}  [{bar}] {100 * share:5.1f}{error} %  {format_bytes(file.size_bytes):>10}")
    percent = residency.percent
    total = "unknown" if percent is None else f"{percent:.1f}{error_of(residency)} %"
    how = "by no method" if percent is None else describe_method(residency)
    lines.append(f"total: {total} of {format_bytes(residency.size_bytes)}, {how}, measured at {residency.measured_at}")
    lines += [f"  {refusal}" for refusal in residency.refusals]
    return "\n".join(lines)


def describe_method(residency: Residency) -> str:
    """Says how a residency that is known was found.

    Args:
        residency: As measured.

    Returns:
        For example `by cachestat`.
    """
    return "estimated by sample" if residency.method == METHOD_SAMPLE else f"by {residency.method}"


def error_of(residency: Residency) -> str:
    """Prints the error of a residency, as it stands behind a percentage.

    Args:
        residency: As measured.

    Returns:
        For example ` ±0.4`; nothing where the figure is exact.
    """
    return f" ±{residency.error_percent:.1f}" if residency.error_percent else ""


def describe_json(residency: Residency) -> dict[str, object]:
    """Describes a residency for programs.

    Args:
        residency: As measured.

    Returns:
        The figures of the reports, and one object per shard.
    """
    files = [
        {
            "path": file.path,
            "sizeBytes": file.size_bytes,
            "residentBytes": file.resident_bytes,
            "residentPercent": _percent(file),
            "errorBytes": file.error_bytes,
            "method": file.method,
        }
        for file in residency.files
    ]
    return {
        "sizeBytes": residency.size_bytes,
        **residency.figures(),
        "refusals": list(residency.refusals),
        "files": files,
    }


def _percent(file: FileResidency) -> float | None:
    if file.resident_bytes is None:
        return None
    return round(100 * file.resident_bytes / file.size_bytes, 2) if file.size_bytes else 100.0
