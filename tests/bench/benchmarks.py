"""All benchmarks by name: the one place where a new one is added. Called by `__main__` and `render`."""

import argparse
from collections.abc import Callable
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
    prefetch_tables,
    restart,
    startup,
    validate,
)


class Benchmark(NamedTuple):
    """A benchmark's arguments, its run, which returns what goes into JSON, and tables of that, by name."""

    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], dict[str, Any]]
    make_tables: Callable[[dict[str, Any]], dict[str, str]]
    summary: str


LOADER: Final = {
    "startup": Benchmark(startup.add_arguments, startup.run, startup.make_tables, "start-up time of each command"),
    "fetch": Benchmark(fetch.add_arguments, fetch.run, fetch.make_tables, "fetch beside rclone and the plain library"),
    "headers": Benchmark(headers.add_arguments, headers.run, headers.make_tables, "headers of 1,000 shards"),
    "prefetch": Benchmark(
        prefetch.add_arguments, prefetch.run, prefetch_tables.make_tables, "prefetch beside others, by storage"
    ),
    "memory-disk": Benchmark(
        memory_disk.add_arguments, memory_disk.run, memory_disk.make_tables, "prefetch where no disk bounds it"
    ),
    "validate": Benchmark(validate.add_arguments, validate.run, validate.make_tables, "validate beside a bare script"),
    "cold-pages": Benchmark(
        cold_pages.add_arguments, cold_pages.run, cold_pages.make_tables, "how firmly staged pages stay"
    ),
    "load": Benchmark(load.add_arguments, load.run, load.make_tables, "load times after staging against cold"),
}
"""Those of the loader, without a cluster."""
OTHERS: Final = {
    "staging": Benchmark(
        apply_to_ready.add_arguments,
        apply_to_ready.run,
        apply_to_ready.make_tables,
        "from apply to Ready, on a cluster",
    ),
    "node-pressure": Benchmark(
        node_pressure.add_arguments,
        node_pressure.run,
        node_pressure.make_tables,
        "what the kubelet counts, on a cluster",
    ),
    "restart": Benchmark(
        restart.add_arguments, restart.run, restart.make_tables, "an operator that starts among staged objects"
    ),
}
"""Those that need an API server or a cluster."""
ALL: Final = {**OTHERS, **LOADER}
