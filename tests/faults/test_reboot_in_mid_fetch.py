"""A node goes down in mid-fetch, comes back with another boot, and goes on; what a failed revision left there goes then.

Down as in a reboot, in which the disk gets what was written; and without power, in which ext4 loses what nobody had brought to it.
"""

from collections.abc import Callable, Iterator

import pytest

from tests.checkpoints.synthetic import make_synthetic
from tests.e2e.client import path_of
from tests.e2e.files import sums_on_node
from tests.e2e.objects import NOT_LOADED, model_weights
from tests.e2e.site import FETCHED, Site
from tests.e2e.source_servers import HubServer, start_hub
from tests.e2e.test_nodes import entry, say
from tests.e2e.test_room import folders
from tests.json_client import Json
from tests.polling import poll

pytestmark = pytest.mark.timeout(600, func_only=True)
"""Against hangs only."""
REPOSITORY = "modelweights/three-shards"
BAD, GOOD = "b" * 40, "a" * 40
MIB = 2**20
SIZE_BYTES = 48 * MIB
SHARDS = tuple(f"model-{number:05d}-of-00003.safetensors" for number in (1, 2, 3))
SHARD_BYTES = SIZE_BYTES // len(SHARDS)
STALLED_AFTER_BYTES = 8 * MIB
NOTE_BYTES = 4 * MIB
HOW = ("rebooted", "without power")
WITNESS = "/models/witness"
LOSE_POWER = """
import fcntl, os, struct
EXT4_IOC_SHUTDOWN, NOT_EVEN_THE_JOURNAL = 0x8004587D, 2
fcntl.ioctl(os.open("/models", os.O_RDONLY), EXT4_IOC_SHUTDOWN, struct.pack("I", NOT_EVEN_THE_JOURNAL))
"""


