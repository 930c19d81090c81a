"""Readers by a volume that the administrator made by hand, in another namespace: the operator doesn't see them. docs/room.md, "In use".

One holds the files with `modelweights-loader wait --hold` and keeps them; the other one doesn't, and loses them: that is the limit.
"""

from collections.abc import Callable, Iterator
from functools import partial

import pytest

from modelweights_operator.domain import names
from tests.e2e.files import SUMS, parse_sums, sums_on_node
from tests.e2e.objects import RESTRICTED, bound_volume, stand_in_pod
from tests.e2e.site import FETCHED, Site
from tests.e2e.test_room import cleanup_jobs, copied, folders, move_on
from tests.installation import condition
from tests.json_client import Json
from tests.polling import poll

pytestmark = [pytest.mark.usefixtures("sources"), pytest.mark.timeout(600, func_only=True)]
CLAIM = "weights"
MOUNTED = "/weights"
SCRATCH = "/tmp"  # noqa: S108 - the pod's own
READER = "stand-in-for-engine"


@pytest.fixture
def consumer(site: Site, make_namespace: Callable[[str, str], str]) -> Iterator[str]:
    """Another namespace, with a claim on a volume of the class' root that nobody told the operator of."""
    name = make_namespace("by-hand", "restricted")
    place = {"path": FETCHED, "type": "Directory"}
    volume, claim = bound_volume(name, CLAIM, "ReadOnlyMany", hostPath=place)
    site.client.create("/api/v1/persistentvolumes", volume)
    site.client.make(claim)
    yield name
    site.remove_namespace(name)
    site.client.remove(f"/api/v1/persistentvolumes/{name}")


def reader(site: Site, consumer: str, name: str, node: str, folder: str, *, hold: bool) -> Json:
    """A pod that reads a folder, as its namespace sees it, at its start and once more when it is told to."""
    mounts = [{"name": "weights", "mountPath": MOUNTED, "readOnly": True}, {"name": "tmp", "mountPath": SCRATCH}]
    holding = {
        "name": "hold",
        "image": site.images.loader,
        "restartPolicy": "Always",
        "args": ["wait", folder, "--hold", "--held-file", f"{SCRATCH}/held"],
        "startupProbe": {
            "exec": {"command": ["test", "-e", f"{SCRATCH}/held"]},
            "periodSeconds": 1,
            "failureThreshold": 60,
        },
        "securityContext": RESTRICTED,
        "volumeMounts": mounts,
    }
    read = f"cd {folder} && {SUMS}; while [ ! -e {SCRATCH}/again ]; do sleep 0.2; done; echo --; {SUMS}"
    container = {"command": ["sh", "-c", read], "securityContext": RESTRICTED, "volumeMounts": mounts}
    return stand_in_pod(
        consumer,
        name,
        site.images.loader,
        container=container,
        initContainers=[holding] if hold else [],
        nodeSelector={"kubernetes.io/hostname": node},
        volumes=[
            {"name": "weights", "persistentVolumeClaim": {"claimName": CLAIM, "readOnly": True}},
            {"name": "tmp", "emptyDir": {}},
        ],
    )


def test_who_holds_keeps_the_files_and_who_does_not_loses_them(
    site: Site, module_namespace: str, consumer: str
) -> None:
    (held, free), namespace = site.cluster.gpu_nodes, module_namespace
    home = f"{FETCHED}/{namespace}/llama"
    site.client.make(copied(namespace, "llama", 1, gracePeriodSeconds=1))
    published = site.await_condition(namespace, "llama")["status"]["published"]
    first = published["manifestDigest"]
    sums = sums_on_node(site, held, published["path"])
    folder = published["path"].replace(FETCHED, MOUNTED, 1)
    for name, node, hold in (("holds", held, True), ("reads", free, False)):
        site.client.make(reader(site, consumer, name, node, folder, hold=hold))
    for name in ("holds", "reads"):
        site.await_running(consumer, name)
        poll(f"{name} has read", partial(_has_read, site, consumer, name, sums))

    model = move_on(site, namespace, "llama", 2)
    second = model["status"]["published"]["manifestDigest"]
    poll("it goes from the node where nobody holds it", lambda: folders(site, free, home) == {second})
    poll("it is refused on the other one", lambda: _refused(site, model, held))
    assert folders(site, held, home) == {first, second}
    again = ["touch", f"{SCRATCH}/again"]
    site.cluster.kubectl("exec", f"--namespace={consumer}", "holds", f"--container={READER}", "--", *again)
    site.await_phase(consumer, "holds", "Succeeded")
    assert parse_sums(site.log(consumer, "holds", READER).partition("--\n")[2]) == sums
    # The sidecar ends with the pod, and the next Job finds nobody there any more.
    poll("it goes from there too", lambda: folders(site, held, home) == {second}, seconds=120)


def _has_read(site: Site, namespace: str, name: str, sums: dict[str, str]) -> bool:
    return parse_sums(site.log(namespace, name, READER)) == sums


def _refused(site: Site, model: Json, node: str) -> bool:
    """Whether a cleanup Job failed on a node."""
    return any(
        condition(body, "Failed").get("status") == "True"
        and body["metadata"]["annotations"][names.NODE_ANNOTATION] == node
        for body in cleanup_jobs(site, model)
    )
