"""The staging Job and the engine's ConfigMap: what is asked for reaches the pod, and the pod is let in anywhere."""

from typing import Any

import pytest

from modelweights_operator.domain import manifests, names
from tests.unit.domain.samples import OWNER_UID, POLICY, make_claim_spec, make_node, make_owner, make_spec

Json = dict[str, Any]


def build(spec: Any = None, attempt: int = 0) -> Json:
    spec = spec or make_spec()
    return manifests.staging_job(make_owner(spec), spec, make_node(), attempt=attempt, policy=POLICY)


def pod_of(job: Json) -> Json:
    pod: Json = job["spec"]["template"]["spec"]
    return pod


def containers_of(job: Json) -> dict[str, Json]:
    pod = pod_of(job)
    return {container["name"]: container for container in [*pod["initContainers"], *pod["containers"]]}


def option(container: Json, name: str) -> str:
    arguments: list[str] = container["args"]
    return arguments[arguments.index(name) + 1]


# --- the pod ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", [make_spec(), make_claim_spec()], ids=["hostPath", "claim"])
def test_the_pod_has_what_pod_security_restricted_asks_for(spec: Any) -> None:
    job = build(spec)
    pod = pod_of(job)
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] != 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC", "nodeName"} & pod.keys()
    for container in containers_of(job).values():
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert "ports" not in container


def test_the_pod_holds_no_token_and_is_never_restarted_in_place() -> None:
    pod = pod_of(build())
    assert pod["automountServiceAccountToken"] is False
    assert pod["restartPolicy"] == "Never"


def test_a_claim_is_mounted_read_only_and_nothing_else_of_the_node_is() -> None:
    pod = pod_of(build(make_claim_spec()))
    claim = {"name": "model", "persistentVolumeClaim": {"claimName": "weights", "readOnly": True}}
    assert pod["volumes"][0] == claim
    assert not [volume for volume in pod["volumes"] if "hostPath" in volume]


def test_a_host_path_is_the_root_read_only_and_only_report_may_write_markers() -> None:
    job = build()
    assert pod_of(job)["volumes"][0] == {"name": "model", "hostPath": {"path": "/models", "type": "Directory"}}
    writable = {
        name: [mount for mount in container["volumeMounts"] if mount["name"] == "model" and not mount.get("readOnly")]
        for name, container in containers_of(job).items()
    }
    marker = {"name": "model", "mountPath": "/run/modelweights/markers", "subPath": ".modelweights"}
    assert writable == {"prefetch": [], "validate": [], "report": [marker]}


