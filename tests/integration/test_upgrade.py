"""From the previous version to this one, back, and on again: what is staged stays as it is, and pods go on to start.

helm installs each version's CRD, rights and policies; no controller runs its Deployment, and the operators are processes. The previous
version's sources lie in tests/upgrade; see CONTRIBUTING for when they are exchanged.
"""

import os
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.cluster.api import ApiServer
from tests.cluster.build import ensure_program
from tests.integration.client import Kube, core_path, job_path, model_path
from tests.integration.cluster_double import DIGEST, Team, gated_pod, report
from tests.integration.conftest import CHART, RELEASE, REPOSITORY, SYSTEM
from tests.integration.operator_process import OperatorProcess
from tests.json_client import Json
from tests.polling import poll

PREVIOUS: Final = REPOSITORY / "tests" / "upgrade" / "modelweights-0.1.0.tar.gz"
PUBLISHED: Final = ("manifestDigest", "path", "revision", "engine", "sizeBytes", "fileCount")
"""What both versions say."""
COMMIT: Final = "a" * 40
SOURCE: Final = {"huggingFace": {"repository": "org/name"}}


class Site:
    """A cluster of its own, with one of both versions installed."""

    def __init__(self, server: ApiServer, folder: Path) -> None:
        self.server, self._folder = server, folder
        with tarfile.open(PREVIOUS) as packed:
            packed.extractall(folder, filter="data")
        self._previous = next(folder.glob("modelweights-*"))
        self._operator: OperatorProcess | None = None
        self._starts = 0

    def install(self) -> None:
        """The previous version, from nothing."""
        chart = self._previous / "charts" / "modelweights-operator"
        self._helm("install", RELEASE, str(chart), "--set", "hostPathRoots={/models}")
        self._run(self._previous)

    def upgrade(self) -> None:
        """To this version, as the chart's README says."""
        self.close()
        self._helm("upgrade", RELEASE, str(CHART), "--reset-then-reuse-values")
        self._run(REPOSITORY)

    def roll_back(self) -> None:
        """To the previous version."""
        self.close()
        self._helm("rollback", RELEASE, "1")
        self._run(self._previous)

    def _helm(self, *arguments: str) -> None:
        argv = [
            str(ensure_program("helm")),
            *arguments,
            "--namespace",
            SYSTEM,
            "--kubeconfig",
            str(self.server.kubeconfig),
        ]
        # Its folders are the test's own.
        home = {name: str(self._folder / "helm") for name in ("HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME")}
        subprocess.run(argv, check=True, capture_output=True, timeout=120, env={**os.environ, **home})
        self.server.kubectl("wait", "--for=condition=Established", "crd/modelweights.modelweights.io", "--timeout=20s")

    def _run(self, root: Path) -> None:
        account = self.server.kubeconfig_for_service_account(SYSTEM, RELEASE)
        self._starts += 1
        log = self._folder / f"operator-{self._starts}.log"
        self._operator = OperatorProcess(account, log, sources=root / "operator")
        self._operator.start()

    def close(self) -> None:
        """Stop the operator; it must have been well."""
        operator, self._operator = self._operator, None
        if operator is not None:
            healthy = operator.probe("healthz")
            assert operator.stop() == 0
            assert healthy == 200
            assert "Traceback" not in operator.log()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The CRD is the whole cluster's, so this one isn't shared with other tests."""
    with ApiServer(["garbage-collector-controller"]) as server:
        server.kubectl("create", "namespace", SYSTEM)
        site = Site(server, tmp_path_factory.mktemp("upgrade"))
        yield site
        site.close()


@pytest.fixture
def staff(site: Site) -> Team:
    """Two nodes, and a namespace for what is staged on them."""
    admin = Kube(site.server.kubeconfig)
    admin.create("/api/v1/namespaces", {"metadata": {"name": "team"}})
    team = Team(admin, "team")
    for node in ("a", "b"):
        team.add_node(node)
    return team


def add_pod(team: Team, name: str, require: str) -> None:
    team.admin.create(core_path(team.namespace, "pods"), gated_pod(name, require))


def wait_lifted(team: Team, name: str) -> Json:
    path = core_path(team.namespace, "pods", name)
    poll(f"the gate of {name} opens", lambda: not team.admin.get(path)["spec"].get("schedulingGates"))
    return team.admin.get(path)


def fits(team: Team, pod: Json, node: str) -> bool:
    """Whether the scheduler would still let a lifted pod on a node, by the labels that it was sent to."""
    labels = team.admin.get(f"/api/v1/nodes/{team.node_name(node)}")["metadata"]["labels"]
    required = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    return any(
        all(labels.get(each["key"]) in each["values"] for each in term["matchExpressions"])
        for term in required["nodeSelectorTerms"]
    )


def stage_fetched(team: Team, name: str, *nodes: str) -> None:
    for node in nodes:
        job = team.wait_for_job(node)
        if "resolve" in [step["name"] for step in job["spec"]["template"]["spec"]["initContainers"]]:
            team.end_resolve(job, COMMIT)
        team.end_fetch(job, COMMIT)
        team.end(job, report())
    team.wait_for("Ready", "True", name=name)


def wait_labelled(team: Team, models: int, *, previous: bool) -> None:
    """Wait until a version has labelled the nodes for so many models. The previous one's labels have no digest in their key."""

    def is_done() -> bool:
        of_version = (
            sum(("-" in key.partition("/")[2]) != previous for key in team.staged_labels(node)) for node in ("a", "b")
        )
        return all(count >= models for count in of_version)

    poll(f"the nodes are labelled for {models} models by {'the previous' if previous else 'this'} version", is_done)


