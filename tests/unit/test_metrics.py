"""The metrics: documented by their names, bounded, and gone with their object."""

import re
from collections.abc import Mapping
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from modelweights_operator.domain.figures import Figures
from modelweights_operator.domain.outcomes import Outcome
from modelweights_operator.metrics import Key, Metrics
from tests.unit.domain.samples import STAGED

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"
KEY = ("team", "llama")


class State:
    """Two objects, one of which nothing keeps in memory."""

    def figures(self) -> Mapping[Key, Figures]:
        first = Figures({"Ready": True}, {"Ready": 2, "Failed": 0}, 1000, 1900, 0.9)
        return {KEY: first, ("team", "other"): Figures({"Ready": False}, {"Ready": 0}, suspended=True)}

    def lengths(self) -> Mapping[str, int]:
        return {"models": 3, "gates": 0}

    def counts(self) -> Mapping[str, int]:
        return {"jobs_active": 4, "gated_pods": 5}


def _in_order(labels: Mapping[str, str]) -> tuple[str, ...]:
    """The text has them in the order of the alphabet; people have the namespace first."""
    return tuple(labels[key] for key in sorted(labels, key=lambda key: (key != "namespace", key != "name", key)))


def samples(metrics: Metrics) -> dict[str, dict[tuple[str, ...], float]]:
    """Per name and values of labels, the value."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(metrics.text().decode()):
        for sample in family.samples:
            found.setdefault(sample.name, {})[_in_order(sample.labels)] = sample.value
    return found


def acting() -> Metrics:
    metrics = Metrics()
    metrics.state = State()
    metrics.staged(KEY, [STAGED, Outcome("p5", succeeded=False, reason="BadHeader")])
    metrics.observer("models")(0.02, failed=False)
    return metrics


def test_a_standby_says_that_it_does_not_act_and_shows_no_object() -> None:
    found = samples(Metrics())
    assert found["modelweights_acting"] == {(): 0.0}
    assert "modelweights_nodes" not in found


def test_objects_as_their_statuses_tell() -> None:
    found = samples(acting())
    assert found["modelweights_acting"] == {(): 1.0}
    assert found["modelweights_condition"] == {(*KEY, "Ready"): 1.0, ("team", "other", "Ready"): 0.0}
    assert found["modelweights_nodes"][(*KEY, "Ready")] == 2.0
    assert found["modelweights_resident_ratio_min"] == {KEY: 0.9}
    assert found["modelweights_suspended"] == {KEY: 0.0, ("team", "other"): 1.0}
    assert (found["modelweights_jobs_active"], found["modelweights_gated_pods"]) == ({(): 4.0}, {(): 5.0})


def test_stagings_are_counted_with_what_they_took() -> None:
    found = samples(acting())
    machine = (*KEY, "p5")
    assert found["modelweights_stagings_total"] == {
        (*machine, "", "succeeded"): 1.0,
        (*machine, "BadHeader", "failed"): 1.0,
    }
    assert found["modelweights_fetched_bytes_total"] == {machine: 900.0}
    assert found["modelweights_prefetch_seconds_total"] == {machine: 2.0}
    assert found["modelweights_load_seconds_total"] == {machine: 0.5}


def test_cycles_that_fail_are_counted() -> None:
    metrics = Metrics()
    observe = metrics.observer("models")
    observe(0.02, failed=False)
    observe(0.02, failed=True)
    found = samples(metrics)
    assert found["modelweights_reconcile_seconds_count"] == {("models",): 2.0}
    assert found["modelweights_reconcile_errors_total"] == {("models",): 1.0}


def test_an_object_that_went_leaves_no_series() -> None:
    metrics = acting()
    metrics.staged(("team", "other"), [STAGED])
    metrics.forget(KEY)
    found = samples(metrics)
    names = (
        "stagings",
        "fetched_bytes",
        "fetch_seconds",
        "prefetched_bytes",
        "prefetch_seconds",
        "loads",
        "load_seconds",
    )
    for name in names:
        assert {labels[:2] for labels in found[f"modelweights_{name}_total"]} == {("team", "other")}


def test_the_document_names_what_is_there_with_its_labels() -> None:
    rows = dict(re.findall(r"^\| `(modelweights_\w+)` \| [a-z]+ \| ([^|]*) \|", DOCUMENT.read_text(), re.MULTILINE))
    documented = {name: set(re.findall(r"`(\w+)`", labels)) for name, labels in rows.items()}
    there = {}
    for family in text_string_to_metric_families(acting().text().decode()):
        if family.name.startswith("modelweights_"):
            name = f"{family.name}_total" if family.type == "counter" else family.name
            there[name] = {key for sample in family.samples for key in sample.labels} - {"le"}
    # Requests have none so far: their labels are seen in the test with a real API server.
    for name in ("modelweights_api_requests_total", "modelweights_api_request_seconds"):
        there[name] = documented[name]
    assert documented == there
