"""Fetched sources with the running operator: one revision for all nodes, the caps, what pods are let in, what is said."""

from typing import Any

import pytest

from tests.integration.client import core_path, job_path, model_path
from tests.integration.cluster_double import DIGEST, Team, failure, report
from tests.json_client import Json, RefusedError
from tests.polling import poll

pytestmark = pytest.mark.usefixtures("operator")
COMMIT = "a" * 40
REVISION = "modelweights.io/revision"


def hub(team: Team, name: str = "llama", **fields: Any) -> Json:
    """A repository on a host of the test's own, since the caps count everybody's."""
    source = {"repository": "org/name", "endpoint": f"https://{team.namespace}.example", **fields.pop("of", {})}
    return team.create_model(name, source={"huggingFace": source}, **fields)


def notes(job: Json) -> dict[str, str]:
    found: dict[str, str] = job["metadata"]["annotations"]
    return found


def steps(job: Json) -> list[str]:
    return [container["name"] for container in job["spec"]["template"]["spec"]["initContainers"]]


def entry(team: Team, node: str, name: str = "llama") -> Json:
    found: Json = team.model(name).get("status", {}).get("nodes", {}).get(team.node_name(node), {})
    return found


def test_the_first_node_finds_the_revision_and_the_others_are_given_it(team: Team) -> None:
    for node in ("a", "b"):
        team.add_node(node)
    hub(team, storage={"layout": "HuggingFaceCache"})
    first = team.wait_for_job("a")
    assert REVISION not in notes(first)
    assert "--revision=main" in first["spec"]["template"]["spec"]["initContainers"][0]["args"]
    poll("b waits", lambda: "the first node" in entry(team, "b").get("message", ""))
    assert team.job_of("b") is None

    assert steps(first)[:2] == ["resolve", "fetch"]
    team.end_resolve(first, COMMIT)
    second = team.wait_for_job("b")
    assert entry(team, "a")["state"] == "Staging"
    assert team.model()["status"]["source"]["revision"] == COMMIT
    assert notes(second)[REVISION] == COMMIT
    assert steps(second)[0] == "fetch"
    assert f"--revision={COMMIT}" in second["spec"]["template"]["spec"]["initContainers"][0]["args"]

    for job in (first, second):
        team.end_fetch(job, COMMIT)
        team.end(job, report())
    team.wait_for("Ready", "True")
    status = team.model()["status"]
    folder = f"/data/{team.namespace}/llama/{DIGEST.removeprefix('sha256:')}"
    path = f"{folder}/models--org--name/snapshots/{COMMIT}"
    assert (status["published"]["revision"], status["published"]["path"]) == (COMMIT, path)
    assert (entry(team, "a")["fetchedBytes"], entry(team, "a")["fetchSeconds"]) == (900, 2.5)
    settings = team.admin.get(core_path(team.namespace, "configmaps", "llama"))["data"]
    assert (settings["MODEL_PATH"], settings["HF_HUB_CACHE"], settings["HF_HUB_OFFLINE"]) == (path, folder, "1")
    poll("good Jobs are gone", lambda: not team.admin.items(job_path(team.namespace)))


def test_what_a_job_of_the_former_version_fetched_is_given_to_the_others(team: Team) -> None:
    """It has no step `resolve`, and was under way when the operator was upgraded."""
    for node in ("a", "b"):
        team.add_node(node)
    hub(team)
    team.end_fetch(team.wait_for_job("a"), COMMIT)
    assert notes(team.wait_for_job("b"))[REVISION] == COMMIT


def test_another_branch_is_found_out_anew(team: Team) -> None:
    for node in ("a", "b"):
        team.add_node(node)
    hub(team)
    team.end_resolve(team.wait_for_job("a"), COMMIT)
    team.wait_for_job("b")
    patch = {"spec": {"source": {"huggingFace": {"revision": "v2"}}}}
    team.admin.patch(model_path(team.namespace, "llama"), patch)
    found = poll(
        "a Job that looks",
        lambda: next((job for job in team.jobs() if "v2" in str(job["spec"]["template"])), None),
    )
    assert REVISION not in notes(found)
    assert "source" not in team.model()["status"]


def test_who_fetches_from_one_host_is_counted_over_all_objects(team: Team) -> None:
    """The operator of these tests lets two of them."""
    for node in ("a", "b", "c"):
        team.add_node(node)
    commit = {"revision": COMMIT}
    for name, node in (("one", "a"), ("two", "b"), ("three", "c")):
        selector = {"kubernetes.io/hostname": f"host-{team.node_name(node)}"}
        hub(team, name, of=commit, placement={"nodeSelector": selector})
        if node != "c":
            team.wait_for_job(node)
    poll("c waits", lambda: "fetch.maxConcurrentPerHost is 2" in entry(team, "c", "three").get("message", ""))
    assert f"{team.namespace}/one on {team.node_name('a')}" in entry(team, "c", "three")["message"]
    assert entry(team, "c", "three")["reason"] == "Queued"
    job = team.job_of("a")
    assert job is not None
    team.end_fetch(job, COMMIT)
    team.wait_for_job("c")


