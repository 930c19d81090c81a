"""The running operator against a real API server; the test plays the Job controller and the kubelets (cluster_double)."""

import itertools
from typing import Any

import pytest
import yaml

from tests.cluster.api import ApiServer
from tests.integration.client import MODELS, core_path, job_path, model_path
from tests.integration.cluster_double import DIGEST, OTHER_DIGEST, Team, failure, report
from tests.integration.operator_process import OperatorProcess
from tests.json_client import Json
from tests.polling import poll

pytestmark = pytest.mark.usefixtures("operator")
ALL_MODELS = f"{MODELS}/modelweights"
LABEL_VALUE = "a" * 40


def make_ready(team: Team, *nodes: str, **spec: Any) -> None:
    """Nodes, a ModelWeights, and its staging to the end."""
    for node in nodes:
        team.add_node(node)
    team.create_model(**spec)
    team.stage(*nodes)
    team.wait_for("Ready", "True")


def test_staged_to_ready(team: Team) -> None:
    make_ready(team, "a", "b")
    status = team.model()["status"]
    assert status["observedGeneration"] == 1
    assert status["summary"] == {
        "desired": 2,
        "ready": 2,
        "staging": 0,
        "failed": 0,
        "readyRatio": "2/2",
        "size": "1000",
    }
    assert status["published"]["manifestDigest"] == DIGEST
    assert (status["published"]["sizeBytes"], status["published"]["tensorCount"]) == (1000, 7)
    assert team.conditions() == {"Available": ("True", "NodesStaged"), "Ready": ("True", "AllNodesReady")}
    assert list(team.staged_labels("a").values()) == [LABEL_VALUE]
    assert team.staged_labels("a") == team.staged_labels("b")
    settings = team.admin.get(core_path(team.namespace, "configmaps", "llama"))
    assert settings["data"]["MODEL_PATH"] == "/models/llama"
    poll("good Jobs are gone", lambda: not team.admin.items(job_path(team.namespace)))
    poll("and their pods with them", lambda: not team.admin.items(core_path(team.namespace, "pods")))
    reasons = {event["reason"] for event in team.admin.items(core_path(team.namespace, "events"))}
    assert {"Available", "Ready"} <= reasons


def status_changes(team: Team, since: str) -> list[Json]:
    """Every status that the object had since a resourceVersion, in order."""
    events = team.admin.history(model_path(team.namespace), since)
    return [event["object"].get("status", {}) for event in events if event["type"] in ("ADDED", "MODIFIED")]


def test_each_write_of_the_status_changes_something_and_they_are_few(team: Team) -> None:
    team.add_node("a")
    before = team.admin.status_writes()
    version = team.create_model()["metadata"]["resourceVersion"]
    team.stage("a")
    team.wait_for("Ready", "True")
    poll("the Job is gone", lambda: not team.admin.items(job_path(team.namespace)))
    found = status_changes(team, version)
    everywhere = team.admin.history(ALL_MODELS, version)
    # No request came to nothing; other tests' objects may have been written in the meantime.
    assert team.admin.status_writes() - before == len(everywhere)
    assert [former for former, after in itertools.pairwise(found) if former == after] == []
    assert 2 <= len(found) <= 3


def test_nothing_is_written_when_nothing_changes(team: Team) -> None:
    make_ready(team, "a")
    poll("the Job is gone", lambda: not team.admin.items(job_path(team.namespace)))
    version = team.model()["metadata"]["resourceVersion"]
    writes = team.admin.status_writes()
    for wake in range(5):
        # A heartbeat wakes nobody, a label wakes everybody. Each look waits a second for what comes.
        team.boot_node("a", "boot-1")
        team.label_node("a", {"wake": str(wake)})
        assert team.admin.history(model_path(team.namespace), version) == []
    assert team.admin.status_writes() - writes == len(team.admin.history(ALL_MODELS, version))
    assert team.model()["metadata"]["resourceVersion"] == version


def test_a_second_identical_apply_changes_nothing(server: ApiServer, team: Team) -> None:
    team.add_node("a")
    manifest = yaml.safe_dump(team.manifest())
    server.kubectl("apply", "--server-side", "-f", "-", input=manifest)
    team.stage("a")
    team.wait_for("Ready", "True")
    poll("the Job is gone", lambda: not team.admin.items(job_path(team.namespace)))
    before = team.model()["metadata"]
    server.kubectl("apply", "--server-side", "-f", "-", input=manifest)
    after = team.model()["metadata"]
    assert (after["generation"], after["resourceVersion"]) == (before["generation"], before["resourceVersion"])
    assert "finalizers" not in after
    assert not [key for key in after.get("annotations", {}) if "kopf" in key]


