"""The command line's words: commands and options as kubectl has them. Called by `cli` and `completion`; imports nothing else of us."""

import argparse
from typing import TYPE_CHECKING, Final

from kubectl_modelweights.errors import EXIT_USAGE

SHELLS: Final = ("bash", "zsh", "fish")
OUTPUTS: Final = ("json", "yaml")
ENGINES: Final = ("vllm", "sglang", "all")

_EPILOG: Final = (
    "exit codes: 0 done; 1 the cluster can't be asked, refuses or has no such object, or `verify` found a difference; "
    "2 the command line is wrong; 130 interrupted. Everything but retry, pause and resume only reads."
)


def make_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="kubectl modelweights",
        description="What each model does on each node, and why.",
        epilog=_EPILOG,
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_reading(commands)
    _add_writing(commands)
    return parser


if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001 - the only name of that type


def _add_reading(commands: "Commands") -> None:
    status = _command(commands, "status", "where each node stands")
    status.add_argument("name", nargs="?", metavar="NAME", help="one ModelWeights, with all its nodes")
    status.add_argument("-w", "--watch", action="store_true", help="draw anew when something changes, until Ctrl-C")
    _everywhere(status)
    why = _command(commands, "why", "what keeps a ModelWeights from being ready, and what to do")
    why.add_argument("name", metavar="NAME", help="a ModelWeights")
    gate = _command(commands, "gate", "why a pod waits at the gate")
    gate.add_argument("pod", metavar="POD", help="a pod")
    top = _command(commands, "top", "residency, memory and disk by node")
    _everywhere(top)
    flags = _command(commands, "flags", "the engine settings that the operator published")
    flags.add_argument("name", metavar="NAME", help="a ModelWeights")
    flags.add_argument("--engine", choices=ENGINES, default="all", help="for one engine only (default all)")
    verify = _command(commands, "verify", "whether all records of what nodes hold agree")
    verify.add_argument("name", metavar="NAME", help="a ModelWeights")
    verify.add_argument(
        "--digest", default="", help="what the published checkpoint's digest should be, or its beginning"
    )


def _add_writing(commands: "Commands") -> None:
    retry = _command(commands, "retry", "try failed nodes again at once")
    retry.add_argument("name", metavar="NAME", help="a ModelWeights")
    retry.add_argument("--node", default="", help="only if this node has failed")
    for word, what in (("pause", "stage nothing further (spec.suspend)"), ("resume", "go on after a pause")):
        _command(commands, word, what).add_argument("name", metavar="NAME", help="a ModelWeights")
    stage = commands.add_parser(
        "stage", help="stage a folder of this machine, without a cluster", add_help=False, prefix_chars="\0"
    )
    stage.add_argument(
        "words", nargs=argparse.REMAINDER, metavar="DIR ...", help="as modelweights-loader stage takes them"
    )
    completion = commands.add_parser("completion", help="print a script that completes words", allow_abbrev=False)
    completion.add_argument("shell", choices=SHELLS, help="for which shell")


def _command(commands: "Commands", name: str, what: str) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=what, description=f"{what[0].upper()}{what[1:]}.", allow_abbrev=False)
    command.add_argument("-n", "--namespace", default="", help="namespace (default: that of the context)")
    command.add_argument("-o", "--output", choices=OUTPUTS, help="for programs")
    command.add_argument("--context", default="", help="context of the kubeconfig")
    command.add_argument("--kubeconfig", default="", help="path of the kubeconfig")
    command.add_argument("--as", dest="as_user", default="", metavar="USER", help="ask as another user")
    return command


def _everywhere(command: argparse.ArgumentParser) -> None:
    command.add_argument("-A", "--all-namespaces", action="store_true", help="of all namespaces")


def check(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """Ends the program, with exit code 2, where options don't go together."""
    watches, output = getattr(arguments, "watch", False), getattr(arguments, "output", None)
    everywhere = getattr(arguments, "all_namespaces", False)
    if watches and output:
        parser.exit(EXIT_USAGE, "kubectl modelweights: --watch draws; for programs: kubectl get mw --watch -o json\n")
    if everywhere and getattr(arguments, "name", None):
        parser.exit(EXIT_USAGE, "kubectl modelweights: a NAME is of one namespace: leave out --all-namespaces\n")
