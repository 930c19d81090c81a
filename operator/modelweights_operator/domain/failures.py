"""What a staging Job and its pods say, in a reason and a sentence. Called by `policies`; pure."""

from dataclasses import dataclass
from typing import Final

from modelweights_operator.domain import reports
from modelweights_operator.domain.manifests import PERMANENT_EXIT_CODES
from modelweights_operator.domain.snapshot import ContainerState, StagingJob, StagingPod

FIRST_BACKOFF_SECONDS: Final = 10
MENDED_BACKOFF_SECONDS: Final = 60
"""After a failure that somebody mends elsewhere, in a Secret or at the source, of which nothing tells us: short enough to
wait for after the mend, long enough to be no burden for the source."""
LONG_BACKOFF_SECONDS: Final = 600
"""After a failure that no repetition mends, or the sixth of any kind: someone has to act, and needn't tell us."""
MAX_QUICK_ATTEMPTS: Final = 5
OUT_OF_MEMORY: Final = "OOMKilled"
"""As the kubelet says it. A step that anything else killed has the same exit code, 137, and is tried again soon."""
_KILLED_EXIT_CODE: Final = 137
_ENDED_FROM_OUTSIDE: Final = frozenset({_KILLED_EXIT_CODE, 143})
"""By SIGKILL or SIGTERM: where the kubelet says of the pod why, as of one that it lets in no more, that tells more."""
_EVICTED: Final = "Evicted"

SOURCE_CHANGED: Final = "SourceChanged"
MENDED_ELSEWHERE: Final = frozenset(
    {
        "SecretMissing",
        "UnknownCredential",
        "CredentialsExpired",
        "Unauthorized",
        "Gated",
        "Forbidden",
        "RepositoryNotFound",
    }
)
"""The loader's reasons that call for a Secret or for rights, and for no change of the spec. A private repository that a
token may not read is `RepositoryNotFound`: the hub tells no more."""
IMAGE_VOLUMES_NOT_SUPPORTED: Final = "ImageVolumesNotSupported"
STARTING: Final = "Starting"
UNSCHEDULABLE: Final = "Unschedulable"
CLAIM_NOT_READY: Final = "ClaimNotReady"
JOB_PAUSED: Final = "JobPaused"
UNSCHEDULED: Final = frozenset({UNSCHEDULABLE, CLAIM_NOT_READY})
"""The scheduler finds no place for the pod. It looks again by itself, at what changed."""
EVICTED_REPEATEDLY: Final = "EvictedRepeatedly"
MAX_EVICTIONS: Final = 3
"""So often the kubelet evicted the pods of one Job for want of memory or disk: then it is likely the staging's own doing.
The Job controller makes a new pod each time and counts none of them."""
IMAGE_PULL_FAILED: Final = "ImagePullFailed"
_IN_VAIN: Final = frozenset({OUT_OF_MEMORY, EVICTED_REPEATEDLY})
_IMAGE_REASONS: Final = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "ImageInspectError",
        "RegistryUnavailable",
    }
)
_CREATE_REASONS: Final = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
_STEP_REASONS: Final = {
    "resolve": "Resolving",
    "fetch": "Fetching",
    "prefetch": "Prefetching",
    "validate": "Validating",
    "tune": "Tuning",
    "report": "Reporting",
    "refresh": "Refreshing",
}
_CHANGED_HINT: Final = (
    "; nodes that are staged keep what they have. Put the files back; or change spec.source (a folder or revision of its "
    "own for each version is best); or delete and create the ModelWeights to stage what is there now"
)


_RUNTIME_HINT: Final = (
    "image volumes need the feature gate ImageVolume in the node's kubelet too, and containerd 2.1, CRI-O 1.31 or newer"
)
_TRY_AGAIN: Final = 10
_WILL_NOT_WORK: Final = 20


@dataclass(frozen=True)
class Failure:
    """Why a staging failed, with the loader's exit code (0 where it gave none)."""

    reason: str
    message: str
    exit_code: int


@dataclass(frozen=True)
class Progress:
    """What a running staging does; `blocked` when it waits for someone, `silent` when only events would tell."""

    reason: str
    message: str = ""
    blocked: bool = False
    silent: bool = False


