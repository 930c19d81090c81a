"""A claim that is missing for minutes, and a namespace that goes with real pods in it: docs/cases.md, rows 13 and 22."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from tests.e2e.objects import model_weights
from tests.e2e.processes import freeze_step
from tests.e2e.site import REAL, Site
from tests.e2e.test_claim import await_claim_not_ready, volume_and_claim
from tests.installation import condition

STALLS_WITHIN_SECONDS = 150
"""Two minutes of waiting, and what it takes until the pod is made and the status written."""


def test_a_claim_that_stays_missing_stalls_and_heals_by_itself(site: Site, restricted: str) -> None:
    body = model_weights(restricted, "claimed", "", site.cluster.gpu_nodes[0])
    body["spec"]["source"] = {"persistentVolumeClaim": {"claimName": "weights", "path": REAL.removeprefix("/models/")}}
    site.client.make(body)
    await_claim_not_ready(site, restricted, "claim weights")
    began = time.monotonic()
    stalled = site.await_condition(restricted, "claimed", "Stalled", seconds=STALLS_WITHIN_SECONDS)
    print(f"Stalled {time.monotonic() - began:.0f} s after it was said")
    assert condition(stalled, "Stalled")["reason"] == "ClaimNotReady"
    assert 'persistentvolumeclaim "weights" not found' in condition(stalled, "Stalled")["message"]
    volume, claim = volume_and_claim(restricted, site.cluster.gpu_nodes[0])
    site.client.make(claim)
    site.client.create("/api/v1/persistentvolumes", volume)
    site.await_condition(restricted, "claimed")


def test_a_namespace_with_a_running_staging_goes(site: Site, make_namespace: Callable[[str, str], str]) -> None:
    node, namespace = site.cluster.gpu_nodes[0], make_namespace("goes", "")
    with ThreadPoolExecutor(1) as pool, freeze_step(site.cluster, node, "prefetch", REAL, pool) as frozen:
        site.client.make(model_weights(namespace, "minilm", REAL, node))
        frozen()
        # Waits until it is gone.
        site.cluster.kubectl("delete", "namespace", namespace, "--timeout=60s", timeout=70)
    assert site.client.find(f"/api/v1/namespaces/{namespace}") is None
