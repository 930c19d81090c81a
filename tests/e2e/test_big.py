"""1 GiB on one node: the settings that reach the process, what is resident afterwards, and what it costs the node."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest

from tests import node_page_cache
from tests.e2e.objects import RESTRICTED, model_weights, models_mount, models_volume, stand_in_pod
from tests.e2e.processes import FrozenStep, freeze_step
from tests.e2e.site import Site
from tests.json_client import Json
from tests.polling import poll

SIZE_BYTES = 2**30
SHARDS = 4
OTHER_UID = 4711
RESIDENT_PERCENT = 95
"""What Ready promises (the default of minResidentPercent): a kernel may reclaim cold pages at any time since (DAMON)."""


@dataclass(frozen=True)
class Staged:
    """What the one staging showed; working sets in bytes, of the node's pods and of all that its kubelet sees."""

    namespace: str
    prefetch: FrozenStep
    validate: FrozenStep
    working_set_before: dict[str, int]
    resident_bytes: int
    model: Json


@pytest.fixture(scope="module")
def staged(site: Site, module_namespace: str, big: str) -> Staged:
    """Staged from a cold cache with settings that are nobody's default, and each step held for a look at it."""
    node = site.cluster.gpu_nodes[0]
    node_page_cache.drop(site.cluster, node, big, SIZE_BYTES / 100)
    before = _working_sets(site, node, datetime.now(UTC))
    prefetch, validation = {"numThreads": 3, "blockSize": "4Mi"}, {"engine": {"queueSize": 2}}
    with ThreadPoolExecutor(2) as pool, freeze_step(site.cluster, node, "validate", big, pool) as validating:
        site.client.make(_reader(site, module_namespace, big))
        with freeze_step(site.cluster, node, "prefetch", big, pool) as prefetching:
            body = model_weights(module_namespace, "big", big, node, prefetch=prefetch, validation=validation)
            site.client.make(body)
            first = prefetching()
        second = validating()
    model = site.await_condition(module_namespace, "big", seconds=120)
    resident = node_page_cache.resident_bytes(site.cluster, node, big)
    poll("the staging pod is gone", lambda: not site.jobs(module_namespace))
    return Staged(module_namespace, first, second, before, resident, model)


def test_settings_reach_the_process_on_the_node(staged: Staged) -> None:
    assert staged.prefetch.option("--num-threads") == "3"
    assert staged.prefetch.option("--block-size") == str(4 * 2**20)
    assert staged.validate.option("--queue-size") == "2"


def _reader(site: Site, namespace: str, path: str) -> Json:
    """A restricted pod with another user ID, which waits for the staging as an engine does."""
    command = {"command": ["modelweights-loader", "residency", "--json", path], "securityContext": RESTRICTED}
    user = {"securityContext": {"runAsUser": OTHER_UID, "runAsGroup": OTHER_UID}, **models_volume()}
    container = {**command, **models_mount()}
    return stand_in_pod(namespace, "reader", site.images.loader, "big", container=container, **user)


def test_all_of_it_is_resident_for_another_user(site: Site, staged: Staged) -> None:
    """Measured in the pod, at the path where an engine would read."""
    site.await_phase(staged.namespace, "reader", "Succeeded")
    found = json.loads(site.log(staged.namespace, "reader"))
    figures = {key: value for key, value in found.items() if key != "files"}
    print(f"residency for uid {OTHER_UID}: {figures}")
    assert found["sizeBytes"] >= SIZE_BYTES
    assert found["residentPercent"] >= RESIDENT_PERCENT
    assert found["residencyMethod"] not in ("", "unknown")
    assert len(found["files"]) == SHARDS


def test_staged_bytes_do_not_count_as_used(site: Site, staged: Staged, big: str) -> None:
    node = site.cluster.gpu_nodes[0]
    after = _working_sets(site, node, datetime.now(UTC))
    for name, used in after.items():
        print(f"working set, {name}: {staged.working_set_before[name] / 2**20:.0f} MiB, then {used / 2**20:.0f} MiB")
    # As root sees it, page by page. Some kernels take cold pages back before they need the memory.
    print(f"resident of the checkpoint: {staged.resident_bytes / SIZE_BYTES:.2%} when Ready")
    print(
        f"and {node_page_cache.resident_bytes(site.cluster, node, big) / SIZE_BYTES:.2%} when the working set was measured"
    )
    assert staged.resident_bytes >= RESIDENT_PERCENT / 100 * SIZE_BYTES
    grown = after["pods"] - staged.working_set_before["pods"]
    assert grown < SIZE_BYTES / 10


def _working_sets(site: Site, node: str, since: datetime) -> dict[str, int]:
    """The kubelet's working sets, measured after a time; `node` is the whole machine where nodes share one."""

    def ask() -> dict[str, int] | None:
        summary = site.client.get(f"/api/v1/nodes/{node}/proxy/stats/summary")["node"]
        pods = next(each for each in summary["systemContainers"] if each["name"] == "pods")
        measured = {"pods": pods["memory"], "node": summary["memory"]}
        if any(datetime.fromisoformat(memory["time"]) < since for memory in measured.values()):
            return None
        return {name: int(memory["workingSetBytes"]) for name, memory in measured.items()}

    return poll(f"the kubelet of {node} measured anew", ask, seconds=60, every=1)
