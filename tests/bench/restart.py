"""How soon an operator that starts among a thousand staged objects works at full speed, and what it writes meanwhile.

On a real API server without nodes: the benchmark plays kubelet and Job controller. Compared with the same operator that had
been running for long: how soon a new object gets its Job. Called by `python -m tests.bench restart`.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.bench.figures import make_table, say, start_result
from tests.cluster.api import ApiServer
from tests.integration.client import Kube
from tests.integration.cluster_double import Team, report
from tests.integration.conftest import RELEASE, SYSTEM, apply_chart
from tests.integration.operator_process import OperatorProcess
from tests.integration.test_restart_quietly import looked_at, stage_many, versions, writes
from tests.polling import poll

_SECONDS = 3600.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of this benchmark."""
    parser.add_argument("--objects", type=int, default=1000, help="staged objects (default 1000)")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure; blocks for minutes."""
    with ApiServer(["garbage-collector-controller"]) as server, tempfile.TemporaryDirectory() as folder:
        apply_chart(server)
        admin = Kube(server.kubeconfig)
        for name in ("many", "new"):
            admin.create("/api/v1/namespaces", {"metadata": {"name": name}})
        log = Path(folder) / "log"
        with OperatorProcess(server.kubeconfig_for_service_account(SYSTEM, RELEASE), log) as operator:
            return _measure(arguments.objects, Team(admin, "many"), Team(admin, "new"), operator)


def _measure(count: int, many: Team, new: Team, operator: OperatorProcess) -> dict[str, Any]:
    stage_many(many, count, _SECONDS)
    new.add_node("a")
    say(f"{count} objects are staged")
    usual = statistics.median(_seconds_to_job(new, f"usual-{number}") for number in range(10))
    operator.stop()
    before, asked, reads = versions(many), writes(many.admin), looked_at(many.admin)
    began = time.monotonic()
    operator.start()
    acts = time.monotonic() - began
    poll("each was looked at", lambda: looked_at(many.admin) - reads >= count, seconds=_SECONDS, every=0.05)
    looked = time.monotonic() - began
    written = writes(many.admin) - asked
    first = [_seconds_to_job(new, f"after-{number}") for number in range(10)]
    return {
        **start_result("restart", {"objects": count}),
        "acts_seconds": round(acts, 2),
        "all_looked_at_seconds": round(looked, 2),
        "writes": written,
        "changed": sum(versions(many)[name] != version for name, version in before.items()),
        "job_seconds_before": round(usual, 3),
        "job_seconds_after": round(statistics.median(first), 3),
    }


def _seconds_to_job(team: Team, name: str) -> float:
    """From an object's creation to its Job; the staging is then brought to its end."""
    began = time.monotonic()
    team.create_model(name)
    job = poll("its Job", lambda: team.job_of("a"), every=0.01, seconds=_SECONDS)
    seconds = time.monotonic() - began
    team.end(job, report())
    team.wait_for("Ready", "True", name=name, seconds=_SECONDS)
    poll("no Job is left", lambda: not team.jobs(), seconds=_SECONDS)
    return seconds


def make_tables(result: dict[str, Any]) -> dict[str, str]:
    """Name to Markdown."""
    rows = [
        ("from the start until it acts", f"{result['acts_seconds']:.1f} s"),
        ("until each object was looked at", f"{result['all_looked_at_seconds']:.1f} s"),
        ("writes until then", f"{result['writes']}, {result['changed']} objects changed"),
        ("from a new object to its Job, afterwards", f"{result['job_seconds_after']:.2f} s"),
        ("the same before it ended, as it had run for long", f"{result['job_seconds_before']:.2f} s"),
    ]
    return {"restart": make_table(("what", "figure"), rows)}
