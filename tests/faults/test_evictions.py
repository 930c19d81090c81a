"""A real kubelet evicts staging pods for want of memory or disk: once, and three times in a row. docs/cases.md, row 25.

The disk is full, down to less than the kubelet's threshold. Of memory the threshold is set above what is free, since all nodes share one
machine: the kubelet does by itself all that it does on a node that is starved.
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Final

import pytest

from modelweights_operator.domain import names
from tests.e2e.client import path_of
from tests.e2e.objects import NOT_LOADED, model_weights
from tests.e2e.processes import freeze_step
from tests.e2e.site import REAL, Site
from tests.e2e.test_nodes import ONE_AT_A_TIME, entry, say
from tests.installation import condition
from tests.json_client import Json
from tests.polling import poll

pytestmark = pytest.mark.timeout(600, func_only=True)
"""Against hangs only."""
TAINT = "node.kubernetes.io/{}-pressure"
LOW = "The node was low on resource: "
SHORT_OF = {"memory": "memory", "disk": "ephemeral-storage"}
"""And how the kubelet calls that in its message."""
EVICTED_WITHIN_SECONDS = 90
"""The kubelet looks each ten seconds, and evicts one pod at a time: it may take others first."""
MAX_EVICTIONS = 3
FILLER = "/models/filler"
LEFT_BYTES = 128 * 2**20
"""The threshold is 1 % of 40 GiB."""
WAITS = "Waiting NodeUnderPressure"


@contextmanager
def pressure(site: Site, node: str, short_of: str) -> Iterator[None]:
    """Until the end of the block the node's kubelet evicts."""
    begin, end = _WAYS[short_of]
    try:
        begin(site, node)
        yield
    finally:
        end(site, node)


def _fill_disk(site: Site, node: str) -> None:
    fill = f"""fallocate -l $(($(df --output=avail -B1 /models | tail -1) - {LEFT_BYTES})) {FILLER}"""
    site.cluster.node_exec(node, ["sh", "-ec", fill])


def _empty_disk(site: Site, node: str) -> None:
    site.cluster.node_exec(node, ["rm", "-f", FILLER])


_WAYS: Final[dict[str, tuple[Callable[[Site, str], None], Callable[[Site, str], None]]]] = {
    "memory": (
        lambda site, node: site.cluster.set_memory_pressure(node, on=True),
        lambda site, node: site.cluster.set_memory_pressure(node, on=False),
    ),
    "disk": (_fill_disk, _empty_disk),
}


def evicted(site: Site, namespace: str, name: str) -> list[Json]:
    """The last states of staging pods of a ModelWeights that the kubelet evicted, whether or not they are there still."""
    last = {pod["metadata"]["uid"]: pod for pod in site.record.states("pods", namespace)}
    ours = (pod for pod in last.values() if pod["metadata"]["name"].startswith(f"stage-{name}"))
    return [pod for pod in ours if pod["status"].get("reason") == "Evicted"]


def claims_nothing(site: Site, namespace: str, name: str, node: str) -> bool:
    """Whether nothing says that the node has it: no residency, no digest, no label."""
    found = entry(site, namespace, name, node)
    return (
        not found.get("residentBytes")
        and not found.get("manifestDigest")
        and node not in labelled(site, namespace, name)
    )


def labelled(site: Site, namespace: str, name: str) -> set[str]:
    """The nodes to which pods are sent for it."""
    return set(site.node_labels(site.client.get(path_of("ModelWeights", namespace, name))))


