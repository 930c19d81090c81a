"""Pods that belong together at the gate, as a LeaderWorkerSet makes them: all start or none, and none with another revision."""

from typing import Any

import pytest

from modelweights_operator.domain import names
from tests.integration.client import core_path, model_path
from tests.integration.cluster_double import DIGEST, OTHER_DIGEST, Team, gated_pod
from tests.json_client import Json
from tests.polling import poll

pytestmark = pytest.mark.usefixtures("operator")

SET = {"leaderworkerset.sigs.k8s.io/name": "llm", "leaderworkerset.sigs.k8s.io/group-index": "0"}


def add_pod(
    team: Team, name: str, require: str = "llama", labels: Json | None = None, size: int = 0, **spec: Any
) -> None:
    body = gated_pod(name, require, **spec)
    body["metadata"]["labels"] = SET if labels is None else labels
    if size:
        body["metadata"]["annotations"][names.GROUP_SIZE_ANNOTATION] = str(size)
    team.admin.create(core_path(team.namespace, "pods"), body)


def digest_of(team: Team, name: str) -> str:
    """The digest that a pod was let go with, "" while it waits."""
    pod = team.admin.get(core_path(team.namespace, "pods", name))
    gated = any(gate["name"] == names.GATE for gate in pod["spec"].get("schedulingGates", []))
    return "" if gated else pod["metadata"]["annotations"][names.DIGEST_ANNOTATION]


def wait_started(team: Team, name: str, digest: str = DIGEST) -> None:
    assert poll(f"{name} starts", lambda: digest_of(team, name)) == digest


def wait_told(team: Team, name: str, reason: str) -> str:
    def probe() -> str:
        events = team.admin.items(core_path(team.namespace, "events"))
        found = (each for each in events if (each["involvedObject"]["name"], each["reason"]) == (name, reason))
        return next((each["message"] for each in found), "")

    return poll(f"{reason} on {name}", probe)


def stage(team: Team, digest: str = DIGEST, name: str = "llama", **spec: Any) -> None:
    team.create_model(name, **spec)
    team.stage("a", digest=digest)
    team.wait_for("Available", "True", name=name)


def publish_other(team: Team) -> None:
    """Another revision in the place of the first."""
    patch = {"spec": {"source": {"hostPath": {"path": "/models/other"}}}}
    team.admin.patch(model_path(team.namespace, "llama"), patch)
    team.stage("a", digest=OTHER_DIGEST)
    poll("it is published", lambda: team.model()["status"]["published"]["manifestDigest"] == OTHER_DIGEST)


@pytest.fixture
def site(team: Team) -> Team:
    """A node on which `llama` is staged."""
    team.add_node("a")
    stage(team)
    return team


def test_no_pod_of_a_group_starts_before_all_may(site: Team) -> None:
    add_pod(site, "llm-0")
    wait_started(site, "llm-0")
    other = {**SET, "leaderworkerset.sigs.k8s.io/group-index": "1"}
    add_pod(site, "llm-1-1", "qwen", other)
    wait_told(site, "llm-1-1", "RequireNotFound")
    add_pod(site, "llm-1", labels=other)
    assert "waits for pod llm-1-1 of its group: RequireNotFound" in wait_told(site, "llm-1", "GroupWaits")
    add_pod(site, "alone", labels={})
    wait_started(site, "alone")
    assert digest_of(site, "llm-1") == ""
    stage(site, name="qwen")
    wait_started(site, "llm-1")
    wait_started(site, "llm-1-1")


def test_a_group_that_says_its_size_starts_once_it_is_whole(site: Team) -> None:
    gang = {names.GROUP_LABEL: "gang"}
    add_pod(site, "first", labels=gang, size=3)
    # Without a gate of ours it counts as well.
    plain = {"metadata": {"name": "plain", "labels": gang}, "spec": {"containers": [{"name": "c", "image": "x"}]}}
    site.admin.create(core_path(site.namespace, "pods"), plain)
    add_pod(site, "alone", labels={})
    wait_started(site, "alone")
    assert digest_of(site, "first") == ""
    add_pod(site, "second", labels=gang, size=3)
    wait_started(site, "first")
    wait_started(site, "second")


def test_a_size_that_is_no_number_is_told(site: Team) -> None:
    add_pod(site, "first", labels={names.GROUP_LABEL: "gang"}, size=-1)
    assert "a number from 1" in wait_told(site, "first", "GroupSizeInvalid")


def test_a_worker_that_comes_later_starts_with_what_its_leader_has(site: Team) -> None:
    """As with the startup policy LeaderReady, and of a pod in the place of one that was lost."""
    add_pod(site, "llm-0")
    wait_started(site, "llm-0")
    publish_other(site)
    add_pod(site, "llm-0-1")
    wait_started(site, "llm-0-1")
    [term] = site.admin.get(core_path(site.namespace, "pods", "llm-0-1"))["spec"]["affinity"]["nodeAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]["nodeSelectorTerms"]
    assert [each["values"] for each in term["matchExpressions"]] == [[DIGEST.removeprefix("sha256:")[:40]]]
    # A group of its own, and so is one that was made of another template.
    add_pod(site, "llm-1", labels={**SET, "leaderworkerset.sigs.k8s.io/group-index": "1"})
    wait_started(site, "llm-1", OTHER_DIGEST)
    add_pod(site, "llm-0-new", labels={**SET, "leaderworkerset.sigs.k8s.io/template-revision-hash": "2"})
    wait_started(site, "llm-0-new", OTHER_DIGEST)


def test_a_group_whose_revision_is_gone_is_told_so(site: Team) -> None:
    add_pod(site, "llm-0")
    wait_started(site, "llm-0")
    gone = "sha256:" + "c" * 64
    patch = {"metadata": {"annotations": {names.DIGEST_ANNOTATION: gone}}}
    site.admin.patch(core_path(site.namespace, "pods", "llm-0"), patch)
    add_pod(site, "llm-0-1")
    assert f"pods of its group were started with {gone}" in wait_told(site, "llm-0-1", "RevisionNotFound")
    site.admin.delete(core_path(site.namespace, "pods", "llm-0"))
    poll("it is gone", lambda: site.admin.find(core_path(site.namespace, "pods", "llm-0")) is None)
    # The next event of the ModelWeights looks at it again.
    site.admin.patch(model_path(site.namespace, "llama"), {"spec": {"placement": {"maxConcurrentNodes": 3}}})
    wait_started(site, "llm-0-1")
