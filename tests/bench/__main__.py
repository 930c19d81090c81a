"""`python -m tests.bench`: apply-to-Ready beside an empty Job of the same shape. Called by `make bench`."""

import argparse
import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

from tests.bench.staging import measure
from tests.bench.summary import format_table, format_verdict, summarise
from tests.checkpoints.real import make_real
from tests.cluster.providers import Cluster, choose
from tests.installation import MODELS_ROOT, deliver_images, install


def main() -> None:
    """Bring a cluster up where there is none, measure, print; take it down again when it was ours."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--instance", default="bench", help="instance of the cluster (default bench)")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each kind (default 5)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there")
    parser.add_argument("--keep", action="store_true", help="leave a cluster up that this run brought up")
    arguments = parser.parse_args()
    cluster = choose("auto", arguments.instance)
    own = not cluster.is_up()
    print(cluster.up(), flush=True)
    try:
        summary = _measure(cluster, arguments.rounds)
    finally:
        if own and not arguments.keep:
            print(cluster.down(), flush=True)
    print(f"\nseconds from each milestone to the next, medians of {summary['rounds']}\n")
    print(format_table(summary))
    print(format_verdict(summary))
    if arguments.json:
        arguments.json.write_text(json.dumps(summary, indent=1) + "\n")


def _measure(cluster: Cluster, rounds: int) -> dict[str, Any]:
    install(cluster, deliver_images(cluster))
    node, path = cluster.gpu_nodes[0], f"{MODELS_ROOT}/bench-minilm"
    with tempfile.TemporaryDirectory() as folder:
        cluster.copy_to_node(node, make_real(Path(folder) / "checkpoint"), path)
    runs = asyncio.run(measure(cluster.kubeconfig, node, path, rounds, lambda line: print(line, flush=True)))
    return summarise(runs)


if __name__ == "__main__":
    main()