@pytest.fixture(scope="module")
def hub(
    site: Site, make_namespace: Callable[[str, str], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[HubServer]:
    """A hub with two revisions, of which one is no checkpoint that could be loaded."""
    name = make_namespace("reboot-hub", "")
    files = make_synthetic(tmp_path_factory.mktemp("set") / "set", SIZE_BYTES, shards=len(SHARDS))
    server = start_hub(site, name)
    server.add(REPOSITORY, GOOD, files)
    server.add(REPOSITORY, BAD, site.checkpoints / "corrupt")
    server.describe(REPOSITORY, refs={})
    yield server
    site.remove_namespace(name)
    site.cluster.node_exec(site.cluster.cpu_node, ["rm", "-rf", server.folder])


def model(hub: HubServer, namespace: str, name: str, node: str) -> Json:
    """The bad revision first."""
    body = model_weights(namespace, name, "", node, storage={"gracePeriodSeconds": 1}, **NOT_LOADED)
    body["spec"]["source"] = {"huggingFace": {"repository": REPOSITORY, "revision": BAD, "endpoint": hub.url}}
    return body


def sent(hub: HubServer) -> dict[str, int]:
    """Per file, how much of its content the hub ever sent."""
    counters = hub.site.client.get(f"{path_of('Pod', hub.namespace, hub.name)}:8080/proxy/-/counters")
    found: dict[str, int] = {}
    for label, count in counters["bytes"].items():
        name = str(label).rpartition("/")[2]
        found[name] = found.get(name, 0) + int(count)
    return found


def hold_back(hub: HubServer, row: int) -> None:
    """The third shard's first part comes, and then nothing more of it, whoever asks."""
    stalls = {"where": "data", "kind": "stall", "path": f"*{SHARDS[2]}", "seconds": 240}
    # The hub counts by the places in its list.
    used_up = [{"where": "nowhere", "kind": "stall"}] * 2 * row
    hub.settings(faults=[*used_up, {**stalls, "after": STALLED_AFTER_BYTES, "times": 1}, stalls])


def unfinished(site: Site, node: str, home: str) -> str:
    """What lies in a home of a fetch that isn't published."""
    listed = ["find", f"{home}/.fetch", "-mindepth", "1", "-maxdepth", "1", "-type", "d"]
    return site.cluster.node_exec(node, listed).strip()


def noted(site: Site, node: str, home: str) -> set[str]:
    """What the journal of a fetch says of its shards: `done NAME`, `part NAME`."""
    look = r"""sed -nE 's/^[0-9a-f]+ \{"(done|part)":"(model-[^"]+)".*/\1 \2/p' "$1"/.fetch/*/journal || true"""
    return set(site.cluster.node_exec(node, ["sh", "-c", look, "sh", home]).splitlines())


def go_down(site: Site, hub: HubServer, node: str, how: str) -> None:
    """And come back, when the hub is well again. What was just written shows whether the disk got it."""
    site.cluster.node_exec(node, ["sh", "-c", f"echo written > {WITNESS}"])
    if how == "without power":
        site.cluster.node_exec(node, ["python3", "-c", LOSE_POWER])
    site.cluster.stop_node(node)
    hub.settings(faults=[])
    site.cluster.restart_node(node)
    witness = site.cluster.node_exec(node, ["sh", "-c", f"cat {WITNESS} || true; rm -f {WITNESS}"])
    assert witness == ("" if how == "without power" else "written\n")


@pytest.mark.parametrize("how", HOW)
def test_it_goes_on_and_what_a_failed_revision_left_goes(
    site: Site, hub: HubServer, module_namespace: str, how: str
) -> None:
    node, namespace, name = site.cluster.gpu_nodes[0], module_namespace, how.replace(" ", "-")
    home, path, show = (
        f"{FETCHED}/{namespace}/{name}",
        path_of("ModelWeights", namespace, name),
        [site.describe(namespace, name)],
    )
    before = sent(hub)
    site.client.make(model(hub, namespace, name, node))
    poll("it fails", lambda: say(site, namespace, name, node).startswith("Failed"), show=show)
    bad = folders(site, node, home)
    assert len(bad) == 1
    # All that the node has by now outlives a power failure; what comes from now on has to be brought to the disk.
    site.cluster.node_exec(node, ["sync"])

    hold_back(hub, HOW.index(how))
    site.client.patch(path, {"spec": {"source": {"huggingFace": {"revision": GOOD}}}})
    expected = {f"done {SHARDS[0]}", f"done {SHARDS[1]}", f"part {SHARDS[2]}"}
    poll("two shards and a part of the third came", lambda: noted(site, node, home) >= expected, show=show)
    assert f"done {SHARDS[2]}" not in noted(site, node, home)
    assert folders(site, node, home) == bad
    go_down(site, hub, node, how)
    assert "published" not in (site.model(namespace, name) or {})["status"]

    found = site.await_condition(namespace, name, seconds=120)["status"]["published"]
    source = f"{hub.folder}/{REPOSITORY}/{GOOD}"
    assert sums_on_node(site, node, found["path"]) == sums_on_node(site, site.cluster.cpu_node, source)
    _check_what_came_twice(sent(hub), before, how)
    states = list(site.record.states("models", namespace, name))
    told = [(body.get("status") or {}).get("nodes", {}).get(node, {}).get("leftovers", ()) for body in states]
    assert bad in [set(each) for each in told]
    poll("what failed goes", lambda: folders(site, node, home) == {found["manifestDigest"]}, show=show)
    poll("the status says so", lambda: not entry(site, namespace, name, node).get("leftovers"))
    assert unfinished(site, node, home) == ""
    jobs = site.record.states("jobs", namespace)
    ours = {body["metadata"]["uid"] for body in jobs if body["metadata"]["name"].startswith(f"stage-{name}-")}
    assert len(ours) == 3, "one for the bad revision, and then one for each boot"


def _check_what_came_twice(now: dict[str, int], before: dict[str, int], how: str) -> None:
    """What was finished isn't fetched again; of the rest what the journal's notes don't cover, or the disk lost."""
    twice = [now[name] - before.get(name, 0) - SHARD_BYTES for name in SHARDS]
    print(f"{how}: fetched twice {', '.join(f'{each / MIB:.1f}' for each in twice)} MiB of the shards")
    assert max(twice[:2]) < MIB
    assert twice[2] <= (STALLED_AFTER_BYTES if how == "without power" else NOTE_BYTES) + MIB
