"""2 GiB from a hub, killed at ten random moments: each fetch ends bit-equal, and what came twice is counted."""

import json
import random
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoints.synthetic import make_synthetic
from tests.e2e.client import path_of
from tests.e2e.files import sums_on_node
from tests.e2e.objects import model_weights
from tests.e2e.site import FETCHED, Site
from tests.e2e.source_servers import HubServer, start_hub
from tests.polling import poll

SIZE_BYTES = 2 * 2**30
SHARDS = 4
MOMENTS = 10
REPOSITORY = "modelweights/two-gibibytes"
REVISION = "c" * 40
BYTES_PER_SECOND = 200_000_000
"""So that a fetch takes some eleven seconds, whatever the machine could do."""
CONNECTIONS = 8
NOTE_BYTES = 4 * 2**20
"""What a connection wrote since its last note is lost: less than that, and what was in its hands."""
SOCKET_BYTES = 10 * 2**20
"""So much the hub has handed to the kernel that nobody read, where a connection ends: tcp_wmem and tcp_rmem end at 4 and 6 MiB.
Connections end by the death, and in both runs where a stream to a file's end is cut short for others."""
HASH_SECONDS = 300
"""Hashing it takes two, and many times that where others work on the same cores."""
SLOW_BYTES_PER_SECOND = 12_000_000
"""Three minutes: the operator reads the log of what takes longer than one, at most every 30 s."""
PROGRESS_WITHIN_SECONDS = 150
_SEED = 20261130

pytestmark = pytest.mark.timeout(1200, func_only=True)
"""Ten fetches, each with its death and its end; against hangs only."""


@dataclass(frozen=True)
class Death:
    """How one fetch went."""

    how: str
    after_seconds: float
    bytes_before: int
    bytes_twice: int
    ready_seconds: float


@pytest.fixture(scope="module")
def hub(
    site: Site, make_namespace: Callable[[str, str], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[HubServer]:
    """A hub with the set, and a cap on what a node fetches each second."""
    name = make_namespace("faults-hub", "")
    files = tmp_path_factory.mktemp("set") / "set"
    make_synthetic(files, SIZE_BYTES, shards=SHARDS)
    server = start_hub(site, name)
    server.add(REPOSITORY, REVISION, files)
    server.describe(REPOSITORY, refs={"main": REVISION})
    site.install(f"fetch.maxBytesPerSecond={BYTES_PER_SECOND}", f"fetch.numConnections={CONNECTIONS}")
    yield server
    site.install()
    site.remove_namespace(name)
    site.cluster.node_exec(site.cluster.cpu_node, ["rm", "-rf", server.folder])
    shutil.rmtree(files)


def test_ten_deaths_of_a_fetch(site: Site, hub: HubServer, module_namespace: str) -> None:
    chance = random.Random(_SEED)  # noqa: S311 - moments, not secrets
    expected = sums_on_node(site, site.cluster.cpu_node, f"{hub.folder}/{REPOSITORY}/{REVISION}", HASH_SECONDS)
    deaths = []
    for number in range(MOMENTS):
        how = "kill -9" if number % 2 else "kubectl delete pod"
        deaths.append(_die_once(site, hub, f"{module_namespace}/death-{number}", how, chance.random(), expected))
        print(deaths[-1], flush=True)
    twice = [death.bytes_twice for death in deaths]
    print(
        f"fetched twice: {sum(twice) / 2**20:.0f} MiB in {MOMENTS} deaths, at most {max(twice) / 2**20:.0f} MiB in one"
    )
    Path("build").mkdir(exist_ok=True)
    Path("build/fetch-deaths.json").write_text(json.dumps([asdict(death) for death in deaths], indent=1) + "\n")
    assert max(twice) <= CONNECTIONS * (2 * NOTE_BYTES + 3 * SOCKET_BYTES)


def test_how_far_a_long_fetch_is_stands_in_the_status(site: Site, hub: HubServer, module_namespace: str) -> None:
    site.install(f"fetch.maxBytesPerSecond={SLOW_BYTES_PER_SECOND}", f"fetch.numConnections={CONNECTIONS}")
    node, before = site.cluster.gpu_nodes[0], _sent(hub)
    site.client.make(_fetched(hub, module_namespace, "slow", node))

    def told() -> int:
        status = site.client.get(path_of("ModelWeights", module_namespace, "slow")).get("status", {})
        return int(status.get("nodes", {}).get(node, {}).get("progressPercent", 0))

    found = poll("a percentage", told, seconds=PROGRESS_WITHIN_SECONDS)
    assert found <= 100 * (_sent(hub) - before) // SIZE_BYTES
    site.client.remove(path_of("ModelWeights", module_namespace, "slow"), grace_seconds=0)
    poll("its pod is gone", lambda: not _pods_of(site, module_namespace, "slow"))
    site.cluster.node_exec(node, ["rm", "-rf", f"{FETCHED}/{module_namespace}/slow"])


def _fetched(hub: HubServer, namespace: str, name: str, node: str) -> dict[str, Any]:
    body = model_weights(namespace, name, "", node, prefetch={"mode": "None"}, validation={"mode": "Structure"})
    body["spec"]["source"] = {"huggingFace": {"repository": REPOSITORY, "revision": REVISION, "endpoint": hub.url}}
    return body


def _die_once(site: Site, hub: HubServer, key: str, how: str, share: float, expected: dict[str, str]) -> Death:
    namespace, _, name = key.partition("/")
    node, home = site.cluster.gpu_nodes[0], f"{FETCHED}/{key}"
    before = _sent(hub)
    began = time.monotonic()
    site.client.make(_fetched(hub, namespace, name, node))
    poll(f"{share:.0%} of it was sent", lambda: _sent(hub) - before >= share * SIZE_BYTES, seconds=120)
    died = time.monotonic()
    if how == "kill -9":
        site.cluster.node_exec(node, ["pkill", "-KILL", "-f", f"modelweights-loade[r] fetch {home}"])
    else:
        site.client.remove(path_of("Pod", namespace, _pods_of(site, namespace, name)[0]), grace_seconds=0)
    bytes_before = _sent(hub) - before
    model = site.await_condition(namespace, name, seconds=180)
    ready = time.monotonic()
    path = model["status"]["published"]["path"]
    assert sums_on_node(site, node, path, HASH_SECONDS) == expected
    site.client.remove(path_of("ModelWeights", namespace, name), grace_seconds=0)
    site.cluster.node_exec(node, ["rm", "-rf", home])
    return Death(how, round(died - began, 1), bytes_before, _sent(hub) - before - SIZE_BYTES, round(ready - began, 1))


def _pods_of(site: Site, namespace: str, name: str) -> list[str]:
    found = [str(pod["metadata"]["name"]) for pod in site.client.items(path_of("Pod", namespace))]
    return [pod for pod in found if pod.startswith(f"stage-{name}")]


def _sent(hub: HubServer) -> int:
    """Bytes that the hub handed to its sockets: a little more than what arrived, where a connection died."""
    path = f"{path_of('Pod', hub.namespace, hub.name)}:8080/proxy/-/counters"
    return sum(hub.site.client.get(path)["bytes"].values())
