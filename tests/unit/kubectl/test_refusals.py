"""What kubectl complains about becomes a cause and a remedy."""

import pytest

from kubectl_modelweights import refusals


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ('error: the server doesn\'t have a resource type "modelweights"', "install the operator's chart"),
        ("The connection to the server localhost:8080 was refused - did you", "there is no kubeconfig"),
        ("error: You must be logged in to the server (Unauthorized)", "log in again"),
        (
            'Error from server (Forbidden): pods is forbidden: User "v" cannot list',
            'pods is forbidden: User "v" cannot list; an',
        ),
        ('error: context "x" does not exist', 'context "x" does not exist; kubectl config get-contexts'),
        ("Unable to connect to the server: dial tcp: lookup x: no such host", "the API server can't be reached"),
        (
            "E1201 memcache.go] retry\nThe connection to the server 10.0.0.1:6443 was refused",
            "the API server can't be reached",
        ),
        ('Error from server (NotFound): pods "x" not found', 'pods "x" not found'),
        ("error: stat /no/config: no such file or directory", "stat /no/config: no such file or directory"),
        ("", "kubectl failed and said nothing"),
    ],
)
def test_a_complaint_becomes_one_line(said: str, expected: str) -> None:
    found = refusals.translate(said)
    assert found.startswith(expected) or expected in found
    assert "\n" not in found


@pytest.mark.parametrize(
    ("name", "names", "expected"),
    [
        ("lama", ["llama", "qwen"], "did you mean llama?"),
        ("zzz", ["llama", "qwen"], "there are: llama, qwen"),
        (
            "zzz",
            [f"model-{number}" for number in range(7)],
            "there are: model-0, model-1, model-2, model-3, model-4 and 2 more",
        ),
        ("zzz", [], "there are none in this namespace: name another with --namespace"),
    ],
)
def test_near_names_are_offered(name: str, names: list[str], expected: str) -> None:
    assert refusals.near(name, names) == expected