def backoff_seconds(exit_code: int, attempts: int, reason: str = "") -> float:
    """Time from a failure to the next attempt.

    Args:
        exit_code: The loader's, which says whether a repetition can help.
        attempts: Failures in a row, at least 1.
        reason: The loader's.
    """
    if reason in MENDED_ELSEWHERE:
        return MENDED_BACKOFF_SECONDS
    if exit_code in PERMANENT_EXIT_CODES or reason in _IN_VAIN or attempts > MAX_QUICK_ATTEMPTS:
        return LONG_BACKOFF_SECONDS
    return float(FIRST_BACKOFF_SECONDS * 2 ** max(attempts - 1, 0))


def needs_someone(exit_code: int, attempts: int, reason: str) -> bool:
    """Whether nothing moves until somebody acts, as far as one can tell."""
    return reason in MENDED_ELSEWHERE or backoff_seconds(exit_code, attempts, reason) >= LONG_BACKOFF_SECONDS


def final_report(job: StagingJob) -> str:
    """The termination message of the container `report`, "" when its pod is gone."""
    for pod in reversed(job.pods):
        for container in pod.containers:
            if container.name == "report" and container.exit_code == 0:
                return container.message
    return ""


def step_report(job: StagingJob, step: str) -> str:
    """The termination message of a step that ended well, of the youngest pod that there is; "" without one."""
    if not job.pods:
        return ""
    pod = max(job.pods, key=lambda pod: pod.created_at)
    ended = (each.message for each in pod.containers if each.name == step and each.exit_code == 0)
    return next(ended, "")


def failed_report(job: StagingJob) -> str:
    """The termination message of the step that failed, "" when no pod is left."""
    failed = _failed_container(job)
    return failed.message if failed else ""


def describe(job: StagingJob, text: str) -> Failure:
    """Why a failed Job failed: by the loader's report, else the kubelet's words, else the Job's."""
    report = reports.parse(text)
    if report is not None and report.reason:
        pinned = report.reason == SOURCE_CHANGED and report.exit_code in PERMANENT_EXIT_CODES
        return Failure(report.reason, report.message + (_CHANGED_HINT if pinned else ""), report.exit_code)
    failed = _failed_container(job)
    if failed is not None and failed.terminated_reason == OUT_OF_MEMORY:
        return Failure(
            OUT_OF_MEMORY,
            f"step {failed.name} was killed for memory: raise spec.staging.resources.limits.memory, or the limit that "
            "a LimitRange of the namespace sets",
            _KILLED_EXIT_CODE,
        )
    if failed is not None and not (failed.exit_code in _ENDED_FROM_OUTSIDE and any(pod.reason for pod in job.pods)):
        tail = " ".join(reports.plain(failed.message).split())[-400:] or "no output"
        return Failure("StepFailed", f"step {failed.name} ended with {failed.exit_code}: {tail}", failed.exit_code or 0)
    for pod in job.pods:
        if pod.reason:
            return Failure(pod.reason, pod.message or f"pod {pod.name} failed", 10)
    return Failure(job.failure_reason or "JobFailed", job.failure_message or f"Job {job.name} failed", 10)


def without_image_volume(image: str) -> Failure:
    """What is said of a Job whose image volume the API server silently took out, as it does without the feature gate."""
    return Failure(
        IMAGE_VOLUMES_NOT_SUPPORTED,
        f"the API server took the volume with the image {image} out of the staging Job: turn the feature gate ImageVolume "
        "on in kube-apiserver and the kubelets (it is off by default in Kubernetes 1.34), or use another source; it is tried "
        f"again in {LONG_BACKOFF_SECONDS // 60} minutes",
        _WILL_NOT_WORK,
    )


