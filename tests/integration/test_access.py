"""A ModelWeights that pods of other namespaces may require: only those that its spec selects, by labels that may change."""

import itertools
from typing import Any

import pytest

from modelweights_operator.domain import names
from tests.integration.client import Kube, core_path, model_path
from tests.integration.cluster_double import DIGEST, Team, gated_pod, report
from tests.json_client import Json
from tests.polling import poll

pytestmark = pytest.mark.usefixtures("operator")

SELECTOR = {"namespaceSelector": {"matchLabels": {"models": "yes"}}}
_numbers = itertools.count()


@pytest.fixture
def consumer(admin: Kube, chart: str) -> str:
    """Another namespace than the ModelWeights', without a label."""
    assert chart
    name = f"consumer-{next(_numbers)}"
    admin.create("/api/v1/namespaces", {"metadata": {"name": name}})
    return name


def label(admin: Kube, namespace: str, **labels: str | None) -> None:
    admin.patch(f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": labels}})


def add_pod(admin: Kube, namespace: str, require: str, name: str = "server") -> None:
    admin.create(core_path(namespace, "pods"), gated_pod(name, require))


def pod(admin: Kube, namespace: str, name: str = "server") -> Json:
    return admin.get(core_path(namespace, "pods", name))


def is_gated(admin: Kube, namespace: str, name: str = "server") -> bool:
    return bool(pod(admin, namespace, name)["spec"].get("schedulingGates"))


def told(admin: Kube, namespace: str, name: str = "server") -> list[tuple[str, str]]:
    events = admin.items(core_path(namespace, "events"))
    return [(event["reason"], event["message"]) for event in events if event["involvedObject"]["name"] == name]


def stage(team: Team, **spec: Any) -> None:
    team.add_node("a")
    team.create_model(**spec)
    team.stage("a")
    team.wait_for("Ready", "True")


def wait_refused(admin: Kube, namespace: str, name: str = "server") -> str:
    def probe() -> str:
        return next((text for kind, text in told(admin, namespace, name) if kind == "RequireNotAllowed"), "")

    return poll(f"{namespace}/{name} is refused", probe)


def wait_lifted(admin: Kube, namespace: str, name: str = "server") -> Json:
    poll(f"the gate of {namespace}/{name} opens", lambda: not is_gated(admin, namespace, name))
    return pod(admin, namespace, name)


def test_a_selected_namespace_starts_its_pods(team: Team, admin: Kube, consumer: str) -> None:
    label(admin, consumer, models="yes")
    stage(team, access=SELECTOR)
    add_pod(admin, consumer, f"{team.namespace}/llama")
    lifted = wait_lifted(admin, consumer)
    assert lifted["metadata"]["annotations"][names.DIGEST_ANNOTATION] == DIGEST
    required = lifted["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    [(key, value)] = team.staged_labels("a").items()
    expression = {"key": key, "operator": "In", "values": [value]}
    assert required == {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}


@pytest.mark.parametrize(
    ("access", "labels"),
    [
        (None, {"models": "yes"}),
        ({}, {"models": "yes"}),
        (SELECTOR, {}),
        (SELECTOR, {"models": "no"}),
        ({"namespaceSelector": {"matchExpressions": [{"key": "a", "operator": "Exists"}]}}, {"models": "yes"}),
    ],
    ids=["no access", "empty access", "no label", "another value", "another label"],
)
def test_others_are_refused_and_not_told_whether_it_is_there(
    team: Team, admin: Kube, consumer: str, access: Json | None, labels: dict[str, str]
) -> None:
    label(admin, consumer, **labels)
    stage(team, **({} if access is None else {"access": access}))
    add_pod(admin, consumer, f"{team.namespace}/llama")
    add_pod(admin, consumer, f"{team.namespace}/nothing", "other")
    there, not_there = wait_refused(admin, consumer), wait_refused(admin, consumer, "other")
    assert f"lets the namespace {consumer} require it" in there
    assert there.replace("/llama", "/nothing") == not_there
    assert is_gated(admin, consumer)


def test_labels_that_come_or_go_count_for_pods_that_still_wait(team: Team, admin: Kube, consumer: str) -> None:
    stage(team, access=SELECTOR)
    add_pod(admin, consumer, f"{team.namespace}/llama")
    wait_refused(admin, consumer)
    label(admin, consumer, models="yes")
    wait_lifted(admin, consumer)
    label(admin, consumer, models=None)
    add_pod(admin, consumer, f"{team.namespace}/llama", "late")
    wait_refused(admin, consumer, "late")
    # What was lifted goes on.
    assert not is_gated(admin, consumer)


def test_access_that_is_given_later_counts(team: Team, admin: Kube, consumer: str) -> None:
    label(admin, consumer, models="yes")
    stage(team)
    add_pod(admin, consumer, f"{team.namespace}/llama")
    wait_refused(admin, consumer)
    admin.patch(model_path(team.namespace, "llama"), {"spec": {"access": SELECTOR}})
    wait_lifted(admin, consumer)
    # It stages nothing again.
    assert team.jobs() == []


def test_one_that_is_deleted_and_comes_again_counts_anew(team: Team, admin: Kube, consumer: str) -> None:
    label(admin, consumer, models="yes")
    stage(team, access=SELECTOR)
    admin.delete(model_path(team.namespace, "llama"))
    poll("the label goes", lambda: team.staged_labels("a") == {})
    add_pod(admin, consumer, f"{team.namespace}/llama")
    wait_refused(admin, consumer)
    team.create_model(access=SELECTOR)
    team.stage("a")
    wait_lifted(admin, consumer)


def test_a_pod_may_require_its_own_and_anothers(team: Team, admin: Kube) -> None:
    other = Team(admin, f"catalogue-{next(_numbers)}")
    admin.create("/api/v1/namespaces", {"metadata": {"name": other.namespace}})
    team.add_node("a")
    selector = {"nodeSelector": {"team": team.namespace}}
    other.create_model("base", access={"namespaceSelector": {}}, placement=selector)
    team.create_model("adapter")
    add_pod(admin, team.namespace, f"adapter,{other.namespace}/base")
    team.stage("a")
    team.wait_for("Ready", "True", name="adapter")
    assert is_gated(admin, team.namespace)
    job = poll("a Job for base", lambda: next(iter(other.jobs()), None))
    other.end(job, report())
    annotations = wait_lifted(admin, team.namespace)["metadata"]["annotations"]
    assert annotations[names.DIGEST_ANNOTATION] == f"{DIGEST},{DIGEST}"
