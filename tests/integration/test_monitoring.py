"""What the chart gives to Prometheus and Grafana: found, valid, and of metrics that are there.

Prometheus' own `promtool` judges the rules; the Prometheus operator's kinds aren't on this API server, so their objects are looked at
as they are rendered. No Grafana has shown the dashboard: its queries alone are checked.
"""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.paths import cache_root
from tests.debian import Tool, extract
from tests.integration.conftest import CHART, REPOSITORY, render

RULES = CHART / "files" / "monitoring" / "rules.yaml"
ALL = [f"metrics.{kind}.enabled=true" for kind in ("serviceMonitor", "podMonitor", "rules", "dashboard")]
EXPRESSION = re.compile(r"\b((?:modelweights|process)_\w+)\b")


def rendered(*settings: str) -> dict[tuple[str, str], Any]:
    objects = [each for each in yaml.safe_load_all(render("mw", *settings)) if each]
    return {(each["kind"], each["metadata"]["name"]): each for each in objects}


@pytest.fixture(scope="module")
def documented() -> set[str]:
    """Names of all samples, those of histograms with their endings."""
    rows = re.findall(
        r"^\| `(modelweights_\w+)` \| (\w+) \|", (REPOSITORY / "docs/metrics.md").read_text(), re.MULTILINE
    )
    histograms = {name for name, kind in rows if kind == "histogram"}
    ends = {f"{name}_{end}" for name in histograms for end in ("bucket", "sum", "count")}
    return {name for name, _ in rows} | ends | {"process_resident_memory_bytes"}


@pytest.fixture(scope="module")
def promtool() -> Path:
    """Of Debian's package, which isn't installed: that would start a Prometheus."""
    return extract(Tool("promtool", "prometheus"), "usr/bin/promtool", cache_root() / "debian")


def alerts() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
    return found


def test_the_service_and_the_monitors_lead_to_the_operators_port() -> None:
    objects = rendered(*ALL)
    container = objects["Deployment", "mw"]["spec"]["template"]["spec"]["containers"][0]
    assert {"name": "metrics", "containerPort": 8081} in container["ports"]
    assert {"name": "MODELWEIGHTS_METRICS_PORT", "value": "8081"} in container["env"]
    service = objects["Service", "mw-metrics"]
    pod_labels = objects["Deployment", "mw"]["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= pod_labels.items()
    monitor = objects["ServiceMonitor", "mw"]["spec"]
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert monitor["endpoints"][0]["port"] == service["spec"]["ports"][0]["name"]
    assert objects["PodMonitor", "mw"]["spec"]["selector"]["matchLabels"].items() <= pod_labels.items()


def test_without_metrics_there_is_no_port_and_no_service() -> None:
    objects = rendered("metrics.enabled=false", *ALL)
    container = objects["Deployment", "mw"]["spec"]["template"]["spec"]["containers"][0]
    assert [port["name"] for port in container["ports"]] == ["health"]
    assert "MODELWEIGHTS_METRICS_PORT" not in {each["name"] for each in container["env"]}
    assert not {kind for kind, _ in objects} & {"Service", "ServiceMonitor", "PodMonitor", "PrometheusRule"}


def test_the_rules_are_those_of_the_file_with_the_address_of_their_pages() -> None:
    rule = rendered("metrics.rules.enabled=true", "metrics.rules.runbookURL=https://wiki.example/alerts")
    groups = rule["PrometheusRule", "mw"]["spec"]["groups"]
    assert [each["expr"] for each in groups[0]["rules"]] == [each["expr"] for each in alerts()]
    assert groups[0]["rules"][0]["annotations"]["runbook_url"].startswith("https://wiki.example/alerts#")


def test_each_alert_has_a_page() -> None:
    headings = re.findall(r"^## (\w+)$", (REPOSITORY / "docs/alerts.md").read_text(), re.MULTILINE)
    assert headings == [each["alert"] for each in alerts()]
    for each in alerts():
        assert each["annotations"]["runbook_url"] == f"RUNBOOKS#{each['alert'].lower()}"


def test_alerts_and_dashboard_ask_for_metrics_that_are_there(documented: set[str]) -> None:
    for each in alerts():
        names = set(EXPRESSION.findall(each["expr"]))
        assert names, each["alert"]
        assert names <= documented, each["alert"]
    board = json.loads(rendered(*ALL)["ConfigMap", "mw-dashboard"]["data"]["modelweights.json"])
    for panel in board["panels"]:
        for target in panel["targets"]:
            names = set(EXPRESSION.findall(target["expr"]))
            assert names, panel["title"]
            assert names <= documented, panel["title"]
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def test_prometheus_takes_the_rules(promtool: Path) -> None:
    checked = subprocess.run(
        [promtool, "check", "rules", "--lint-fatal", RULES], capture_output=True, text=True, check=False, timeout=60
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"{len(alerts())} rules found" in checked.stdout


def test_each_alert_fires_when_it_should_and_not_before(promtool: Path) -> None:
    """By Prometheus' own evaluation of series that are written down: tests/integration/alerts.yaml."""
    scenarios = Path(__file__).with_name("alerts.yaml")
    told = {
        case["alertname"] for test in yaml.safe_load(scenarios.read_text())["tests"] for case in test["alert_rule_test"]
    }
    assert told == {each["alert"] for each in alerts()}
    tested = subprocess.run(
        [promtool, "test", "rules", scenarios], capture_output=True, text=True, check=False, timeout=120
    )
    assert tested.returncode == 0, tested.stdout + tested.stderr
