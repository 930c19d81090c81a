"""An OCI image as the source: staged in a restricted namespace, shared in the page cache with the engine's pod, refused aloud.

Pods of root measure and evict, since a file's owner may ask the kernel for the truth; engines get by with less.
"""

import json
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from tests.checkpoints.synthetic import make_synthetic
from tests.e2e.client import path_of
from tests.e2e.files import push_files
from tests.e2e.objects import QUICK, RESTRICTED, model_weights, stand_in_pod
from tests.e2e.site import FETCHED, Site
from tests.installation import condition
from tests.json_client import Json
from tests.polling import poll

LOADER_UID: Final = 65532
RESIDENT_PERCENT: Final = 95
FOLDER: Final = "weights/minilm"
MOUNT: Final = "/data"
EVICT: Final = (
    "import os, pathlib\n"
    # Pages that aren't on the disk yet would stay, and an overlay passes no fsync on to its lower layers.
    "os.sync()\n"
    f"for path in pathlib.Path('{MOUNT}').rglob('*.*'):\n"
    "    file = os.open(path, os.O_RDONLY)\n"
    "    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)\n"
)


Files = dict[str, tuple[bytes, int]]
"""Content and mode by path."""


def pack(folder: Path) -> Files:
    """A checkpoint's files as they go into an image."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {f"{FOLDER}/{path.relative_to(folder)}": (path.read_bytes(), 0o644) for path in paths}


def image_model(namespace: str, name: str, reference: str, node: str = "", policy: str = "", **spec: Any) -> Json:
    body = model_weights(namespace, name, "", node, **spec)
    image = {"reference": reference, "path": FOLDER, **({"pullPolicy": policy} if policy else {})}
    body["spec"]["source"] = {"image": image}
    return body


def reader(site: Site, namespace: str, name: str, reference: str, require: str = "", **changes: Any) -> Json:
    """A pod with the image mounted that measures what of it is in the page cache."""
    uid = changes.pop("uid", LOADER_UID)
    container = {
        "command": ["modelweights-loader", "residency", "--json", f"{MOUNT}/{FOLDER}"],
        "securityContext": RESTRICTED if uid else {},
        "volumeMounts": [{"name": "weights", "mountPath": MOUNT, "readOnly": True}],
        **changes,
    }
    return stand_in_pod(
        namespace,
        name,
        site.images.loader,
        require,
        container=container,
        nodeSelector={"kubernetes.io/hostname": site.cluster.gpu_nodes[0]},
        securityContext={"runAsUser": uid, "runAsGroup": uid, "runAsNonRoot": bool(uid)},
        volumes=[{"name": "weights", "image": {"reference": reference, "pullPolicy": "IfNotPresent"}}],
    )


def run(site: Site, body: Json) -> str:
    """Run a pod to its end; its log."""
    name, namespace = body["metadata"]["name"], body["metadata"]["namespace"]
    site.client.make(body)
    site.await_phase(namespace, name, "Succeeded", seconds=120)
    return site.log(namespace, name)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Files, Files]:
    """Two checkpoints of a megabyte, for what isn't about their bytes: an image is pulled in no time."""
    folder = tmp_path_factory.mktemp("small")
    made = [make_synthetic(folder / str(shards), 1 << 20, shards, 2) for shards in (2, 3)]
    return pack(made[0]), pack(made[1])


@dataclass(frozen=True)
class Layout:
    """How an image is made, and what staging may then ask for."""

    two_layers: bool
    owner: int
    policy: str


LAYOUTS: Final = {
    # Either is mounted as an overlay, on which only the owner of the files can measure.
    "one layer, files of root": Layout(two_layers=False, owner=0, policy="BestEffort"),
    "two layers, files of the loader": Layout(two_layers=True, owner=LOADER_UID, policy="Required"),
}


@pytest.fixture
def restricted(site: Site, make_namespace: Callable[[str, str], str]) -> Iterator[str]:
    """A namespace that lets in restricted pods only."""
    name = make_namespace("image", "restricted")
    yield name
    site.remove_namespace(name)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_an_image_is_staged_and_the_engines_pod_finds_it_warm(
    site: Site, restricted: str, namespace: str, layout: Layout
) -> None:
    files = pack(site.checkpoints / "real")
    weights = {name: files.pop(name) for name in list(files) if name.endswith(".safetensors")}
    below = {"below": weights} if layout.two_layers else {}
    above = files if layout.two_layers else {**files, **weights}
    reference = push_files(site, f"minilm-image:{uuid.uuid4().hex[:8]}", above, owner=layout.owner, **below)
    run(site, reader(site, namespace, "evict", reference, uid=layout.owner, command=["python3", "-c", EVICT]))
    cold = json.loads(run(site, reader(site, namespace, "before", reference, uid=layout.owner)))

    site.client.make(reader(site, restricted, "engine", reference, "minilm"))
    poll("the engine's pod is gated", lambda: site.is_gated(restricted, "engine"))
    node = site.cluster.gpu_nodes[0]
    site.client.make(image_model(restricted, "minilm", reference, node, prefetch={"policy": layout.policy}))
    model = site.await_condition(restricted, "minilm", seconds=120)
    warm = json.loads(run(site, reader(site, namespace, "after", reference, uid=layout.owner)))
    engine = site.await_phase(restricted, "engine", "Succeeded")
    found = json.loads(site.log(restricted, "engine"))

    entry = model["status"]["nodes"][node]
    print(
        f"{reference}: {told(cold)} before, {told(warm)} after; the engine's pod, uid {LOADER_UID}: {told(found)}; "
        f"status: {entry.get('residentBytes')} bytes, {model['status']['published']}"
    )
    assert cold["residentPercent"] < 5
    assert warm["residentPercent"] >= RESIDENT_PERCENT
    # That others can measure nothing is no matter for staging with BestEffort.
    assert (found["residentPercent"] or RESIDENT_PERCENT) >= RESIDENT_PERCENT
    assert (found["residencyMethod"] == "unknown") == (layout.owner != LOADER_UID)
    path = f"image:{reference}/{FOLDER}"
    assert model["status"]["published"]["path"] == path
    assert engine["metadata"]["annotations"]["modelweights.io/path"] == path
    settings = site.client.get(path_of("ConfigMap", restricted, "minilm"))["data"]
    assert "MODEL_PATH" not in settings


