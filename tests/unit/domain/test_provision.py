"""Pods that wait on the node themselves are lifted before it is staged, where the ModelWeights says so; no others are."""

from dataclasses import replace
from typing import Any

import pytest

from modelweights_operator.api import v1alpha1 as api
from modelweights_operator.domain import gate, names, provision, required
from modelweights_operator.domain.gate import GatedPod, Lift, Requirement, StagedModel, Wait
from tests.unit.domain.samples import DIGEST_A, DIGEST_B, make_node, make_owner, make_revision, make_spec, make_status

LLAMA, QWEN = Requirement("team", "llama"), Requirement("team", "qwen")
NOTHING = StagedModel("uid-1", available=False, digest="", holders={}, provisions=True, selects_none=True)
STAGED = StagedModel(
    "uid-1", available=True, digest=DIGEST_A, holders={"node-a": "h"}, path="/models/x", provisions=True
)
FIXED = StagedModel("uid-2", available=True, digest=DIGEST_B, holders={"node-b": "g"}, path="/models/y")
POD = GatedPod("team", "server-0", "pod-uid", "41", "llama", waits_itself=True)
REQUIRED, PREFERRED = (f"{kind}DuringSchedulingIgnoredDuringExecution" for kind in ("required", "preferred"))
ZONE = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["x"]}]}
SOFT = {"weight": 5, "preference": ZONE}


def by_label(uid: str, digest: str) -> dict[str, Any]:
    return {"key": names.node_label(uid, digest), "operator": "In", "values": [names.label_digest(digest)]}


def prefer(uid: str, digest: str) -> dict[str, Any]:
    return {"weight": 100, "preference": {"matchExpressions": [by_label(uid, digest)]}}


def lift(pod: GatedPod, *, label_nodes: bool = True, **models: StagedModel) -> Lift:
    found = gate.decide(
        pod, {Requirement("team", name): model for name, model in models.items()}, label_nodes=label_nodes
    )
    assert isinstance(found, Lift)
    return found


def affinity(found: Lift) -> Any:
    return found.patch["spec"].get("affinity", {}).get("nodeAffinity", {})


# --- which pods wait themselves -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("container", "expected"),
    [
        ({"args": ["wait", "/models/x"]}, True),
        ({"args": ["wait", "--hold", "/models/x"], "restartPolicy": "Always"}, True),
        ({"command": ["modelweights-loader", "wait", "/x"]}, True),
        ({"command": ["/usr/local/bin/modelweights-loader"], "args": ["wait", "/x"]}, True),
        ({"command": ["python", "-m", "modelweights_loader", "wait", "/x"]}, True),
        ({"args": ["wait"]}, False),
        ({"args": ["stage", "wait"]}, False),
        ({"command": ["modelweights-loader"], "args": ["residency", "/x"]}, False),
        ({"command": ["sh", "-c"], "args": ["wait", "/x"]}, False),
        ({"command": ["sleep", "wait"]}, False),
        ({}, False),
    ],
)
def test_the_loaders_wait_is_known_by_its_arguments(container: dict[str, Any], expected: bool) -> None:  # noqa: FBT001 - a column
    assert provision.runs_wait(container) is expected


# --- lifts --------------------------------------------------------------------------------------------------------


def test_with_nothing_staged_the_gate_goes_and_nothing_else_changes() -> None:
    found = lift(POD, llama=NOTHING)
    assert found.patch["spec"] == {"schedulingGates": [{"$patch": "delete", "name": names.GATE}]}
    assert found.patch["metadata"]["annotations"] == {names.DIGEST_ANNOTATION: "", names.PATH_ANNOTATION: ""}
    assert found.reason == "Provisioned"


@pytest.mark.parametrize("model", [STAGED, replace(STAGED, available=False, holders={})], ids=["staged", "gone"])
def test_nodes_that_hold_it_are_preferred_and_none_is_required(model: StagedModel) -> None:
    """So that a node comes also when those that hold it are full."""
    found = lift(replace(POD, terms=(ZONE,), preferred=(SOFT,)), llama=model)
    assert affinity(found) == {PREFERRED: [SOFT, prefer("uid-1", DIGEST_A)]}
    assert found.patch["metadata"]["annotations"][names.DIGEST_ANNOTATION] == DIGEST_A


def test_what_else_is_required_must_be_there() -> None:
    both = replace(POD, require="llama,qwen")
    found = lift(both, llama=NOTHING, qwen=FIXED)
    assert affinity(found) == {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [by_label("uid-2", DIGEST_B)]}]}}
    waits = {LLAMA: NOTHING, QWEN: replace(FIXED, available=False)}
    assert gate.decide(both, waits, label_nodes=True) == Wait()


def test_without_node_labels_only_what_is_required_names_nodes() -> None:
    both = replace(POD, require="llama,qwen")
    found = affinity(lift(both, llama=STAGED, qwen=FIXED, label_nodes=False))
    (term,) = found[REQUIRED]["nodeSelectorTerms"]
    assert (term["matchExpressions"][0]["values"], PREFERRED in found) == (["g"], False)
    assert affinity(lift(POD, llama=STAGED, label_nodes=False)) == {}


def test_a_pod_of_one_node_waits_there() -> None:
    pinned = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-z"]}]}
    assert lift(replace(POD, terms=(pinned,)), llama=NOTHING).reason == "Provisioned"


# --- those that stay ----------------------------------------------------------------------------------------------


def test_a_pod_that_does_not_wait_itself_stays_and_is_told() -> None:
    found = gate.decide(replace(POD, waits_itself=False), {LLAMA: NOTHING}, label_nodes=True)
    assert isinstance(found, Wait)
    assert found.reason == "ProvisionNeedsWait"
    assert "no init container that runs `modelweights-loader wait PATH`" in found.message
    lifted = lift(replace(POD, waits_itself=False), llama=STAGED)
    assert (lifted.reason, list(affinity(lifted))) == ("Staged", [REQUIRED])


@pytest.mark.parametrize("waits_itself", [True, False])
def test_without_a_node_a_pod_is_told_that_none_will_come(waits_itself: bool) -> None:  # noqa: FBT001 - a column
    model = replace(NOTHING, provisions=False)
    found = gate.decide(replace(POD, waits_itself=waits_itself), {LLAMA: model}, label_nodes=True)
    assert isinstance(found, Wait)
    assert found.reason == "NoNodes"
    assert "ModelWeights team/llama selects no node, and autoscalers bring none" in found.message
    assert gate.decide(POD, {LLAMA: replace(model, selects_none=False)}, label_nodes=True) == Wait()


# --- what the gate is told ----------------------------------------------------------------------------------------


def known(when: str, asked: str = "", desired: int = 0, observed: int = 3) -> StagedModel:
    status = make_status(published=make_revision())
    summary = api.Summary(desired=desired)
    status = status.model_copy(update={"observed_generation": observed, "summary": summary})
    owner = make_owner(make_spec(placement={"whenNoRoom": when}), status)
    return required.staged_model(owner, asked, [make_node()], label_nodes=True)


def test_the_spec_and_the_status_decide() -> None:
    assert (known("Provision").provisions, known("Wait").provisions) == (True, False)
    # A node that comes is staged as the spec asks, and not with another revision.
    assert not known("Provision", asked=DIGEST_A).provisions
    assert known("Wait").selects_none
    assert not known("Wait", desired=1).selects_none
    assert not known("Wait", observed=2).selects_none
    assert not required.staged_model(replace(make_owner(), spec=None), "", [], label_nodes=True).provisions
