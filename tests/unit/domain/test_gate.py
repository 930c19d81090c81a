"""The gate opens only towards nodes that hold everything, says why it won't, and leaves all else of the pod alone."""

from collections.abc import Mapping
from typing import Any

import pytest

from modelweights_operator.domain import gate, names
from modelweights_operator.domain.gate import GatedPod, Lift, Requirement, StagedModel, Wait
from tests.unit.domain.samples import DIGEST_A, DIGEST_B

LLAMA, QWEN = Requirement("team", "llama"), Requirement("team", "qwen")
STAGED = StagedModel(
    "uid-1", available=True, digest=DIGEST_A, holders={"node-a": "host-a", "node-b": "host-b"}, path="/models/llama"
)
OTHER = StagedModel(
    "uid-2",
    available=True,
    digest=DIGEST_B,
    holders={"node-b": "host-b", "node-c": "host-c"},
    path="claim:weights/qwen",
)
V9 = Requirement("team", "llama", "v9")
UNKNOWN = StagedModel("uid-1", available=False, digest="", holders={}, missing="nobody has it")
BY_LABEL = {"key": names.node_label("uid-1", DIGEST_A), "operator": "In", "values": ["a" * 40]}
ALSO_BY_LABEL = {"key": names.node_label("uid-2", DIGEST_B), "operator": "In", "values": ["b" * 40]}
ZONE = {"key": "zone", "operator": "In", "values": ["x"]}
ZONE_TERM = {"matchExpressions": [ZONE]}


def pod(require: str = "llama", terms: tuple[Mapping[str, Any], ...] | None = None) -> GatedPod:
    return GatedPod("team", "server-0", "pod-uid", "41", require, terms)


def pinned(*nodes: str, operator: str = "In") -> dict[str, Any]:
    return {"matchFields": [{"key": "metadata.name", "operator": operator, "values": list(nodes)}]}


def decide(
    waiting: GatedPod,
    models: Mapping[Requirement, StagedModel | None] | None = None,
    *,
    label_nodes: bool = True,
) -> Lift | Wait:
    return gate.decide(waiting, {LLAMA: STAGED} if models is None else models, label_nodes=label_nodes)


def terms_after(decision: Lift | Wait) -> Any:
    assert isinstance(decision, Lift)
    affinity = decision.patch["spec"]["affinity"]
    assert affinity.keys() == {"nodeAffinity"}
    return affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]


# --- the annotation -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("llama", (LLAMA,)),
        ("team/llama", (LLAMA,)),
        (" llama , qwen ,", (LLAMA, QWEN)),
        ("qwen,llama,qwen", (QWEN, LLAMA)),
        ("llama-3.1", (Requirement("team", "llama-3.1"),)),
        ("llama@v2", (Requirement("team", "llama", "v2"),)),
        ("team/llama@refs/pr/1", (Requirement("team", "llama", "refs/pr/1"),)),
        ("llama@v1+a#b@c, qwen", (Requirement("team", "llama", "v1+a#b@c"), QWEN)),
        (f"llama@{DIGEST_A}", (Requirement("team", "llama", DIGEST_A),)),
        ("llama,llama@v1", (LLAMA, Requirement("team", "llama", "v1"))),
        ("x" * 253, (Requirement("team", "x" * 253),)),
        (",".join(f"m{index}" for index in range(16)), tuple(Requirement("team", f"m{index}") for index in range(16))),
    ],
)
def test_require_is_read(text: str, expected: tuple[Requirement, ...]) -> None:
    assert gate.parse_require(pod(text)) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is missing or empty"),
        (" , ,", "is missing or empty"),
        (",".join(f"m{index}" for index in range(17)), "names more than 16"),
        ("llama," + " " * 200_000 + "llama", "longer than 16384"),
        ("llama@", "is not"),
        ("llama@v1 ,qwen@a b", "is not"),
        ("llama@-v1", "is not"),
        ("llama@" + "x" * 256, "is not"),
        ("@v1", "is not"),
        ("Llama", "is not"),
        ("a/b/c", "is not"),
        ("/llama", "is not"),
        ("team/", "is not"),
        ("-llama", "is not"),
        ("x" * 254, "is not"),
        ("llama\nqwen", "is not"),
        ("../llama", "is not"),
        ("llama qwen", "is not"),
    ],
)
def test_a_malformed_require_is_told_and_never_lifted(text: str, message: str) -> None:
    decision = decide(pod(text))
    assert isinstance(decision, Wait)
    assert decision.reason == "RequireInvalid"
    assert message in decision.message


# --- waiting ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("waiting", "models", "reason", "message"),
    [
        (pod("other/llama"), {}, "RequireNotAllowed", "ModelWeights other/llama is of another namespace"),
        (pod(), {}, "RequireNotFound", "ModelWeights team/llama doesn't exist"),
        (pod(), {LLAMA: None}, "RequireNotFound", "ModelWeights team/llama doesn't exist"),
        (pod("llama,qwen"), {LLAMA: STAGED, QWEN: None}, "RequireNotFound", "ModelWeights team/qwen doesn't exist"),
        (
            pod("llama@v9"),
            {V9: UNKNOWN},
            "RevisionNotFound",
            "ModelWeights team/llama@v9: nobody has it; the pod waits",
        ),
        (pod(terms=({},)), None, "AffinityUnsupported", "empty term"),
        (pod(terms=(ZONE_TERM, {"matchExpressions": []})), None, "AffinityUnsupported", "empty term"),
    ],
)
def test_what_waiting_does_not_mend_is_told_on_the_pod(
    waiting: GatedPod, models: dict[Requirement, StagedModel | None] | None, reason: str, message: str
) -> None:
    decision = decide(waiting, models)
    assert isinstance(decision, Wait)
    assert decision.reason == reason
    assert message in decision.message