def told(measured: Json) -> str:
    return f"{measured['residentPercent']} % ({measured['residencyMethod']})"


def test_a_copy_of_an_image_lies_on_the_node(site: Site, namespace: str, small: tuple[Files, Files]) -> None:
    reference = push_files(site, f"copied-image:{uuid.uuid4().hex[:8]}", small[0])
    site.client.make(image_model(namespace, "copy", reference, storage={}, **QUICK))
    status = site.await_condition(namespace, "copy", seconds=120)["status"]
    assert status["published"]["path"].startswith(f"{FETCHED}/{namespace}/copy/")
    # Both nodes read the same listing from their own mounts of the image: sizes and times come from its layers.
    assert status["summary"]["readyRatio"] == "2/2"
    assert status["published"]["revision"] == status["source"]["revision"]
    assert all(entry["fetchedBytes"] > 0 for entry in status["nodes"].values())


def stalled(site: Site, namespace: str, name: str) -> Json:
    """Wait until a ModelWeights stalls; the condition."""
    body: Json = poll(
        f"{name} stalls",
        lambda: found if (found := condition(site.model(namespace, name), "Stalled")) else None,
        seconds=90,
        show=[site.describe(namespace, name)],
    )
    return body


def test_an_image_that_is_not_there_is_named_and_pulled_once_it_comes(
    site: Site, restricted: str, small: tuple[Files, Files]
) -> None:
    tag = f"late-image:{uuid.uuid4().hex[:8]}"
    reference = f"{site.images.loader.partition('/')[0]}/{tag}"
    site.client.make(image_model(restricted, "late", reference, site.cluster.gpu_nodes[0], **QUICK))
    found = stalled(site, restricted, "late")
    print(found["message"])
    assert found["reason"] == "ImagePullFailed"
    assert f"image {reference} can't be pulled" in found["message"]
    assert push_files(site, tag, small[0]) == reference
    # The kubelet asks again by itself, with a back-off.
    site.await_condition(restricted, "late", seconds=150)


def test_an_image_that_is_never_to_be_pulled_is_named_where_it_lacks(
    site: Site, restricted: str, small: tuple[Files, Files]
) -> None:
    reference = push_files(site, f"unpulled-image:{uuid.uuid4().hex[:8]}", small[0])
    site.client.make(image_model(restricted, "unpulled", reference, site.cluster.gpu_nodes[0], "Never", **QUICK))
    found = stalled(site, restricted, "unpulled")
    print(found["message"])
    assert found["reason"] == "ImagePullFailed"
    assert f"image {reference} can't be pulled: ErrImageNeverPull" in found["message"]
    patch = {"spec": {"source": {"image": {"pullPolicy": "Always"}}}}
    site.client.patch(path_of("ModelWeights", restricted, "unpulled"), patch)
    site.await_condition(restricted, "unpulled", seconds=120)


def test_a_tag_that_moved_between_two_nodes_is_found_out(
    site: Site, restricted: str, small: tuple[Files, Files]
) -> None:
    first, second = site.cluster.gpu_nodes
    tag = f"moving-image:{uuid.uuid4().hex[:8]}"
    reference = push_files(site, tag, small[0])
    site.client.make(image_model(restricted, "moving", reference, first, **QUICK))
    site.await_condition(restricted, "moving", seconds=120)
    assert push_files(site, tag, small[1]) == reference
    selector: Json = {"kubernetes.io/hostname": None, "nvidia.com/gpu.present": "true"}
    patch = {"spec": {"placement": {"nodeSelector": selector}}}
    site.client.patch(path_of("ModelWeights", restricted, "moving"), patch)
    found = stalled(site, restricted, "moving")
    print(found["message"])
    assert found["reason"] == "DigestMismatch"
    model = site.model(restricted, "moving")
    assert condition(model, "Available")["status"] == "True"
    assert model is not None
    assert {name: entry["state"] for name, entry in model["status"]["nodes"].items()} == {
        first: "Ready",
        second: "Failed",
    }
