"""The admission policies hold the service account to what the operator does, and nobody else to anything."""

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from modelweights_operator.domain import convert, gate, names
from tests.cluster.api import ApiServer
from tests.integration.client import Kube, core_path, model_path
from tests.integration.conftest import SYSTEM, render
from tests.json_client import MERGE, STRATEGIC, Json, RefusedError
from tests.polling import poll

DIGEST = "sha256:" + "a" * 64
GATE = {"name": "modelweights.io/staged"}
STARTUP = "modelweights.io/unstaged"
OTHER_GATE = {"name": "example.com/quota"}
ZONE = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["x"]}]}
RACK = {"matchExpressions": [{"key": "rack", "operator": "Exists"}]}
ADDED = {"key": names.node_label("mw-uid", "a" * 40), "operator": "In", "values": ["a" * 40]}

_numbers = itertools.count()


def make_pod(
    admin: Kube, namespace: str, gates: list[Json] | None = None, terms: list[Json] | None = None, **spec: Any
) -> Json:
    affinity: Json = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone"}]}}
    if terms is not None:
        affinity["nodeAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    body = {
        "metadata": {"name": "server", "labels": {"app": "x"}, "annotations": {names.REQUIRE_ANNOTATION: "llama", "a": "b"}},
        "spec": {
            "schedulingGates": [GATE] if gates is None else gates,
            "affinity": affinity,
            "containers": [{"name": "c", "image": "server:1"}],
            **spec,
        },
    }  # fmt: skip
    return admin.create(core_path(namespace, "pods"), body)


def lift_of(pod: Json) -> Mapping[str, Any]:
    """The very patch that the operator would make."""
    waiting = convert.gated_pod(pod)
    assert waiting is not None
    model = gate.StagedModel(
        "mw-uid", available=True, digest=DIGEST, holders={"node-a": "host-a"}, path="/models/llama"
    )
    decision = gate.decide(waiting, {gate.Requirement(waiting.namespace, "llama"): model}, label_nodes=True)
    assert isinstance(decision, gate.Lift)
    return decision.patch


@pytest.fixture(scope="module", autouse=True)
def active(admin: Kube, account: Kube) -> None:
    """The policies take a moment to become active: wait until both deny."""
    admin.create("/api/v1/namespaces", {"metadata": {"name": "probe"}})
    make_pod(admin, "probe")
    admin.create("/api/v1/nodes", {"metadata": {"name": "probe"}})
    for path in (core_path("probe", "pods", "server"), "/api/v1/nodes/probe"):
        poll(f"policy for {path}", lambda path=path: is_denied(account, path, {"metadata": {"labels": {"x": "y"}}}))  # type: ignore[misc]


def is_denied(user: Kube, path: str, patch: Json, content_type: str = MERGE) -> str:
    """The policy's message when it denies, else ""."""
    try:
        user.patch(f"{path}?dryRun=All", patch, content_type)
    except RefusedError as error:
        return error.message if "denied request" in error.message else ""
    return ""


def required_of(pod: Json) -> Any:
    return pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]


