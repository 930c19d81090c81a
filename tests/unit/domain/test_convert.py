"""Objects of the API to values: whatever is missing or was tampered with, one object's fault stays that object's."""

from datetime import UTC, datetime
from typing import Any

import pytest

from modelweights_operator.api.v1alpha1 import Status
from modelweights_operator.domain import convert
from modelweights_operator.domain.gate import GatedPod, Group
from modelweights_operator.domain.groups import Started
from modelweights_operator.domain.snapshot import ContainerState, EngineConfigMap, Node, StagingJob, StagingPod, Taint
from modelweights_operator.domain.usage import PodUse
from modelweights_operator.kube import cleaning

Json = dict[str, Any]
CREATED = "2026-03-01T12:00:00Z"
CREATED_AT = datetime(2026, 3, 1, 12, tzinfo=UTC)


def test_a_node() -> None:
    body = {
        "metadata": {"name": "n", "uid": "u", "labels": {"a": "b"}},
        "spec": {"unschedulable": True, "taints": [{"key": "t", "effect": "NoSchedule"}]},
        "status": {"nodeInfo": {"bootID": "boot"}, "conditions": [{"type": "Ready", "status": "True"}]},
    }
    expected = Node("n", "u", "boot", {"a": "b"}, (Taint("t", "", "NoSchedule"),), ready=True, cordoned=True)
    assert convert.node(body) == expected


@pytest.mark.parametrize(
    "rest",
    [{}, {"spec": None, "status": None}, {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}],
)
def test_a_node_that_just_came_is_not_ready(rest: Json) -> None:
    assert convert.node({"metadata": {"name": "n", "uid": "u"}, **rest}) == Node("n", "u", "", {}, ready=False)


SPEC = {"source": {"hostPath": {"path": "/models/x"}}}


def model(spec: Any, status: Any = None) -> Json:
    metadata = {"namespace": "team", "name": "llama", "uid": "u", "generation": 2}
    return {"metadata": metadata, "spec": spec, **({"status": status} if status is not None else {})}


def test_a_model() -> None:
    owner = convert.owner(model({**SPEC, "fieldOfANewerVersion": 1}, {"observedGeneration": 1}))
    assert owner.spec is not None
    assert (owner.namespace, owner.name, owner.uid, owner.generation, owner.invalid) == ("team", "llama", "u", 2, "")
    assert owner.status.observed_generation == 1


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (None, "spec.source: Field required"),
        ({}, "spec.source: Field required"),
        ({"source": {}}, "exactly one of huggingFace, objectStore, persistentVolumeClaim, hostPath and image must be given"),
        ({**SPEC, "prefetch": {"numThreads": 0}}, "spec.prefetch.numThreads: Input should be greater than or equal to 1"),
        ({**SPEC, "prefetch": {"blockSize": "5Mi5"}}, "spec.prefetch.blockSize"),
        ({**SPEC, "prefetch": {"blockSize": "15M"}}, "steps of 4Ki"),
        ({**SPEC, "prefetch": {"blockSize": "1Gi"}}, "times prefetch.blockSize must be at most 4Gi"),
        ({**SPEC, "placement": {"nodeSelector": ["a"]}}, "spec.placement.nodeSelector"),
        ("text", "spec"),
    ],
)  # fmt: skip
def test_a_model_that_cannot_be_read_says_so_and_raises_nothing(spec: Any, expected: str) -> None:
    owner = convert.owner(model(spec))
    assert owner.spec is None
    assert expected in owner.invalid


@pytest.mark.parametrize(
    "status",
    [
        {"nodes": {"n": {"state": "Dancing"}}},
        {"nodes": []},
        {"conditions": [{"type": "Ready"}]},
        {"observedGeneration": -2},
        {"published": "x"},
        {"published": {"manifestDigest": "no digest"}},
        {"nodes": {"n": {"state": "Ready", "manifestDigest": "no digest"}}},
    ],
)
def test_a_spoilt_status_is_found_out_anew_and_still_patched_from_what_stands_there(status: Json) -> None:
    owner = convert.owner(model(SPEC, status))
    assert owner.status == Status()
    assert owner.raw_status == status


