"""docs/kubectl.md: each command in it is one that there is, each that there is stands in it, and the README leads there."""

import re
import shlex
from pathlib import Path

import pytest

from kubectl_modelweights import completion, options

REPOSITORY = Path(__file__).resolve().parents[3]
TEXT = (REPOSITORY / "docs/kubectl.md").read_text()


def commands() -> list[str]:
    """The lines of the document's console blocks that start the plugin."""
    blocks = re.findall(r"```console\n(.*?)```", TEXT, re.DOTALL)
    return [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ kubectl modelweights ")]


@pytest.mark.parametrize("command", commands())
def test_a_shown_command_is_taken(command: str) -> None:
    parser = options.make_parser()
    # What follows belongs to the shell.
    words = re.split(r" (?:>|\|\|) ", command)[0]
    arguments = parser.parse_args(shlex.split(words, comments=True)[2:])
    options.check(parser, arguments)


def test_each_command_is_shown() -> None:
    shown = {command.split()[2] for command in commands()}
    assert shown == set(completion.candidates([""], lambda _kind, _words: [])[0])


def test_the_picture_is_there_and_was_drawn_by_the_script() -> None:
    picture = (REPOSITORY / "docs/figures/status.svg").read_text()
    assert "figures/status.svg" in TEXT
    assert "rich-terminal" in picture
    assert "kubectl&#160;modelweights" in picture or "kubectl modelweights" in picture