@pytest.mark.parametrize(
    ("gates", "terms", "expected_gates", "expected_terms"),
    [
        ([GATE], None, None, [{"matchExpressions": [ADDED]}]),
        (
            [GATE],
            [ZONE, RACK],
            None,
            [{"matchExpressions": [*ZONE["matchExpressions"], ADDED]}, {"matchExpressions": [*RACK["matchExpressions"], ADDED]}],
        ),
        ([OTHER_GATE, GATE], [ZONE], [OTHER_GATE], [{"matchExpressions": [*ZONE["matchExpressions"], ADDED]}]),
        ([GATE, OTHER_GATE], None, [OTHER_GATE], [{"matchExpressions": [ADDED]}]),
        (
            [GATE],
            [{"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["node-z"]}]}],
            None,
            [{"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["node-z"]}], "matchExpressions": [ADDED]}],
        ),
    ],
    ids=["no affinity", "several terms", "another gate first", "another gate last", "kept off a node"],
)  # fmt: skip
def test_the_lift_is_let_through_and_does_what_it_says(
    admin: Kube, account: Kube, namespace: str,
    gates: list[Json], terms: list[Json] | None, expected_gates: list[Json] | None, expected_terms: list[Json],
) -> None:  # fmt: skip
    pod = make_pod(admin, namespace, gates, terms)
    lifted = account.patch(core_path(namespace, "pods", "server"), dict(lift_of(pod)), STRATEGIC)
    assert lifted["spec"].get("schedulingGates") == expected_gates
    assert required_of(lifted) == expected_terms
    assert lifted["spec"]["affinity"]["podAntiAffinity"] == pod["spec"]["affinity"]["podAntiAffinity"]
    written = {"modelweights.io/digest": DIGEST, "modelweights.io/path": "/models/llama"}
    assert lifted["metadata"]["annotations"] == {**pod["metadata"]["annotations"], **written}


def test_a_daemon_sets_pod_is_lifted_with_its_affinity_as_it_is(admin: Kube, account: Kube, namespace: str) -> None:
    pinned = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-a"]}]}
    pod = make_pod(admin, namespace, terms=[pinned])
    lifted = account.patch(core_path(namespace, "pods", "server"), dict(lift_of(pod)), STRATEGIC)
    assert required_of(lifted) == [pinned]
    assert "schedulingGates" not in lifted["spec"]


def test_a_lift_decided_on_an_old_pod_is_a_conflict(admin: Kube, account: Kube, namespace: str) -> None:
    pod = make_pod(admin, namespace)
    admin.patch(core_path(namespace, "pods", "server"), {"metadata": {"labels": {"new": "label"}}})
    with pytest.raises(RefusedError) as caught:
        account.patch(core_path(namespace, "pods", "server"), dict(lift_of(pod)), STRATEGIC)
    assert caught.value.status == 409


PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
UNGATE = {"schedulingGates": [{"$patch": "delete", "name": GATE["name"]}]}
# Those that every pod has: they may not be taken off, whoever asks.
DEFAULT_TOLERATIONS = [
    {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
    for key in ("not-ready", "unreachable")
]
POD_DENIALS = {
    "another image": ({"spec": {**UNGATE, "containers": [{"name": "c", "image": "evil"}]}}, "containers may not be changed"),
    "another label": ({"metadata": {"labels": {"app": "y"}}, "spec": UNGATE}, "labels, finalizers and owner references"),
    "a label taken off": ({"metadata": {"labels": {"app": None}}, "spec": UNGATE}, "labels, finalizers and owner references"),
    "a finalizer": ({"metadata": {"finalizers": ["example.com/x"]}, "spec": UNGATE}, "labels, finalizers and owner references"),
    "another annotation": ({"metadata": {"annotations": {"c": "d"}}, "spec": UNGATE}, "only modelweights.io/digest and modelweights.io/path may be changed"),
    "an annotation changed": ({"metadata": {"annotations": {"a": "x"}}, "spec": UNGATE}, "only modelweights.io/digest and modelweights.io/path may be changed"),
    "an annotation taken off": ({"metadata": {"annotations": {"a": None}}, "spec": UNGATE}, "only modelweights.io/digest and modelweights.io/path may be changed"),
    "an annotation that looks like ours": ({"metadata": {"annotations": {"modelweights.io/require": "other"}}, "spec": UNGATE}, "only modelweights.io/digest and modelweights.io/path may be changed"),
    "another controller's gate": ({"spec": {"schedulingGates": [{"$patch": "delete", "name": OTHER_GATE["name"]}]}}, "only the gate modelweights.io/staged"),
    "both gates": ({"spec": {"schedulingGates": [*UNGATE["schedulingGates"], {"$patch": "delete", "name": OTHER_GATE["name"]}]}}, "only the gate modelweights.io/staged"),
    "a path and nothing of the gate": ({"metadata": {"annotations": {"modelweights.io/path": "/x"}}}, "only the gate modelweights.io/staged"),
    "nothing of the gate": ({"metadata": {"annotations": {"modelweights.io/digest": "x"}}}, "only the gate modelweights.io/staged"),
    "a node selector": ({"spec": {**UNGATE, "nodeSelector": {"a": "b"}}}, "only the gate and the required node affinity"),
    "a toleration": ({"spec": {**UNGATE, "tolerations": [*DEFAULT_TOLERATIONS, {"operator": "Exists"}]}}, "only the gate and the required node affinity"),
    "a preferred node": ({"spec": {**UNGATE, "affinity": {"nodeAffinity": {PREFERRED: [{"weight": 1, "preference": ZONE}]}}}}, "only labels below staged.modelweights.io/ may be added"),
    "a deadline": ({"spec": {**UNGATE, "activeDeadlineSeconds": 5}}, "only the gate and the required node affinity"),
}  # fmt: skip


@pytest.mark.parametrize(("patch", "message"), POD_DENIALS.values(), ids=POD_DENIALS.keys())
def test_any_other_change_of_a_pod_is_denied(
    admin: Kube, account: Kube, namespace: str, patch: Json, message: str
) -> None:
    make_pod(admin, namespace, [GATE, OTHER_GATE])
    path = core_path(namespace, "pods", "server")
    assert message in is_denied(account, path, patch, STRATEGIC)
    assert is_denied(admin, path, patch, STRATEGIC) == ""


@pytest.mark.parametrize("gates", [[], [OTHER_GATE]], ids=["no gate", "another's gate"])
def test_a_pod_that_does_not_wait_at_our_gate_is_out_of_reach(
    admin: Kube, account: Kube, namespace: str, gates: list[Json]
) -> None:
    make_pod(admin, namespace, gates)
    patch = {"metadata": {"annotations": {"modelweights.io/digest": "x"}}}
    denied = is_denied(account, core_path(namespace, "pods", "server"), patch)
    assert "only a pod that waits at the gate modelweights.io/staged may be changed" in denied


@pytest.fixture
def node(admin: Kube) -> Iterator[str]:
    name = f"policy-{next(_numbers)}"
    taints = [{"key": "modelweights.io/unstaged", "effect": "NoSchedule"}, {"key": "team", "effect": "NoSchedule"}]
    labels = {"zone": "x", "staged.modelweights.io/old": "b"}
    admin.create(
        "/api/v1/nodes",
        {"metadata": {"name": name, "labels": labels, "annotations": {"a": "b"}}, "spec": {"taints": taints}},
    )
    yield name
    admin.delete(f"/api/v1/nodes/{name}")


def taints_of(admin: Kube, node: str, without: str = "") -> list[Json]:
    taints: list[Json] = admin.get(f"/api/v1/nodes/{node}")["spec"]["taints"]
    return [taint for taint in taints if taint["key"] != without]


def test_labels_of_ours_may_be_set_changed_and_taken_off(account: Kube, node: str) -> None:
    labels = {"staged.modelweights.io/new": "a", "staged.modelweights.io/old": None}
    found = account.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": labels}})
    assert found["metadata"]["labels"] == {"zone": "x", "staged.modelweights.io/new": "a"}


def test_the_startup_taint_may_be_taken_off(admin: Kube, account: Kube, node: str) -> None:
    left = taints_of(admin, node, without="modelweights.io/unstaged")
    found = account.patch(f"/api/v1/nodes/{node}", {"spec": {"taints": left}})
    assert found["spec"]["taints"] == left


NODE_DENIALS = {
    "a foreign label": ({"metadata": {"labels": {"x": "y"}}}, "only those below staged.modelweights.io/"),
    "a label that looks like ours": ({"metadata": {"labels": {"staged.modelweights.io.evil/x": "y"}}}, "only those below staged"),
    "a foreign label changed": ({"metadata": {"labels": {"zone": "y"}}}, "only those below staged.modelweights.io/"),
    "a foreign label taken off": ({"metadata": {"labels": {"zone": None}}}, "only those below staged.modelweights.io/"),
    "a cordon": ({"spec": {"unschedulable": True}}, "a node's spec may not be changed"),
    "a provider": ({"spec": {"providerID": "x://y"}}, "a node's spec may not be changed"),
    "an annotation": ({"metadata": {"annotations": {"c": "d"}}}, "annotations, finalizers and owner references"),
    "a finalizer": ({"metadata": {"finalizers": ["example.com/x"]}}, "annotations, finalizers and owner references"),
    "all taints taken off": ({"spec": {"taints": None}}, "only modelweights.io/unstaged may be taken off"),
}  # fmt: skip


@pytest.mark.parametrize(("patch", "message"), NODE_DENIALS.values(), ids=NODE_DENIALS.keys())
def test_any_other_change_of_a_node_is_denied(admin: Kube, account: Kube, node: str, patch: Json, message: str) -> None:
    assert message in is_denied(account, f"/api/v1/nodes/{node}", patch)
    assert is_denied(admin, f"/api/v1/nodes/{node}", patch) == ""


@pytest.mark.parametrize("taint", ["evil", "modelweights.io/unstaged"])
def test_no_taint_may_be_added(admin: Kube, account: Kube, node: str, taint: str) -> None:
    more = [*taints_of(admin, node), {"key": taint, "effect": "NoExecute"}]
    assert "may be taken off" in is_denied(account, f"/api/v1/nodes/{node}", {"spec": {"taints": more}})


def test_a_taint_may_not_be_exchanged_for_the_startup_taint(admin: Kube, account: Kube, node: str) -> None:
    swapped = [*taints_of(admin, node, without="team"), {"key": "modelweights.io/unstaged", "effect": "NoExecute"}]
    assert "may be taken off" in is_denied(account, f"/api/v1/nodes/{node}", {"spec": {"taints": swapped}})


def test_the_startup_taint_may_not_be_changed(admin: Kube, account: Kube, node: str) -> None:
    changed = [*taints_of(admin, node, without=STARTUP), {"key": STARTUP, "effect": "NoExecute"}]
    assert "may be taken off" in is_denied(account, f"/api/v1/nodes/{node}", {"spec": {"taints": changed}})


@pytest.mark.parametrize(
    ("release", "settings", "denied"),
    [
        ("labels", ["startupTaint.enabled=false"], {"taint": "a node's taints may not be changed", "label": ""}),
        (
            "taints",
            ["startupTaint.enabled=true", "nodeLabels.enabled=false"],
            {"taint": "", "label": "a node's labels may not be changed"},
        ),
    ],
)
def test_what_is_not_enabled_is_denied(
    server: ApiServer, admin: Kube, node: str, release: str, settings: list[str], denied: dict[str, str]
) -> None:
    server.kubectl("apply", "--server-side", "-f", "-", input=render(release, "crds.enabled=false", *settings))
    user, path = Kube(server.kubeconfig_for_service_account(SYSTEM, release)), f"/api/v1/nodes/{node}"
    cordon = {"spec": {"unschedulable": True}}
    poll("its policy is active", lambda: is_denied(user, path, cordon))
    changes: dict[str, Json] = {
        "taint": {"spec": {"taints": taints_of(admin, node, without=STARTUP)}},
        "label": {"metadata": {"labels": {"staged.modelweights.io/new": "a"}}},
    }
    for what, message in denied.items():
        if message:
            assert message in is_denied(user, path, changes[what])
        else:
            user.patch(f"{path}?dryRun=All", changes[what])


def test_another_user_with_the_same_rights_is_not_touched(server: ApiServer, admin: Kube, node: str) -> None:
    body = {
        "metadata": {"name": "someone-patches-nodes"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "mw-node-labels"},
        "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "someone"}],
    }
    admin.create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", body)
    someone = Kube(server.kubeconfig_for("someone"))
    path = f"/api/v1/nodes/{node}"

    def cordoned() -> bool:
        return someone.ask("PATCH", path, {"spec": {"unschedulable": True}}, MERGE)[0] == 200

    poll("someone else cordons", cordoned)
    assert admin.get(path)["spec"]["unschedulable"] is True


def make_model(admin: Kube, namespace: str) -> str:
    spec = {"source": {"huggingFace": {"repository": "org/name"}}, "placement": {"nodeSelector": {"no": "node"}}}
    body = {"apiVersion": "modelweights.io/v1alpha1", "kind": "ModelWeights", "metadata": {"name": "m"}, "spec": spec}
    admin.create(model_path(namespace), body)
    return model_path(namespace, "m")


def test_of_a_modelweights_the_one_finalizer_may_be_put_on_and_taken_off(
    admin: Kube, account: Kube, namespace: str
) -> None:
    where = make_model(admin, namespace)
    admin.patch(where, {"metadata": {"finalizers": ["example.com/theirs"]}})
    both = ["example.com/theirs", names.FINALIZER]
    assert account.patch(where, {"metadata": {"finalizers": both}})["metadata"]["finalizers"] == both
    alone = account.patch(where, {"metadata": {"finalizers": both[:1]}})
    assert alone["metadata"]["finalizers"] == both[:1]


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        ({"spec": {"suspend": True}}, "the spec may not be changed"),
        ({"metadata": {"finalizers": ["example.com/x"]}}, "of the finalizers only modelweights.io/cleanup"),
        ({"metadata": {"labels": {"a": "b"}}}, "labels, annotations and owner references may not be changed"),
        ({"metadata": {"annotations": {"a": "b"}}}, "labels, annotations and owner references may not be changed"),
    ],
)
def test_nothing_else_of_a_modelweights_may_be_changed(
    admin: Kube, account: Kube, namespace: str, patch: Json, message: str
) -> None:
    where = make_model(admin, namespace)
    poll(f"denied: {message}", lambda: message in is_denied(account, where, patch))
    assert "denied request" not in is_denied(admin, where, patch)
