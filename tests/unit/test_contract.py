"""Operator and loader never import each other: what one writes into a pod's arguments, the other must understand."""

from typing import Any

import pytest

from modelweights_loader.cli import build_parser
from modelweights_operator.domain import manifests
from tests.unit.domain.samples import POLICY, make_claim_spec, make_node, make_owner, make_spec

SPECS = {
    "defaults": make_spec(),
    "a claim": make_claim_spec(),
    "no prefetch": make_spec(prefetch={"mode": "None"}),
    "all of the prefetch": make_spec(
        prefetch={
            "numThreads": 1,
            "blockSize": "512k",
            "policy": "Required",
            "minResidentPercent": 1,
            "unknownResidency": "Accept",
            "pages": "Normal",
        }
    ),
    "headers only": make_spec(validation={"mode": "Structure", "timeoutSeconds": 5}),
    "nothing": make_spec(validation={"mode": "None"}),
    "every bit by a group": make_spec(
        validation={"mode": "Full", "engine": {"tensorParallelSize": 2, "queueSize": -1}}
    ),
    "measured": make_spec(validation={"engine": {"selection": "Measured"}}),
    "safetensors": make_spec(validation={"engine": {"loadFormat": "safetensors"}}),
}


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())
def test_the_loader_takes_the_arguments_of_every_step(spec: Any) -> None:
    job = manifests.staging_job(make_owner(spec), spec, make_node(), attempt=0, policy=POLICY)
    pod = job["spec"]["template"]["spec"]
    for container in [*pod["initContainers"], *pod["containers"]]:
        parsed = build_parser().parse_args(container["args"])
        assert (parsed.command, parsed.path) == (container["name"], container["args"][1])
