"""What to do about a reason, where the operator's own message doesn't say it. Called by `explain`; pure.

docs/usage.md has the same at more length; a test holds that each reason of its tables is here.
"""

from typing import Final

NOTHING: Final = "nothing to do: it goes on by itself"

REMEDIES: Final[dict[str, str]] = {
    # Of the object.
    "NodesStaged": "nothing to do",
    "AllNodesReady": "nothing to do",
    "NotEnoughNodes": NOTHING,
    "Staging": NOTHING,
    "Suspended": "kubectl modelweights resume NAME, or set spec.suspend to false where the object is kept",
    "NoNodes": "label nodes, change placement.nodeSelector, or add a toleration",
    "TooManyNodes": "split it into several with different selectors",
    "InvalidSpec": "correct the field that is named; if it is right, upgrade the CRD",
    "PathNotAllowed": "move the checkpoint, or have its root added to the chart's hostPathRoots",
    "StorageClassNotFound": "name one of the classes that there are, or have it added to the chart's storage.classes",
    "ConfigMapConflict": "rename one of the two, or delete the ConfigMap",
    "CanaryFailed": "mend the source or the spec, then kubectl modelweights retry NAME",
    "WriteRefused": "change the quota or policy that refused it; it is tried again each minute",
    # Of a node.
    "Staged": "raise the memory limit that is named",
    "Queued": "wait for its turn; raise maxConcurrentNodes, or the chart's fetch.maxConcurrentPerHost and PerNode, to go faster",
    "WaitsForCanary": "wait for the node that tries it first; placement.canaryNodes: 0 tries all at once",
    "NodeNotReady": "bring the node back: what it began goes on",
    "NodeCordoned": "kubectl uncordon NODE: what it began goes on",
    "NodeUnderPressure": "make room on the node: what it began goes on",
    "ReplacingJob": NOTHING,
    "Starting": NOTHING,
    "Resolving": NOTHING,
    "Fetching": NOTHING,
    "Prefetching": NOTHING,
    "Validating": NOTHING,
    "Tuning": NOTHING,
    "Reporting": NOTHING,
    "Refreshing": NOTHING,
    "JobSuspended": "admit the Job in the queue that holds it",
    "Unschedulable": "lower staging.resources.requests, or free the node: it goes on by itself",
    "ClaimNotReady": "create the claim, or see why it isn't bound: it goes on by itself",
    "JobPaused": "set the Job's spec.parallelism to 1, or delete the Job",
    "PodRejected": "change the quota, Pod Security level or webhook that refused the pod, or the fields of spec.staging",
    "JobRefused": "change the quota or policy that refused the Job, or the fields of spec.staging",
    "ImagePullFailed": "correct the chart's loader.image or source.image, or name a pull secret in staging.imagePullSecrets",
    "ImageVolumesNotSupported": "turn the feature gate ImageVolume on in the API server and the kubelets, or use another source",
    "ContainerCreateFailed": "mend what the message names",
    "VolumeNotReady": "see that the root is on this node (the chart's prepareNodes.enabled), or that the node can mount the claim",
    "SourceChanged": "put the files back, or name another revision or folder",
    "DigestMismatch": "copy the same checkpoint to all nodes; name an image by its digest",
    "ResidencyLost": "free memory on the node, raise the memory limit or the chart's nodeMemory.budget, or stage fewer models there",
    "OOMKilled": "raise staging.resources.limits.memory, or the LimitRange's limit",
    "EvictedRepeatedly": "make room on the node",
    "ResultLost": NOTHING,
    "StepFailed": "see the pod's log",
    "JobFailed": "see the pod's log",
    "Evicted": "make room on the node; it is tried again",
}

BY_EXIT_CODE: Final[dict[int, str]] = {
    2: "use a loader and an operator of one version, or correct what the message names",
    10: "look at the network and the storage; it is tried again by itself",
    20: "correct what the message names, then kubectl modelweights retry NAME",
    30: "the checkpoint is bad: put a whole one there, then kubectl modelweights retry NAME",
    40: "make room on the node, then kubectl modelweights retry NAME",
}
"""The loader's own reasons are many, and each message says what to do: this is what they have in common."""


def remedy(reason: str, exit_code: int = 0) -> str:
    """What to do."""
    return REMEDIES.get(reason) or BY_EXIT_CODE.get(exit_code, "as the message says")