@pytest.mark.parametrize("short_of", SHORT_OF)
def test_evicted_it_waits_and_the_same_job_goes_on_when_the_pressure_ends(
    site: Site, module_namespace: str, short_of: str
) -> None:
    """The next pod isn't let in until then. The other node doesn't wait for that."""
    (node, other), namespace, name = site.cluster.gpu_nodes, module_namespace, f"once-{short_of}"
    body = model_weights(namespace, name, REAL, **NOT_LOADED)
    body["spec"]["placement"] = ONE_AT_A_TIME
    with ThreadPoolExecutor(1) as pool, freeze_step(site.cluster, node, "prefetch", REAL, pool) as frozen:
        site.client.make(body)
        frozen()
        with pressure(site, node, short_of):
            began = time.monotonic()
            poll("the kubelet evicts it", lambda: evicted(site, namespace, name), seconds=EVICTED_WITHIN_SECONDS)
            print(f"evicted after {time.monotonic() - began:.1f} s")
            show = [site.describe(namespace, name)]
            poll("it is said", lambda: say(site, namespace, name, node) == WAITS, show=show)
            poll("the other one's turn comes", lambda: labelled(site, namespace, name) == {other}, show=show)
            found = entry(site, namespace, name, node)
            assert TAINT.format(short_of) in found["message"]
            assert found.get("attempts", 0) == 0
            assert condition(site.model(namespace, name), "Stalled") == {}
            assert claims_nothing(site, namespace, name, node)
    relieved = time.monotonic()
    site.await_condition(namespace, name, seconds=90)
    print(f"Ready {time.monotonic() - relieved:.1f} s after the pressure's end")
    pod = evicted(site, namespace, name)[0]
    assert f"{LOW}{SHORT_OF[short_of]}" in pod["status"]["message"]
    assert condition(pod, "DisruptionTarget")["reason"] == "TerminationByKubelet"
    jobs = {body["metadata"]["name"] for body in site.record.states("jobs", namespace)}
    assert len([each for each in jobs if each.startswith(f"stage-{name}-")]) == 2, "one for each node"


def test_three_evictions_end_it_and_it_goes_on_when_asked(site: Site, module_namespace: str) -> None:
    """Of an object that tolerates the taint: each of the Job's pods is let in, and evicted again."""
    node, namespace = site.cluster.gpu_nodes[0], module_namespace
    body = model_weights(namespace, "thrice", REAL, node, **NOT_LOADED)
    body["spec"]["placement"]["tolerations"] = [{"key": TAINT.format("memory"), "operator": "Exists"}]
    with ExitStack() as starved:
        for number in range(1, MAX_EVICTIONS + 1):
            # Each would be done before the kubelet looks.
            with ThreadPoolExecutor(1) as pool, freeze_step(site.cluster, node, "prefetch", REAL, pool) as frozen:
                if number == 1:
                    site.client.make(body)
                frozen()
                if number == 1:
                    # Not before: nothing is begun under pressure.
                    starved.enter_context(pressure(site, node, "memory"))
                _await_evictions(site, namespace, "thrice", number)
        stalled = site.await_condition(namespace, "thrice", "Stalled")
        assert condition(stalled, "Stalled")["reason"] == "EvictedRepeatedly"
        assert f"{LOW}memory" in condition(stalled, "Stalled")["message"]
        assert claims_nothing(site, namespace, "thrice", node)
        poll("its Job is gone", lambda: "thrice" not in str(site.jobs(namespace)))
        events = site.client.items(f"/api/v1/namespaces/{namespace}/events")
        assert ("thrice", "EvictedRepeatedly") in {(each["involvedObject"]["name"], each["reason"]) for each in events}
        # By itself in ten minutes, and not as long as the node is under pressure.
        asked = {"metadata": {"annotations": {names.RETRY_ANNOTATION: "now"}}}
        site.client.patch(path_of("ModelWeights", namespace, "thrice"), asked)
        poll("it waits", lambda: say(site, namespace, "thrice", node) == WAITS)
    site.await_condition(namespace, "thrice")


def _await_evictions(site: Site, namespace: str, name: str, number: int) -> None:
    began = time.monotonic()
    poll(
        f"eviction {number}",
        lambda: len(evicted(site, namespace, name)) >= number,
        seconds=EVICTED_WITHIN_SECONDS,
        show=[site.describe(namespace, name)],
    )
    print(f"eviction {number} after {time.monotonic() - began:.1f} s")
