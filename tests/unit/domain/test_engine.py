"""What is published to engines: the settings under which the first node loaded the checkpoint, and no others."""

import json
from typing import Any

import pytest
import yaml

from modelweights_operator.api import v1alpha1 as api
from modelweights_operator.domain import engine, names, reports
from modelweights_operator.domain.plan import Plan, make_plan
from tests.unit.domain.plans import A, B, plan_of
from tests.unit.domain.samples import (
    COMMIT_A,
    DIGEST_A,
    NOW,
    complete_job,
    make_claim_spec,
    make_fetch_spec,
    make_owner,
    make_revision,
    make_snapshot,
    make_spec,
    report_text,
)

MEASURED = make_spec(validation={"engine": {"selection": "Measured"}})
PATH = "/models/llama"
REPORTED = {
    "loadFormat": "fastsafetensors",
    "queueSize": 0,
    "odirect": False,
    "nogds": True,
    "ranks": 1,
    "tuned": False,
}


def reported(**changes: Any) -> dict[str, Any]:
    return {**REPORTED, **changes}


def proven(spec: api.Spec, **changes: Any) -> api.ProvenEngine:
    return api.ProvenEngine.model_validate({**REPORTED, **changes, "stagingDigest": names.staging_digest(spec)})


def data(plan: Plan) -> dict[str, str]:
    assert plan.config_map is not None
    found: dict[str, str] = plan.config_map["data"]
    return found


def test_the_config_map_carries_what_was_proven() -> None:
    spec = make_spec(validation={"engine": {"queueSize": 3}})
    body = engine.config_map(make_owner(spec), spec, make_revision(engine=proven(spec, queueSize=3)))
    assert (body["metadata"]["namespace"], body["metadata"]["name"]) == ("team", "llama")
    assert body["metadata"]["annotations"] == {"modelweights.io/digest": DIGEST_A}
    assert body["data"]["VLLM_FASTSAFETENSORS_QUEUE_SIZE"] == "3"
    assert body["data"]["MODEL_PATH"] == "/models/llama"
    assert all(isinstance(value, str) for value in body["data"].values())


@pytest.mark.parametrize(
    ("changes", "odirect", "queue_size", "vllm", "sglang"),
    [
        ({}, "0", "0", {"load-format": "fastsafetensors"}, {"enable_gds": False}),
        ({"odirect": True, "queueSize": 2}, "1", "2", {"load-format": "fastsafetensors"}, {"enable_gds": False}),
        ({"nogds": False}, "0", "0", {"load-format": "fastsafetensors"}, {"enable_gds": True}),
        ({"loadFormat": "safetensors"}, "0", "0", {"load-format": "safetensors"}, None),
    ],
)
def test_settings_in_the_engines_words(
    changes: dict[str, Any], odirect: str, queue_size: str, vllm: dict[str, str], sglang: dict[str, bool] | None
) -> None:
    spec = make_spec()
    found = engine.settings(spec, proven(spec, **changes), PATH)
    assert (found["FASTSAFETENSORS_ODIRECT"], found["VLLM_FASTSAFETENSORS_QUEUE_SIZE"]) == (odirect, queue_size)
    assert yaml.safe_load(found["vllm-config.yaml"]) == vllm
    parsed = yaml.safe_load(found["sglang-config.yaml"])
    assert parsed.pop("load-format") == vllm["load-format"]
    assert {key: json.loads(value) for key, value in parsed.items()} == (
        {} if sglang is None else {"model-loader-extra-config": sglang}
    )


def test_a_claims_path_depends_on_the_engines_mount_so_none_is_published() -> None:
    assert "MODEL_PATH" not in engine.settings(make_claim_spec(), None, "claim:weights/llama")


def test_a_cache_is_named_where_engines_look_for_one_and_the_hub_is_left_alone() -> None:
    spec = make_fetch_spec(storage={"layout": "HuggingFaceCache"})
    path = f"/data/team/llama/{'a' * 64}/models--org--name/snapshots/{COMMIT_A}"
    found = engine.settings(spec, None, path)
    assert found["MODEL_PATH"] == path
    assert found["HF_HUB_CACHE"] == f"/data/team/llama/{'a' * 64}"
    assert found["HF_HUB_OFFLINE"] == "1"


