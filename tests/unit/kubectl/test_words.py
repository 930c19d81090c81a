"""The command line: what it refuses, what it completes, what the commands that write decide, and how lightly it starts."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from kubectl_modelweights import client, completion, writes
from kubectl_modelweights.cli import main
from kubectl_modelweights.errors import CommandError
from tests.unit.kubectl.samples import READY, entry, model

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["nonsense"],
        ["why"],
        ["status", "-o", "xml"],
        ["status", "--watch", "-o", "json"],
        ["status", "llama", "--all-namespaces"],
        ["flags", "llama", "--engine", "tgi"],
    ],
)
def test_wrong_words_are_exit_code_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert "Traceback" not in capsys.readouterr().err


def test_without_kubectl_it_says_so(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECTL", "no-such-kubectl")
    assert main(["status"]) == 1
    assert "no-such-kubectl isn't on PATH" in capsys.readouterr().err


def test_stage_hands_its_words_to_the_loader(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "kubectl_modelweights", "stage", str(tmp_path / "nothing")]
    path = f"{REPOSITORY / 'operator'}:{REPOSITORY / 'loader'}"
    done = subprocess.run(argv, env={"PYTHONPATH": path}, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 20
    assert "NotFound" in done.stdout + done.stderr


@pytest.mark.parametrize(
    "heavy", ["kubernetes", "pydantic", "kopf", "torch", "rich", "yaml", "modelweights_operator.api"]
)
def test_starting_loads_nothing_heavy(heavy: str) -> None:
    code = (
        "import sys, kubectl_modelweights.cli, kubectl_modelweights.completion, kubectl_modelweights.status, "
        "kubectl_modelweights.gathered, kubectl_modelweights.explain, kubectl_modelweights.watching; "
        f"sys.exit({heavy!r} in sys.modules)"
    )
    path = f"{REPOSITORY / 'operator'}:{REPOSITORY / 'loader'}"
    assert (
        subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": path}, timeout=60, check=False).returncode == 0
    )


# --- completion -------------------------------------------------------------------------------------------------------


def _ask(kind: str, _before: Sequence[str]) -> list[str]:
    return [f"{kind}-1", f"{kind}-2"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["sta"], ["status", "stage"]),
        (["why", ""], ["model-1", "model-2"]),
        (["gate", "pod-1"], ["pod-1"]),
        (["why", "-n", "x", ""], ["model-1", "model-2"]),
        (["why", "-n", ""], ["namespace-1", "namespace-2"]),
        (["why", "llama", ""], []),
        (["status", "--all"], ["--all-namespaces"]),
        (["flags", "x", "--engine", "v"], ["vllm"]),
        (["retry", "x", "--node", ""], ["node-1", "node-2"]),
        (["status", "-o", ""], ["json", "yaml"]),
        (["top", ""], []),
        (["completion", ""], ["bash", "zsh", "fish"]),
    ],
)
def test_completed_words(words: list[str], expected: list[str]) -> None:
    assert completion.candidates(words, _ask) == (expected, completion.NO_FILES)


@pytest.mark.parametrize("words", [["stage", ""], ["why", "--kubeconfig", ""]])
def test_where_files_are_meant_the_shell_completes(words: list[str]) -> None:
    assert completion.candidates(words, _ask) == ([], completion.FILES)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["why", "-n", "x"], ("--namespace=x",)),
        (["why", "--namespace=x", "--context", "c"], ("--namespace=x", "--context=c")),
        (["why"], ()),
    ],
)
def test_names_are_looked_up_where_they_are_meant(words: list[str], expected: tuple[str, ...]) -> None:
    assert completion.scope(words) == expected


def test_the_script_for_bash_is_one() -> None:
    subprocess.run(["bash", "-n"], input=completion.script("bash"), text=True, check=True, timeout=20)


# --- writes -----------------------------------------------------------------------------------------------------------

FAILED = entry("Failed", "Bad")


def test_the_named_node_comes_first_and_others_are_told() -> None:
    assert writes.failed_nodes(model({"a": FAILED, "b": READY, "c": FAILED}), "c") == ["c", "a"]
    assert writes.failed_nodes(model({"a": READY}), "") == []


@pytest.mark.parametrize(
    ("node", "complaint"), [("b", "b has not failed, it is Ready"), ("x", "isn't staged on a node x")]
)
def test_a_node_that_has_not_failed_is_no_reason_to_retry(node: str, complaint: str) -> None:
    with pytest.raises(CommandError, match=complaint):
        writes.failed_nodes(model({"a": FAILED, "b": READY}), node)


@pytest.mark.parametrize(
    ("metadata", "tool"),
    [
        ({}, "a GitOps tool"),
        ({"annotations": {"argocd.argoproj.io/tracking-id": "x"}}, "Argo CD"),
        ({"labels": {"kustomize.toolkit.fluxcd.io/name": "x"}}, "Flux"),
        ({"annotations": {"meta.helm.sh/release-name": "x"}}, "Helm"),
    ],
)
def test_who_will_put_it_back_is_named(metadata: dict[str, dict[str, str]], tool: str) -> None:
    note = writes.gitops_note(metadata, suspend=True)
    assert note.startswith(tool)
    assert "spec.suspend: true" in note


# --- kubectl's stream -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        '{"a": {\n"b": 1\n}\n}\n{"a": 2}\n',
        '{"a": {"b": 1}}\n{"a": 2}\n',
        '{\n    "a": {\n        "b": 1\n    }\n}\n{\n"a": 2\n}\n',
    ],
)
def test_objects_of_a_stream(text: str) -> None:
    assert list(client.parse_stream(iter(text.splitlines(keepends=True)))) == [{"a": {"b": 1}}, {"a": 2}]