def evicted_repeatedly(job: StagingJob) -> Failure | None:
    """What is said of a Job whose pods the kubelet evicted again and again; None of any other.

    A drained node's pods don't count: they are deleted, while those of the kubelet stay and say why.
    """
    evicted = [pod for pod in job.pods if pod.reason == _EVICTED]
    if len(evicted) < MAX_EVICTIONS:
        return None
    latest = max(evicted, key=lambda pod: pod.created_at)
    return Failure(
        EVICTED_REPEATEDLY,
        f"the kubelet evicted {len(evicted)} staging pods in a row, the last one with: {latest.message or 'no reason given'}; "
        f"make room on the node; it is tried again in {LONG_BACKOFF_SECONDS // 60} minutes",
        _TRY_AGAIN,
    )


def _failed_container(job: StagingJob) -> ContainerState | None:
    for pod in reversed(job.pods):
        for container in pod.containers:
            if container.exit_code:
                return container
    return None


def progress(job: StagingJob) -> Progress:
    """What a running Job does, by its youngest pod that isn't being deleted."""
    if job.suspended:
        return Progress("JobSuspended", "the Job is suspended, as by a queue controller: it waits to be admitted")
    pods = living_pods(job)
    if not pods:
        if job.parallelism == 0:
            return Progress(
                JOB_PAUSED, f"spec.parallelism of Job {job.name} is 0: set it to 1, or delete the Job", blocked=True
            )
        if job.rejection:
            return Progress("PodRejected", job.rejection, blocked=True, silent=True)
        return Progress(STARTING, silent=True)
    return _pod_progress(max(pods, key=lambda pod: pod.created_at))


def living_pods(job: StagingJob) -> list[StagingPod]:
    """Those that may yet do something."""
    return [pod for pod in job.pods if not pod.deleting and pod.phase not in ("Failed", "Succeeded")]


def is_stuck(job: StagingJob) -> bool:
    """Whether a running Job waits for someone, or for room on its node: it may stay so for ever."""
    found = progress(job)
    return found.blocked or found.reason in UNSCHEDULED


def _pod_progress(pod: StagingPod) -> Progress:
    if not pod.scheduled:
        if pod.claims and "persistentvolume" in pod.message.lower():
            return Progress(CLAIM_NOT_READY, f"claim {', '.join(pod.claims)}: {pod.message}")
        return Progress(UNSCHEDULABLE if pod.message else STARTING, pod.message, silent=not pod.message)
    for container in pod.containers:
        if container.waiting_reason in _IMAGE_REASONS:
            detail = (
                f"{container.waiting_reason}: {container.message}" if container.message else container.waiting_reason
            )
            image = _image_in_question(pod, container)
            return Progress(IMAGE_PULL_FAILED, f"image {image} can't be pulled: {detail}", blocked=True)
        if container.waiting_reason in _CREATE_REASONS:
            text = f"step {container.name} can't start: {container.waiting_reason}: {container.message}"
            return Progress("ContainerCreateFailed", text + _volume_hint(pod), blocked=True)
        if container.exit_code is None and not container.waiting_reason:
            return Progress(_STEP_REASONS.get(container.name, "Staging"))
    if pod.message:
        return Progress("VolumeNotReady", pod.message + _volume_hint(pod), blocked=True, silent=True)
    return Progress(STARTING, silent=True)


def _image_in_question(pod: StagingPod, container: ContainerState) -> str:
    """The image that can't be pulled: the kubelet says so on the container, also of one that is to be a volume."""
    if not pod.volume_image or not container.message:
        return container.image
    own = f'"{container.image}"' in container.message and f'"{pod.volume_image}"' not in container.message
    return container.image if own else pod.volume_image


def _volume_hint(pod: StagingPod) -> str:
    """A kubelet or a runtime that doesn't know image volumes says anything but that."""
    return f" (the pod mounts the image {pod.volume_image} as a volume: {_RUNTIME_HINT})" if pod.volume_image else ""


def memory_limit_note(job: StagingJob, report: reports.Report) -> str:
    """A warning when admission gave the pod a memory limit below what it was to warm, else ""."""
    limits = [pod.memory_limit_bytes for pod in job.pods if pod.memory_limit_bytes]
    if not limits or min(limits) >= report.size_bytes:
        return ""
    return (
        f"the staging pod has a memory limit of {min(limits)} bytes, less than the checkpoint's {report.size_bytes}: "
        "the kernel evicts what it warms; raise the limit (spec.staging.resources, or the namespace's LimitRange)"
    )
