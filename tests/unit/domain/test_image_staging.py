"""An image as the source: what the pod mounts, where the checkpoint lies, and what is said where it can't be mounted."""

from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from modelweights_operator.api import v1alpha1 as api
from modelweights_operator.api.sources import Source
from modelweights_operator.domain import engine, failures, manifests, names, steps, storage
from modelweights_operator.domain.clock import rfc3339
from modelweights_operator.domain.snapshot import ContainerState, StagingJob, StagingPod
from modelweights_operator.domain.storage import ModelLocation
from tests.unit.domain.plans import A, B, C, is_true, job_nodes, message, plan_of, reasons, states, with_spec
from tests.unit.domain.samples import (
    DIGEST_A,
    POLICY,
    ago,
    complete_job,
    digest_of,
    failed_job,
    failure_text,
    make_entry,
    make_job,
    make_node,
    make_owner,
    make_pod,
    make_status,
    without_canary,
)

REFERENCE = "registry.example:5000/models/llama:v1"
VOLUME = {"image": {"reference": REFERENCE, "pullPolicy": "IfNotPresent"}}
NOT_SUPPORTED = "ImageVolumesNotSupported"


def make_spec(path: str = "weights", policy: str = "IfNotPresent", **fields: Any) -> api.Spec:
    image = {"reference": REFERENCE, "path": path, "pullPolicy": policy}
    return api.Spec.model_validate({"source": {"image": image}, **without_canary(fields)})


SPEC = make_spec()


def pod_of(spec: api.Spec) -> dict[str, Any]:
    job = manifests.staging_job(make_owner(spec), spec, make_node(), attempt=0, policy=POLICY)
    found: dict[str, Any] = job["spec"]["template"]["spec"]
    return found


def mounts(pod: dict[str, Any], volume: str) -> dict[str, list[dict[str, Any]]]:
    """Per container, its mounts of a volume."""
    return {
        container["name"]: [mount for mount in container["volumeMounts"] if mount["name"] == volume]
        for container in [*pod["initContainers"], *pod["containers"]]
    }


# --- the pod ------------------------------------------------------------------------------------------------------


def test_every_step_sees_the_image_read_only_and_nothing_of_the_node() -> None:
    pod = pod_of(SPEC)
    assert pod["volumes"][0] == {"name": "model", **VOLUME}
    assert not [volume for volume in pod["volumes"] if "hostPath" in volume]
    mount = {"name": "model", "mountPath": "/mnt/model", "readOnly": True}
    assert mounts(pod, "model") == {"prefetch": [mount], "validate": [mount], "report": [mount]}
    assert pod["initContainers"][0]["args"][:2] == ["prefetch", "/mnt/model/weights"]


def test_the_pull_policy_is_the_specs() -> None:
    assert pod_of(make_spec(policy="Never"))["volumes"][0]["image"]["pullPolicy"] == "Never"


def test_a_copy_is_made_of_the_image_by_those_that_ask_the_source_alone() -> None:
    pod = pod_of(make_spec(storage={}))
    assert pod["volumes"][0] == {"name": "model", "hostPath": {"path": "/data", "type": "Directory"}}
    assert {"name": "source", **VOLUME} in pod["volumes"]
    mount = {"name": "source", "mountPath": "/mnt/source", "readOnly": True}
    assert mounts(pod, "source") == {"resolve": [mount], "fetch": [mount], "prefetch": [], "validate": [], "report": []}
    for container in pod["initContainers"][:2]:
        assert "--source=file:///mnt/source/weights" in container["args"]


# --- where it lies ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (SPEC, ModelLocation("/mnt/model", "/mnt/model/weights", marked=False)),
        (make_spec(""), ModelLocation("/mnt/model", "/mnt/model", marked=False)),
        (
            make_spec(storage={}),
            ModelLocation(
                "/data/team/llama", "/data/team/llama", marked=True, marker_root="/data", sub_path="team/llama"
            ),
        ),
    ],
)
def test_where_the_pod_finds_the_checkpoint(spec: api.Spec, expected: ModelLocation) -> None:
    assert storage.locate(make_owner(), spec, POLICY) == expected


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (SPEC, f"image:{REFERENCE}/weights"),
        (make_spec(""), f"image:{REFERENCE}/"),
        (make_spec(storage={}), f"/data/team/llama/{'a' * 64}"),
    ],
)
def test_the_published_path_says_where_engines_look(spec: api.Spec, expected: str) -> None:
    assert storage.published_path(make_owner(), spec, POLICY, manifest_digest=DIGEST_A, revision="") == expected