def test_an_edit_in_mid_run_replaces_the_job_and_publishes_the_new_only(team: Team) -> None:
    team.add_node("a")
    team.create_model()
    first = team.wait_for_job("a")
    team.admin.patch(model_path(team.namespace, "llama"), {"spec": {"prefetch": {"numThreads": 3}}})
    second = poll(
        "a new Job",
        lambda: job if (job := team.job_of("a")) and job["metadata"]["uid"] != first["metadata"]["uid"] else None,
    )
    annotation = "modelweights.io/staging-digest"
    assert second["metadata"]["annotations"][annotation] != first["metadata"]["annotations"][annotation]
    assert team.admin.find(job_path(team.namespace, first["metadata"]["name"])) is None
    team.end(second, report(OTHER_DIGEST))
    team.wait_for("Ready", "True")
    assert team.model()["status"]["published"]["manifestDigest"] == OTHER_DIGEST
    assert team.model()["status"]["observedGeneration"] == 2


def test_toggling_suspend_stages_nothing_again(team: Team) -> None:
    make_ready(team, "a")
    where = model_path(team.namespace, "llama")
    version = team.admin.get(job_path(team.namespace))["metadata"]["resourceVersion"]
    for suspend, generation in ((True, 2), (False, 3)):
        team.admin.patch(where, {"spec": {"suspend": suspend}})
        poll("observed", lambda generation=generation: team.model()["status"]["observedGeneration"] == generation)  # type: ignore[misc]
    assert team.conditions()["Ready"] == ("True", "AllNodesReady")
    assert [event for event in team.admin.history(job_path(team.namespace), version) if event["type"] == "ADDED"] == []


def test_nodes_that_join_go_and_are_relabelled(team: Team) -> None:
    make_ready(team, "a")
    team.add_node("b")
    team.wait_for("Ready", "False", "Staging")
    assert team.conditions()["Available"] == ("True", "NodesStaged")
    team.stage("b")
    team.wait_for("Ready", "True")
    team.label_node("b", {"team": "other"})
    poll("the label goes", lambda: team.staged_labels("b") == {})
    poll("the entry goes", lambda: team.model()["status"]["nodes"].keys() == {team.node_name("a")})
    team.delete_node("a")
    team.wait_for("Ready", "False", "NoNodes")
    team.wait_for("Available", "False")


def test_a_node_that_goes_in_mid_run_takes_its_job_along(team: Team) -> None:
    team.add_node("a")
    team.create_model()
    team.wait_for_job("a")
    team.delete_node("a")
    poll("the Job goes", lambda: not team.admin.items(job_path(team.namespace)))
    team.wait_for("Ready", "False", "NoNodes")


def test_a_rebooted_node_is_staged_again(team: Team) -> None:
    make_ready(team, "a")
    team.boot_node("a", "boot-2")
    team.wait_for("Available", "False")
    assert team.staged_labels("a") == {}
    team.stage("a")
    team.wait_for("Ready", "True")
    assert team.model()["status"]["nodes"][team.node_name("a")]["bootID"] == "boot-2"


def test_a_failure_is_counted_and_a_bad_checkpoint_stalls(team: Team) -> None:
    team.add_node("a")
    team.create_model()
    team.end(team.wait_for_job("a"), failure())
    message = team.wait_for("Stalled", "True", "BadHeader")
    assert "a.safetensors: short" in message
    entry = team.model()["status"]["nodes"][team.node_name("a")]
    assert (entry["state"], entry["attempts"], entry["exitCode"]) == ("Failed", 1, 30)
    assert len(team.jobs()) == 1
    assert team.jobs()[0]["metadata"]["annotations"]["modelweights.io/result"] == failure()


def test_a_garbled_report_is_no_proof(team: Team) -> None:
    team.add_node("a")
    team.create_model()
    team.end(team.wait_for_job("a"), report(loadSeconds=1e300, sizeBytes=10**40))
    team.wait_for("Ready", "False", "ResultLost")


