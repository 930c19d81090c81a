"""The command line: ``python -m tests.cluster build|up|down|status|kubectl ...|helm ...``."""

import argparse
import os
import sys
from collections.abc import Sequence

from tests.cluster.build import EMBEDDED_PROGRAMS, ensure_program, ensure_programs
from tests.cluster.errors import ClusterError
from tests.cluster.providers import PROVIDERS, Cluster, choose


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    parser.add_argument(
        "--instance", default="dev", help="name of the cluster; several run side by side (default: dev)"
    )
    parser.add_argument(
        "--provider", default="auto", choices=PROVIDERS, help="who runs it (default: what this machine can)"
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("build", help="build the programs into the cache")
    for name, text in (("up", "bring it up"), ("down", "remove it"), ("status", "say how it fares")):
        command = commands.add_parser(name, help=text)
        # Accepted behind the command as well; SUPPRESS keeps the value given before it.
        command.add_argument("--instance", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
        command.add_argument("--provider", default=argparse.SUPPRESS, choices=PROVIDERS, help=argparse.SUPPRESS)
    for name in ("kubectl", "helm"):
        command = commands.add_parser(name, help=f"run {name} against it", add_help=False, prefix_chars="\0")
        command.add_argument("arguments", nargs=argparse.REMAINDER)
    return parser


def _up(cluster: Cluster, instance: str) -> None:
    print(cluster.up())
    python = f"{os.path.relpath(sys.executable)} -m tests.cluster"
    print(f"  kubectl:  {python} --instance {instance} kubectl get nodes")
    print(f"  helm:     {python} --instance {instance} helm list --all-namespaces")
    print(f"  or:       export KUBECONFIG={cluster.kubeconfig}")
    print(f"  remove:   {python} down --instance {instance}")


def _status(cluster: Cluster) -> int:
    if not cluster.is_up():
        print(f"instance {cluster.name} is not up")
        return 1
    print(f"instance {cluster.name} is up; kubeconfig: {cluster.kubeconfig}")
    print(cluster.kubectl("get", "nodes", "--output=wide"), end="")
    return 0


def _become(cluster: Cluster, program: str, arguments: Sequence[str]) -> int:
    """Replace this process by kubectl or helm, so that terminals, pipes and signals work as with the real thing."""
    environment = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig)}
    sys.stdout.flush()
    if program == "helm":
        os.execve(ensure_program("helm"), ["helm", *arguments], environment)  # noqa: S606 - no shell is wanted
    if not cluster.kubeconfig.exists():
        raise ClusterError(f"instance {cluster.name} is not up: python -m tests.cluster up --instance {cluster.name}")
    os.execve(ensure_program("kubernetes"), ["kubectl", *arguments], environment)  # noqa: S606 - likewise


def _run(options: argparse.Namespace) -> int:
    if options.command == "build":
        ensure_programs(EMBEDDED_PROGRAMS)
        return 0
    if options.command == "helm" and options.arguments[:1] in (["lint"], ["template"]):
        # These need no cluster, so nothing that a cluster needs (root, Docker) must be there.
        os.execv(ensure_program("helm"), ["helm", *options.arguments])  # noqa: S606 - no shell is wanted
    cluster = choose(options.provider, options.instance, quiet=options.command in {"kubectl", "helm"})
    if options.command == "up":
        _up(cluster, options.instance)
        return 0
    if options.command == "down":
        print(cluster.down())
        return 0
    if options.command == "status":
        return _status(cluster)
    return _become(cluster, options.command, options.arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    options = _parser().parse_args(arguments)
    try:
        return _run(options)
    except (ClusterError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
