"""Two operators: one acts, the other one stands by and takes over; the Lease's rights and settings in the chart.

Leases last six seconds here and not fifteen, so that a hand-over takes less of the tests' time; `tests/faults` has the real ones.
"""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.aio import client as aio_client
from kubernetes.aio import config as aio_config

from modelweights_operator import errors
from modelweights_operator.api.v1alpha1 import Status
from modelweights_operator.domain import convert
from modelweights_operator.domain.election import Timing
from modelweights_operator.kube import apply, rights
from modelweights_operator.kube.client import Api, Fence
from modelweights_operator.kube.lease import Election
from modelweights_operator.settings import from_environment
from tests.cluster.api import ApiServer
from tests.integration.client import Kube, job_path, model_path
from tests.integration.cluster_double import Team, report
from tests.integration.conftest import SYSTEM, render
from tests.integration.operator_process import OperatorProcess
from tests.polling import poll

LEASE_SECONDS = 6
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/modelweights-operator"


@contextmanager
def two(kubeconfig: Path, folder: Path) -> Iterator[tuple[OperatorProcess, OperatorProcess]]:
    """The first acts, the second stands by."""
    operators = [
        OperatorProcess(kubeconfig, folder / name, identity=name, MODELWEIGHTS_LEASE_SECONDS=str(LEASE_SECONDS))
        for name in ("first", "second")
    ]
    try:
        operators[0].start()
        operators[1].start(wait=False)
        poll("the second stands by", operators[1].stands_by)
        yield operators[0], operators[1]
        assert all("Traceback" not in operator.log() for operator in operators)
    finally:
        for operator in operators:
            operator.kill()


@pytest.fixture
def pair(account_kubeconfig: Path, tmp_path: Path) -> Iterator[tuple[OperatorProcess, OperatorProcess]]:
    """Both run."""
    with two(account_kubeconfig, tmp_path) as operators:
        yield operators


def holder(admin: Kube) -> str:
    """Whose Lease it is."""
    return str(admin.get(LEASES)["spec"].get("holderIdentity", ""))


def jobs_ever(team: Team, version: str) -> list[str]:
    """The node of each Job that was ever made since."""
    events = team.admin.history(job_path(team.namespace), version)
    return sorted(
        event["object"]["metadata"]["annotations"]["modelweights.io/node"]
        for event in events
        if event["type"] == "ADDED"
    )


def begin(team: Team, *nodes: str) -> str:
    """A ModelWeights on nodes; the version of the Jobs before it."""
    for node in nodes:
        team.add_node(node)
    version: str = team.admin.get(job_path(team.namespace))["metadata"]["resourceVersion"]
    team.create_model()
    return version


Pair = tuple[OperatorProcess, OperatorProcess]


def test_a_leader_that_ends_in_mid_staging_is_followed_and_no_job_comes_twice(team: Team, pair: Pair) -> None:
    first, second = pair
    version = begin(team, "a", "b")
    job = team.wait_for_job("a")
    assert (first.acts(), second.stands_by(), second.probe("healthz")) == (True, True, 200)
    assert holder(team.admin) == "first"
    assert first.stop() == 0
    assert holder(team.admin) != "first", "released"
    team.end(job, report())
    poll("the second acts", second.acts)
    team.stage("b")
    team.wait_for("Ready", "True", seconds=60)
    assert jobs_ever(team, version) == [team.node_name("a"), team.node_name("b")]
    assert "released" in first.log()


def test_one_that_was_stopped_for_longer_than_its_lease_writes_nothing_when_it_goes_on(team: Team, pair: Pair) -> None:
    first, second = pair
    version = begin(team, "a")
    job = team.wait_for_job("a")
    first.signal(signal.SIGSTOP)
    team.end(job, report())
    poll("the second acts", second.acts)
    team.wait_for("Ready", "True", seconds=60)
    first.signal(signal.SIGCONT)
    assert first.wait(30) == 1
    last = first.log().strip().splitlines()[-1]
    assert last.startswith(f"modelweights-operator: the Lease {SYSTEM}/modelweights-operator is second's now")
    assert (jobs_ever(team, version), holder(team.admin)) == ([team.node_name("a")], "second")
    first.start(wait=False)
    poll("it stands by anew", first.stands_by)
    assert first.stop() == 0, "as a standby"
    assert (second.acts(), holder(team.admin)) == (True, "second")