def test_the_pod_is_pinned_by_the_name_of_its_node() -> None:
    terms = pod_of(build())["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    field = {"key": "metadata.name", "operator": "In", "values": ["node-a"]}
    assert terms == {"nodeSelectorTerms": [{"matchFields": [field]}]}


def test_tolerations_are_the_specs_and_the_default_ones() -> None:
    spec = make_spec(placement={"tolerations": [{"key": "team", "value": "red", "effect": "NoSchedule"}]})
    assert pod_of(build(spec))["tolerations"] == [
        {"key": "team", "operator": "Equal", "value": "red", "effect": "NoSchedule"},
        {"key": "nvidia.com/gpu", "operator": "Exists"},
        {"key": "modelweights.io/unstaged", "operator": "Exists"},
    ]


# --- arguments ----------------------------------------------------------------------------------------------------


def test_the_reading_settings_reach_the_prefetch_as_plain_numbers() -> None:
    prefetch = {"numThreads": 3, "blockSize": "4Mi", "policy": "Required", "minResidentPercent": 80}
    step = containers_of(build(make_spec(prefetch=prefetch)))["prefetch"]
    assert step["args"][:2] == ["prefetch", "/models/llama"]
    assert option(step, "--num-threads") == "3"
    assert option(step, "--block-size") == str(4 * 1024**2)
    assert option(step, "--policy") == "Required"
    assert option(step, "--min-resident-percent") == "80"
    assert option(step, "--unknown-residency") == "Fail"


def test_the_loading_settings_reach_the_validation() -> None:
    validation = {"mode": "Full", "engine": {"queueSize": -1, "tensorParallelSize": 2}, "timeoutSeconds": 77}
    step = containers_of(build(make_spec(validation=validation)))["validate"]
    assert option(step, "--mode") == "Full"
    assert option(step, "--load-format") == "fastsafetensors"
    assert option(step, "--queue-size") == "-1"
    assert option(step, "--world-size") == "2"
    assert option(step, "--timeout-seconds") == "77"


def test_the_report_knows_the_boot_and_where_markers_go() -> None:
    step = containers_of(build())["report"]
    assert option(step, "--node-boot-id") == "boot-node-a"
    assert option(step, "--marker-dir") == "/run/modelweights/markers"
    assert option(step, "--marker-root") == "/models"
    assert option(step, "--pages") == "Cold"


@pytest.mark.parametrize(
    ("mode", "selection", "steps"),
    [
        ("Load", "Fixed", ["prefetch", "validate", "report"]),
        ("Load", "Measured", ["prefetch", "validate", "tune", "report"]),
        ("Full", "Measured", ["prefetch", "validate", "tune", "report"]),
        ("Structure", "Fixed", ["prefetch", "validate", "report"]),
    ],
)
def test_settings_are_timed_only_where_asked_and_after_a_load(mode: str, selection: str, steps: list[str]) -> None:
    spec = make_spec(validation={"mode": mode, "engine": {"selection": selection}})
    assert list(containers_of(build(spec))) == steps


def test_a_claim_takes_no_marker() -> None:
    step = containers_of(build(make_claim_spec()))["report"]
    assert "--marker-dir" not in step["args"]


def test_without_prefetch_there_is_no_such_step_and_residency_is_not_required() -> None:
    spec = make_spec(prefetch={"mode": "None", "policy": "Required"})
    steps = containers_of(build(spec))
    assert list(steps) == ["validate", "report"]
    assert option(steps["report"], "--policy") == "BestEffort"


def test_steps_run_in_order_and_report_into_the_termination_log() -> None:
    job = build()
    assert [container["name"] for container in pod_of(job)["initContainers"]] == ["prefetch", "validate"]
    assert [container["name"] for container in pod_of(job)["containers"]] == ["report"]
    for container in containers_of(job).values():
        assert option(container, "--report") == container["terminationMessagePath"]
        assert container["image"] == "loader:1"


# --- the Job ------------------------------------------------------------------------------------------------------


def test_disruptions_are_ignored_and_permanent_exit_codes_fail_the_job_at_once() -> None:
    spec = build()["spec"]
    assert spec["backoffLimit"] == 0
    assert spec["podReplacementPolicy"] == "Failed"
    assert spec["podFailurePolicy"] == {
        "rules": [
            {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
            {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [2, 20, 30, 40]}},
        ]
    }


def test_the_job_says_what_it_is_and_whose() -> None:
    job = build(attempt=2)
    spec_digest = names.staging_digest(make_spec())
    identity = (OWNER_UID, "uid-node-a", spec_digest, "boot-node-a", "2")
    assert job["metadata"]["name"] == names.job_name("llama", *identity)
    assert job["metadata"]["namespace"] == "team"
    assert job["metadata"]["annotations"] == {
        "modelweights.io/node": "node-a",
        "modelweights.io/node-uid": "uid-node-a",
        "modelweights.io/staging-digest": spec_digest,
        "modelweights.io/boot-id": "boot-node-a",
        "modelweights.io/round": "2",
        "modelweights.io/image": "loader:1",
    }
    owner = {"apiVersion": "modelweights.io/v1alpha1", "kind": "ModelWeights", "name": "llama", "uid": OWNER_UID}
    assert job["metadata"]["ownerReferences"] == [{**owner, "controller": True, "blockOwnerDeletion": True}]


def test_labels_and_annotations_of_the_user_pass_through_but_never_over_ours() -> None:
    labels = {"queue": "a", "app.kubernetes.io/managed-by": "someone"}
    annotations = {"cost": "b", "modelweights.io/round": "99"}
    job = build(make_spec(staging={"labels": labels, "annotations": annotations}))
    template = job["spec"]["template"]["metadata"]
    ours = {"app.kubernetes.io/managed-by": "modelweights-operator", "modelweights.io/owner-uid": OWNER_UID}
    assert job["metadata"]["labels"] == {"queue": "a", **ours}
    assert template["labels"] == {"queue": "a", **ours, "sidecar.istio.io/inject": "false"}
    assert template["annotations"]["cost"] == "b"
    assert job["metadata"]["annotations"]["modelweights.io/round"] == "0"


def test_what_the_staging_pods_need_to_be_let_in_reaches_them() -> None:
    staging = {
        "serviceAccountName": "stager",
        "priorityClassName": "low",
        "runtimeClassName": "gvisor",
        "imagePullSecrets": [{"name": "pull"}],
        "env": [{"name": "A", "value": "b"}],
        "resources": {"requests": {"cpu": 2}, "limits": {"memory": "4Gi"}},
        "uid": 1234,
    }
    job = build(make_spec(staging=staging))
    pod = pod_of(job)
    assert pod["serviceAccountName"] == "stager"
    assert pod["priorityClassName"] == "low"
    assert pod["runtimeClassName"] == "gvisor"
    assert pod["imagePullSecrets"] == [{"name": "pull"}]
    assert (pod["securityContext"]["runAsUser"], pod["securityContext"]["runAsGroup"]) == (1234, 1234)
    assert pod["securityContext"]["supplementalGroups"] == [65532]
    for container in containers_of(job).values():
        assert container["env"] == [{"name": "A", "value": "b"}]
        assert container["resources"] == {"requests": {"cpu": 2}, "limits": {"memory": "4Gi"}}


def test_what_is_not_asked_for_is_left_out() -> None:
    assert (
        not {"serviceAccountName", "priorityClassName", "runtimeClassName", "imagePullSecrets"} & pod_of(build()).keys()
    )


def test_there_is_no_memory_limit_by_default() -> None:
    assert [container["resources"]["limits"] for container in containers_of(build()).values()] == [{}, {}, {}]


@pytest.mark.parametrize("name", ["$(HOME)", "a$$b", "a$b"])
def test_a_folder_whose_name_looks_like_a_variable_is_taken_as_it_is(name: str) -> None:
    """The kubelet expands $(NAME) in arguments, and takes $$ for $."""
    argument = containers_of(build(make_spec(source={"hostPath": {"path": f"/models/{name}"}})))["prefetch"]["args"][1]
    assert argument.replace("$$", "$") == f"/models/{name}"
    assert "$" not in argument.replace("$$", "")
