"""`python -m tests.bench`: measurements, each beside what it is compared with. Called by `make bench` and by hand."""

import argparse
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.bench import (
    apply_to_ready,
    cold_pages,
    fetch,
    headers,
    load,
    memory_disk,
    node_pressure,
    prefetch,
    restart,
    startup,
    validate,
)
from tests.bench.figures import say, write_result
from tests.bench.processes import BenchmarkError
from tests.bench.render import DOCUMENTS, format_result, render
from tests.debian import MissingPackagesError
from tests.filesystems import FileSystemError


class Benchmark(NamedTuple):
    """A benchmark's arguments and its run, which returns what goes into JSON."""

    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], dict[str, Any]]
    summary: str


STAGING: Final = Benchmark(apply_to_ready.add_arguments, apply_to_ready.run, "from apply to Ready, on a cluster")
PRESSURE: Final = Benchmark(node_pressure.add_arguments, node_pressure.run, "what the kubelet counts, on a cluster")
RESTART: Final = Benchmark(restart.add_arguments, restart.run, "an operator that starts among staged objects")
LOADER: Final = {
    "startup": Benchmark(startup.add_arguments, startup.run, "start-up time of each command"),
    "fetch": Benchmark(fetch.add_arguments, fetch.run, "fetch beside rclone and the plain library"),
    "headers": Benchmark(headers.add_arguments, headers.run, "headers of 1,000 shards"),
    "prefetch": Benchmark(prefetch.add_arguments, prefetch.run, "prefetch beside others, by storage"),
    "memory-disk": Benchmark(memory_disk.add_arguments, memory_disk.run, "prefetch where no disk bounds it"),
    "validate": Benchmark(validate.add_arguments, validate.run, "validate beside a bare script"),
    "cold-pages": Benchmark(cold_pages.add_arguments, cold_pages.run, "how firmly staged pages stay"),
    "load": Benchmark(load.add_arguments, load.run, "load times after staging against cold"),
}

OTHERS: Final = {"staging": STAGING, "node-pressure": PRESSURE, "restart": RESTART}


def main() -> int:
    """Run what was asked for; the exit code is 1 when something couldn't be measured."""
    arguments = _parse()
    # Ended from outside, as by `timeout`: mounts, control groups and gigabytes are cleaned up on the way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if arguments.command == "render":
        render(arguments.figures)
        return 0
    chosen = {**OTHERS, **LOADER}
    names = {"loader": list(LOADER), "all": list(chosen)}.get(arguments.command, [arguments.command])
    failed = [name for name in names if not _run(name, chosen[name], arguments, alone=len(names) == 1)]
    return 1 if failed else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, benchmark in {**OTHERS, **LOADER}.items():
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
