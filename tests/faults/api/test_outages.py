"""What lasts: the API server restarted, etcd paused, watches that say nothing any more, and each fault of the table by itself."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from tests.cluster.api import ApiServer
from tests.integration import interruptions
from tests.integration.api_faults import FAULTS, survive
from tests.integration.cluster_double import Team
from tests.integration.interruptions import NODES, ROLL_OUT, STAGE, Site, revision_of, run
from tests.polling import poll, wait_for
from tests.servers.api_proxy import ApiFault

Outage = Callable[[ApiServer], AbstractContextManager[None]]
pytestmark = pytest.mark.timeout(900)
PAUSE_SECONDS = 20
WATCHES = 8
"""ModelWeights, nodes, namespaces, Jobs, their pods, pods that wait, cleanup Jobs and their pods."""
SILENT_SECONDS = 180
"""A watch counts as dead after 90 s of silence; then it is listed and watched anew."""


@pytest.mark.parametrize("kind", FAULTS)
def test_each_fault_alone(site: Site, kind: str) -> None:
    site.begin(f"kill-alone-{list(FAULTS).index(kind)}")
    run(site, STAGE, revision_of(0))
    survive(site, [FAULTS[kind]()], 1)
    run(site, interruptions.DELETE, revision_of(1))
    site.end()


def _pid(server: ApiServer, name: str) -> int:
    """The process of one of the API server's programs: it is started by its path in the server's folder."""
    program = str(server.folder / "bin" / name).encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with_arguments = (folder / "cmdline").read_bytes() if (folder / "cmdline").exists() else b""
        if with_arguments.split(b"\0")[0] == program:
            return int(folder.name)
    return 0


@contextmanager
def api_server_restarted(server: ApiServer) -> Iterator[None]:
    """It is told to end, and started anew with the same etcd."""
    before = _pid(server, "kube-apiserver")
    os.kill(before, signal.SIGTERM)
    yield
    poll("it is back", lambda: _pid(server, "kube-apiserver") not in (0, before), seconds=120)
    # Kinds of a CustomResourceDefinition come last.
    poll("it answers", lambda: "NAME" in server.kubectl("get", "mw", "--all-namespaces", check=False), seconds=120)


@contextmanager
def etcd_paused(server: ApiServer) -> Iterator[None]:
    """It says nothing for PAUSE_SECONDS, and goes on."""
    pid = _pid(server, "etcd")
    os.kill(pid, signal.SIGSTOP)
    try:
        # The length of the pause is the point here.
        assert not wait_for(lambda: False, PAUSE_SECONDS)
    finally:
        os.kill(pid, signal.SIGCONT)
    yield


@pytest.mark.parametrize("outage", [api_server_restarted, etcd_paused])
def test_a_rollout_goes_on_after_an_outage(site: Site, server: ApiServer, outage: Outage) -> None:
    site.begin(f"kill-{outage.__name__.replace('_', '-')}")
    run(site, STAGE, revision_of(0))
    pid = site.operator.pid
    # The outage begins with the first write of the rollout, in mid-work.
    step = (lambda team, revision: _with_outage(site, server, outage, team, revision)), ROLL_OUT[1]
    run(site, step, revision_of(1), with_history=outage is not api_server_restarted)
    assert site.operator.pid == pid
    assert site.operator.probe("healthz") == 200
    site.end()


def _with_outage(site: Site, server: ApiServer, outage: Outage, team: Team, revision: str) -> None:
    interruptions.roll_out(team, revision)
    poll("the rollout began", lambda: site.proxy.writes)
    with outage(server):
        pass


def test_watches_that_fall_silent_are_begun_anew(site: Site) -> None:
    site.begin("kill-silent")
    run(site, STAGE, revision_of(0))
    silence = ApiFault("silence")
    site.proxy.faults = [silence]
    poll("all watches are silent", lambda: silence.served >= WATCHES)
    site.proxy.faults = ()
    lost = NODES[0]
    site.team.delete_node(lost)
    site.team.add_node("c")
    model = site.team.model
    expected = {site.team.node_name(node) for node in ("b", "c")}
    poll(
        "the nodes are those that there are",
        lambda: set(model()["status"]["nodes"]) == expected,
        seconds=SILENT_SECONDS,
    )
    site.team.wait_for("Ready", "True", seconds=SILENT_SECONDS)
    assert site.operator.probe("healthz") == 200
    site.team.delete_node("c")
    site.end()
