"""An image as the source, on a real API server with the feature gate ImageVolume on, and on one with it off."""

from collections.abc import Iterator

import pytest

from tests.cluster.api import ApiServer
from tests.integration.client import Kube, core_path, job_path, model_path
from tests.integration.cluster_double import Team, report
from tests.integration.conftest import RELEASE, SYSTEM, apply_chart
from tests.integration.operator_process import OperatorProcess
from tests.json_client import Json
from tests.polling import poll

REFERENCE = "registry.example/models/llama:v1"
SOURCE = {"image": {"reference": REFERENCE, "path": "weights"}}
NOT_SUPPORTED = "ImageVolumesNotSupported"


def made(team: Team, since: str) -> list[Json]:
    """Every Job that the API server ever kept since a resourceVersion."""
    events = team.admin.history(job_path(team.namespace), since)
    return [event["object"] for event in events if event["type"] == "ADDED"]


def now_at(team: Team) -> str:
    found: str = team.admin.get(job_path(team.namespace))["metadata"]["resourceVersion"]
    return found


# --- the gate is on -----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("operator")
def test_the_image_is_mounted_and_becomes_ready(team: Team) -> None:
    team.add_node("a")
    team.create_model(source=SOURCE)
    spec = team.wait_for_job("a")["spec"]["template"]["spec"]
    assert spec["volumes"][0] == {"name": "model", "image": {"reference": REFERENCE, "pullPolicy": "IfNotPresent"}}
    team.stage("a")
    team.wait_for("Ready", "True")
    assert team.model()["status"]["published"]["path"] == f"image:{REFERENCE}/weights"
    settings = team.admin.get(core_path(team.namespace, "configmaps", "llama"))["data"]
    assert "MODEL_PATH" not in settings
    assert settings["FASTSAFETENSORS_ODIRECT"] == "0"


@pytest.mark.usefixtures("operator")
def test_its_pods_pass_pod_security_restricted(team: Team) -> None:
    team.add_node("a")
    team.create_model(source=SOURCE)
    template = team.wait_for_job("a")["spec"]["template"]
    level = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    team.admin.patch(f"/api/v1/namespaces/{team.namespace}", level)
    pod = {"metadata": {"name": "try"}, "spec": template["spec"]}
    kept = team.admin.create(f"{core_path(team.namespace, 'pods')}?dryRun=All", pod)
    assert kept["spec"]["volumes"][0]["image"]["reference"] == REFERENCE


@pytest.mark.usefixtures("operator")
def test_a_copy_of_an_image_is_fetched_from_its_mount(team: Team) -> None:
    team.add_node("a")
    team.create_model(source=SOURCE, storage={"class": "nvme"})
    first = team.wait_for_job("a")["spec"]["template"]["spec"]["initContainers"][:2]
    assert [step["name"] for step in first] == ["resolve", "fetch"]
    for step in first:
        assert "--source=file:///mnt/source/weights" in step["args"]
        assert {"name": "source", "mountPath": "/mnt/source", "readOnly": True} in step["volumeMounts"]


# --- the gate is off, as it is by default in 1.34 -------------------------------------------------------------------


@pytest.fixture(scope="module")
def plain_server() -> Iterator[ApiServer]:
    with ApiServer(["garbage-collector-controller"], image_volumes=False) as server:
        apply_chart(server)
        yield server


@pytest.fixture
def plain_team(plain_server: ApiServer) -> Team:
    admin = Kube(plain_server.kubeconfig)
    admin.create("/api/v1/namespaces", {"metadata": {"name": "plain"}})
    return Team(admin, "plain")


@pytest.fixture
def plain_operator(
    plain_server: ApiServer, plain_team: Team, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatorProcess]:
    for node in ("a", "b"):
        plain_team.add_node(node)
    kubeconfig = plain_server.kubeconfig_for_service_account(SYSTEM, RELEASE)
    with OperatorProcess(kubeconfig, tmp_path_factory.mktemp("operator") / "log") as operator:
        yield operator
        assert operator.stop() == 0
        assert "Traceback" not in operator.log()


def test_an_api_server_that_drops_the_volume_is_found_out_and_not_asked_in_a_loop(
    plain_team: Team, plain_operator: OperatorProcess
) -> None:
    team = plain_team
    since = now_at(team)
    team.create_model(source=SOURCE)
    message = team.wait_for("Stalled", "True", NOT_SUPPORTED)
    assert f"the image {REFERENCE} out of the staging Job: turn the feature gate ImageVolume on" in message
    assert team.conditions()["Ready"] == ("False", NOT_SUPPORTED)
    assert {team.state(node) for node in ("a", "b")} == {f"Failed {NOT_SUPPORTED}"}
    poll("the Jobs are gone", lambda: not team.admin.items(job_path(team.namespace)))
    events = team.admin.items(core_path(team.namespace, "events"))
    assert NOT_SUPPORTED in {event["reason"] for event in events}

    # One Job for each node, and none had the volume: that is what this API server does.
    jobs = made(team, since)
    assert len(jobs) == 2
    assert all("image" not in str(job["spec"]["template"]["spec"]["volumes"]) for job in jobs)

    # Whatever wakes the operator, and though it starts anew, nothing is tried before the long back-off ends.
    version = team.model()["metadata"]["resourceVersion"]
    plain_operator.stop()
    plain_operator.start()
    for wake in range(3):
        team.label_node("a", {"wake": str(wake)})
        assert team.admin.history(model_path(team.namespace), version) == []
    assert len(made(team, since)) == 2

    # Another source is staged at once.
    patch = {"spec": {"source": {"image": None, "hostPath": {"path": "/models/llama"}}}}
    team.admin.patch(model_path(team.namespace, "llama"), patch)
    for node in ("a", "b"):
        team.end(team.wait_for_job(node), report())
    team.wait_for("Ready", "True")