@pytest.mark.parametrize(
    "model",
    [
        StagedModel("uid-1", available=False, digest=DIGEST_A, holders={"node-a": "host-a"}),
        StagedModel("uid-1", available=True, digest="", holders={"node-a": "host-a"}),
        StagedModel("uid-1", available=True, digest=DIGEST_A, holders={}),
    ],
    ids=["not available", "nothing published", "no node labelled yet"],
)
def test_the_gate_stays_shut_in_silence_while_the_staging_goes_on(model: StagedModel) -> None:
    assert decide(pod(), {LLAMA: model}) == Wait()
    assert decide(pod("llama,qwen"), {LLAMA: model, QWEN: OTHER}) == Wait()


@pytest.mark.parametrize(
    "terms",
    [(pinned("node-z"),), (pinned("node-a"), pinned("node-z")), (ZONE_TERM, pinned("node-z"))],
)
def test_a_pod_bound_to_a_node_waits_for_that_very_node(terms: tuple[Mapping[str, Any], ...]) -> None:
    assert decide(pod(terms=terms)) == Wait()


def test_a_pod_bound_to_a_node_waits_until_it_holds_every_model() -> None:
    models: dict[Requirement, StagedModel | None] = {LLAMA: STAGED, QWEN: OTHER}
    assert decide(pod("llama,qwen", (pinned("node-a"),)), models) == Wait()
    assert isinstance(decide(pod("llama,qwen", (pinned("node-b"),)), models), Lift)


# --- lifting ------------------------------------------------------------------------------------------------------


def test_the_whole_patch() -> None:
    term = {"matchExpressions": [BY_LABEL]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    assert decide(pod()) == Lift(
        {
            "metadata": {
                "uid": "pod-uid",
                "resourceVersion": "41",
                "annotations": {"modelweights.io/digest": DIGEST_A, "modelweights.io/path": "/models/llama"},
            },
            "spec": {
                "schedulingGates": [{"$patch": "delete", "name": "modelweights.io/staged"}],
                "affinity": {"nodeAffinity": required},
            },
        }
    )


@pytest.mark.parametrize(
    ("terms", "expected"),
    [
        ((ZONE_TERM,), [{"matchExpressions": [ZONE, BY_LABEL]}]),
        ((ZONE_TERM, ZONE_TERM), [{"matchExpressions": [ZONE, BY_LABEL]}] * 2),
        ((ZONE_TERM, pinned("node-a")), [{"matchExpressions": [ZONE, BY_LABEL]}, pinned("node-a")]),
        (
            (pinned("node-z", operator="NotIn"),),
            [{**pinned("node-z", operator="NotIn"), "matchExpressions": [BY_LABEL]}],
        ),
    ],
    ids=["one term", "several terms", "a bound one among them", "bound away from a node only"],
)
def test_every_term_that_leaves_the_node_open_is_narrowed(
    terms: tuple[Mapping[str, Any], ...], expected: list[Mapping[str, Any]]
) -> None:
    assert terms_after(decide(pod(terms=terms))) == expected


def test_a_daemon_sets_pod_keeps_its_affinity() -> None:
    decision = decide(pod(terms=(pinned("node-a"),)))
    assert isinstance(decision, Lift)
    assert "affinity" not in decision.patch["spec"]


def test_several_models_are_all_required_and_told_in_the_pods_order() -> None:
    decision = decide(pod("qwen,llama"), {LLAMA: STAGED, QWEN: OTHER})
    assert terms_after(decision) == [{"matchExpressions": [ALSO_BY_LABEL, BY_LABEL]}]
    assert isinstance(decision, Lift)
    assert decision.patch["metadata"]["annotations"] == {
        "modelweights.io/digest": f"{DIGEST_B},{DIGEST_A}",
        "modelweights.io/path": "claim:weights/qwen,/models/llama",
    }


def test_only_our_gate_is_named_and_the_terms_that_were_read_stay_as_they_are() -> None:
    given_terms = (ZONE_TERM,)
    decision = decide(pod(terms=given_terms))
    assert isinstance(decision, Lift)
    assert decision.patch["spec"]["schedulingGates"] == [{"$patch": "delete", "name": names.GATE}]
    assert given_terms == ({"matchExpressions": [ZONE]},)


# --- without the right to label nodes -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("require", "expected"),
    [("llama", ["host-a", "host-b"]), ("llama,qwen", ["host-b"])],
)
def test_the_fallback_names_the_hosts_that_hold_everything_now(require: str, expected: list[str]) -> None:
    decision = decide(pod(require), {LLAMA: STAGED, QWEN: OTHER}, label_nodes=False)
    hosts = {"key": "kubernetes.io/hostname", "operator": "In", "values": expected}
    assert terms_after(decision) == [{"matchExpressions": [hosts]}]


@pytest.mark.parametrize(
    "holders",
    [{"node-a": ""}, {"node-z": "host-z"}],
    ids=["a node without a hostname label", "no node in common"],
)
def test_the_fallback_waits_when_it_could_name_no_host(holders: dict[str, str]) -> None:
    model = StagedModel("uid-1", available=True, digest=DIGEST_A, holders=holders)
    assert decide(pod("llama,qwen"), {LLAMA: model, QWEN: OTHER}, label_nodes=False) == Wait()