def test_a_job_of_another_namespace_with_our_label_proves_nothing(team: Team) -> None:
    team.add_node("a")
    team.create_model()
    job = team.wait_for_job("a")
    elsewhere = Team(team.admin, f"{team.namespace}-evil")
    team.admin.create("/api/v1/namespaces", {"metadata": {"name": elsewhere.namespace}})
    metadata = {key: job["metadata"][key] for key in ("name", "labels", "annotations")}
    notes = {**metadata["annotations"], "modelweights.io/round": "7", "modelweights.io/result": report(OTHER_DIGEST)}
    container = {"name": "c", "image": "x"}
    spec = {"template": {"spec": {"restartPolicy": "Never", "containers": [container]}}}
    forged = {"metadata": {**metadata, "annotations": notes}, "spec": spec}
    made = team.admin.create(job_path(elsewhere.namespace), {"apiVersion": "batch/v1", "kind": "Job", **forged})
    made["spec"]["template"]["metadata"].setdefault("labels", {})
    elsewhere.end(made, report(OTHER_DIGEST))
    team.end(job, report())
    team.wait_for("Ready", "True")
    assert team.model()["status"]["published"]["manifestDigest"] == DIGEST


def test_a_foreign_config_map_is_said_and_left_as_it_is(team: Team) -> None:
    theirs = {"metadata": {"name": "llama"}, "data": {"mine": "yes"}}
    before = team.admin.create(core_path(team.namespace, "configmaps"), theirs)
    team.add_node("a")
    team.create_model()
    team.stage("a")
    message = team.wait_for("Stalled", "True", "ConfigMapConflict")
    assert f"ConfigMap {team.namespace}/llama exists" in message
    assert team.conditions()["Available"] == ("True", "NodesStaged")
    path = core_path(team.namespace, "configmaps", "llama")
    assert team.admin.get(path) == before
    team.admin.delete(path)
    team.label_node("a", {"wake": "up"})
    team.wait_for("Ready", "True")
    assert team.admin.get(path)["data"]["MODEL_PATH"] == "/models/llama"


def test_a_job_that_the_api_server_refuses_is_told(team: Team) -> None:
    team.add_node("a")
    team.create_model(staging={"labels": {"cost": "not a label value!"}})
    message = team.wait_for("Stalled", "True", "JobRefused")
    assert "not a label value!" in message
    team.admin.patch(model_path(team.namespace, "llama"), {"spec": {"staging": {"labels": {"cost": "x"}}}})
    # The next attempt comes after the back-off of ten seconds.
    team.wait_for("Ready", "False", "Staging", seconds=25)
    assert team.wait_for_job("a")["metadata"]["labels"]["cost"] == "x"


def test_a_job_that_lost_its_labels_is_told_and_the_next_one_stages(team: Team) -> None:
    """By these labels the operator finds its Jobs: without them it would wait for ever for one that it can't make."""
    team.add_node("a")
    team.create_model()
    lost = team.wait_for_job("a")["metadata"]["name"]
    path = f"{job_path(team.namespace)}/{lost}"
    team.admin.patch(path, {"metadata": {"labels": {"modelweights.io/owner-uid": None}}})
    message = team.wait_for("Stalled", "True", "JobRefused")
    assert f"Job {team.namespace}/{lost} exists without the operator's labels" in message
    job = poll(
        "next", lambda: next((item for item in team.jobs() if item["metadata"]["name"] != lost), None), seconds=30
    )
    team.end(job, report())
    team.wait_for("Ready", "True")
    assert team.admin.find(path) is not None


def test_what_a_quota_refuses_to_write_is_told_and_the_rest_is_done(team: Team) -> None:
    quota: Json = {"metadata": {"name": "none"}, "spec": {"hard": {"count/configmaps": "0"}}}
    path = core_path(team.namespace, "resourcequotas")
    quota = team.admin.create(path, quota)
    status = {"status": {"hard": quota["spec"]["hard"], "used": {"count/configmaps": "0"}}}
    team.admin.patch(f"{path}/none/status", status)
    team.add_node("a")
    team.create_model()
    team.stage("a")
    message = team.wait_for("Stalled", "True", "WriteRefused")
    assert "exceeded quota" in message
    assert team.conditions()["Available"] == ("True", "NodesStaged")
    assert list(team.staged_labels("a").values()) == [LABEL_VALUE]
    team.admin.delete(f"{path}/none")
    team.label_node("a", {"wake": "up"})
    team.wait_for("Ready", "True", seconds=70)


