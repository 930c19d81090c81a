"""The last step: one report of all steps, within its bound whatever the names, by importance, and the policy."""

from __future__ import annotations

import json
import os
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest

from modelweights_loader.checkpoint import find_checkpoint
from modelweights_loader.errors import LoaderError
from modelweights_loader.outcome import Outcome, make_report
from modelweights_loader.publish import PublishOptions, check_policy, describe_residency, publish
from modelweights_loader.report import encode_report, write_result
from modelweights_loader.residency import Residency
from tests.unit.loader.conftest import run_loader

if TYPE_CHECKING:
    from pathlib import Path

ENGINE = {"loadFormat": "fastsafetensors", "queueSize": 2, "odirect": True, "nogds": True, "ranks": 2, "tuned": False}
TUNED = {**ENGINE, "loadFormat": "safetensors", "tuned": True}
NOT_OWN = "cachestat: EPERM: this user neither owns the file nor may write it"
VALIDATED: dict[str, Any] = {
    "exitCode": 0,
    "manifestDigest": f"sha256:{'a' * 64}",
    "tensorCount": 24,
    "loadSeconds": 1.5,
    "mode": "Load",
    "queueSize": 2,
    "odirect": False,
    "engine": ENGINE,
}
PREFETCHED: dict[str, Any] = {"bytesPerSecond": 10**9, "readSeconds": 2.5, "numThreads": 8, "blockSize": 2**24}


def _options(**changes: Any) -> PublishOptions:
    return PublishOptions("BestEffort", 95, **changes)


def _residency(resident_bytes: int | None, method: str = "cachestat") -> Residency:
    refusals = () if method == "cachestat" else (NOT_OWN,)
    return Residency(
        (), 1000, resident_bytes, 0.4 if method == "sample" else 0, method, refusals, "2026-01-01T00:00:00Z"
    )


@pytest.mark.parametrize(
    ("earlier", "expected"),
    [
        ({"validate": VALIDATED, "tune": {"engine": TUNED}}, TUNED),
        ({"validate": VALIDATED, "tune": {}}, ENGINE),
        ({"validate": VALIDATED}, ENGINE),
        ({}, None),
    ],
)
def test_the_engines_settings_are_the_tuned_ones_else_the_validated_ones(
    single: Path, earlier: dict[str, dict[str, Any]], expected: dict[str, Any] | None
) -> None:
    figures, _ = publish(str(single), find_checkpoint(str(single)), _options(earlier=earlier))
    assert figures["engine"] == expected


def test_results_come_from_a_folder_too_and_those_at_hand_count_more(single: Path, tmp_path: Path) -> None:
    results = str(tmp_path / "results")
    write_result(results, "validate", VALIDATED, str(single))
    write_result(results, "prefetch", PREFETCHED, str(single))
    write_result(results, "tune", {"engine": TUNED}, str(single))
    options = _options(results=results, earlier={"prefetch": {**PREFETCHED, "numThreads": 3}})
    figures, _ = publish(str(single), find_checkpoint(str(single)), options)
    told = {key: figures[key] for key in ("engine", "numThreads", "blockSize", "tensorCount", "queueSize", "odirect")}
    assert told == {
        "engine": TUNED,
        "numThreads": 3,
        "blockSize": 2**24,
        "tensorCount": 24,
        "queueSize": 2,
        "odirect": False,
    }
    assert str(figures["residencyMeasuredAt"]).endswith("Z")


def test_a_report_with_long_names_keeps_what_the_operator_needs(single: Path, tmp_path: Path) -> None:
    earlier = {"validate": VALIDATED, "prefetch": PREFETCHED, "tune": {"engine": TUNED}}
    options = _options(earlier=earlier, marker_dir=str(tmp_path / "gone" / ("x" * 200)))
    figures, said = publish(str(single), find_checkpoint(str(single)), options)
    report = make_report("report", Outcome("Staged", f"{said} {'/é' * 2000}", figures), 0.1)
    encoded = encode_report(report)
    assert len(encoded) <= 1024
    kept = json.loads(encoded)
    assert kept["message"].endswith("…")
    assert {key: kept[key] for key in figures if key in kept} == {
        key: value for key, value in figures.items() if value is not None
    }


def test_what_does_not_fit_goes_from_the_end() -> None:
    engine = {**TUNED, "loadFormat": "x" * 300}
    figures: dict[str, object] = {"manifestDigest": "sha256:" + "a" * 64, "engine": engine, "mode": "y" * 600}
    kept = json.loads(encode_report(make_report("report", Outcome("Staged", "m" * 500, figures), 0.1)))
    assert (kept["engine"], "mode" in kept, kept["manifestDigest"]) == (engine, False, figures["manifestDigest"])


@pytest.mark.parametrize(
    ("resident", "policy", "unknown", "reason"),
    [
        (950, "Required", "Fail", None),
        (949, "Required", "Fail", "NotResident"),
        (949, "Required", "Accept", "NotResident"),
        (0, "BestEffort", "Fail", None),
        (None, "BestEffort", "Fail", None),
        (None, "Required", "Fail", "ResidencyUnknown"),
        (None, "Required", "Accept", None),
    ],
)
def test_what_the_policy_makes_of_a_residency(
    resident: int | None, policy: str, unknown: str, reason: str | None
) -> None:
    expected = nullcontext() if reason is None else pytest.raises(LoaderError)
    with expected as caught:
        check_policy(_residency(resident), policy, 95, "m", unknown=unknown)
    assert (None if caught is None else caught.value.reason) == reason


@pytest.mark.parametrize(
    ("residency", "expected"),
    [
        (_residency(1000), "100.0 % of 1000 B resident, by cachestat"),
        (
            _residency(998, "sample"),
            f"99.8 % ±0.4 of 1000 B resident, estimated by sample, because {NOT_OWN}",
        ),
        (
            _residency(None, "unknown"),
            f"residency unknown, because {NOT_OWN}",
        ),
    ],
)
def test_residency_in_a_sentence(residency: Residency, expected: str) -> None:
    assert describe_residency(residency) == expected


@pytest.mark.parametrize("stale", [{"sizeBytes": 7}, {"fileCount": 70}])
def test_what_has_changed_since_it_was_validated_is_not_published(single: Path, stale: dict[str, Any]) -> None:
    with pytest.raises(LoaderError, match="has changed since it was validated") as caught:
        publish(str(single), find_checkpoint(str(single)), _options(earlier={"validate": {**VALIDATED, **stale}}))
    assert (caught.value.exit_code, caught.value.reason) == (10, "FileChanged")


def test_a_change_of_the_same_size_since_it_was_validated_is_not_published(single: Path) -> None:
    """As the steps of a pod do it: one process validates, a later one reports."""
    validated = run_loader("validate", single, "--mode", "Structure", "--results", single.parent / "results")
    shard = single / "model.safetensors"
    times = shard.stat()
    with shard.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last[0] ^ 1]))
    # As `cp -p` and `rsync -t` do.
    os.utime(shard, ns=(times.st_atime_ns, times.st_mtime_ns))
    reported = run_loader("report", single, "--results", single.parent / "results")
    assert (validated.code, reported.code, reported.report["reason"]) == (0, 10, "FileChanged")


def test_a_validation_that_failed_publishes_no_digest(single: Path) -> None:
    earlier = {"validate": {**VALIDATED, "exitCode": 30}}
    figures, _ = publish(str(single), find_checkpoint(str(single)), _options(earlier=earlier))
    assert figures["manifestDigest"] is None