def test_the_path_depends_on_the_engines_mount_so_the_config_map_has_none() -> None:
    assert "MODEL_PATH" not in engine.settings(SPEC, None, f"image:{REFERENCE}/weights")
    plan = plan_of(with_spec(SPEC, A, jobs=(replace(complete_job(A, SPEC), has_image_volume=True),)))
    assert plan.status.published is not None
    assert plan.status.published.path == f"image:{REFERENCE}/weights"


def test_the_longest_path_fits_the_status() -> None:
    longest = "x" * 1024
    reference = f"{'r' * 250}.example/{'n' * 100}:{'t' * 64}@sha256:{'a' * 64}"
    spec = api.Spec.model_validate({"source": {"image": {"reference": reference, "path": longest}}})
    found = storage.published_path(make_owner(), spec, POLICY, manifest_digest=DIGEST_A, revision="")
    assert api.Revision(manifest_digest=DIGEST_A, path=found).path == found


def test_only_a_copy_has_a_revision_that_all_nodes_must_share() -> None:
    assert not steps.needs_revision(SPEC)
    assert steps.needs_revision(make_spec(storage={}))


def test_what_is_in_the_pod_stages_again_and_pull_secrets_do_not() -> None:
    assert names.staging_digest(make_spec("other")) != names.staging_digest(SPEC)
    assert names.staging_digest(make_spec(policy="Always")) != names.staging_digest(SPEC)
    secrets = make_spec(staging={"imagePullSecrets": [{"name": "pull"}]})
    assert names.staging_digest(secrets) == names.staging_digest(SPEC)


@pytest.mark.parametrize(
    "reference",
    ["", "http://registry/x", "registry/x y", "registry/UPPER", "x:", "x@sha256:abc", "registry:port/x", "-x", "x/"],
)
def test_what_is_no_reference_is_refused(reference: str) -> None:
    with pytest.raises(ValidationError):
        Source.model_validate({"image": {"reference": reference}})


# --- where the API server drops the volume --------------------------------------------------------------------------


def made_without(node: Any = A, **changes: Any) -> StagingJob:
    """The Job as an API server keeps it that drops image volumes."""
    return make_job(node, SPEC, **changes)


def made_with(node: Any = A, **changes: Any) -> StagingJob:
    return make_job(node, SPEC, has_image_volume=True, **changes)


LOST = failed_job(A, spec=SPEC, text=failure_text("NotFound", 20))


@pytest.mark.parametrize(
    "job",
    [made_without(), LOST, replace(LOST, result=failure_text("NotFound", 20)), complete_job(A, SPEC)],
    ids=["active", "failed for it", "failed with a note", "complete by chance"],
)
@pytest.mark.parametrize("spec", [SPEC, make_spec(storage={})], ids=["in place", "copied"])
def test_a_job_without_its_volume_goes_and_the_reason_and_the_remedy_are_said(job: StagingJob, spec: api.Spec) -> None:
    digests = {"staging_digest": digest_of(spec), "source_digest": ""}
    plan = plan_of(with_spec(spec, A, jobs=(replace(job, **digests),)))  # type: ignore[arg-type] # names of its fields
    assert plan.delete_jobs == (job.name,)
    assert plan.create_jobs == ()
    assert states(plan) == {"node-a": ("Failed", NOT_SUPPORTED)}
    assert reasons(plan)["Stalled"] == NOT_SUPPORTED
    assert f"the image {REFERENCE} out of the staging Job: turn the feature gate ImageVolume on" in message(plan)
    assert plan.status.published is None
    assert plan.again_after_seconds == failures.LONG_BACKOFF_SECONDS


def test_a_job_with_its_volume_goes_on() -> None:
    job = made_with(pods=(make_pod(ContainerState("prefetch")),))
    plan = plan_of(with_spec(SPEC, A, jobs=(job,)))
    assert states(plan) == {"node-a": ("Staging", "Prefetching")}


def unsupported(node: Any, seconds_ago: float) -> api.NodeStatus:
    changes = {"state": "Failed", "reason": NOT_SUPPORTED, "attempts": 1, "exit_code": 20, "manifest_digest": ""}
    return make_entry(node, SPEC, **changes, last_transition_time=rfc3339(ago(seconds_ago)))


