"""Reports come from a pod: whatever stands there, reading it gives a bounded report or none, and never an error."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelweights_operator.api.v1alpha1 import NodeStatus
from modelweights_operator.domain import failures, names, policies, reports
from modelweights_operator.domain.snapshot import ContainerState, StagingJob
from tests.unit.domain.samples import DIGEST_A, NOW, ago, make_job, make_node, make_pod, make_spec, report_text

INT64_MAX = 2**63 - 1


def test_a_report_is_read() -> None:
    report = reports.parse(report_text(reason="Done", message="fine", unknownField=[1]))
    assert report == reports.Report(
        step="report",
        exit_code=0,
        reason="Done",
        message="fine",
        manifest_digest=DIGEST_A,
        file_count=4,
        size_bytes=1000,
        tensor_count=20,
        resident_bytes=990,
        prefetch_bytes_per_second=123.4,
        load_seconds=1.23456,
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Killed",
        "null",
        "[]",
        "3",
        '"report"',
        '{"step": "report"',
        "[" * 100_000,
        '{"a":' * 100_000,
        "9" * 5000,
        "\x00",
        '{"manifestDigest": ' + '"x' * 1000,
    ],
    ids=lambda text: text[:12] or "empty",
)
def test_what_is_no_report_is_none(text: str) -> None:
    assert reports.parse(text) is None


@pytest.mark.parametrize(
    "fields",
    [
        {"manifestDigest": "sha256:short"},
        {"manifestDigest": "md5:" + "a" * 64},
        {"manifestDigest": DIGEST_A + "\n"},
        {"manifestDigest": ["x"]},
        {"fileCount": -1},
        {"fileCount": "many"},
        {"sizeBytes": -1},
        {"sizeBytes": 10**30},
        {"tensorCount": 1.5},
        {"residentBytes": 10**30},
        {"residentPercent": 101},
        {"exitCode": -1},
        {"exitCode": 10**12},
        {"loadSeconds": float("inf")},
        {"loadSeconds": float("nan")},
        {"prefetchBytesPerSecond": float("inf")},
        {"prefetchBytesPerSecond": 1e300},
        {"message": "x" * 2000},
        {"reason": {"deep": 1}},
        {"reason": "x" * 129},
        {"message": "\ud800"},
    ],
    ids=str,
)
def test_a_report_with_a_wrong_field_is_none(fields: dict[str, Any]) -> None:
    assert reports.parse(report_text(**fields)) is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=5), below, max_size=3),
    max_leaves=5,
)
FIELDS = [field.alias or name for name, field in reports.Report.model_fields.items()]


def job_that_says(text: str, state: str, code: int) -> StagingJob:
    end = ContainerState("report", exit_code=code, message=text)
    return make_job(state=state, finished_at=ago(1), pods=(make_pod(end),))


@given(st.dictionaries(st.sampled_from(FIELDS), json_values), st.sampled_from(["Complete", "Failed"]))
def test_no_report_breaks_the_decision_about_its_node_or_its_entry(fields: dict[str, Any], state: str) -> None:
    job = job_that_says(json.dumps(fields), state, 0 if state == "Complete" else 1)
    spec_digest = names.staging_digest(make_spec())
    context = policies.NodeContext(make_node(), spec_digest, None, (job,), suspended=False, now=NOW)
    entry = policies.decide(context).entry
    written = json.loads(json.dumps(entry.model_dump(mode="json", by_alias=True), allow_nan=False))
    assert NodeStatus.model_validate(written) == entry
    for figure in ("residentBytes", "prefetchBytesPerSecond", "attempts", "exitCode"):
        assert 0 <= written[figure] <= INT64_MAX


@given(st.text(max_size=200))
def test_no_text_raises(text: str) -> None:
    reports.parse(text)


def test_the_last_report_is_joined_by_the_figures_of_the_fetch_and_wins() -> None:
    fetched = json.dumps({"step": "fetch", "revision": "r", "fetchSeconds": 2, "fetchedBytes": 3, "reason": "Fetched"})
    joined = reports.parse(reports.join(report_text(fetchedBytes=4), fetched))
    assert joined is not None
    assert (joined.step, joined.revision, joined.fetch_seconds, joined.fetched_bytes) == ("report", "r", 2, 4)
    assert joined.reason == ""


@pytest.mark.parametrize(
    ("final", "fetched"), [("Killed", "{}"), (report_text(), ""), (report_text(), "[1]"), ("", "")]
)
def test_what_is_no_report_joins_nothing(final: str, fetched: str) -> None:
    assert reports.join(final, fetched) == final


HOSTILE = "gone\x1b[2J\n\x00\u202etxet"


def test_what_a_terminal_would_act_on_is_not_passed_on() -> None:
    found = reports.parse(report_text(message=HOSTILE, described=HOSTILE))
    assert found is not None
    assert (found.message, found.described) == ("gone [2J   txet", "gone [2J   txet")
    assert failures.describe(job_that_said(HOSTILE), "").message == "step validate ended with 1: gone [2J txet"


@pytest.mark.parametrize("reason", ["two words", "a\x1b[2J", "x" * 129, "1st", "a\n"])
def test_a_reason_that_is_no_word_is_no_report(reason: str) -> None:
    assert reports.parse(report_text(reason=reason)) is None


def job_that_said(text: str) -> StagingJob:
    end = ContainerState("validate", exit_code=1, message=text)
    return make_job(state="Failed", pods=(make_pod(end, phase="Failed"),))
