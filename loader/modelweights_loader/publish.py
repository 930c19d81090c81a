"""The step `report`: measures residency once more, cools the pages, writes the marker, and sums up all steps.

Called by `commands`. What it returns is the one report that the operator reads. Must not import torch.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from modelweights_loader import marker as markers
from modelweights_loader.checkpoint import resolve_below
from modelweights_loader.cooling import cool
from modelweights_loader.errors import (
    BadCheckpointError,
    NoRoomError,
    TryAgainError,
    WillNotWorkError,
    describe_os_error,
)
from modelweights_loader.interruptible import call
from modelweights_loader.opening import resolve
from modelweights_loader.quantity import format_bytes
from modelweights_loader.report import read_result
from modelweights_loader.residency import Residency, measure
from modelweights_loader.residency_table import describe_method, error_of
from modelweights_loader.unchanged import find_newest_ns

if TYPE_CHECKING:
    from collections.abc import Mapping

    from modelweights_loader.checkpoint import Checkpoint

POLICY_REQUIRED = "Required"

PAGES_COLD = "Cold"
PAGES_NORMAL = "Normal"
UNKNOWN_FAIL = "Fail"
UNKNOWN_ACCEPT = "Accept"

_STEPS = ("prefetch", "validate", "tune")


class PublishOptions(NamedTuple):
    """How to publish.

    results is the folder of the earlier steps' results, earlier those that are at hand and count more. marker_root None
    means the model's parent, marker_dir None writes no marker. fetched: the model is a home of `fetch`, whose digest it
    must have.
    """

    policy: str
    min_resident_percent: float
    results: str | None = None
    marker_dir: str | None = None
    marker_root: str | None = None
    node_boot_id: str = ""
    pages: str = PAGES_NORMAL
    unknown_residency: str = UNKNOWN_FAIL
    earlier: Mapping[str, dict[str, Any]] = {}
    fetched: bool = False


def publish(path: str, checkpoint: Checkpoint, options: PublishOptions) -> tuple[dict[str, object], str]:
    """Does the last step.

    Args:
        path: The model, as it was given.
        checkpoint: Its files.
        options: How.

    Returns:
        The figures of all steps, and a sentence about what was done.

    Raises:
        NoRoomError: The policy asks for more residency than there is.
        TryAgainError: The checkpoint is no longer what was validated.
        BadCheckpointError: It is not what was fetched.
        WillNotWorkError: The policy asks for residency, and nobody may measure it.
    """
    earlier = {step: read_result(options.results, step, path) for step in _STEPS} | dict(options.earlier)
    # What a step measured when it failed is for people only.
    earlier = {step: result if result.get("exitCode", 0) == 0 else {} for step, result in earlier.items()}
    _check_unchanged(checkpoint, earlier["validate"])
    if options.fetched:
        _check_fetched(path, checkpoint, earlier["validate"], read_result(options.results, "fetch", path))
    residency = call(lambda: measure(checkpoint.shards))
    figures = _sum_up(checkpoint, earlier, residency)
    check_policy(
        residency,
        options.policy,
        options.min_resident_percent,
        checkpoint.path,
        figures,
        unknown=options.unknown_residency,
    )
    said = [describe_residency(residency)]
    if earlier["prefetch"].get("reason") == "PageCacheBypassed":
        said.append("the file system keeps nothing in the page cache, so staging into memory is useless there")
    if options.pages == PAGES_COLD:
        # Last of all reads: any later one would make the pages look used again.
        all_read = earlier["prefetch"].get("reason") == "Prefetched"
        cooling = call(lambda: cool(checkpoint.shards, all_read=all_read))
        said.append(f"cooled {format_bytes(cooling.cooled_bytes)}")
        said += [f"not all cooled ({refusal})" for refusal in cooling.refusals]
    # Pods wait for the folder that they are told, which of a fetched one lies in the home.
    marked, digest = checkpoint.path if options.fetched else path, str(figures.get("manifestDigest") or "")
    figures["marker"], cause = _mark(marked, checkpoint, options, digest)
    if cause:
        said.append(cause)
    return figures, "; ".join(said)


def _check_unchanged(checkpoint: Checkpoint, validated: dict[str, Any]) -> None:
    """A digest must not be published for files that are plainly others than those that were hashed."""
    now = {
        "sizeBytes": checkpoint.size_bytes,
        "fileCount": len(checkpoint.files),
        "newestChangeNs": call(lambda: find_newest_ns(checkpoint)),
    }
    for name, value in now.items():
        if validated.get(name, value) != value:
            message = (
                f"{checkpoint.path} has changed since it was validated ({name} was {validated[name]}, is {value}); stop "
                "what writes there"
            )
            raise TryAgainError(message, reason="FileChanged")


def _check_fetched(path: str, checkpoint: Checkpoint, validated: dict[str, Any], fetched: dict[str, Any]) -> None:
    """What was validated must be, byte for byte, what was fetched and verified against its source."""
    from modelweights_loader.fetch.published import ask_to_verify  # noqa: PLC0415 - only where it was fetched

    got, expected = validated.get("manifestDigest"), fetched.get("manifestDigest")
    if got != expected:
        call(lambda: ask_to_verify(path))
        message = (
            f"{checkpoint.path} has the manifest digest {got}, but {expected} was fetched: bytes on this disk are no longer "
            "those of the source; the next fetch hashes them and fetches the bad ones again"
        )
        raise BadCheckpointError(message, reason="HashMismatch")


def _sum_up(checkpoint: Checkpoint, earlier: dict[str, dict[str, Any]], residency: Residency) -> dict[str, object]:
    """The figures by importance: when a report is too long, the last ones go first."""
    prefetch, validated, tuned = (earlier.get(step, {}) for step in _STEPS)
    return {
        "manifestDigest": validated.get("manifestDigest"),
        "sizeBytes": checkpoint.size_bytes,
        **residency.figures(),
        # Set at the end; the place is kept here.
        "marker": None,
        "engine": tuned.get("engine") or validated.get("engine"),
        "pageCache": prefetch.get("pageCache"),
        "tensorCount": validated.get("tensorCount"),
        "fileCount": len(checkpoint.files),
        "shardCount": len(checkpoint.shards),
        "loadSeconds": validated.get("loadSeconds"),
        "prefetchBytesPerSecond": prefetch.get("bytesPerSecond"),
        "prefetchSeconds": prefetch.get("readSeconds"),
        "queueSize": validated.get("queueSize"),
        "odirect": validated.get("odirect"),
        "mode": validated.get("mode"),
        "numThreads": prefetch.get("numThreads"),
        "blockSize": prefetch.get("blockSize"),
    }


def check_policy(
    residency: Residency,
    policy: str,
    min_percent: float,
    shown: str,
    figures: dict[str, object] | None = None,
    *,
    unknown: str = UNKNOWN_FAIL,
) -> None:
    """Makes an error of what the policy does not allow.

    Args:
        residency: As measured.
        policy: `Required` or `BestEffort`; the latter allows everything.
        min_percent: 0 to 100.
        shown: The checkpoint, for messages.
        figures: Go with the error into its report.
        unknown: `Fail` or `Accept`: what Required makes of a residency that nobody may measure.

    Raises:
        NoRoomError: Less is resident than must be.
        WillNotWorkError: Nobody knows how much is resident.
    """
    if policy != POLICY_REQUIRED:
        return
    if residency.percent is None and unknown == UNKNOWN_ACCEPT:
        return
    if residency.percent is None:
        message = (
            f"{shown}: the policy is Required, but residency can't be measured ({'; '.join(residency.refusals)}); let "
            "the staging user own the files, use --unknown-residency Accept, or the policy BestEffort"
        )
        raise WillNotWorkError(message, reason="ResidencyUnknown", figures=figures)
    if residency.percent < min_percent:
        message = (
            f"{shown}: {residency.percent:.1f} % resident ({residency.method}), the policy Required asks for "
            f"{min_percent:g} %; free memory on the node or raise the pod's memory limit"
        )
        raise NoRoomError(message, reason="NotResident", figures=figures)


def describe_residency(residency: Residency) -> str:
    """Says a residency in a sentence.

    Args:
        residency: As measured.

    Returns:
        Share, size, method, error, and why a better method was refused.
    """
    why = f", because {'; '.join(residency.refusals)}" if residency.refusals else ""
    if residency.percent is None:
        return f"residency unknown{why}"
    share = f"{residency.percent:.1f} %{error_of(residency)}"
    return f"{share} of {format_bytes(residency.size_bytes)} resident, {describe_method(residency)}{why}"


def _mark(path: str, checkpoint: Checkpoint, options: PublishOptions, digest: str) -> tuple[str, str]:
    if options.marker_dir is None:
        return markers.NOT_ASKED, ""
    root = options.marker_root or os.path.dirname(os.path.abspath(path))
    real = resolve_below(path, root)
    if f"{checkpoint.path}/".startswith(f"{real}/"):
        relative_path = os.path.relpath(real, resolve(root))
    else:
        # Others wait for the marker of what lies there.
        message = f"{path} leads to {real} by now, but {checkpoint.path} was proven; stop what writes there"
        raise WillNotWorkError(message, reason="UnsafePath")
    if not digest:
        message = f"{path} can't be marked without a manifest digest; pass --results with the result of validate"
        raise WillNotWorkError(message, reason="NotValidated")
    marker = markers.Marker(
        path=relative_path,
        manifest_digest=digest,
        boot_id=markers.read_boot_id(),
        node_boot_id=options.node_boot_id,
        size_bytes=checkpoint.size_bytes,
        file_count=len(checkpoint.files),
        staged_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    )
    try:
        markers.write_marker(options.marker_dir, marker)
    except OSError as error:
        # Read-only storage takes no marker; the node label still tells, so this is said and not an error.
        return markers.NOT_WRITABLE, f"marker not written to {options.marker_dir} ({describe_os_error(error)})"
    return markers.WRITTEN, ""
