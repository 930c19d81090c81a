"""Progress from the end of a log, as the API server hands it on from a kubelet; the kubelet is played by the test."""

import asyncio
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from kubernetes.aio import client as aio_client
from kubernetes.aio import config as aio_config

from modelweights_operator.domain import convert
from modelweights_operator.domain.snapshot import StagingJob
from modelweights_operator.kube.client import Api
from modelweights_operator.kube.progress import ProgressReader
from tests.cluster.api import ApiServer
from tests.cluster.pki import Authority
from tests.integration.client import Kube, core_path
from tests.integration.cluster_double import Team

POD = "stage-llama-x"


class Kubelet:
    """What it was asked for, and what it answers."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.log = b""
        self.port = 0


@contextmanager
def play_kubelet(issuer: Authority) -> Iterator[Kubelet]:
    kubelet = Kubelet()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            kubelet.asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(kubelet.log)

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    pair = issuer.issue("played-kubelet", "kubelet", alternative_names=["127.0.0.1"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    kubelet.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield kubelet
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


@pytest.fixture
def kubelet(server: ApiServer, team: Team, admin: Kube) -> Iterator[Kubelet]:
    """A node of the team's with a staging pod whose step `fetch` runs."""
    node = team.add_node("a")
    with play_kubelet(server.issuer) as kubelet:
        endpoints = {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": kubelet.port}},
        }
        content = "application/strategic-merge-patch+json"
        admin.patch(f"/api/v1/nodes/{node}/status", {"status": endpoints}, content)
        containers = {name: [{"name": name, "image": "x"}] for name in ("fetch", "report")}
        spec = {"nodeName": node, "initContainers": containers["fetch"], "containers": containers["report"]}
        admin.create(core_path(team.namespace, "pods"), {"metadata": {"name": POD}, "spec": spec})
        state = {"name": "fetch", "image": "x", "imageID": "", "ready": False, "restartCount": 0}
        running = {**state, "state": {"running": {"startedAt": "2026-03-01T12:00:00Z"}}}
        status = {"status": {"phase": "Pending", "initContainerStatuses": [running]}}
        admin.patch(f"{core_path(team.namespace, 'pods', POD)}/status", status, content)
        yield kubelet


def job_of(admin: Kube, namespace: str) -> StagingJob:
    fields: dict[str, Any] = {"node_uid": "", "staging_digest": "", "boot_id": "", "round": 0, "owner_uid": "uid"}
    pod = convert.staging_pod(admin.get(core_path(namespace, "pods", POD)))
    return StagingJob("stage", "a", created_at=pod.created_at, pods=(pod,), namespace=namespace, **fields)


async def connect(kubeconfig: Path) -> Api:
    configuration = aio_client.Configuration()
    await aio_config.load_kube_config(config_file=str(kubeconfig), client_configuration=configuration)
    return Api(aio_client.ApiClient(configuration))


async def test_the_end_of_the_log_is_read_with_the_operators_own_rights(
    kubelet: Kubelet, admin: Kube, namespace: str, account_kubeconfig: Path
) -> None:
    kubelet.log = b"fetch: 10 %, a\nfetch: 40 %, 200 B of 500 B\nfetch: the hub is busy; asked again in 2.0 s\n"
    job, changed = job_of(admin, namespace), asyncio.Event()
    now = datetime.now(UTC) + timedelta(minutes=2)
    async with await connect(account_kubeconfig) as api:
        reader = ProgressReader(api, may_read=True, on_change=lambda _uid: changed.set())
        assert reader.add([job], job.created_at) == (job,)
        assert [each.progress_percent for each in reader.add([job], now)] == [0]
        await asyncio.wait_for(changed.wait(), 20)
        [read] = reader.add([job], now + timedelta(seconds=29))
        assert (read.progress_percent, read.total_bytes) == (40, 500)
        assert len(kubelet.asked) == 1
        assert kubelet.asked[0].startswith(f"/containerLogs/{namespace}/{POD}/fetch?")
        assert "tailLines=20" in kubelet.asked[0]

        kubelet.log = b"fetch: 70 %, c\n"
        changed.clear()
        reader.add([job], now + timedelta(seconds=30))
        await asyncio.wait_for(changed.wait(), 20)
        assert [each.progress_percent for each in reader.add([job], now + timedelta(seconds=31))] == [70]
        await reader.close()
    assert len(kubelet.asked) == 2


async def test_without_the_right_nobody_asks(
    kubelet: Kubelet, admin: Kube, namespace: str, account_kubeconfig: Path
) -> None:
    job = job_of(admin, namespace)
    async with await connect(account_kubeconfig) as api:
        reader = ProgressReader(api, may_read=False, on_change=lambda _uid: None)
        assert reader.add([job], datetime.now(UTC) + timedelta(minutes=2)) == (job,)
        await reader.close()
    assert kubelet.asked == []