@pytest.mark.parametrize("layout", ["Plain", "HuggingFaceCache"])
def test_while_the_layout_changes_the_cache_is_told_of_by_where_pods_are_sent(layout: str) -> None:
    spec = make_fetch_spec(storage={"layout": layout})
    plain = f"/data/team/llama/{'a' * 64}"
    cached = f"{plain}/models--org--name/snapshots/{COMMIT_A}"
    assert not {"HF_HUB_OFFLINE", "HF_HUB_CACHE"} & engine.settings(spec, None, plain).keys()
    assert engine.settings(spec, None, cached)["HF_HUB_CACHE"] == plain
    in_place = make_spec()
    assert "HF_HUB_OFFLINE" not in engine.settings(in_place, None, f"/models/models--org--name/snapshots/{COMMIT_A}")


def test_a_cache_in_a_claim_depends_on_the_engines_mount() -> None:
    spec = make_fetch_spec(storage={"class": "shared", "layout": "HuggingFaceCache"})
    found = engine.settings(spec, None, f"claim:models/llama/{'a' * 64}/models--org--name/snapshots/{COMMIT_A}")
    assert not {"MODEL_PATH", "HF_HUB_CACHE"} & found.keys()
    assert found["HF_HUB_OFFLINE"] == "1"


def test_what_was_not_loaded_is_published_as_the_spec_has_it() -> None:
    spec = make_spec(validation={"mode": "Structure", "engine": {"queueSize": 5, "loadFormat": "safetensors"}})
    found = engine.settings(spec, None, PATH)
    assert found["VLLM_FASTSAFETENSORS_QUEUE_SIZE"] == "5"
    assert yaml.safe_load(found["vllm-config.yaml"]) == {"load-format": "safetensors"}


def test_the_first_nodes_measure_is_published_and_another_nodes_changes_nothing() -> None:
    first = plan_of(
        make_snapshot(
            make_owner(MEASURED),
            (A, B),
            (complete_job(A, MEASURED, engine=reported(odirect=True, tuned=True)),),
        )
    )
    assert first.status.published is not None
    assert first.status.published.engine == proven(MEASURED, odirect=True, tuned=True)
    assert data(first)["FASTSAFETENSORS_ODIRECT"] == "1"
    second = make_plan(
        make_snapshot(
            make_owner(MEASURED, first.status),
            (A, B),
            (complete_job(B, MEASURED, engine=reported(odirect=False, queueSize=2, tuned=True)),),
        ),
        NOW,
    )
    assert second.status.published == first.status.published
    assert data(second) == data(first)


def test_settings_of_an_edited_spec_replace_the_former_once_proven() -> None:
    before = make_spec()
    after = make_spec(validation={"engine": {"queueSize": 4}})
    published = make_revision(engine=proven(before))
    status = api.Status(published=published)
    waiting = plan_of(make_snapshot(make_owner(after, status), (A,)))
    assert waiting.status.published == published
    assert waiting.config_map is None
    done = plan_of(
        make_snapshot(make_owner(after, status), (A,), (complete_job(A, after, engine=reported(queueSize=4)),))
    )
    assert data(done)["VLLM_FASTSAFETENSORS_QUEUE_SIZE"] == "4"


@pytest.mark.parametrize("bad", [{"loadFormat": "pickle"}, {"queueSize": 65}, {"ranks": 0}, {"odirect": "perhaps"}])
def test_a_report_with_settings_that_no_loader_writes_is_no_report(bad: dict[str, Any]) -> None:
    assert reports.parse(report_text(engine=reported(**bad))) is None
    good = reports.parse(report_text(engine=reported()))
    assert good is not None
    assert good.engine is not None


def test_a_report_without_settings_is_one() -> None:
    good = reports.parse(report_text())
    assert good is not None
    assert good.engine is None