def job(annotations: Json | None = None, **parts: Any) -> Json:
    metadata = {"name": "j", "namespace": "team", "creationTimestamp": CREATED, "annotations": annotations}
    return {"metadata": {**metadata, **parts.pop("metadata", {})}, **parts}


ANNOTATIONS = {
    "modelweights.io/node": "n",
    "modelweights.io/node-uid": "nu",
    "modelweights.io/staging-digest": "d",
    "modelweights.io/boot-id": "b",
    "modelweights.io/round": "4",
    "modelweights.io/result": "{}",
    "modelweights.io/source-digest": "s",
    "modelweights.io/source-host": "h",
    "modelweights.io/revision": "r",
}


def condition(kind: str, status: str = "True", **fields: str) -> Json:
    return {"type": kind, "status": status, "lastTransitionTime": CREATED, **fields}


def test_a_failed_job() -> None:
    failed = condition("Failed", reason="PodFailurePolicy", message="rule 1")
    body = job(ANNOTATIONS, status={"conditions": [condition("FailureTarget"), failed]})
    assert convert.job(body) == StagingJob(
        name="j",
        node_name="n",
        node_uid="nu",
        staging_digest="d",
        boot_id="b",
        round=4,
        created_at=CREATED_AT,
        started_at=CREATED_AT,
        state="Failed",
        finished_at=CREATED_AT,
        failure_reason="PodFailurePolicy",
        failure_message="rule 1",
        result="{}",
        namespace="team",
        source_digest="s",
        source_host="h",
        revision="r",
    )


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        (None, "Active"),
        ([], "Active"),
        ([condition("Complete", "False")], "Active"),
        ([condition("SuccessCriteriaMet")], "Active"),
        ([condition("Complete")], "Complete"),
        ([condition("Failed")], "Failed"),
    ],
)
def test_the_state_of_a_job_is_its_true_condition(conditions: Any, expected: str) -> None:
    assert convert.job(job(status={"conditions": conditions})).state == expected


def test_a_job_that_is_deleted_or_suspended() -> None:
    body = job(metadata={"deletionTimestamp": CREATED}, spec={"suspend": True})
    assert (convert.job(body).deleting, convert.job(body).suspended) == (True, True)


LATER = "2026-03-01T13:00:00Z"


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({}, CREATED_AT),
        ({"startTime": LATER}, datetime(2026, 3, 1, 13, tzinfo=UTC)),
        ({"conditions": [condition("Suspended")]}, None),
        ({"conditions": [condition("Suspended", "False")]}, None),
        ({"conditions": [condition("Suspended", "False")], "startTime": LATER}, datetime(2026, 3, 1, 13, tzinfo=UTC)),
    ],
)
def test_a_job_that_a_queue_held_back_starts_when_it_lets_it_go(status: Json, expected: datetime | None) -> None:
    assert convert.job(job(status=status)).started_at == expected


def test_a_job_whose_parallelism_someone_took() -> None:
    assert convert.job(job(spec={"parallelism": 0})).parallelism == 0
    assert convert.job(job(spec={"parallelism": 1})).parallelism == 1


@pytest.mark.parametrize("text", ["", "-1", "many", "²", "٣", "9" * 5000, "1.5", "1\n", None])
def test_a_round_that_was_tampered_with_counts_as_the_first(text: str | None) -> None:
    annotations = {} if text is None else {"modelweights.io/round": text}
    assert convert.job(job(annotations)).round == 0


def test_a_job_without_annotations_is_one_of_another_staging() -> None:
    found = convert.job(job(None))
    assert (found.node_name, found.node_uid, found.staging_digest, found.boot_id) == ("", "", "", "")