def test_why_no_pod_can_be_made_is_read_from_the_jobs_events(team: Team) -> None:
    team.add_node("a")
    team.create_model()
    team.warn(team.wait_for_job("a"), "exceeded quota: pods=0")
    assert "exceeded quota: pods=0" in team.wait_for("Stalled", "True", "PodRejected", seconds=25)


def test_one_malformed_object_stalls_alone(team: Team) -> None:
    """Such an object was written before the CRD had its rule: the CRD is relaxed for a moment."""
    crd = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/modelweights.modelweights.io"
    schema = team.admin.get(crd)["spec"]["versions"]
    relaxed = yaml.safe_load(yaml.safe_dump(schema))
    del relaxed[0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["prefetch"]["properties"][
        "numThreads"
    ]["maximum"]
    team.add_node("a")
    bad = team.manifest("bad", prefetch={"numThreads": 300, "blockSize": "4Ki"})
    team.admin.patch(crd, {"spec": {"versions": relaxed}})
    poll("the CRD is relaxed", lambda: team.admin.ask("POST", model_path(team.namespace), bad)[0] == 201)
    team.admin.patch(crd, {"spec": {"versions": schema}})
    poll(
        "and strict again",
        lambda: (
            team.admin.ask("POST", f"{model_path(team.namespace)}?dryRun=All", {**bad, "metadata": {"name": "bad2"}})[0]
            == 422
        ),
    )
    assert "spec.prefetch.numThreads" in team.wait_for("Stalled", "True", "InvalidSpec", name="bad")
    team.create_model()
    team.stage("a")
    team.wait_for("Ready", "True")


def test_a_status_that_someone_spoilt_is_found_out_anew(team: Team) -> None:
    make_ready(team, "a")
    spoilt: Json = {
        "published": {"manifestDigest": f"sha256:{'e' * 64}", "since": None},
        "conditions": [],
        "nodes": None,
    }
    team.admin.patch(f"{model_path(team.namespace, 'llama')}/status", {"status": spoilt})
    team.stage("a")
    team.wait_for("Ready", "True")
    assert team.model()["status"]["published"]["manifestDigest"] == DIGEST


def test_a_long_name_with_dots_is_staged_and_gets_its_events(team: Team) -> None:
    name = "a" * 199 + ".b" + "c" * 40
    team.add_node("a")
    team.create_model(name)
    team.stage("a")
    team.wait_for("Ready", "True", name=name)
    path = core_path(team.namespace, "events")

    def told() -> set[str]:
        return {event["reason"] for event in team.admin.items(path) if event["involvedObject"]["name"] == name}

    # Events follow the status that they tell of.
    poll("the event is there", lambda: "Ready" in told())


def test_labels_go_with_the_object_and_others_stay(team: Team) -> None:
    make_ready(team, "a")
    team.create_model("other")
    team.stage("a")
    team.wait_for("Ready", "True", name="other")
    assert len(team.staged_labels("a")) == 2
    team.admin.delete(model_path(team.namespace, "other"))
    poll("the label of the deleted one goes", lambda: len(team.staged_labels("a")) == 1)
    assert team.conditions()["Available"] == ("True", "NodesStaged")


def test_jobs_and_settings_go_with_the_object(team: Team) -> None:
    make_ready(team, "a")
    team.add_node("b")
    team.wait_for_job("b")
    team.admin.delete(model_path(team.namespace, "llama"))
    poll("the Job goes", lambda: not team.admin.items(job_path(team.namespace)))
    poll("the ConfigMap goes", lambda: team.admin.find(core_path(team.namespace, "configmaps", "llama")) is None)


def test_a_foreground_deletion_in_mid_run_ends(team: Team) -> None:
    """Each Job that is made meanwhile would hold the object back once more."""
    make_ready(team, "a")
    team.add_node("b")
    team.wait_for_job("b")
    path = model_path(team.namespace, "llama")
    team.admin.delete(path, propagationPolicy="Foreground")
    poll("the object goes", lambda: team.admin.find(path) is None)
    poll("its label goes", lambda: not team.staged_labels("a"))
    assert team.admin.items(job_path(team.namespace)) == []


def test_the_operator_is_alive(operator: OperatorProcess) -> None:
    assert (operator.probe("healthz"), operator.probe("readyz")) == (200, 200)