def test_one_that_was_stopped_and_nobody_else_came_goes_on(
    team: Team, account_kubeconfig: Path, tmp_path: Path
) -> None:
    """What it held nobody took: it needn't end, and nothing was missed."""
    alone = OperatorProcess(
        account_kubeconfig, tmp_path / "log", identity="alone", MODELWEIGHTS_LEASE_SECONDS=str(LEASE_SECONDS)
    )
    with alone:
        version = begin(team, "a")
        job = team.wait_for_job("a")
        renewed = team.admin.get(LEASES)["spec"]["renewTime"]
        alone.signal(signal.SIGSTOP)
        team.end(job, report())
        written = datetime.fromisoformat(renewed)
        poll("its Lease has run out", lambda: datetime.now(UTC) - written > timedelta(seconds=LEASE_SECONDS + 2))
        alone.signal(signal.SIGCONT)
        team.wait_for("Ready", "True", seconds=60)
        assert alone.acts()
        assert jobs_ever(team, version) == [team.node_name("a")]


# --- the election, with clocks that are an hour apart -----------------------------------------------------------------


async def connected(kubeconfig: Path, fence: Fence | None = None) -> Api:
    configuration = aio_client.Configuration()
    await aio_config.load_kube_config(config_file=str(kubeconfig), client_configuration=configuration)
    return Api.over(configuration, fence)


@pytest.mark.parametrize("hours", [-1, 1], ids=["the first one's clock is behind", "the first one's clock is ahead"])
async def test_clocks_an_hour_apart_change_nothing(server: ApiServer, namespace: str, hours: int) -> None:
    timing = Timing.of(3)
    never = asyncio.Event()
    async with await connected(server.kubeconfig) as api:
        first = Election(api, namespace, "first", timing, wall=lambda: datetime.now(UTC) + timedelta(hours=hours))
        second = Election(api, namespace, "second", timing)
        assert await first.win(never)
        keeping = asyncio.create_task(first.keep())
        # While the first one renews, the second gets nothing, whatever its clock says of the times in there.
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(second.win(never), 2 * timing.lease_seconds)
        assert (first.may_write(), second.may_write()) == (True, False)
        keeping.cancel()
        assert await asyncio.wait_for(second.win(never), 60)
        assert (first.may_write(), second.may_write()) == (False, True)
        assert "is second's now" in await asyncio.wait_for(first.keep(), 60)


async def test_a_lease_that_somebody_deletes_or_labels_stays_whose_it_was(server: ApiServer, namespace: str) -> None:
    admin, never = Kube(server.kubeconfig), asyncio.Event()
    path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/modelweights-operator"
    async with await connected(server.kubeconfig) as api:
        election = Election(api, namespace, "one", Timing.of(6))
        assert await election.win(never)
        keeping = asyncio.create_task(election.keep())
        for change in (
            lambda: admin.patch(path, {"metadata": {"labels": {"a": "b"}}}),
            lambda: admin.delete(path),
        ):
            await asyncio.to_thread(change)
            before = datetime.now(UTC)
            async with asyncio.timeout(60):
                while not _renewed_since(await asyncio.to_thread(admin.find, path), before):  # noqa: ASYNC110 - a server's state
                    await asyncio.sleep(0.05)
            assert election.may_write()
        keeping.cancel()
        await asyncio.wait({keeping})
        await election.release()
        spec = (await asyncio.to_thread(admin.get, path))["spec"]
        assert (spec.get("holderIdentity"), spec["leaseDurationSeconds"]) == (None, 1)


def _renewed_since(body: dict[str, Any] | None, moment: datetime) -> bool:
    return body is not None and datetime.fromisoformat(body["spec"]["renewTime"]) > moment


