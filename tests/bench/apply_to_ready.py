"""Apply-to-Ready beside an empty Job of the same shape. Called by `__main__`."""

import argparse
import asyncio
import tempfile
from pathlib import Path
from typing import Any

from tests.bench.figures import start_result
from tests.bench.staging import measure
from tests.bench.summary import format_table, format_verdict, summarise
from tests.checkpoints.real import make_real
from tests.cluster.providers import Cluster, choose
from tests.installation import MODELS_ROOT, deliver_images, install


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--instance", default="bench", help="instance of the cluster (default bench)")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each kind (default 5)")
    parser.add_argument("--keep", action="store_true", help="leave a cluster up that this run brought up")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Bring a cluster up where there is none, measure; take it down again when it was ours."""
    cluster = choose("auto", arguments.instance)
    own = not cluster.is_up()
    result = start_result("staging", {"rounds": arguments.rounds})
    print(cluster.up(), flush=True)
    try:
        summary = _measure(cluster, arguments.rounds)
    finally:
        if own and not arguments.keep:
            print(cluster.down(), flush=True)
    return {**result, **summary}


def make_tables(result: dict[str, Any]) -> dict[str, str]:
    """Name to Markdown."""
    return {"staging": f"{format_table(result)}\n\n{format_verdict(result)}"}


def _measure(cluster: Cluster, rounds: int) -> dict[str, Any]:
    install(cluster, deliver_images(cluster))
    node, path = cluster.gpu_nodes[0], f"{MODELS_ROOT}/bench-minilm"
    with tempfile.TemporaryDirectory() as folder:
        cluster.copy_to_node(node, make_real(Path(folder) / "checkpoint"), path)
    runs = asyncio.run(measure(cluster.kubeconfig, node, path, rounds, lambda line: print(line, flush=True)))
    return summarise(runs)
