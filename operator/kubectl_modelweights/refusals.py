"""What kubectl complains about, in words that name the cause and the remedy. Called by `client`; pure."""

import re
from collections.abc import Callable, Iterable
from typing import Final

from kubectl_modelweights import reading

_PREFIX: Final = re.compile(r"^(?:error: |Error from server \((\w+)\): |Error from server: )")

_INSTALL: Final = (
    "this cluster has no resource ModelWeights: install the operator's chart, or name another cluster with --context"
)
_NO_CONFIG: Final = "there is no kubeconfig: name one with --kubeconfig or in the variable KUBECONFIG"
_LOGIN: Final = "the API server doesn't take these credentials: log in again, or name another user with --context"
_RIGHTS: Final = "; an administrator grants it (docs/kubectl.md lists the rights that each command needs)"
_UNREACHABLE: Final = "the API server can't be reached, is this the right --context? kubectl says: "

_RULES: Final[tuple[tuple[str, Callable[[str], str]], ...]] = (
    ("doesn't have a resource type \"modelweights", lambda _said: _INSTALL),
    ("localhost:8080", lambda _said: _NO_CONFIG),
    ("no configuration has been provided", lambda _said: _NO_CONFIG),
    ("must be logged in", lambda _said: _LOGIN),
    ("(Unauthorized)", lambda _said: _LOGIN),
    ("(Forbidden)", lambda said: _plain(said) + _RIGHTS),
    ("context was not found", lambda said: f"{_plain(said)}; kubectl config get-contexts lists those that there are"),
    ("does not exist", lambda said: f"{_plain(said)}; kubectl config get-contexts lists the contexts that there are"),
    ("Unable to connect", lambda said: _UNREACHABLE + _plain(said)),
    ("was refused", lambda said: _UNREACHABLE + _plain(said)),
    ("timed out", lambda said: _UNREACHABLE + _plain(said)),
    ("deadline exceeded", lambda said: _UNREACHABLE + _plain(said)),
)


def translate(said: str) -> str:
    """One line.

    Args:
        said: kubectl's standard error.
    """
    for mark, explain in _RULES:
        if mark in said:
            return explain(said)
    return _plain(said) or "kubectl failed and said nothing"


def is_not_found(said: str) -> bool:
    """Whether a translated complaint is about an object that isn't there."""
    return said.endswith("not found")


def _plain(said: str) -> str:
    """The last line that says something, without what kubectl puts in front."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return _PREFIX.sub("", lines[-1]) if lines else ""


def near(name: str, names: Iterable[str]) -> str:
    """A hint at names that are like the one that isn't there; else those that there are, else that there are none."""
    import difflib  # noqa: PLC0415 - only when something is missing

    known = sorted(names)
    alike = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    if alike:
        return f"did you mean {' or '.join(alike)}?"
    if not known:
        return "there are none in this namespace: name another with --namespace"
    return f"there are: {reading.some(known, most=5)}"