class History:
    """What was done to Jobs and published since a moment."""

    def __init__(self, team: Team, *models: str) -> None:
        self._team, self._models = team, models
        self._version = team.admin.get(job_path(team.namespace))["metadata"]["resourceVersion"]
        self._published = self._read()

    def _read(self) -> dict[str, Any]:
        statuses = {name: self._team.model(name)["status"] for name in self._models}
        return {
            name: (
                {field: status["published"].get(field) for field in PUBLISHED},
                {node: (entry["state"], entry["stagingDigest"]) for node, entry in status["nodes"].items()},
                [
                    (each["type"], each["lastTransitionTime"])
                    for each in status["conditions"]
                    if each["type"] in ("Ready", "Available")
                ],
            )
            for name, status in statuses.items()
        }

    def assert_untouched(self) -> None:
        """No Job was made, and all is published as before, without one transition in between."""
        events = self._team.admin.history(job_path(self._team.namespace), self._version)
        assert [event["object"]["metadata"]["name"] for event in events if event["type"] == "ADDED"] == []
        for model, now in self._read().items():
            for said, former in zip(now, self._published[model], strict=True):
                assert said == former, model


def delete(team: Team, name: str) -> None:
    path = model_path(team.namespace, name)
    team.admin.delete(path)
    poll(f"{name} is gone", lambda: team.admin.find(path) is None)


def test_to_this_version_and_back_and_on_again(site: Site, staff: Team) -> None:
    team = staff
    site.install()
    team.create_model()
    team.stage("a", "b")
    team.wait_for("Ready", "True")
    team.create_model("hub", source=SOURCE)
    stage_fetched(team, "hub", "a", "b")
    add_pod(team, "of-before", "llama")
    of_before = wait_lifted(team, "of-before")
    before = History(team, "llama", "hub")

    site.upgrade()
    wait_labelled(team, 2, previous=False)
    add_pod(team, "of-this", "llama,hub")
    of_this = wait_lifted(team, "of-this")
    # A pod that was lifted before, and found no GPU as yet, still may go where it was sent.
    assert fits(team, of_before, "a")
    assert fits(team, of_this, "a")
    before.assert_untouched()

    # Made by this version, with fields that the previous one doesn't know.
    team.create_model("new", source=SOURCE, storage={"retention": "Keep"}, deletionPolicy="Retain")
    stage_fetched(team, "new", "a", "b")
    of_all = History(team, "llama", "hub", "new")

    site.roll_back()
    wait_labelled(team, 3, previous=True)
    add_pod(team, "of-after", "new")
    wait_lifted(team, "of-after")
    of_all.assert_untouched()

    site.upgrade()
    wait_labelled(team, 3, previous=False)
    add_pod(team, "of-again", "new,llama,hub")
    assert fits(team, wait_lifted(team, "of-again"), "b")
    of_all.assert_untouched()
    assert team.model("new")["status"]["published"]["manifestDigest"] == DIGEST
    for name in ("llama", "hub", "new"):
        delete(team, name)
