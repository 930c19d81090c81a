"""Fetched files that go, with the running operator: superseded ones, those of a deleted object, and what keeps a deletion waiting."""

import json
from typing import Any

import pytest

from tests.integration.client import core_path, job_path, model_path
from tests.integration.cluster_double import Team, end_job, report
from tests.integration.conftest import SYSTEM
from tests.integration.operator_process import OperatorProcess
from tests.json_client import Json
from tests.polling import poll

pytestmark = pytest.mark.usefixtures("operator")
COMMIT, OTHER_COMMIT = "a" * 40, "b" * 40
# Of no other test's: a pod that theirs left behind, lifted and bound to no node, would count as one that uses these files.
DIGEST, OTHER_DIGEST, THIRD_DIGEST = (f"sha256:{digit * 64}" for digit in "def")
FINALIZER = "modelweights.io/cleanup"
DIGESTS = "modelweights.io/digests"


def hub(team: Team, *, commit: str = COMMIT, **fields: Any) -> None:
    source = {"repository": "org/name", "endpoint": f"https://{team.namespace}.example", "revision": commit}
    team.create_model(source={"huggingFace": source}, **fields)


def stage(team: Team, *nodes: str, commit: str = COMMIT, digest: str = DIGEST) -> None:
    for node in nodes:
        job = team.wait_for_job(node)
        team.end_fetch(job, commit)
        team.end(job, report(digest))


def jobs(team: Team) -> list[Json]:
    """Cleanup Jobs, which are in the operator's namespace."""
    of = f"{team.namespace}/llama"
    found = [job for job in team.admin.items(job_path(SYSTEM)) if notes(job)["modelweights.io/cleanup-of"] == of]
    return [job for job in found if "deletionTimestamp" not in job["metadata"]]


def notes(job: Json) -> dict[str, str]:
    found: dict[str, str] = job["metadata"]["annotations"]
    return found


def of_node(team: Team, node: str) -> Json | None:
    full = team.node_name(node)
    found = (job for job in jobs(team) if notes(job)["modelweights.io/node"] == full)
    return next((job for job in found if not job.get("status", {}).get("conditions")), None)


def wait_for_cleanup(team: Team, node: str) -> Json:
    return poll(f"a cleanup Job for {node}", lambda: of_node(team, node), seconds=30)


def gone(team: Team) -> bool:
    return team.admin.find(model_path(team.namespace, "llama")) is None


def events(team: Team, reason: str) -> list[str]:
    found = team.admin.items(core_path(team.namespace, "events"))
    return [each["message"] for each in found if each["reason"] == reason]


def delete(team: Team) -> None:
    team.admin.delete(model_path(team.namespace, "llama"))


def roll_out(team: Team, **fields: Any) -> None:
    """A first revision on the node a, then a second one."""
    team.add_node("a")
    hub(team, **fields)
    stage(team, "a")
    team.wait_for("Ready", "True")
    patch = {"spec": {"source": {"huggingFace": {"revision": OTHER_COMMIT}}}}
    team.admin.patch(model_path(team.namespace, "llama"), patch)
    stage(team, "a", commit=OTHER_COMMIT, digest=OTHER_DIGEST)
    poll("the second one is published", lambda: team.model()["status"]["published"]["manifestDigest"] == OTHER_DIGEST)


def test_a_superseded_checkpoint_goes_after_its_grace_period(team: Team) -> None:
    roll_out(team, storage={"gracePeriodSeconds": 1})
    job = wait_for_cleanup(team, "a")
    assert notes(job)[DIGESTS] == DIGEST
    assert list(team.staged_labels("a").values()) == ["e" * 40]
    end_job(team.admin, job, good=True)
    poll("it is out of the status", lambda: "previous" not in team.model()["status"])
    assert "otherDigests" not in team.model()["status"]["nodes"][team.node_name("a")]
    poll("the Job is gone", lambda: not jobs(team))


