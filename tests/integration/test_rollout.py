"""Another revision under pods that run and wait: rolled out, rolled back, bad, and in one commit with what needs it."""

from typing import Any

import pytest

from modelweights_operator.domain import names
from tests.integration.client import core_path, model_path
from tests.integration.cluster_double import DIGEST, Team, failure, gated_pod, report
from tests.json_client import Json
from tests.polling import poll

pytestmark = pytest.mark.usefixtures("operator")
FIRST, SECOND = "1" * 40, "2" * 40
OTHER = "sha256:" + "b" * 64
DIGESTS = {FIRST: DIGEST, SECOND: OTHER}


@pytest.fixture
def site(team: Team) -> Team:
    """Two nodes that hold the first commit of a repository."""
    for node in ("a", "b"):
        team.add_node(node)
    source = {"repository": "org/name", "endpoint": f"https://{team.namespace}.example", "revision": FIRST}
    team.create_model(source={"huggingFace": source})
    stage(team, FIRST, "a", "b")
    team.wait_for("Ready", "True")
    return team


def ask(team: Team, revision: str, **placement: Any) -> None:
    """Edit the spec."""
    spec: Json = {"source": {"huggingFace": {"revision": revision}}}
    if placement:
        spec["placement"] = placement
    team.admin.patch(model_path(team.namespace, "llama"), {"spec": spec})


def job_for(team: Team, node: str, revision: str) -> Json:
    """The node's Job, of that very revision."""

    def probe() -> Json | None:
        job = team.job_of(node)
        notes = job["metadata"]["annotations"] if job else {}
        return job if notes.get(names.REVISION_ANNOTATION) == revision else None

    return poll(f"a Job for {revision[:7]} on {node}", probe)


def stage(team: Team, revision: str, *nodes: str) -> None:
    """Let nodes fetch and prove a commit."""
    for node in nodes:
        job = job_for(team, node, revision)
        team.end_fetch(job, revision)
        team.end(job, report(DIGESTS[revision]))


def add_pod(team: Team, name: str, require: str) -> None:
    team.admin.create(core_path(team.namespace, "pods"), gated_pod(name, require))


def digest_of(team: Team, name: str) -> str:
    """The digest that a pod was lifted with, "" while it waits."""
    pod = team.admin.get(core_path(team.namespace, "pods", name))
    gated = any(gate["name"] == names.GATE for gate in pod["spec"].get("schedulingGates", []))
    return "" if gated else pod["metadata"]["annotations"][names.DIGEST_ANNOTATION]


def wait_lifted(team: Team, name: str, digest: str) -> None:
    assert poll(f"{name} is lifted", lambda: digest_of(team, name)) == digest


def published(team: Team) -> str:
    found: str = team.model()["status"]["published"]["revision"]
    return found


def labels(team: Team, node: str) -> set[str]:
    return set(team.staged_labels(node).values())


SHORT, SHORT_OTHER = (digest.removeprefix("sha256:")[:40] for digest in (DIGEST, OTHER))


def test_a_rollout_and_the_way_back(site: Team) -> None:
    add_pod(site, "before", "llama")
    wait_lifted(site, "before", DIGEST)
    everything = {"nodeSelector": {"team": site.namespace}, "canaryNodes": 0, "minAvailableNodes": 2}
    ask(site, SECOND, **everything)
    stage(site, SECOND, "a")
    poll("the candidate is told", lambda: site.model()["status"].get("candidate", {}).get("revision") == SECOND)
    poll("a holds both", lambda: labels(site, "a") == {SHORT, SHORT_OTHER})
    assert site.conditions()["Available"] == ("True", "NodesStaged")
    assert published(site) == FIRST
    assert DIGEST.removeprefix("sha256:") in settings(site)["MODEL_PATH"]
    add_pod(site, "meanwhile", "llama")
    wait_lifted(site, "meanwhile", DIGEST)

    stage(site, SECOND, "b")
    poll("the second one is published", lambda: published(site) == SECOND)
    status = site.model()["status"]
    assert status["published"]["requested"] == SECOND
    assert [known["revision"] for known in status["previous"]] == [FIRST]
    assert status["previous"][0]["supersededAt"]
    assert labels(site, "b") == {SHORT, SHORT_OTHER}
    assert OTHER.removeprefix("sha256:") in settings(site)["MODEL_PATH"]
    for name, require, digest in (
        ("new", "llama", OTHER),
        ("old", f"llama@{FIRST[:7]}", DIGEST),
        ("by-digest", f"llama@{OTHER}", OTHER),
    ):
        add_pod(site, name, require)
        wait_lifted(site, name, digest)
    assert digest_of(site, "before") == digest_of(site, "meanwhile") == DIGEST

    ask(site, FIRST)
    stage(site, FIRST, "a")
    poll("the first one is published by one node for both", lambda: published(site) == FIRST)
    assert site.state("b") != "Ready Staged"
    assert site.conditions()["Available"] == ("True", "NodesStaged")
    stage(site, FIRST, "b")
    site.wait_for("Ready", "True")
    assert [known["revision"] for known in site.model()["status"]["previous"]] == [SECOND]
    assert digest_of(site, "new") == OTHER


def settings(team: Team) -> dict[str, str]:
    found: dict[str, str] = team.admin.get(core_path(team.namespace, "configmaps", "llama"))["data"]
    return found


def test_a_bad_revision_changes_nothing_for_pods(site: Team) -> None:
    bad = "3" * 40
    before = site.model()["status"]["published"]
    ask(site, bad)
    add_pod(site, "asks-for-it", f"llama@{bad}")
    for node in ("a", "b"):
        site.end(job_for(site, node, bad), failure("MissingShard", 30))
    assert "MissingShard" in site.wait_for("Stalled", "True")
    assert site.model()["status"]["published"] == before
    assert site.conditions()["Available"] == ("True", "NodesStaged")
    assert [labels(site, node) for node in ("a", "b")] == [{SHORT}, {SHORT}]
    add_pod(site, "any", "llama")
    wait_lifted(site, "any", DIGEST)
    assert digest_of(site, "asks-for-it") == ""
    ask(site, FIRST)
    stage(site, FIRST, "a", "b")
    site.wait_for("Ready", "True")


@pytest.mark.parametrize("model_first", [True, False], ids=["the ModelWeights first", "the Deployment first"])
def test_one_commit_that_changes_both_is_right_in_either_order(site: Team, model_first: bool) -> None:  # noqa: FBT001
    if model_first:
        ask(site, SECOND)
    add_pod(site, "new", f"llama@{SECOND}")
    if not model_first:
        ask(site, SECOND)
    job = job_for(site, "a", SECOND)
    add_pod(site, "old-again", f"llama@{FIRST}")
    wait_lifted(site, "old-again", DIGEST)
    assert digest_of(site, "new") == ""
    site.end_fetch(job, SECOND)
    site.end(job, report(OTHER))
    wait_lifted(site, "new", OTHER)
    add_pod(site, "old-at-last", f"llama@{FIRST}")
    wait_lifted(site, "old-at-last", DIGEST)


def test_a_revision_that_nobody_has_is_told_with_those_that_there_are(site: Team) -> None:
    add_pod(site, "astray", "llama@v9")
    events = core_path(site.namespace, "events")
    told = poll(
        "the pod is told", lambda: [each for each in site.admin.items(events) if each["reason"] == "RevisionNotFound"]
    )
    assert told[0]["involvedObject"]["name"] == "astray"
    assert f"there: {FIRST} (sha256:{SHORT[:12]})" in told[0]["message"]
    assert digest_of(site, "astray") == ""