IMAGE_VOLUME = {"name": "model", "image": {"reference": "registry/x@sha256:1", "pullPolicy": "Never"}}


@pytest.mark.parametrize(
    ("volumes", "expected"),
    [
        (None, ""),
        ([{"name": "tmp", "emptyDir": {}}], ""),
        ([{"name": "tmp", "emptyDir": {}}, IMAGE_VOLUME], "registry/x@sha256:1"),
        ([{"name": "model", "image": {}}], ""),
    ],
)
def test_the_image_volume_of_a_job_and_of_its_pod(volumes: Any, expected: str) -> None:
    template = {"spec": {"containers": [], "volumes": volumes}}
    assert convert.job(job(spec={"template": template})).has_image_volume == bool(expected)
    assert convert.staging_pod(pod({"volumes": volumes})).volume_image == expected


def pod(spec: Json | None = None, status: Json | None = None, **metadata: Any) -> Json:
    return {
        "metadata": {"name": "p", "namespace": "team", "uid": "pu", "creationTimestamp": CREATED, **metadata},
        "spec": {"containers": [{"name": "report", "image": "loader:1"}], **(spec or {})},
        **({"status": status} if status is not None else {}),
    }


def test_a_pod_without_a_status_waits_for_a_node() -> None:
    assert convert.staging_pod(pod()) == StagingPod("p", CREATED_AT, "Pending")


def test_why_a_pod_finds_no_node() -> None:
    refused = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes"}
    assert convert.staging_pod(pod(status={"conditions": [refused]})).message == "0/3 nodes"


def test_the_claims_of_a_pod() -> None:
    volumes = [{"name": "tmp", "emptyDir": {}}, {"name": "model", "persistentVolumeClaim": {"claimName": "weights"}}]
    assert convert.staging_pod(pod({"volumes": volumes})).claims == ("weights",)


def test_the_states_of_containers_in_order() -> None:
    limits = {"resources": {"limits": {"memory": "1Gi"}}}
    spec = {
        "nodeName": "n",
        "initContainers": [
            {"name": "prefetch", "image": "loader:1", **limits},
            {"name": "validate", "image": "loader:1"},
        ],
    }
    status = {
        "phase": "Running",
        "initContainerStatuses": [
            {"name": "prefetch", "state": {"terminated": {"exitCode": 0, "reason": "Completed", "message": "{}"}}},
            {"name": "validate", "state": {"running": {}}},
        ],
        "containerStatuses": [
            {"name": "report", "state": {"waiting": {"reason": "PodInitializing"}}},
            {"name": "injected", "state": {}},
        ],
    }
    assert convert.staging_pod(pod(spec, status)) == StagingPod(
        "p",
        CREATED_AT,
        "Running",
        scheduled=True,
        memory_limit_bytes=2**30,
        containers=(
            ContainerState("prefetch", "loader:1", exit_code=0, terminated_reason="Completed", message="{}"),
            ContainerState("validate", "loader:1"),
            ContainerState("report", "loader:1", waiting_reason="PodInitializing"),
            ContainerState("injected", waiting_reason="Waiting"),
        ),
    )


@pytest.mark.parametrize(
    ("limits", "expected"),
    [([None], 0), (["64Mi", "1Gi"], 64 * 2**20), ([None, "2G"], 2 * 10**9), (["1.5Gi"], 0), ([4096], 4096)],
)
def test_the_smallest_memory_limit_counts(limits: list[Any], expected: int) -> None:
    containers = [
        {"name": f"c{index}", "image": "i", "resources": {"limits": {"memory": limit}} if limit else {}}
        for index, limit in enumerate(limits)
    ]
    assert convert.staging_pod(pod({"containers": containers})).memory_limit_bytes == expected


GATE = {"name": "modelweights.io/staged"}


