"""A soak of seconds; `make soak` takes half an hour, and `make faults` a minute. See tests/soak."""

from pathlib import Path

from tests.integration.client import Kube
from tests.soak.churn import Size, Soak


def test_after_seconds_of_churn_all_becomes_ready_and_goes_without_a_trace(
    admin: Kube, account_kubeconfig: Path, tmp_path: Path
) -> None:
    size = Size(nodes=5, objects=6, minutes=0.15, pause_seconds=0.3, kill_every_seconds=2, sample_seconds=1)
    with Soak(admin, account_kubeconfig, size, tmp_path / "log") as soak:
        outcome = soak.run()
    assert outcome.killed == 1
    assert sum(outcome.happened.values()) > 5
    assert outcome.jobs > 5
    assert any(sample.jobs for sample in outcome.samples)
    assert any(sample.rss_mib for sample in outcome.samples)
