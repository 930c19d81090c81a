"""Completes words: for kubectl, which looks for `kubectl_complete-modelweights` on PATH, and for shells by `completion`.

kubectl's protocol is cobra's: the candidates, one a line, and after them a colon and a number that says what the shell may do.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Final

from kubectl_modelweights.options import make_parser

NO_FILES: Final = 4
FILES: Final = 0
_TAKES_FILES: Final = ("--kubeconfig",)

_SCRIPTS: Final = {
    "bash": """\
_kubectl_modelweights() {
    local IFS=$'\\n'
    mapfile -t COMPREPLY < <(kubectl_complete-modelweights "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null | grep -v '^:')
}
complete -o default -F _kubectl_modelweights kubectl-modelweights""",
    "zsh": """\
#compdef kubectl-modelweights
_kubectl_modelweights() {
    local -a found
    found=("${(@f)$(kubectl_complete-modelweights "${(@)words[2,CURRENT]}" 2>/dev/null | grep -v '^:')}")
    compadd -a found
}
compdef _kubectl_modelweights kubectl-modelweights""",
    "fish": """\
function __kubectl_modelweights
    set -l words (commandline -opc) (commandline -ct)
    kubectl_complete-modelweights $words[2..-1] 2>/dev/null | string match -v ':*'
end
complete -c kubectl-modelweights -f -a '(__kubectl_modelweights)'""",
}


def script(shell: str) -> str:
    """What completes `kubectl-modelweights` in a shell; `kubectl modelweights` is completed by kubectl's own script."""
    return _SCRIPTS[shell]


Ask = Callable[[str, Sequence[str]], list[str]]
"""Given `model`, `pod` or `node`, and the words before, the names that there are."""


def candidates(words: Sequence[str], ask: Ask) -> tuple[list[str], int]:
    """What the last word may become, and whether the shell may offer files.

    Args:
        words: After `kubectl modelweights`; the last one is being typed and may be "".
        ask: Looks names up.
    """
    *before, typed = words or [""]
    commands = _commands()
    chosen = next((word for word in before if word in commands), "")
    if not chosen:
        found = list(commands)
    elif chosen == "stage":
        return [], FILES
    else:
        command = commands[chosen]
        previous = before[-1]
        if previous in _TAKES_FILES:
            return [], FILES
        option = _option(command, previous)
        if option is not None and option.nargs != 0:
            found = _values(option, before, ask)
        elif typed.startswith("-"):
            found = [text for action in command._actions for text in action.option_strings if text.startswith("--")]  # noqa: SLF001 - argparse shows them no other way
        else:
            found = _positional(command, before[before.index(chosen) + 1 :], before, ask)
    return [word for word in found if word.startswith(typed)], NO_FILES


def _commands() -> dict[str, argparse.ArgumentParser]:
    parser = make_parser()
    actions = parser._actions  # noqa: SLF001 - argparse shows them no other way
    return next(dict(action.choices) for action in actions if isinstance(action, argparse._SubParsersAction))  # noqa: SLF001 - as above


def _option(command: argparse.ArgumentParser, word: str) -> argparse.Action | None:
    return next((action for action in command._actions if word in action.option_strings), None)  # noqa: SLF001 - argparse shows them no other way


def _values(option: argparse.Action, before: Sequence[str], ask: Ask) -> list[str]:
    if option.choices is not None:
        return list(option.choices)
    if option.dest in ("namespace", "context", "node"):
        return ask(option.dest, before)
    return []


def _positional(command: argparse.ArgumentParser, given: Sequence[str], before: Sequence[str], ask: Ask) -> list[str]:
    """Each command has at most one."""
    positional = next((action for action in command._actions if not action.option_strings), None)  # noqa: SLF001 - argparse shows them no other way
    if positional is None:
        return []
    words = list(given)
    while words:
        word = words.pop(0)
        option = _option(command, word)
        if option is None and not word.startswith("-"):
            return []
        if option is not None and option.nargs != 0 and words:
            words.pop(0)
    if positional.choices is not None:
        return list(positional.choices)
    return ask("pod" if positional.dest == "pod" else "model", before)


def _look_up(kind: str, before: Sequence[str]) -> list[str]:
    """Names of the cluster; none when it can't be asked, since nobody wants errors while typing."""
    from kubectl_modelweights.client import RESOURCE, Client  # noqa: PLC0415 - only where something is asked
    from kubectl_modelweights.errors import CommandError  # noqa: PLC0415

    client = Client(scope(before))
    try:
        if kind == "context":
            return client.run("config", "get-contexts", "--output=name").split()
        resource = {"model": RESOURCE, "pod": "pods", "node": "nodes", "namespace": "namespaces"}[kind]
        return [word.rpartition("/")[2] for word in client.run("get", resource, "--output=name").split()]
    except CommandError:
        return []


def scope(before: Sequence[str]) -> tuple[str, ...]:
    """The options among the words that say which cluster and namespace is meant, as kubectl takes them."""
    found = []
    following = [*before[1:], ""]
    for word, after in zip(before, following, strict=True):
        name, equals, value = word.partition("=")
        option = next((option for option, words in _SCOPES.items() if name in words), "")
        if option:
            found.append(f"--{option}={value if equals else after}")
    return tuple(found)


_SCOPES: Final = {
    "namespace": ("-n", "--namespace"),
    "context": ("--context",),
    "kubeconfig": ("--kubeconfig",),
    "as": ("--as",),
}


def main() -> int:
    """The program `kubectl_complete-modelweights`."""
    found, directive = candidates(sys.argv[1:], _look_up)
    sys.stdout.write("".join(f"{word}\n" for word in found) + f":{directive}\n")
    return 0