def test_a_gated_pod() -> None:
    terms = [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    body = pod(
        {"schedulingGates": [{"name": "other"}, GATE], "affinity": affinity},
        resourceVersion="7",
        annotations={"modelweights.io/require": "llama"},
    )
    assert convert.gated_pod(body) == GatedPod("team", "p", "pu", "7", "llama", tuple(terms), created_at=CREATED_AT)


def test_a_gated_pod_of_a_group() -> None:
    body = pod(
        {"schedulingGates": [GATE]},
        resourceVersion="7",
        labels={"modelweights.io/group": "g"},
        annotations={"modelweights.io/group-size": "3"},
    )
    found = convert.gated_pod(body)
    assert found is not None
    assert (found.group, found.group_size) == (Group((("modelweights.io/group", "g"),)), "3")


def test_the_pods_of_a_group_that_are_there() -> None:
    waits = pod({"schedulingGates": [GATE]}, resourceVersion="7", name="waits")
    notes = {"modelweights.io/require": "llama", "modelweights.io/digest": "sha256:a"}
    runs = pod({}, name="runs", annotations=notes) | {"status": {"phase": "Running"}}
    plain = pod({}, name="plain") | {"status": {"phase": "Pending"}}
    ended = pod({}, name="ended", annotations=notes) | {"status": {"phase": "Failed"}}
    goes = pod({}, name="goes", annotations=notes, deletionTimestamp=CREATED)
    found = convert.group_members([waits, runs, plain, ended, goes])
    assert [each.name for each in found.waiting] == ["waits"]
    assert found.started == (Started("runs", "llama", "sha256:a"), Started("plain", "", ""))
    assert found.count == 3


@pytest.mark.parametrize("affinity", [None, {}, {"nodeAffinity": None}, {"podAffinity": {}}, {"nodeAffinity": {}}])
def test_a_gated_pod_without_required_affinity_or_annotation(affinity: Any) -> None:
    body = pod({"schedulingGates": [GATE], "affinity": affinity}, resourceVersion="7")
    assert convert.gated_pod(body) == GatedPod("team", "p", "pu", "7", "", None, created_at=CREATED_AT)


@pytest.mark.parametrize(
    ("spec", "metadata"),
    [
        ({}, {}),
        ({"schedulingGates": [{"name": "other"}]}, {}),
        ({"schedulingGates": [GATE]}, {"deletionTimestamp": CREATED}),
    ],
)
def test_a_pod_that_does_not_wait_at_our_gate_is_none_of_ours(spec: Json, metadata: Json) -> None:
    assert convert.gated_pod(pod(spec, resourceVersion="7", **metadata)) is None


def test_what_tells_which_files_a_pod_uses() -> None:
    notes = {"modelweights.io/require": "catalogue/llama", "modelweights.io/digest": "sha256:a"}
    volumes = [{"persistentVolumeClaim": {"claimName": "models"}}, {"hostPath": {"path": "/data"}}, {"emptyDir": {}}]
    found = cleaning.pod_use(pod({"nodeName": "node-a", "volumes": volumes}, annotations=notes))
    assert found == PodUse("team", "p", "node-a", "sha256:a", "catalogue/llama", ("/data",), ("models",))
    assert cleaning.pod_use(pod()) == PodUse("team", "p")


@pytest.mark.parametrize(
    ("references", "expected"),
    [
        (None, False),
        ([{"uid": "u", "controller": True}], True),
        ([{"uid": "u"}], False),
        ([{"uid": "other", "controller": True}], False),
        ([{"uid": "other"}, {"uid": "u", "controller": True}], True),
    ],
)
def test_a_config_map_is_ours_when_that_very_object_controls_it(references: Any, expected: bool) -> None:  # noqa: FBT001
    body = {"metadata": {"ownerReferences": references}, "data": {"a": "b"}}
    assert convert.config_map(body, "u") == EngineConfigMap(ours=expected, data={"a": "b"})