# --- the fence --------------------------------------------------------------------------------------------------------


async def test_what_may_not_be_written_is_not_sent(server: ApiServer, admin: Kube, namespace: str) -> None:
    may = True
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    async with await connected(server.kubeconfig, Fence(lambda: may)) as api:
        await api.create(path, {"metadata": {"name": "before"}})
        may = False
        for write in (
            lambda: api.create(path, {"metadata": {"name": "after"}}),
            lambda: api.patch(f"{path}/before", {"data": {"a": "b"}}),
            lambda: api.delete(f"{path}/before"),
        ):
            with pytest.raises(errors.NotLeadingError):
                await write()
        assert [item["metadata"]["name"] for item in (await api.get(path))["items"] if "data" not in item] == ["before"]
        may = True
        await api.delete(f"{path}/before")
        assert await api.finish(5)
        with pytest.raises(errors.NotLeadingError):
            await api.create(path, {"metadata": {"name": "after"}})
    assert [item for item in admin.items(path) if item["metadata"]["name"] == "after"] == []


async def test_a_status_that_was_held_up_on_its_way_undoes_nothing(
    server: ApiServer, admin: Kube, namespace: str
) -> None:
    """As that of an operator that was stopped when the fence had let it through: meanwhile the next one wrote."""
    read = convert.owner(Team(admin, namespace).create_model())
    newer = {"status": {"observedGeneration": 1, "summary": {"desired": 1, "ready": 1, "readyRatio": "1/1"}}}
    admin.patch(f"{model_path(namespace, 'llama')}/status", newer)
    async with await connected(server.kubeconfig) as api:
        with pytest.raises(errors.ConflictError):
            await apply._write_status(api, read, Status(observed_generation=1))
        now = convert.owner(admin.get(model_path(namespace, "llama")))
        assert now.status.summary.ready == 1
        await apply._write_status(api, now, Status(observed_generation=1))
    assert admin.get(model_path(namespace, "llama"))["status"]["summary"]["ready"] == 0


# --- the chart --------------------------------------------------------------------------------------------------------


async def test_without_the_right_on_the_lease_it_is_named(account_kubeconfig: Path) -> None:
    async with await connected(account_kubeconfig) as api:
        await rights.check_lease(api, SYSTEM, "modelweights-operator")
        with pytest.raises(errors.MissingRightsError) as caught:
            await rights.check_lease(api, SYSTEM, "another")
        assert "a Role in modelweights-system" in str(caught.value)
        assert '["create"]' not in str(caught.value)
        with pytest.raises(errors.MissingRightsError) as caught:
            await rights.check_lease(api, "default", "modelweights-operator")
        assert '["create"]' in str(caught.value)


def chart(*settings: str) -> dict[str, dict[str, Any]]:
    return {each["kind"]: each for each in yaml.safe_load_all(render("x", *settings)) if each}


def test_what_comes_with_a_second_replica() -> None:
    one, other = chart(), chart("operator.replicas=2", "operator.leaseSeconds=30")
    assert ("PodDisruptionBudget" in one, "PodDisruptionBudget" in other) == (False, True)
    assert other["PodDisruptionBudget"]["spec"]["maxUnavailable"] == 1
    pods = [each["Deployment"]["spec"]["template"]["spec"] for each in (one, other)]
    assert ["topologySpreadConstraints" in pod for pod in pods] == [False, True]
    selector = other["Deployment"]["spec"]["selector"]
    assert pods[1]["topologySpreadConstraints"][0]["labelSelector"] == selector
    assert [each["Deployment"]["spec"]["replicas"] for each in (one, other)] == [1, 2]
    environment = {each["name"]: each.get("value", "") for each in pods[1]["containers"][0]["env"]}
    settings = from_environment(environment)
    assert (settings.lease_seconds, settings.identity) == (30, "$(POD_NAME)_$(POD_UID)")
    names = [each["name"] for each in pods[1]["containers"][0]["env"]]
    assert names.index("MODELWEIGHTS_IDENTITY") > max(names.index("POD_NAME"), names.index("POD_UID"))
