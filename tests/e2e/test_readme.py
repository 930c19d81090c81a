"""The README's commands for a cluster, as they stand, in their order."""

import re
import shlex
from collections.abc import Iterator

import pytest

from tests.e2e.site import Site
from tests.installation import REPOSITORY, condition, get_json

MANIFESTS = ("docs/examples/deployment.yaml", "docs/examples/modelweights.yaml")


def commands() -> list[list[str]]:
    """Each line of the README's console blocks that starts helm or kubectl, in words."""
    blocks = re.findall(r"```console\n(.*?)```", (REPOSITORY / "README.md").read_text(), re.DOTALL)
    lines = [shlex.split(line.removeprefix("$ ")) for block in blocks for line in block.splitlines()]
    return [words for words in lines if words[0] in ("helm", "kubectl")]


@pytest.fixture
def emptied(site: Site) -> Iterator[None]:
    """Takes away what the README makes."""
    yield
    for manifest in MANIFESTS:
        site.cluster.kubectl(
            "delete", "--ignore-not-found", "--cascade=foreground", f"--filename={manifest}", timeout=90
        )


@pytest.mark.usefixtures("emptied")
def test_the_readmes_commands_do_what_it_says(site: Site) -> None:
    """`helm install` becomes an upgrade that keeps the tests' images: the chart is installed here already."""
    (helm, *kubectl) = commands()
    assert helm[:2] == ["helm", "install"]
    assert all(words[0] == "kubectl" for words in kubectl)

    site.cluster.helm("upgrade", "--reuse-values", *[word for word in helm[2:] if word != "--create-namespace"])
    for words in kubectl:
        site.cluster.kubectl(*words[1:], timeout=150)

    assert condition(get_json(site.cluster, "mw", "minilm"), "Ready")["status"] == "True"
    deployment = get_json(site.cluster, "deployment", "engine")
    assert deployment["spec"]["template"]["spec"]["schedulingGates"] == [{"name": "modelweights.io/staged"}]
