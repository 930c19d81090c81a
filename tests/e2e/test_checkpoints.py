"""Three checkpoints at once on one node: as it came, in shards, and with a broken shard. Only the broken one stalls."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.checkpoints.split import make_split, read_tensors
from tests.e2e.client import path_of
from tests.e2e.objects import model_weights, models_mount, models_volume, stand_in_pod
from tests.e2e.site import CORRUPT, REAL, SPLIT, SPLIT_SHARDS, Site
from tests.installation import condition
from tests.json_client import Json
from tests.polling import poll

BROKEN_SHARD = f"shard-{SPLIT_SHARDS - 3}.safetensors"
"""The last one by name, since names are compared letter by letter where the break was made."""


@pytest.fixture(scope="module")
def namespace(site: Site, module_namespace: str) -> Iterator[str]:
    """All three, staged on the second node; pods wait for the whole one and for the broken one."""
    node = site.cluster.gpu_nodes[1]
    for name in ("corrupt", "split"):
        site.client.make(stand_in_pod(module_namespace, f"for-{name}", site.images.loader, name))
    for name, path in (("minilm", REAL), ("split", SPLIT), ("corrupt", CORRUPT)):
        site.client.make(model_weights(module_namespace, name, path, node))
    yield module_namespace
    site.cluster.node_exec(node, ["rm", "-rf", CORRUPT])
    site.cluster.copy_to_node(node, site.checkpoints / "corrupt", CORRUPT)


def test_shards_hold_the_same_tensors(site: Site, namespace: str) -> None:
    whole = site.await_condition(namespace, "minilm")["status"]["published"]
    split = site.await_condition(namespace, "split")["status"]["published"]
    assert split["tensorCount"] == whole["tensorCount"]
    assert split["fileCount"] == whole["fileCount"] - 1 + SPLIT_SHARDS + 1, "one file less; the shards and their index"
    assert split["manifestDigest"] != whole["manifestDigest"]
    site.await_running(namespace, "for-split")


def test_shards_come_in_natural_order(site: Site, namespace: str) -> None:
    site.await_condition(namespace, "split")
    command = {"command": ["modelweights-loader", "residency", "--json", SPLIT], **models_mount()}
    pod = stand_in_pod(namespace, "order", site.images.loader, "split", container=command, **models_volume())
    site.client.make(pod)
    site.await_phase(namespace, "order", "Succeeded")
    shards = [Path(entry["path"]).name for entry in json.loads(site.log(namespace, "order"))["files"]]
    assert shards == [f"shard-{number}.safetensors" for number in range(1, SPLIT_SHARDS + 1)]


def test_broken_shard_stalls_and_names_itself(site: Site, namespace: str) -> None:
    body = site.await_condition(namespace, "corrupt", "Stalled")
    assert {entry["type"]: entry["status"] for entry in body["status"]["conditions"]} == {
        "Available": "False",
        "Ready": "False",
        "Stalled": "True",
    }
    tensor = _broken_tensor(site.checkpoints)
    described = site.describe(namespace, "corrupt")()
    message = next(line for line in described.splitlines() if "Message:" in line and BROKEN_SHARD in line)
    print(message.strip())
    assert tensor in message
    assert "download or convert it again" in message
    assert "Warning" in described, "an event on the object"


def test_pod_never_starts_with_the_broken_shard(site: Site, namespace: str) -> None:
    body = site.await_condition(namespace, "corrupt", "Stalled")
    site.await_condition(namespace, "split")
    assert site.is_gated(namespace, "for-corrupt")
    assert site.node_labels(body) == {}
    assert site.client.find(path_of("ConfigMap", namespace, "corrupt")) is None
    poll("the failed Job stays for a look at it", lambda: len(site.jobs(namespace)) == 1)


def test_good_shard_heals_it(site: Site, namespace: str, tmp_path: Path) -> None:
    """A changed field of what is staged asks at once; otherwise the back-off of ten minutes would."""
    site.await_condition(namespace, "corrupt", "Stalled")
    assert site.is_gated(namespace, "for-corrupt")
    good = make_split(site.checkpoints / "real", tmp_path / "good", SPLIT_SHARDS, style="plain")
    site.cluster.copy_to_node(site.cluster.gpu_nodes[1], good, CORRUPT)
    shutil.rmtree(good)
    site.client.patch(path_of("ModelWeights", namespace, "corrupt"), {"spec": {"prefetch": {"numThreads": 7}}})
    healed = site.await_condition(namespace, "corrupt")
    assert condition(healed, "Stalled") == {}
    site.await_running(namespace, "for-corrupt")
    assert _digest(healed) == _digest(site.await_condition(namespace, "split"))


def _digest(body: Json) -> str:
    digest: str = body["status"]["published"]["manifestDigest"]
    return digest


def _broken_tensor(checkpoints: Path) -> str:
    """The tensor whose offsets differ between the broken shard and the good one."""
    broken = {tensor.name for tensor in read_tensors(checkpoints / "corrupt" / BROKEN_SHARD)}
    good = read_tensors(checkpoints / "split" / BROKEN_SHARD)
    assert broken == {tensor.name for tensor in good}
    return good[-1].name
