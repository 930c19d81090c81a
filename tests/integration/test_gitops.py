"""What deployers make of an object in each of its states, by their own libraries; and that nothing drifts under them.

The libraries are kstatus of sigs.k8s.io/cli-utils, Flux's fork of it, Flux's evaluator of `healthCheckExprs`, and gopher-lua, which
runs Argo CD's scripts for health. Argo CD and Flux themselves aren't run.
"""

import copy
import json
import subprocess
from dataclasses import dataclass
from typing import Any

import pytest
import yaml

from tests.cluster.api import ApiServer
from tests.cluster.build import ensure_program
from tests.integration.client import core_path, job_path
from tests.integration.cluster_double import DIGEST, Team, failure
from tests.integration.conftest import REPOSITORY
from tests.json_client import Json
from tests.polling import poll

pytestmark = pytest.mark.usefixtures("operator")

SAMPLES = REPOSITORY / "docs" / "examples" / "gitops"
IN_PROGRESS = ("InProgress", "InProgress", "InProgress", "Progressing")
CURRENT = ("Current", "Current", "Current", "Healthy")
FAILED = ("Failed", "Failed", "Failed", "Degraded")


@dataclass(frozen=True)
class Verdict:
    """What kstatus, Flux, Flux with expressions and Argo CD say, and Argo CD's words."""

    states: tuple[str, str, str, str]
    message: str


def judge(body: Json) -> Verdict:
    flux = yaml.safe_load((SAMPLES / "flux-kustomization.yaml").read_text())["spec"]["healthCheckExprs"][0]
    argo = yaml.safe_load((SAMPLES / "argocd-cm.yaml").read_text())["data"]
    script = argo["resource.customizations.health.modelweights.io_ModelWeights"]
    expressions = {key: flux[key] for key in ("inProgress", "failed", "current")}
    argv = [str(ensure_program("gitops")), "-script", script, "-expressions", json.dumps(expressions)]
    ran = subprocess.run(argv, input=json.dumps(body) + "\n", capture_output=True, text=True, check=False, timeout=60)
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout)
    return Verdict((found["kstatus"], found["flux"], found["fluxExprs"], found["argo"]), found["argoMessage"])


def unseen(body: Json) -> Json:
    """An object as it is right after it was made, since the operator is quicker than a look."""
    return {**body, "status": {"observedGeneration": -1}}


def test_one_that_nobody_has_seen_yet_is_in_progress(team: Team) -> None:
    # The API server itself fills that in: without it kstatus takes an object without a status for one that is well.
    crd = team.admin.get("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/modelweights.modelweights.io")
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    assert schema["properties"]["status"]["default"] == {"observedGeneration": -1}
    verdict = judge(unseen(team.create_model(suspend=True)))
    assert verdict == Verdict(IN_PROGRESS, "the operator hasn't seen it yet")


def test_from_staging_to_ready_and_on_to_a_changed_spec(team: Team) -> None:
    team.add_node("a")
    team.create_model()
    team.wait_for("Reconciling", "True")
    verdict = judge(team.model())
    assert verdict.states == IN_PROGRESS
    assert "0 of 1 node(s) ready" in verdict.message
    team.stage("a")
    team.wait_for("Ready", "True")
    ready = team.model()
    assert judge(ready).states == CURRENT
    changed = copy.deepcopy(ready)
    changed["metadata"]["generation"] += 1
    assert judge(changed).states == IN_PROGRESS


def test_pods_may_start_but_not_all_nodes_are_ready(team: Team) -> None:
    for node in ("a", "b"):
        team.add_node(node)
    team.create_model()
    team.stage("a")
    team.wait_for("Available", "True")
    assert judge(team.model()).states == IN_PROGRESS


def test_a_bad_checkpoint_has_failed_with_the_reason(team: Team) -> None:
    team.add_node("a")
    team.create_model()
    team.end(team.wait_for_job("a"), failure())
    team.wait_for("Stalled", "True")
    verdict = judge(team.model())
    assert verdict.states == FAILED
    assert "BadHeader" in verdict.message


def test_a_suspended_one_is_neither_well_nor_broken_until_its_nodes_are_ready(team: Team) -> None:
    team.add_node("a")
    team.create_model(suspend=True)
    poll("it is seen", lambda: team.model()["status"].get("conditions"))
    assert judge(team.model()).states == (*IN_PROGRESS[:3], "Suspended")


def test_a_deleted_one_is_terminating(team: Team) -> None:
    team.create_model(suspend=True)
    poll("it is seen", lambda: team.model()["status"].get("conditions"))
    body = team.model()
    body["metadata"]["deletionTimestamp"] = "2026-03-01T12:00:00Z"
    assert judge(body).states[:2] == ("Terminating", "Terminating")


def test_what_a_deployer_writes_on_the_object_is_not_handed_on(team: Team) -> None:
    """Argo CD takes whatever carries its marks for its own, and would prune it."""
    marks = {
        "argocd.argoproj.io/tracking-id": "models:modelweights.io/ModelWeights:team/llama",
        "example.com/note": "x",
    }
    labels = {"app.kubernetes.io/instance": "models", "kustomize.toolkit.fluxcd.io/name": "models"}
    body = team.manifest()
    body["metadata"] |= {"annotations": marks, "labels": labels}
    team.admin.create(f"/apis/modelweights.io/v1alpha1/namespaces/{team.namespace}/modelweights", body)
    team.add_node("a")
    job = team.wait_for_job("a")
    made = [job["metadata"], job["spec"]["template"]["metadata"]]
    team.stage("a")
    team.wait_for("Ready", "True")
    config_map = team.admin.get(core_path(team.namespace, "configmaps", "llama"))
    node = team.admin.get(f"/api/v1/nodes/{team.node_name('a')}")
    for metadata in (*made, config_map["metadata"], node["metadata"]):
        assert not marks.keys() & (metadata.get("annotations") or {}).keys()
        assert not labels.keys() & (metadata.get("labels") or {}).keys()


def test_the_same_manifest_applied_again_changes_nothing(team: Team, server: ApiServer) -> None:
    manifest = json.dumps(team.manifest())

    def apply(manager: str) -> str:
        return server.kubectl("apply", "--server-side", f"--field-manager={manager}", "-f", "-", input=manifest)

    assert "serverside-applied" in apply("flux")
    team.add_node("a")
    team.stage("a")
    team.wait_for("Ready", "True")
    poll("its Job is gone", lambda: not team.admin.items(job_path(team.namespace)))
    before = team.model()
    apply("flux")
    after = team.model()
    assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
    assert after["status"]["published"]["manifestDigest"] == DIGEST
    owners = {entry["manager"]: entry.get("subresource", "") for entry in after["metadata"]["managedFields"]}
    assert owners == {"flux": "", "modelweights-operator": "status"}