def test_it_stays_while_a_pod_uses_it_and_nothing_is_staged_while_it_goes(team: Team) -> None:
    team.add_node("a")
    pod = {
        "metadata": {"name": "engine", "annotations": {"modelweights.io/digest": DIGEST}},
        "spec": {"nodeName": team.node_name("a"), "containers": [{"name": "c", "image": "x"}]},
    }
    team.admin.create(core_path(team.namespace, "pods"), pod)
    hub(team, storage={"gracePeriodSeconds": 1})
    stage(team, "a")
    team.wait_for("Ready", "True")
    patch = {"spec": {"source": {"huggingFace": {"revision": OTHER_COMMIT}}}}
    team.admin.patch(model_path(team.namespace, "llama"), patch)
    stage(team, "a", commit=OTHER_COMMIT, digest=OTHER_DIGEST)
    poll("both are there", lambda: len(team.staged_labels("a")) == 2)
    # Whatever wakes the operator now, it asks for pods each time.
    for number in range(3):
        team.label_node("a", {"touched": str(number)})
        poll("it was looked at", lambda: team.model()["status"]["summary"]["ready"] == 1)
    assert jobs(team) == []
    team.admin.delete(core_path(team.namespace, "pods", "engine"), gracePeriodSeconds=0)
    team.label_node("a", {"touched": "last"})
    job = wait_for_cleanup(team, "a")
    # The way back is waited with until it is gone, and then fetches.
    back = {"spec": {"source": {"huggingFace": {"revision": COMMIT}}, "storage": {"gracePeriodSeconds": 600}}}
    team.admin.patch(model_path(team.namespace, "llama"), back)
    poll("the staging waits", lambda: "are removed there" in str(team.model()["status"]["nodes"]))
    assert team.job_of("a") is None
    end_job(team.admin, job, good=True)
    team.wait_for_job("a")


def test_instead_of_the_oldest_one_that_a_pod_uses_the_next_one_makes_room(team: Team) -> None:
    where = {"retention": "LeastRecentlyUsed"}
    roll_out(team, storage=where)
    patch = {"spec": {"source": {"huggingFace": {"revision": "c" * 40}}}}
    team.admin.patch(model_path(team.namespace, "llama"), patch)
    stage(team, "a", commit="c" * 40, digest=THIRD_DIGEST)
    poll("two are superseded", lambda: len(team.model()["status"].get("previous", ())) == 2)
    pod = {
        "metadata": {"name": "engine", "annotations": {"modelweights.io/digest": DIGEST}},
        "spec": {"nodeName": team.node_name("a"), "containers": [{"name": "c", "image": "x"}]},
    }
    team.admin.create(core_path(team.namespace, "pods"), pod)
    source = {"repository": "org/next", "endpoint": f"https://{team.namespace}.example", "revision": COMMIT}
    team.create_model("next", source={"huggingFace": source}, storage=where)
    figures = {"neededBytes": 900, "diskFreeBytes": 0, "reserveBytes": 0}
    head = {"step": "fetch", "exitCode": 40, "reason": "NoRoom", "message": "no room"}
    team.end(team.wait_for_job("a"), json.dumps({**head, **figures}))
    job = wait_for_cleanup(team, "a")
    assert notes(job)[DIGESTS] == OTHER_DIGEST
    end_job(team.admin, job, good=True)
    assert team.wait_for_job("a")["metadata"]["name"].startswith("stage-next")