def test_one_node_fetches_one_at_a_time(team: Team) -> None:
    team.add_node("a")
    hub(team, "one", of={"revision": COMMIT})
    first = team.wait_for_job("a")
    other = {"objectStore": {"url": f"https://files.{team.namespace}/x/"}}
    team.create_model("two", source=other)
    poll("two waits", lambda: "fetch.maxConcurrentPerNode is 1" in entry(team, "a", "two").get("message", ""))
    team.end_fetch(first, COMMIT)
    poll("two has its Job", lambda: len(team.jobs()) == 2)


def test_a_small_one_goes_before_the_next_node_of_a_large_one(team: Team) -> None:
    """The large one's end wakes it at once, and others look every ten seconds only: it would take each place that is free."""
    for node in ("a", "b", "c", "d", "e"):
        team.add_node(node)
    commit, host = {"revision": COMMIT}, "kubernetes.io/hostname"
    team.label_node("e", {"team": f"{team.namespace}-other"})
    hub(team, "large", of=commit)
    jobs = [team.wait_for_job("a"), team.wait_for_job("b")]
    hub(team, "small", of=commit, placement={"nodeSelector": {host: f"host-{team.node_name('e')}"}})
    poll("e waits", lambda: "maxConcurrentPerHost" in entry(team, "e", "small").get("message", ""))
    team.end_fetch(jobs[0], COMMIT)
    poll("one of the two got it", lambda: team.job_of("c") or team.job_of("e"))
    team.end_fetch(jobs[1], COMMIT)
    team.wait_for_job("e")
    assert team.job_of("d") is None


def test_a_pod_that_cannot_be_scheduled_keeps_no_other_from_its_node(team: Team) -> None:
    team.add_node("a")
    hub(team, "one", of={"revision": COMMIT})
    team.cannot_schedule(team.wait_for_job("a"), 'persistentvolumeclaim "models" not found')
    hub(team, "two", of={"revision": COMMIT})
    poll("two has its Job", lambda: len(team.jobs()) == 2)
    poll("one says why it can't begin", lambda: entry(team, "a", "one").get("reason") == "Unschedulable")


def test_a_job_that_gets_no_pod_keeps_no_other_from_its_node(team: Team) -> None:
    team.add_node("a")
    hub(team, "one", of={"revision": COMMIT})
    job = team.wait_for_job("a")
    team.warn(job, 'pods "x" is forbidden: violates PodSecurity "restricted:latest"')
    hub(team, "two", of={"revision": COMMIT})
    poll("two has its Job", lambda: len(team.jobs()) == 2, seconds=25)
    poll("one says why it can't begin", lambda: "PodSecurity" in entry(team, "a", "one").get("message", ""))


def test_a_gated_repository_stalls_and_says_so(team: Team) -> None:
    team.add_node("a")
    hub(team, of={"tokenSecretRef": {"name": "not-there"}})
    job = team.wait_for_job("a")
    team.end(job, failure("Gated", 20))
    assert "Gated" in team.wait_for("Stalled", "True", "Gated")
    assert team.state("a") == "Failed Gated"


def test_a_storage_class_that_is_not_there_is_said_with_those_that_are(team: Team) -> None:
    team.add_node("a")
    hub(team, storage={"class": "gold"})
    message = team.wait_for("Stalled", "True", "StorageClassNotFound")
    assert "spec.storage.class gold" in message
    assert "(nvme, tenant)" in message


@pytest.mark.parametrize(
    ("storage", "refused"), [({"class": "tenant"}, False), ({"class": "nvme"}, True)], ids=["a claim", "a root"]
)
def test_pods_with_a_claims_class_pass_pod_security_restricted(team: Team, storage: Json, refused: bool) -> None:  # noqa: FBT001
    team.add_node("a")
    hub(team, storage=storage, of={"tokenSecretRef": {"name": "hub"}})
    template = team.wait_for_job("a")["spec"]["template"]
    level = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    team.admin.patch(f"/api/v1/namespaces/{team.namespace}", level)
    pod = {"metadata": {"name": "try"}, "spec": template["spec"]}
    where = f"{core_path(team.namespace, 'pods')}?dryRun=All"
    if refused:
        with pytest.raises(RefusedError, match="violates PodSecurity"):
            team.admin.create(where, pod)
    else:
        team.admin.create(where, pod)


def test_the_longest_name_of_a_model_gets_its_job(team: Team) -> None:
    team.add_node("a")
    name = ".".join(["m" * 62] * 4)[:253].rstrip(".")
    hub(team, name)
    job = team.wait_for_job("a")
    mounts = job["spec"]["template"]["spec"]["initContainers"][steps(job).index("fetch")]["volumeMounts"]
    assert mounts[0]["subPath"] == f"{team.namespace}/{name}"
