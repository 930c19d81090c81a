"""Metrics of an operator at work, as Prometheus would read them."""

from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

from tests.integration.client import core_path
from tests.integration.cluster_double import Team, failure, gated_pod, report
from tests.integration.operator_process import OperatorProcess
from tests.polling import poll


def value(operator: OperatorProcess, name: str, labels: Mapping[str, str]) -> float | None:
    """The sum of all samples of a name that have these labels; None where there is none."""
    status, text = operator.ask("metrics")
    assert status == 200
    found = [
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]
    return sum(found) if found else None


def test_what_was_staged_and_what_there_is(team: Team, operator: OperatorProcess) -> None:
    of_llama = {"namespace": team.namespace, "name": "llama"}

    def wait(name: str, wanted: float | None, **labels: str) -> None:
        poll(f"{name} {labels} is {wanted}", lambda: value(operator, name, {**of_llama, **labels}) == wanted)

    team.admin.create(core_path(team.namespace, "pods"), gated_pod("server", "other"))
    team.add_node("a")
    team.add_node("b")
    team.label_node("a", {"node.kubernetes.io/instance-type": "p5"})
    team.create_model()
    team.end(team.wait_for_job("a"), report(prefetchBytesPerSecond=500.0, residentBytes=900))
    team.end(team.wait_for_job("b"), failure())
    wait("modelweights_nodes", 1, state="Ready")
    wait("modelweights_nodes", 1, state="Failed")
    wait("modelweights_condition", 1, type="Available")
    wait("modelweights_condition", 0, type="Ready")
    wait("modelweights_resident_ratio_min", 0.9)
    wait("modelweights_stagings_total", 1, node_class="p5", result="succeeded")
    wait("modelweights_stagings_total", 1, node_class="", result="failed", reason="BadHeader")
    wait("modelweights_prefetch_seconds_total", 1.8)
    assert (value(operator, "modelweights_gated_pods", {}) or 0) >= 1
    assert (value(operator, "modelweights_reconcile_seconds_count", {"queue": "models"}) or 0) >= 1
    for verb, code in (("PATCH", "200"), ("POST", "201"), ("WATCH", "200")):
        assert value(operator, "modelweights_api_requests_total", {"verb": verb, "code": code})
    team.admin.delete(f"/apis/modelweights.io/v1alpha1/namespaces/{team.namespace}/modelweights/llama")
    wait("modelweights_nodes", None)
    wait("modelweights_stagings_total", None)
