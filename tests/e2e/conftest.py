"""The cluster with images, chart and checkpoints for the whole session; each test has a namespace of its own.

Sessions of two processes (`make e2e`) have two of all that: tests change the chart, reboot nodes and kill the operator, and mostly wait.

`MODELWEIGHTS_KEEP_CLUSTER=1` leaves the cluster up for a look at it: `python -m tests.cluster --instance e2e kubectl …`; the second
one is e2e-2. `MODELWEIGHTS_E2E_INSTANCE` gives them another name than e2e, so that two runs on one machine don't meet.
"""

import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from modelweights_operator.domain import names
from tests.checkpoints.corrupt import make_corrupt
from tests.checkpoints.real import make_real
from tests.checkpoints.split import make_split
from tests.checkpoints.synthetic import make_synthetic
from tests.cluster.embedded import Embedded
from tests.cluster.pki import Authority
from tests.cluster.providers import Cluster, choose
from tests.cluster.requirements import can_watch_files
from tests.e2e.client import Recorder, connected, selecting
from tests.e2e.site import BIG, CORRUPT, REAL, SPLIT, SPLIT_SHARDS, Site, install_for_tests
from tests.installation import NAMESPACE, RELEASE, deliver_images
from tests.polling import poll

INSTANCE = os.environ.get("MODELWEIGHTS_E2E_INSTANCE") or "e2e"
SECOND_INSTANCE = f"{INSTANCE}-2"
KEEP = os.environ.get("MODELWEIGHTS_KEEP_CLUSTER") == "1"
TEST_TIMEOUT_SECONDS = 240
LEFTOVERS = "test_leftovers.py"

_site = pytest.StashKey[Site]()


def pytest_xdist_auto_num_workers() -> int:
    """Two processes where clusters are ours to make and there is room for two; kind's and others' are one."""
    if not isinstance(choose("auto", INSTANCE, quiet=True), Embedded):
        return 0
    if not can_watch_files(2):
        print("one cluster and not two, which would be quicker: too few inotify instances are free")
        return 0
    return 2


def pytest_unconfigure(config: pytest.Config) -> None:
    """Take down what an interrupt left: it ends the processes without the last steps of their fixtures."""
    if config.getoption("numprocesses") and not config.getoption("collectonly") and not KEEP:
        for instance in (INSTANCE, SECOND_INSTANCE):
            choose("auto", instance, quiet=True).down()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Time-outs are for the tests alone: on a new machine the first fixture builds programs and images for minutes.

    Modules are handed out in their order. The second one goes to the process that has no cluster yet: `LEFTOVERS`, which makes another.
    """
    ours = [item for item in items if item.path.is_relative_to(Path(__file__).parent)]
    for item in ours:
        item.add_marker(pytest.mark.timeout(TEST_TIMEOUT_SECONDS, func_only=True))
    first = ours[0].path.name if ours else ""
    items.sort(key=lambda item: {first: 0, LEFTOVERS: 1}.get(item.path.name, 2))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Show what the cluster says when a test fails, since it is gone afterwards."""
    report: pytest.TestReport = yield  # type: ignore[assignment] # the wrapped hook's result
    site = item.config.stash.get(_site, None)
    if report.failed and site is not None:
        report.sections.append(("cluster", _describe(site.cluster)))
    return report  # type: ignore[return-value] # likewise


def _describe(cluster: Cluster) -> str:
    asked = (
        ("describe", "mw", "--all-namespaces"),
        ("get", "pods,jobs", "--all-namespaces", "--output=wide"),
        ("get", "events", "--all-namespaces", "--sort-by=.lastTimestamp"),
        ("logs", f"--namespace={NAMESPACE}", f"deploy/{RELEASE}", "--tail=200"),
        ("logs", f"--namespace={NAMESPACE}", f"deploy/{RELEASE}", "--tail=50", "--previous"),
    )
    return "\n".join(f"$ kubectl {' '.join(each)}\n{cluster.kubectl(*each, check=False)}" for each in asked)


