"""What reaches the engine: the settings under which the node really loaded the checkpoint, measured where asked."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.e2e.client import path_of
from tests.e2e.objects import model_weights
from tests.e2e.processes import freeze_step
from tests.e2e.site import SPLIT, Site
from tests.json_client import Json


def _config(site: Site, namespace: str, name: str) -> dict[str, str]:
    found: dict[str, str] = site.client.get(path_of("ConfigMap", namespace, name))["data"]
    return found


def _engine(model: Json) -> Json:
    found: Json = model["status"]["published"]["engine"]
    return found


def test_measured_settings_are_published_with_what_they_were_measured_for(site: Site, namespace: str) -> None:
    node = site.cluster.gpu_nodes[0]
    validation = {"engine": {"selection": "Measured"}}
    with ThreadPoolExecutor(1) as pool, freeze_step(site.cluster, node, "tune", SPLIT, pool) as tuning:
        site.client.make(model_weights(namespace, "measured", SPLIT, node, validation=validation))
        step = tuning()
    assert step.arguments[2:4] == ["tune", SPLIT]
    engine = _engine(site.await_condition(namespace, "measured", seconds=180))
    print(f"fastest on {node}: {engine}")
    assert engine["tuned"] is True
    config = _config(site, namespace, "measured")
    assert config["FASTSAFETENSORS_ODIRECT"] == str(int(engine["odirect"]))
    assert config["VLLM_FASTSAFETENSORS_QUEUE_SIZE"] == str(engine["queueSize"])
    assert config["vllm-config.yaml"] == f"load-format: {engine['loadFormat']}\n"


@pytest.mark.parametrize(
    ("validation", "expected"),
    [
        (
            {"mode": "Full", "engine": {"queueSize": 2}},
            {"loadFormat": "fastsafetensors", "queueSize": 2, "odirect": False, "nogds": True, "ranks": 1},
        ),
        (
            {"engine": {"tensorParallelSize": 2, "queueSize": -1}},
            {"loadFormat": "fastsafetensors", "queueSize": -1, "odirect": False, "nogds": True, "ranks": 2},
        ),
        ({"engine": {"loadFormat": "safetensors"}}, {"loadFormat": "safetensors", "ranks": 1}),
    ],
    ids=["full", "group", "safetensors"],
)
def test_the_settings_that_were_asked_for_are_those_that_were_proven(
    site: Site, namespace: str, validation: Json, expected: Json
) -> None:
    node = site.cluster.gpu_nodes[0]
    site.client.make(model_weights(namespace, "asked", SPLIT, node, validation=validation))
    engine = _engine(site.await_condition(namespace, "asked", seconds=120))
    assert {key: engine[key] for key in expected} == expected
    assert engine["tuned"] is False
    config = _config(site, namespace, "asked")
    assert config["vllm-config.yaml"] == f"load-format: {expected['loadFormat']}\n"
    extra = "model-loader-extra-config: "
    lines = [line.removeprefix(extra) for line in config["sglang-config.yaml"].splitlines() if line.startswith(extra)]
    gds = [json.loads(line.strip("'")) for line in lines]
    assert gds == ([{"enable_gds": False}] if expected["loadFormat"] == "fastsafetensors" else [])
