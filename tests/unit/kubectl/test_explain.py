"""`why` tells the cause that is to be mended first, in the operator's words, and what to do."""

import re
from pathlib import Path
from typing import Any

import pytest

from kubectl_modelweights import explain, remedies
from kubectl_modelweights.gathered import Surroundings
from tests.unit.kubectl.samples import READY, Json, entry, model

USAGE = (Path(__file__).resolve().parents[3] / "docs/usage.md").read_text()
SHORT = entry("Failed", "BadHeader", "a.safetensors: short", attempts=2, exitCode=30)


def told(**fields: Any) -> list[tuple[str, tuple[str, ...]]]:
    """Reason and nodes of each cause."""
    return [(cause.reason, cause.nodes) for cause in explain.why(Surroundings(**fields)).causes]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (model({"a": READY}, ready=("True", "AllNodesReady", "")), []),
        (model({"a": SHORT, "b": SHORT}), [("BadHeader", ("a", "b"))]),
        (
            model({"a": entry("Staging", "Fetching"), "b": entry("Waiting", "Queued", "2 of 2"), "c": SHORT}),
            [("BadHeader", ("c",)), ("Queued", ("b",)), ("Fetching", ("a",))],
        ),
        (
            model({"a": entry("Failed", "NoRoom", "on a: 5 B"), "b": entry("Failed", "NoRoom", "on b: 6 B")}),
            [("NoRoom", ("a", "b"))],
        ),
        (model(ready=("False", "NoNodes", "label one")), [("NoNodes", ())]),
        (
            model({"a": SHORT, "b": entry("Waiting", "WaitsForCanary", "a")}, ready=("False", "CanaryFailed", "bad on a")),
            [("CanaryFailed", ()), ("BadHeader", ("a",))],
        ),
        (model({"a": {**READY, "message": "a limit"}}, ready=("True", "AllNodesReady", "")), [("Staged", ("a",))]),
        (model(generation=2), [("NotSeenYet", ())]),
        (model(deletionTimestamp="2026-11-30T12:00:00Z", finalizers=["x/y"]), [("Deleting", ())]),
    ],
)  # fmt: skip
def test_causes_in_the_order_in_which_to_mend_them(found: Json, expected: list[tuple[str, tuple[str, ...]]]) -> None:
    assert told(model=found) == expected


def test_an_object_without_status_was_not_seen() -> None:
    fresh = {key: value for key, value in model().items() if key != "status"}
    explanation = explain.why(Surroundings(fresh))
    assert explanation.verdict == "team/llama has no status yet"
    assert [cause.reason for cause in explanation.causes] == ["NotSeenYet"]


def test_message_attempts_and_remedy_stand_together() -> None:
    [cause] = explain.why(Surroundings(model({"a": SHORT}))).causes
    assert cause.message == "a.safetensors: short (failed 2 times)"
    assert cause.remedy == "the checkpoint is bad: put a whole one there, then kubectl modelweights retry llama"


def test_the_log_of_the_step_that_failed_is_named() -> None:
    job = {"metadata": {"uid": "j", "annotations": {"modelweights.io/node": "a"}}}
    ended = {"name": "validate", "state": {"terminated": {"exitCode": 30}}}
    good = {"name": "fetch", "state": {"terminated": {"exitCode": 0}}}
    pod = {
        "metadata": {"namespace": "team", "name": "p", "uid": "p", "ownerReferences": [{"uid": "j"}]},
        "status": {"initContainerStatuses": [good, ended]},
    }
    [cause] = explain.why(Surroundings(model({"a": SHORT}), (job,), (pod,))).causes
    assert cause.look == ("kubectl -n team logs p -c validate",)


@pytest.mark.parametrize(
    ("uid", "kind", "message", "expected"),
    [
        ("uid-1", "Warning", "quota exceeded", ["ModelWeights x: Why: quota exceeded"]),
        ("uid-1", "Warning", "a: a.safetensors: short", []),
        ("uid-1", "Normal", "quota exceeded", []),
        ("stranger", "Warning", "quota exceeded", []),
    ],
)
def test_warnings_that_say_more_are_repeated(uid: str, kind: str, message: str, expected: list[str]) -> None:
    about = {"kind": "ModelWeights", "name": "x", "uid": uid}
    event = {"metadata": {}, "type": kind, "reason": "Why", "message": message, "involvedObject": about}
    assert list(explain.why(Surroundings(model({"a": SHORT}), events=(event,))).events) == expected


def test_what_could_not_be_read_is_said() -> None:
    answer = explain.answer(explain.why(Surroundings(model({"a": SHORT}), unread=("events is forbidden",))))
    assert answer.data["unread"] == ["events is forbidden"]
    assert answer.data["causes"][0]["nodes"] == ["a"]
    assert answer.data["verdict"].startswith("team/llama isn't ready (0/1 nodes); pods may start")


def documented() -> list[str]:
    """The reasons of the two tables of the user's guide that the operator itself gives."""
    text = USAGE[USAGE.index("### Reasons of Available") : USAGE.index("### Reasons of the loader")]
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return sorted({reason for cell in cells for reason in re.findall(r"`(\w+)`", cell)})


@pytest.mark.parametrize("reason", documented())
def test_each_documented_reason_has_a_remedy(reason: str) -> None:
    assert reason in remedies.REMEDIES