def test_it_is_tried_again_after_ten_minutes_and_not_by_all() -> None:
    early = make_status({"node-a": unsupported(A, 599), "node-b": unsupported(B, 599)})
    plan = plan_of(with_spec(SPEC, A, B, C, status=early))
    assert job_nodes(plan) == []
    assert plan.status.nodes["node-c"].message == f"waits until node-a, node-b got past {NOT_SUPPORTED}"
    assert reasons(plan)["Ready"] == NOT_SUPPORTED
    all_due = make_status({"node-a": unsupported(A, 601), "node-b": unsupported(B, 601)})
    assert sorted(job_nodes(plan_of(with_spec(SPEC, A, B, C, status=all_due)))) == ["node-a", "node-b", "node-c"]


def test_a_node_that_is_staged_stays_so_where_the_gate_was_turned_off_since() -> None:
    plan = plan_of(with_spec(SPEC, A, status=make_status({"node-a": make_entry(A, SPEC)}), jobs=(made_without(),)))
    assert is_true(plan, "Ready")


# --- what kubelets say --------------------------------------------------------------------------------------------


def waits(reason: str, text: str = "") -> ContainerState:
    return ContainerState("prefetch", image="loader:1", waiting_reason=reason, message=text)


def with_volume(*containers: ContainerState, **changes: Any) -> StagingPod:
    return make_pod(*containers, volume_image=REFERENCE, phase="Pending", **changes)


@pytest.mark.parametrize(
    ("pod", "reason", "expected"),
    [
        (with_volume(waits("ImagePullBackOff", f'Back-off pulling image "{REFERENCE}": ErrImagePull: not found')),
         "ImagePullFailed", f"image {REFERENCE} can't be pulled: ImagePullBackOff"),
        (with_volume(waits("ErrImagePull", "failed to pull and unpack image: denied")),
         "ImagePullFailed", f"image {REFERENCE} can't be pulled: ErrImagePull: failed to pull and unpack image: denied"),
        (with_volume(waits("ErrImageNeverPull", f'Container image "{REFERENCE}" is not present with pull policy of Never')),
         "ImagePullFailed", f"image {REFERENCE} can't be pulled: ErrImageNeverPull"),
        (with_volume(waits("ImagePullBackOff", 'Back-off pulling image "loader:1": ErrImagePull: not found')),
         "ImagePullFailed", "image loader:1 can't be pulled"),
        (with_volume(waits("InvalidImageName")), "ImagePullFailed", "image loader:1 can't be pulled"),
        (with_volume(waits("CreateContainerError", "mkdir : no such file or directory")),
         "ContainerCreateFailed", f"mounts the image {REFERENCE} as a volume: image volumes need the feature gate"),
        # As a kubelet without the feature gate says it.
        (with_volume(waits("PodInitializing"), message='failed to get Plugin from volumeSpec for volume "model" err=no volume plugin matched'),
         "VolumeNotReady", f"err=no volume plugin matched (the pod mounts the image {REFERENCE} as a volume"),
    ],
)  # fmt: skip
def test_an_image_that_cannot_be_mounted_is_named(pod: StagingPod, reason: str, expected: str) -> None:
    plan = plan_of(with_spec(SPEC, A, jobs=(made_with(pods=(pod,)),)))
    assert reasons(plan)["Stalled"] == reason
    assert expected in message(plan)


@pytest.mark.parametrize(
    ("pull_secrets", "deleted"), [("", True), ("old", True), ("old,new", False)], ids=["none", "another", "these"]
)
def test_a_job_that_pulls_with_former_secrets_is_replaced(pull_secrets: str, deleted: bool) -> None:  # noqa: FBT001
    spec = make_spec(staging={"imagePullSecrets": [{"name": "old"}, {"name": "new"}]})
    pod = with_volume(waits("ErrImagePull", "denied"))
    job = made_with(pods=(pod,), pull_secrets=pull_secrets)
    assert plan_of(with_spec(spec, A, jobs=(job,))).delete_jobs == ((job.name,) if deleted else ())
    running = replace(job, pods=(make_pod(ContainerState("prefetch")),))
    assert plan_of(with_spec(spec, A, jobs=(running,))).delete_jobs == ()


def test_a_job_says_with_which_pull_secrets_it_was_made() -> None:
    spec = make_spec(staging={"imagePullSecrets": [{"name": "old"}, {"name": "new"}]})
    job = manifests.staging_job(make_owner(spec), spec, make_node(), attempt=0, policy=POLICY)
    assert job["metadata"]["annotations"]["modelweights.io/pull-secrets"] == names.pull_secrets(spec) == "old,new"
