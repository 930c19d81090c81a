"""`python -m tests.soak`: a soak with its own API server; figures and the picture of its curve in the end. See `make soak`."""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from tests.cluster.api import ApiServer
from tests.integration.client import SteadyKube
from tests.integration.conftest import RELEASE, SYSTEM, apply_chart
from tests.json_client import Json
from tests.soak.churn import Size, Soak
from tests.soak.picture import draw


def main() -> int:
    """Run it; the figures are written also when it fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--nodes", type=int, default=Size.nodes)
    parser.add_argument("--objects", type=int, default=Size.objects)
    parser.add_argument(
        "--pause", type=float, default=Size.pause_seconds, help="seconds between two things that happen"
    )
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--output", type=Path, default=Path("build/soak"))
    options = parser.parse_args()
    size = Size(options.nodes, options.objects, options.minutes, options.pause)
    options.output.mkdir(parents=True, exist_ok=True)
    figures = options.output / "soak.json"
    about = _about()
    with ApiServer(["garbage-collector-controller"]) as server, tempfile.TemporaryDirectory() as folder:
        apply_chart(server)
        log = Path(folder) / "log"
        kubeconfig = server.kubeconfig_for_service_account(SYSTEM, RELEASE)
        with Soak(SteadyKube(server.kubeconfig), kubeconfig, size, log, options.seed) as soak:
            try:
                soak.run()
            finally:
                about["load average after"] = os.getloadavg()[0]
                figures.write_text(json.dumps({"about": about, **soak.outcome.to_json()}, indent=1) + "\n")
                (options.output / "operator.log").write_bytes(log.read_bytes())
    draw(json.loads(figures.read_text()), options.output / "soak.svg")
    outcome = soak.outcome
    print(f"happened: {outcome.happened}; killed: {outcome.killed}; Jobs: {outcome.jobs}")
    print(f"all ready {outcome.settled_seconds} s after the churn; left over: {outcome.left}")
    print(
        f"memory of the last operator, MiB, by quarters: {outcome.rss_mib}: {'flat' if outcome.is_flat else 'it grew'}"
    )
    return 0 if outcome.is_flat else 1


def _about() -> Json:
    asked = ["git", "rev-parse", "--short", "HEAD"]
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "commit": subprocess.run(asked, check=True, capture_output=True, text=True, timeout=10).stdout.strip(),
        "machine": f"{os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}",
        "load average before": os.getloadavg()[0],
    }


if __name__ == "__main__":
    sys.exit(main())