@pytest.fixture(scope="session")
def chosen() -> Cluster:
    """The cluster, which may not be up yet."""
    is_first = os.environ.get("PYTEST_XDIST_WORKER", "gw0") == "gw0"
    return choose("auto", INSTANCE if is_first else SECOND_INSTANCE)


@pytest.fixture(scope="session")
def cluster(chosen: Cluster) -> Iterator[Cluster]:
    """The cluster, taken down in the end whatever happened."""
    try:
        print(chosen.up(), flush=True)
        yield chosen
    finally:
        if not KEEP:
            print(chosen.down(), flush=True)


@pytest.fixture(scope="session")
def site(cluster: Cluster, pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The cluster with the operator and the checkpoints on its GPU nodes."""
    began = time.monotonic()
    images = deliver_images(cluster)
    folder = tmp_path_factory.mktemp("checkpoints")
    authority = Authority(tmp_path_factory.mktemp("authority"))
    install_for_tests(cluster, images, authority)
    print(f"operator installed after {time.monotonic() - began:.1f} s", flush=True)
    _copy_checkpoints(cluster, folder)
    print(f"checkpoints copied after {time.monotonic() - began:.1f} s", flush=True)
    ours = f"{names.MANAGED_BY_LABEL}={names.MANAGED_BY}"
    with connected(cluster) as client:
        record = Recorder(
            client,
            jobs=selecting("/apis/batch/v1/jobs", labelSelector=ours),
            pods=selecting("/api/v1/pods"),
            models=selecting("/apis/modelweights.io/v1alpha1/modelweights"),
        )
        try:
            site = Site(cluster, images, client, record, folder, authority)
            pytestconfig.stash[_site] = site
            yield site
        finally:
            record.close()
            shutil.rmtree(folder)


def _copy_checkpoints(cluster: Cluster, folder: Path) -> None:
    real = make_real(folder / "real")
    split = make_split(real, folder / "split", SPLIT_SHARDS, style="plain")
    corrupt = make_corrupt("overlapping-offsets", split, folder / "corrupt")
    for node in cluster.gpu_nodes:
        for source, destination in ((real, REAL), (split, SPLIT), (corrupt, CORRUPT)):
            cluster.node_exec(node, ["rm", "-rf", destination])
            cluster.copy_to_node(node, source, destination)


@pytest.fixture(scope="session")
def big(site: Site, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of 1 GiB in bfloat16 on the first GPU node."""
    folder = tmp_path_factory.mktemp("big")
    make_synthetic(folder / "big")
    site.cluster.copy_to_node(site.cluster.gpu_nodes[0], folder / "big", BIG)
    shutil.rmtree(folder)
    return BIG


@pytest.fixture(scope="session")
def make_namespace(site: Site) -> Callable[[str, str], str]:
    """Makes a namespace with a Pod Security level; "" enforces none."""

    def make(purpose: str, level: str = "") -> str:
        name = f"{purpose}-{uuid.uuid4().hex[:4]}"
        site.cluster.kubectl("create", "namespace", name)
        if level:
            site.cluster.kubectl("label", "namespace", name, f"pod-security.kubernetes.io/enforce={level}")
        account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
        poll(f"the default account of {name}", lambda: site.client.find(account))
        return name

    return make


@pytest.fixture
def namespace(request: pytest.FixtureRequest, site: Site, make_namespace: Callable[[str, str], str]) -> Iterator[str]:
    """A namespace for one test, emptied after it."""
    purpose = request.node.name.removeprefix("test_").replace("_", "-").partition("[")[0][:40].strip("-")
    name = make_namespace(purpose, "")
    yield name
    site.remove_namespace(name)


@pytest.fixture(scope="module")
def module_namespace(
    request: pytest.FixtureRequest, site: Site, make_namespace: Callable[[str, str], str]
) -> Iterator[str]:
    """A namespace for all tests of a module, emptied after them."""
    name = make_namespace(request.path.stem.removeprefix("test_").replace("_", "-"), "")
    yield name
    site.remove_namespace(name)
