"""`python -m tests.bench`: measurements, each beside what it is compared with. Called by `make bench` and by hand."""

import argparse
import signal
import sys
from pathlib import Path

from tests.bench.benchmarks import ALL, LOADER, Benchmark
from tests.bench.figures import say, write_result
from tests.bench.processes import BenchmarkError
from tests.bench.render import DOCUMENTS, format_result, render
from tests.debian import MissingPackagesError
from tests.filesystems import FileSystemError


def main() -> int:
    """Run what was asked for; the exit code is 1 when something couldn't be measured."""
    arguments = _parse()
    # Ended from outside, as by `timeout`: mounts, control groups and gigabytes are cleaned up on the way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if arguments.command == "render":
        render(arguments.figures)
        return 0
    names = {"loader": list(LOADER), "all": list(ALL)}.get(arguments.command, [arguments.command])
    failed = [name for name in names if not _run(name, ALL[name], arguments, alone=len(names) == 1)]
    return 1 if failed else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, benchmark in ALL.items():
        command = commands.add_parser(name, help=benchmark.summary)
        _add_places(command)
        benchmark.add_arguments(command)
    _add_places(commands.add_parser("loader", help="all that need no cluster, with their defaults"))
    _add_places(commands.add_parser("all", help="all, with their defaults"))
    into = " and ".join(map(str, DOCUMENTS))
    command = commands.add_parser("render", help=f"put tables of JSON files into {into}, run where those are")
    command.add_argument("figures", nargs="+", type=Path, metavar="JSON")
    return parser.parse_args()


def _add_places(command: argparse.ArgumentParser) -> None:
    where = "folder on a real disk for checkpoints, which are removed afterwards (default /var/tmp)"
    command.add_argument("--scratch", type=Path, default=Path("/var/tmp"), metavar="DIR", help=where)  # noqa: S108 - a folder of its own is made there
    command.add_argument(
        "--output", type=Path, default=Path("build/bench"), metavar="DIR", help="for JSON (default build/bench)"
    )


def _run(name: str, benchmark: Benchmark, arguments: argparse.Namespace, *, alone: bool) -> bool:
    if not alone:
        own = argparse.ArgumentParser()
        _add_places(own)
        benchmark.add_arguments(own)
        arguments = argparse.Namespace(**{**vars(own.parse_args([])), **vars(arguments)})
    try:
        result = benchmark.run(arguments)
    except (BenchmarkError, FileSystemError, MissingPackagesError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return False
    print(f"\n{format_result(result)}\n", flush=True)
    say(f"written to {write_result(result, arguments.output)}")
    return True


if __name__ == "__main__":
    sys.exit(main())
