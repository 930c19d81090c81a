"""The README's commands for a cluster, as they stand, in their order."""

import re
import shlex
from collections.abc import Iterator

import pytest

from modelweights_operator.domain import names
from tests.e2e.client import version
from tests.e2e.site import Site
from tests.installation import REPOSITORY, condition, get_json
from tests.json_client import Json

MANIFESTS = ("docs/examples/deployment.yaml", "docs/examples/modelweights.yaml")


def commands() -> list[list[str]]:
    """Each line of the README's console blocks that starts helm or kubectl, in words."""
    blocks = re.findall(r"```console\n(.*?)```", (REPOSITORY / "README.md").read_text(), re.DOTALL)
    lines = [shlex.split(line.removeprefix("$ ")) for block in blocks for line in block.splitlines()]
    return [words for words in lines if words[0] in ("helm", "kubectl")]


@pytest.fixture(scope="module")
def helm_and_kubectl(site: Site) -> Iterator[list[list[str]]]:
    """Runs the commands, and takes away what they made.

    `helm install` becomes an upgrade that keeps the tests' images: the chart is installed here already.
    """
    (helm, *kubectl) = commands()
    site.cluster.helm("upgrade", "--reuse-values", *[word for word in helm[2:] if word != "--create-namespace"])
    for words in kubectl:
        site.cluster.kubectl(*words[1:], timeout=150)
    yield [helm, *kubectl]
    for manifest in MANIFESTS:
        site.cluster.kubectl(
            "delete", "--ignore-not-found", "--cascade=foreground", f"--filename={manifest}", timeout=90
        )


def test_the_readmes_commands_do_what_it_says(site: Site, helm_and_kubectl: list[list[str]]) -> None:
    (helm, *kubectl) = helm_and_kubectl
    assert helm[:2] == ["helm", "install"]
    assert all(words[0] == "kubectl" for words in kubectl)
    assert condition(get_json(site.cluster, "mw", "minilm"), "Ready")["status"] == "True"
    deployment = get_json(site.cluster, "deployment", "engine")
    assert deployment["spec"]["template"]["spec"]["schedulingGates"] == [{"name": "modelweights.io/staged"}]


@pytest.mark.usefixtures("helm_and_kubectl")
def test_the_second_node_is_begun_once_the_first_has_proven_it(site: Site) -> None:
    """The README's object says nothing of canaryNodes: one is the default."""
    made = {body["metadata"]["uid"]: body for event, body in site.record.history("jobs", "default") if event == "ADDED"}
    first, second = sorted(made.values(), key=version)
    nodes = {each["metadata"]["annotations"][names.NODE_ANNOTATION] for each in (first, second)}
    assert nodes == set(site.cluster.gpu_nodes)
    proven = next(pod for pod in site.record.states("pods", "default") if _has_proven(pod, first["metadata"]["uid"]))
    assert version(second) > version(proven)


def _has_proven(pod: Json, job_uid: str) -> bool:
    """Whether a pod is of that Job, and its step `validate` ended well."""
    owners = [owner["uid"] for owner in pod["metadata"].get("ownerReferences") or []]
    ends = {
        status["name"]: status["state"].get("terminated") or {}
        for status in pod["status"].get("initContainerStatuses") or []
    }
    return job_uid in owners and ends.get("validate", {}).get("exitCode") == 0
