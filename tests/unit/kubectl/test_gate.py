"""`gate` says what the operator would decide, by what a person may read."""

from datetime import UTC, datetime
from typing import Any

import pytest

from kubectl_modelweights import gate
from kubectl_modelweights.gathered import Gate
from modelweights_operator.domain import names
from tests.unit.kubectl.samples import DIGEST, READY, Json, entry, model

NOW = datetime(2026, 11, 30, 13, 0, tzinfo=UTC)
GROUP = {names.GROUP_LABEL: "g"}


def pod(require: str | None = "llama", name: str = "p", *, gated: bool = True, **more: Any) -> Json:
    """A pod at our gate."""
    annotations = {**({} if require is None else {names.REQUIRE_ANNOTATION: require}), **more.get("annotations", {})}
    metadata = {
        "namespace": "team",
        "name": name,
        "uid": name,
        "resourceVersion": "1",
        "creationTimestamp": "2026-11-30T12:00:00Z",
        "annotations": annotations,
        "labels": more.get("labels", {}),
    }
    gates = [{"name": names.GATE}] if gated else []
    return {"metadata": metadata, "spec": {"schedulingGates": [*gates, *more.get("gates", [])], **more.get("spec", {})}}


def node(name: str, *, labelled: bool = True) -> Json:
    """One that holds the published checkpoint, by its label."""
    labels = names.digest_labels("uid-1", [DIGEST]) if labelled else {}
    return {"metadata": {"name": name, "uid": name, "labels": labels}, "status": {"nodeInfo": {"bootID": "boot"}}}


LLAMA = model({"n": READY, "m": entry("Staging", "Fetching")})
MODELS = {("team", "llama"): LLAMA}
FRESH = {("team", "llama"): {**LLAMA, "status": {}}}
BOUND = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["m"]}]}
ON_M = {
    "affinity": {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [BOUND]}},
    }
}


@pytest.mark.parametrize(
    ("waiting", "models", "nodes", "reason", "opens"),
    [
        (pod(), MODELS, (node("n"), node("m", labelled=False)), "Staged", True),
        (pod(), MODELS, None, "Staged", True),
        (pod(), FRESH, (node("n"),), "NotStaged", False),
        (pod(spec=ON_M), MODELS, (node("n"), node("m", labelled=False)), "NodeNotStaged", False),
        (pod(), {}, None, "RequireNotFound", False),
        (pod("other/llama"), MODELS, None, "RequireNotAllowed", False),
        (pod(None), MODELS, None, "RequireInvalid", False),
        (pod("llama@v9"), MODELS, None, "RevisionNotFound", False),
        (pod(labels=GROUP, annotations={names.GROUP_SIZE_ANNOTATION: "2"}), MODELS, None, "GroupIncomplete", False),
    ],
)
def test_the_operators_own_verdict(
    waiting: Json,
    models: dict[tuple[str, str], Json],
    nodes: tuple[Json, ...] | None,
    reason: str,
    opens: bool,  # noqa: FBT001 - a table's value
) -> None:
    members = (waiting,) if waiting["metadata"]["labels"] else ()
    found = gate.answer(Gate(waiting, members, models, nodes, None, ()), NOW).data
    assert (found["reason"], found["opens"], found["gated"]) == (reason, opens, True)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (pod(gated=False, annotations={names.DIGEST_ANNOTATION: DIGEST}), "went through the gate"),
        (pod(gated=False), "but not the gate"),
        (pod(None, gated=False), "doesn't wait for a ModelWeights"),
        (pod(None, gated=False, gates=[{"name": "x/quota"}]), "other gates hold it: x/quota"),
    ],
)
def test_a_pod_that_isnt_at_the_gate(found: Json, expected: str) -> None:
    answer = gate.answer(Gate(found, (), {}, None, None, ()), NOW)
    assert expected in answer.data["message"]
    assert answer.data["gated"] is False