def test_a_deletion_waits_for_its_cleanup_and_removes_everything(team: Team) -> None:
    for node in ("a", "b"):
        team.add_node(node)
    hub(team, deletionPolicy="Delete")
    stage(team, "a")
    half = team.wait_for_job("b")
    poll("it is held", lambda: team.model()["metadata"].get("finalizers") == [FINALIZER])
    delete(team)
    first = wait_for_cleanup(team, "a")
    assert notes(first)[DIGESTS] == ""
    assert team.staged_labels("a") == {}
    poll("the staging ends", lambda: half["metadata"]["name"] not in {job["metadata"]["name"] for job in team.jobs()})
    # Removed by hand it comes again.
    team.admin.delete(job_path(SYSTEM, first["metadata"]["name"]), propagationPolicy="Background")
    for node in ("a", "b"):
        end_job(team.admin, wait_for_cleanup(team, node), good=True)
    poll("the object is gone", lambda: gone(team), seconds=30)
    poll("its Jobs are gone", lambda: not jobs(team))
    assert [text for text in events(team, "FilesRemoved") if "from 2 node(s)" in text]


def test_a_node_that_is_gone_keeps_no_deletion_waiting(team: Team) -> None:
    for node in ("a", "b"):
        team.add_node(node)
    hub(team, deletionPolicy="Delete")
    stage(team, "a", "b")
    team.wait_for("Ready", "True")
    delete(team)
    poll("both are cleaned", lambda: of_node(team, "a") and of_node(team, "b"))
    team.delete_node("b")
    end_job(team.admin, wait_for_cleanup(team, "a"), good=True)
    poll("the object is gone", lambda: gone(team), seconds=30)


def test_without_delete_nothing_holds_it_and_nothing_goes(team: Team) -> None:
    team.add_node("a")
    hub(team)
    stage(team, "a")
    team.wait_for("Ready", "True")
    assert "finalizers" not in team.model()["metadata"]
    delete(team)
    poll("the object is gone", lambda: gone(team))
    assert jobs(team) == []


def test_back_to_retain_while_it_is_being_deleted_lets_it_go(team: Team) -> None:
    team.add_node("a")
    hub(team, deletionPolicy="Delete")
    stage(team, "a")
    team.wait_for("Ready", "True")
    delete(team)
    wait_for_cleanup(team, "a")
    team.admin.patch(model_path(team.namespace, "llama"), {"spec": {"deletionPolicy": "Retain"}})
    poll("the object is gone", lambda: gone(team))
    poll("its Job is gone", lambda: not jobs(team))


def test_an_operator_that_was_away_goes_on_with_a_deletion(team: Team, operator: OperatorProcess) -> None:
    team.add_node("a")
    hub(team, deletionPolicy="Delete")
    stage(team, "a")
    team.wait_for("Ready", "True")
    operator.kill()
    delete(team)
    assert not gone(team)
    operator.start()
    end_job(team.admin, wait_for_cleanup(team, "a"), good=True)
    poll("the object is gone", lambda: gone(team), seconds=30)


@pytest.fixture
def claimed(team: Team) -> Team:
    """A class with a claim: its cleanup Jobs are in the object's own namespace."""
    team.add_node("a")
    hub(team, deletionPolicy="Delete", storage={"class": "tenant"})
    stage(team, "a")
    team.wait_for("Ready", "True")
    return team


def test_a_namespace_that_goes_takes_its_claims_along(claimed: Team) -> None:
    """Nobody can make a Job there; there is no namespace controller here, so the test takes the object away itself."""
    claimed.admin.delete(f"/api/v1/namespaces/{claimed.namespace}")
    delete(claimed)
    poll("the object is gone", lambda: gone(claimed), seconds=30)


def test_a_namespace_that_goes_waits_for_the_files_on_its_nodes(team: Team) -> None:
    """Of a class with a root: their Jobs run in the operator's namespace, which takes new ones still."""
    team.add_node("a")
    hub(team, deletionPolicy="Delete")
    stage(team, "a")
    team.wait_for("Ready", "True")
    team.admin.delete(f"/api/v1/namespaces/{team.namespace}")
    delete(team)
    job = wait_for_cleanup(team, "a")
    assert not gone(team)
    end_job(team.admin, job, good=True)
    poll("the object is gone", lambda: gone(team), seconds=30)
    poll("its Job is gone", lambda: not jobs(team))
