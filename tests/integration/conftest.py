"""A real API server for the whole session, with the chart applied; each test has a namespace of its own."""

import itertools
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.api import ApiServer
from tests.cluster.build import ensure_program
from tests.integration.client import Kube
from tests.integration.cluster_double import Team
from tests.integration.operator_process import OperatorProcess

REPOSITORY = Path(__file__).resolve().parents[2]
CHART = REPOSITORY / "charts" / "modelweights-operator"
SYSTEM = "modelweights-system"
RELEASE = "mw"

_numbers = itertools.count()


@pytest.fixture(scope="session")
def server() -> Iterator[ApiServer]:
    """The API server, with the garbage collector as the only controller."""
    with ApiServer(["garbage-collector-controller"]) as server:
        yield server


@pytest.fixture(scope="session")
def admin(server: ApiServer) -> Kube:
    """The administrator. A node that nobody selects is there from the start, as on any cluster that runs an operator."""
    admin = Kube(server.kubeconfig)
    admin.create("/api/v1/nodes", {"metadata": {"name": "bystander"}})
    return admin


def render(release: str, *settings: str, values: Path | None = None) -> str:
    """The chart's manifests, with settings as `--set` takes them and a file of values."""
    sets = [argument for setting in settings for argument in ("--set", setting)]
    sets += ["--values", str(values)] if values else []
    argv = [str(ensure_program("helm")), "template", release, str(CHART)]
    options = ["--namespace", SYSTEM, "--kube-version", "1.34.4"]
    return subprocess.run([*argv, *options, *sets], check=True, capture_output=True, text=True, timeout=60).stdout


def apply_chart(server: ApiServer) -> str:
    """Apply the chart twice; what the second time said."""
    server.kubectl("create", "namespace", SYSTEM)
    features = [f"{name}.enabled=true" for name in ("startupTaint", "access", "networkPolicy")]
    manifests = render(RELEASE, "hostPathRoots={/models}", *features)
    server.kubectl("apply", "--server-side", "-f", "-", input=manifests)
    server.kubectl("wait", "--for=condition=Established", "crd/modelweights.modelweights.io", "--timeout=20s")
    return server.kubectl("apply", "--server-side", "-f", "-", input=manifests)


@pytest.fixture(scope="session")
def chart(server: ApiServer) -> str:
    """What applying the chart said."""
    return apply_chart(server)


@pytest.fixture(scope="session")
def account_kubeconfig(server: ApiServer, chart: str) -> Path:
    """The kubeconfig of the operator's service account."""
    assert chart
    return server.kubeconfig_for_service_account(SYSTEM, RELEASE)


@pytest.fixture(scope="session")
def account(account_kubeconfig: Path) -> Kube:
    """Requests as the operator's service account."""
    return Kube(account_kubeconfig)


@pytest.fixture
def namespace(admin: Kube, chart: str) -> str:
    """A fresh namespace; it goes with the API server."""
    assert chart
    name = f"team-{next(_numbers)}"
    admin.create("/api/v1/namespaces", {"metadata": {"name": name}})
    return name


@pytest.fixture
def team(admin: Kube, namespace: str) -> Team:
    """A namespace with nodes of its own."""
    return Team(admin, namespace)


@pytest.fixture(scope="module")
def operator(account_kubeconfig: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    """The running operator; it must be alive and without a traceback in the end."""
    with OperatorProcess(account_kubeconfig, tmp_path_factory.mktemp("operator") / "log") as operator:
        yield operator
        assert operator.probe("healthz") == 200
        assert operator.stop() == 0
        assert "Traceback" not in operator.log()
