"""What the scale benchmark's figures rest on: how the audit log is read, and which pairs there are."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.bench.scale import audit
from tests.bench.scale.run import Size
from tests.bench.scale.stages import REPORT_BYTES, write_stages

OPERATOR, KUBELETS = "operator", "kwok"
JOB = "stage-llama-0123456789ab"


def line(second: float, user: str, verb: str, resource: str, name: str = "", code: int = 200) -> str:
    kind, _, below = resource.partition("/")
    about = {"resource": kind, "namespace": "team", "name": name, **({"subresource": below} if below else {})}
    event: dict[str, Any] = {
        "user": {"username": user},
        "verb": verb,
        "requestURI": "/x",
        "objectRef": about,
        "requestReceivedTimestamp": f"2026-03-01T12:00:{second:09.6f}Z",
        "stageTimestamp": f"2026-03-01T12:00:{second + 0.25:09.6f}Z",
        "responseStatus": {"code": code},
    }
    return json.dumps(event) + "\n"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A pod ends at 2.25 s, and its status is written at 3.75 s; another one's failed, and is noted only."""
    path = tmp_path / "audit.log"
    failed = "stage-llama-ba9876543210"
    path.write_text(
        line(0, OPERATOR, "create", "jobs", JOB)
        + line(0, OPERATOR, "create", "jobs", failed)
        + line(1, KUBELETS, "patch", "pods/status", f"{JOB}-x1y2z")
        + line(2, KUBELETS, "patch", "pods/status", f"{JOB}-x1y2z")
        + line(2, KUBELETS, "patch", "pods/status", f"{failed}-x1y2z")
        + line(2.5, OPERATOR, "patch", "modelweights/status", "llama")
        + line(3, OPERATOR, "patch", "jobs", JOB)
        + line(3, OPERATOR, "patch", "jobs", failed)
        + line(3.1, OPERATOR, "patch", "modelweights/status", "llama", code=409)
        + line(3.5, OPERATOR, "patch", "modelweights/status", "llama")
        + line(4, OPERATOR, "delete", "jobs", JOB)
        + line(20, OPERATOR, "delete", "jobs", failed)
        + line(21, OPERATOR, "watch", "jobs")
        + '{"half'
    )
    return path


def test_the_time_to_the_status_is_from_the_pods_end_to_the_answer_of_the_write_that_tells_of_it(log: Path) -> None:
    assert audit.seconds_to_status(audit.read(log), OPERATOR, KUBELETS) == [pytest.approx(1.5)]


def test_requests_are_counted_by_what_they_do(log: Path) -> None:
    own = [each for each in audit.read(log) if each.user == OPERATOR]
    assert audit.count(own) == {"patch modelweights/status": 3, "create jobs": 2, "patch jobs": 2, "delete jobs": 2}
    assert audit.most_jobs(own, OPERATOR) == 2


def test_percentiles() -> None:
    values = [float(number) for number in range(100, 0, -1)]
    assert [audit.percentile(values, percent) for percent in (0, 50, 99, 100)] == [1, 51, 100, 100]
    assert audit.percentile([], 99) == 0


def test_pairs_are_all_nodes_for_the_wide_objects_and_a_pool_for_each_other() -> None:
    pairs = Size(nodes=25, models=5, wide=2).pairs()
    nodes = {name: [number for _, other, _, number in pairs if other == name] for _, name, _, _ in pairs}
    assert nodes == {
        "wide-00": list(range(25)),
        "wide-01": list(range(25)),
        "narrow-0002": [20, 21, 22, 23, 24],
        "narrow-0003": list(range(10)),
        "narrow-0004": list(range(10, 20)),
    }


def test_a_good_pod_ends_with_three_reports_of_a_kibibyte_each() -> None:
    stages = [json.loads(document) for document in write_stages().split("\n---\n")]
    [template] = [
        each["spec"]["next"]["statusTemplate"] for each in stages if each.get("metadata", {}).get("name") == "pod-ends"
    ]
    filled = re.sub(r"\{\{ sha256sum .*? \}\}", "d" * 64, template.replace("{{ Now }}", "now"))
    status = json.loads(filled)
    messages = [
        each["state"]["terminated"]["message"]
        for each in (*status["initContainerStatuses"], *status["containerStatuses"])
    ]
    assert [json.loads(message)["step"] for message in messages] == ["prefetch", "validate", "report"]
    assert all(REPORT_BYTES - 10 <= len(message) <= REPORT_BYTES + 64 for message in messages)
    assert json.loads(messages[-1])["manifestDigest"] == "sha256:" + "d" * 64
