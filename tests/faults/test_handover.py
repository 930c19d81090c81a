"""Two operators with the chart's own Lease of 15 s, and the one that acts ended twenty times: how long until the other one does.

On a real API server without nodes (the test plays kubelet and Job controller). Each time a staging is under way; in the end it has
had one Job. Prints the table of docs/operations.md, and writes build/handover.json.
"""

import json
import signal
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.integration.client import Kube, job_path
from tests.integration.cluster_double import Team, report
from tests.integration.conftest import account_kubeconfig, admin, chart, server
from tests.integration.operator_process import OperatorProcess
from tests.polling import poll

__all__ = ["account_kubeconfig", "admin", "chart", "server"]

KILLS: Final = 20
WAYS: Final = (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP)
WITHIN_SECONDS: Final = 30.0

pytestmark = pytest.mark.timeout(1800, func_only=True)
"""Against hangs only."""


@dataclass(frozen=True)
class Handover:
    """One end of the one that acts."""

    how: str
    seconds: float
    jobs: int


@pytest.fixture
def pair(account_kubeconfig: Path, tmp_path: Path) -> Iterator[tuple[OperatorProcess, OperatorProcess]]:
    """The first acts, the second stands by."""
    operators = [OperatorProcess(account_kubeconfig, tmp_path / name, identity=name) for name in ("first", "second")]
    try:
        operators[0].start()
        operators[1].start(wait=False)
        poll("the second stands by", operators[1].stands_by)
        yield operators[0], operators[1]
    finally:
        for operator in operators:
            operator.kill()


def test_twenty_handovers(admin: Kube, pair: tuple[OperatorProcess, OperatorProcess]) -> None:
    admin.create("/api/v1/namespaces", {"metadata": {"name": "handover"}})
    team = Team(admin, "handover")
    team.add_node("a")
    acting, other = pair
    handovers = []
    for number in range(KILLS):
        handovers.append(_hand_over(team, f"model-{number}", acting, other, WAYS[number % len(WAYS)]))
        print(f"{number + 1}: {handovers[-1]}", flush=True)
        acting, other = other, acting
    print(_table(handovers))
    Path("build").mkdir(exist_ok=True)
    Path("build/handover.json").write_text(json.dumps([asdict(each) for each in handovers], indent=1) + "\n")
    assert [each.jobs for each in handovers] == [1] * KILLS
    assert max(each.seconds for each in handovers) <= WITHIN_SECONDS


def _hand_over(team: Team, name: str, acting: OperatorProcess, other: OperatorProcess, how: signal.Signals) -> Handover:
    version = team.admin.get(job_path(team.namespace))["metadata"]["resourceVersion"]
    team.create_model(name)
    job = team.wait_for_job("a")
    began = time.monotonic()
    if how is signal.SIGKILL:
        acting.kill()
    else:
        acting.signal(how)
    poll("the other one acts", other.acts, seconds=120, every=0.05)
    seconds = time.monotonic() - began
    team.end(job, report())
    team.wait_for("Ready", "True", name=name, seconds=120)
    if how is signal.SIGSTOP:
        acting.signal(signal.SIGCONT)
        assert acting.wait(60) == 1
    elif how is signal.SIGTERM:
        assert acting.wait(60) == 0
    acting.start(wait=False)
    poll("it stands by", acting.stands_by, seconds=120)
    assert other.acts()
    made = [event for event in team.admin.history(job_path(team.namespace), version) if event["type"] == "ADDED"]
    return Handover(how.name, round(seconds, 1), len(made))


def _table(handovers: list[Handover]) -> str:
    rows = ["| the one that acts | times | shortest | median | longest |", "|---|---|---|---|---|"]
    for way in WAYS:
        took = [each.seconds for each in handovers if each.how == way.name]
        rows.append(
            f"| {way.name} | {len(took)} | {min(took):.1f} s | {statistics.median(took):.1f} s | {max(took):.1f} s |"
        )
    return "\n".join(rows)
