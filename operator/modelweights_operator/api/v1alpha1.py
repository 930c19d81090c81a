"""The resource `modelweights.io/v1alpha1`, kind ModelWeights: the one source of the CRD.

`crdgen` turns these models into the schema, so the description, default and bounds of each field stand here and
nowhere else. The models are frozen; unknown fields are ignored, since an object may have been written by a newer
version. It holds only fields that do something.
"""

import re
from typing import Annotated, Final, Literal

from pydantic import ConfigDict, Field, model_validator

from modelweights_operator.api.base import Model, rules
from modelweights_operator.api.quantity import to_bytes
from modelweights_operator.api.sources import (
    Files,
    Source,
    Storage,
)

GROUP: Final = "modelweights.io"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
KIND: Final = "ModelWeights"
PLURAL: Final = "modelweights"

# Condition types.
AVAILABLE: Final = "Available"
READY: Final = "Ready"
RECONCILING: Final = "Reconciling"
STALLED: Final = "Stalled"

MIN_BLOCK_BYTES: Final = 4 * 1024
MAX_BLOCK_BYTES: Final = 1024**3
MAX_READ_BYTES_IN_FLIGHT: Final = 4 * 1024**3
MAX_RANKS: Final = 16
_ONLY_LOADED: Final = "Measured needs mode Load or Full: the others load nothing that could be timed"
_ONLY_FIXED: Final = "above 1 needs selection Fixed: what is timed is a load by one process"
_ONLY_FASTSAFETENSORS: Final = "above 1 needs loadFormat fastsafetensors: safetensors loads in each rank by itself"
MAX_NODES: Final = 2000
"""More nodes than this would take the object past what etcd and watchers bear: it stalls with the advice to split."""

MAX_PREVIOUS: Final = 8
MAX_DIGESTS_BESIDE: Final = 8

MIN_REFRESH_SECONDS: Final = 300
_REFRESH_BOUNDS: Final = "must be 0, which turns it off, or at least 300"
_REFRESH_READS: Final = "refreshIntervalSeconds needs mode PageCache: None warms nothing that could cool"

_ONLY_FETCHED: Final = (
    "files is for what is fetched: a huggingFace or objectStore source, or a copy that storage asks for"
)
_DELETES_FETCHED: Final = (
    "deletionPolicy Delete is for what is fetched: files that are used in place are never deleted by this operator"
)
_ONLY_HUGGING_FACE: Final = "storage.layout HuggingFaceCache needs source.huggingFace: others have no repository's name"

_BYTES: Final = "(type(self) == int ? self : quantity(self).asInteger())"
"""CEL for the bytes of a field that is an integer or a quantity."""

_CODE_VARIABLES: Final = "^(PYTHON|LD_|OPENSSL_|GCONV_PATH|OMP_TOOL|CUDA_INJECTION|NVTX_INJECTION|SSLKEYLOGFILE)"
"""The interpreter's, the linker's, and those by which libraries load what else is named: the configuration of OpenSSL, whose
providers are shared objects; and the one that has TLS write its keys to a file."""
_NO_CODE: Final = (
    "must not start with PYTHON, LD_ or OPENSSL_, nor be GCONV_PATH, OMP_TOOL_LIBRARIES, SSLKEYLOGFILE or one that injects: "
    "these decide whose code runs, or write keys down"
)

_VALUES_OF_OPERATOR: Final = "operators In and NotIn need values, the others take none"

_DIGEST: Final = r"^(sha256:[0-9a-f]{64})?$"
"""A part of it becomes the value of a node label, which anything else might not be."""

GPU_NODE_LABEL: Final = "nvidia.com/gpu.present"


# --- spec -----------------------------------------------------------------------------------------------------------


class Toleration(Model):
    """A toleration as pods have it."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                "self.operator != 'Exists' || !has(self.value) || self.value == ''",
                "value must be empty when operator is Exists",
            ),
            (
                "self.operator == 'Exists' || (has(self.key) && self.key != '')",
                "key must be given when operator is Equal",
            ),
        ),
    )

    key: str = Field(default="", max_length=317, description="Key of the taint; empty with Exists matches every key.")
    operator: Literal["Equal", "Exists"] = Field(default="Equal", description="How value is compared.")
    value: str = Field(default="", max_length=63, description="Value of the taint, for operator Equal.")
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = Field(
        default="",
        description="Effect of the taint; empty matches every effect.",
    )


class NodeSelectorRequirement(Model):
    """One requirement on a node's labels or fields."""

    key: str = Field(min_length=1, max_length=317, description="Key of the label, or metadata.name in matchFields.")
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"] = Field(description="Relation to values.")
    values: tuple[Annotated[str, Field(max_length=253)], ...] = Field(
        default=(),
        max_length=128,
        description="Values: at least one with In and NotIn, none with Exists and DoesNotExist, one integer with Gt and Lt.",
    )


class NodeSelectorTerm(Model):
    """Requirements that must all hold; an empty term selects nothing."""

    match_expressions: tuple[NodeSelectorRequirement, ...] = Field(
        default=(), max_length=32, description="Requirements on the node's labels."
    )
    match_fields: tuple[NodeSelectorRequirement, ...] = Field(
        default=(), max_length=8, description="Requirements on the node's fields; only metadata.name is known."
    )


class NodeSelector(Model):
    """Terms of which at least one must hold."""

    node_selector_terms: tuple[NodeSelectorTerm, ...] = Field(
        min_length=1, max_length=32, description="Terms, joined by or."
    )


class NodeAffinity(Model):
    """Node affinity; only the required kind means something for staging."""

    required_during_scheduling_ignored_during_execution: NodeSelector | None = Field(
        default=None, description="Nodes that don't match are not staged."
    )


class Affinity(Model):
    """Affinity as pods have it; only nodeAffinity."""

    node_affinity: NodeAffinity | None = Field(default=None, description="Which nodes are staged, beside nodeSelector.")


class Placement(Model):
    """Which nodes are staged, how many at a time, and how many make it available."""

    node_selector: dict[
        Annotated[str, Field(max_length=317)],
        Annotated[str, Field(max_length=63)],
    ] = Field(
        default={GPU_NODE_LABEL: "true"},
        max_length=32,
        description="Labels that a node must have to be staged. Default: nodes on which NVIDIA GPUs are present.",
    )
    affinity: Affinity | None = Field(default=None, description="Node affinity, for what nodeSelector can't say.")
    tolerations: tuple[Toleration, ...] = Field(
        default=(),
        max_length=32,
        description="Taints that staging tolerates beside nvidia.com/gpu, which it always does.",
    )
    min_available_nodes: int | Annotated[str, Field(max_length=4, pattern=r"^(100|[1-9][0-9]?)%$")] = Field(
        default=1,
        description=(
            "Available turns true, and waiting pods start, when this many nodes hold the checkpoint proven: a number, or a "
            "percentage of the selected nodes such as 80%, rounded up, at least one. Nodes that join count for the "
            "percentage once as many hold it as it then asks for, so that they never make it unavailable."
        ),
        json_schema_extra=rules(
            (
                f"type(self) != int || (self >= 1 && self <= {MAX_NODES})",
                f"must be from 1 to {MAX_NODES}, or from 1% to 100%",
            )
        ),
    )
    max_concurrent_nodes: int = Field(
        default=10,
        ge=1,
        le=MAX_NODES,
        description="How many nodes are staged at the same time at most.",
    )
    canary_nodes: int = Field(
        default=1,
        ge=0,
        le=10,
        description=(
            "How many nodes are staged at the same time until one has proven it; a checkpoint that is found bad there isn't "
            "tried on the others. 0: all at once, as far as maxConcurrentNodes lets."
        ),
    )

    when_no_room: Literal["Wait", "Provision"] = Field(
        default="Wait",
        description=(
            "What becomes of pods at the gate that no staged node takes. Wait: they stay there, and autoscalers skip them. "
            "Provision: those whose init container runs the loader's wait start before anything is staged, preferably on "
            "nodes that are, so that an autoscaler brings a node; they hold its GPU while they wait."
        ),
    )

    @model_validator(mode="after")
    def _available(self) -> "Placement":
        least = self.min_available_nodes
        if isinstance(least, int) and not 1 <= least <= MAX_NODES:
            raise ValueError(f"placement.minAvailableNodes is {least}: from 1 to {MAX_NODES}, or from 1% to 100%")
        return self


class Prefetch(Model):
    """How the checkpoint is read into the page cache of a node."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                (
                    "!has(self.numThreads) || !has(self.blockSize) || self.numThreads * (type(self.blockSize) == int ? "
                    f"self.blockSize : quantity(self.blockSize).asInteger()) <= {MAX_READ_BYTES_IN_FLIGHT}"
                ),
                "numThreads times blockSize must be at most 4Gi",
            ),
            (
                "!has(self.refreshIntervalSeconds) || self.refreshIntervalSeconds == 0 || !has(self.mode) || self.mode == 'PageCache'",
                _REFRESH_READS,
            ),
        ),
    )

    mode: Literal["PageCache", "None"] = Field(
        default="PageCache",
        description="PageCache reads the weights into the node's page cache; None leaves them on disk.",
    )
    num_threads: int = Field(default=8, ge=1, le=256, description="Threads that read, as in the engines.")
    block_size: int | Annotated[str, Field(max_length=18, pattern=r"^[0-9]{1,15}(Ki|Mi|Gi|k|M|G)?$")] = Field(
        default="16Mi",
        description="Bytes that a thread reads at a time: a quantity such as 16Mi, or an integer. From 4Ki to 1Gi.",
        json_schema_extra=rules(
            (f"{_BYTES} >= {MIN_BLOCK_BYTES}", "must be at least 4Ki"),
            (f"{_BYTES} <= {MAX_BLOCK_BYTES}", "must be at most 1Gi"),
            (f"{_BYTES} % {MIN_BLOCK_BYTES} == 0", "must be a multiple of 4Ki, a page (16Mi is one, 15M is not)"),
        ),
    )
    policy: Literal["BestEffort", "Required"] = Field(
        default="BestEffort",
        description=(
            "Required: a node is ready only while at least minResidentPercent of the weights are in the page cache. "
            "BestEffort: what fits is read, and the node is ready whatever the outcome."
        ),
    )
    min_resident_percent: int = Field(
        default=95,
        ge=1,
        le=100,
        description="Percent of the weights' bytes that must be resident with policy Required.",
    )
    unknown_residency: Literal["Fail", "Accept"] = Field(
        default="Fail",
        description=(
            "What policy Required makes of a file system or user that lets nobody measure what is in the page cache: "
            "Fail, or Accept a read that was complete."
        ),
    )
    pages: Literal["Cold", "Normal"] = Field(
        default="Cold",
        description=(
            "How the pages are left to the kernel. Cold: the kubelet doesn't count them as used memory, and they go first "
            "under pressure. Normal: they count as used, and stay longer."
        ),
    )
    refresh_interval_seconds: int = Field(
        default=0,
        ge=0,
        le=2_592_000,
        description=(
            "How often it is measured again on each node what is in the page cache, and what is missing is read. 0, the "
            "default, never does; else from 300 (5 minutes) to 2592000 (30 days)."
        ),
        json_schema_extra=rules((f"self == 0 || self >= {MIN_REFRESH_SECONDS}", _REFRESH_BOUNDS)),
    )

    @property
    def block_bytes(self) -> int:
        """`blockSize` in bytes."""
        return to_bytes(self.block_size)

    @model_validator(mode="after")
    def _bounds(self) -> "Prefetch":
        size_bytes = self.block_bytes
        if not MIN_BLOCK_BYTES <= size_bytes <= MAX_BLOCK_BYTES or size_bytes % MIN_BLOCK_BYTES:
            raise ValueError(f"prefetch.blockSize is {self.block_size}: from 4Ki to 1Gi, in steps of 4Ki")
        if self.num_threads * size_bytes > MAX_READ_BYTES_IN_FLIGHT:
            raise ValueError("prefetch.numThreads times prefetch.blockSize must be at most 4Gi")
        if 0 < self.refresh_interval_seconds < MIN_REFRESH_SECONDS:
            raise ValueError(f"prefetch.refreshIntervalSeconds {_REFRESH_BOUNDS}")
        if self.refresh_interval_seconds and self.mode != "PageCache":
            raise ValueError(f"prefetch.{_REFRESH_READS}")
        return self


class Engine(Model):
    """Settings of the engine's loader under which the load is proven, and which are then published."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                (
                    "!has(self.tensorParallelSize) || self.tensorParallelSize == 1 || !has(self.loadFormat) || "
                    "self.loadFormat == 'fastsafetensors'"
                ),
                f"tensorParallelSize {_ONLY_FASTSAFETENSORS}",
            ),
            (
                (
                    "!has(self.tensorParallelSize) || self.tensorParallelSize == 1 || !has(self.selection) || "
                    "self.selection == 'Fixed'"
                ),
                f"tensorParallelSize {_ONLY_FIXED}",
            ),
        ),
    )

    selection: Literal["Fixed", "Measured"] = Field(
        default="Fixed",
        description=(
            "Fixed: loadFormat and queueSize as they stand here. Measured: a further step times the load on the node, "
            "through the page cache and past it, and the fastest settings are published."
        ),
    )
    load_format: Literal["fastsafetensors", "safetensors"] = Field(
        default="fastsafetensors",
        description="The library that the engine loads with, and whose verdict counts.",
    )
    tensor_parallel_size: int = Field(
        default=1,
        ge=1,
        le=MAX_RANKS,
        description=(
            "Ranks of the engine on one node. More than one loads with as many processes in a group; "
            "only with loadFormat fastsafetensors."
        ),
    )
    queue_size: int = Field(
        default=0,
        ge=-1,
        le=64,
        description=(
            "ParallelLoader's queue size: -1 loads one batch after the other, 0 overlaps reading and copying, "
            "above 0 up to queueSize + 2 batches are in memory at a time."
        ),
    )

    @model_validator(mode="after")
    def _ranks(self) -> "Engine":
        if self.tensor_parallel_size > 1 and self.load_format != "fastsafetensors":
            raise ValueError(f"validation.engine.tensorParallelSize {_ONLY_FASTSAFETENSORS}")
        if self.tensor_parallel_size > 1 and self.selection != "Fixed":
            raise ValueError(f"validation.engine.tensorParallelSize {_ONLY_FIXED}")
        return self


class Validation(Model):
    """How a node proves that the checkpoint loads."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                (
                    "!has(self.engine) || !has(self.engine.selection) || self.engine.selection == 'Fixed' || "
                    "!has(self.mode) || self.mode in ['Load', 'Full']"
                ),
                f"engine.selection {_ONLY_LOADED}",
            ),
        ),
    )

    mode: Literal["Load", "Full", "Structure", "None"] = Field(
        default="Load",
        description=(
            "Load: every tensor of every shard goes through the engine's loader (fastsafetensors' ParallelLoader) and is "
            "compared with the headers. Full: and bit by bit with what safetensors reads. Structure: headers and index only. None: neither. The files are hashed in every mode."
        ),
    )
    engine: Engine = Field(default_factory=Engine, description="Settings of the engine's loader.")
    timeout_seconds: int = Field(
        default=0,
        ge=0,
        le=86400,
        description="Time that the load may take; 0 lets it grow with the checkpoint's size.",
    )

    @model_validator(mode="after")
    def _loaded(self) -> "Validation":
        if self.engine.selection == "Measured" and self.mode not in ("Load", "Full"):
            raise ValueError(f"validation.engine.selection {_ONLY_LOADED}")
        return self


class LocalObjectReference(Model):
    """The name of an object of the same namespace."""

    name: str = Field(min_length=1, max_length=253, description="Name of the object.")


class EnvVar(Model):
    """An environment variable with a plain value."""

    name: str = Field(
        min_length=1,
        max_length=253,
        description="Name of the variable.",
        # The staging pod mounts more than its author may be allowed to: it runs the loader's code and no other.
        json_schema_extra=rules((f"!self.matches('{_CODE_VARIABLES}')", _NO_CODE)),
    )
    value: str = Field(default="", max_length=4096, description="Its value.")

    @model_validator(mode="after")
    def _no_code(self) -> "EnvVar":
        if re.match(_CODE_VARIABLES, self.name):
            raise ValueError(f"{self.name} {_NO_CODE}")
        return self


class LabelSelectorRequirement(Model):
    """One requirement on labels."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                (
                    "self.operator in ['In', 'NotIn'] ? has(self.values) && self.values.size() > 0 : !has(self.values) || "
                    "self.values.size() == 0"
                ),
                _VALUES_OF_OPERATOR,
            ),
        ),
    )

    key: str = Field(min_length=1, max_length=317, description="Key of the label.")
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"] = Field(description="Relation to values.")
    values: tuple[Annotated[str, Field(max_length=63)], ...] = Field(
        default=(), max_length=128, description="Values: at least one with In and NotIn, none with the others."
    )

    @model_validator(mode="after")
    def _fitting(self) -> "LabelSelectorRequirement":
        if (self.operator in ("In", "NotIn")) != bool(self.values):
            raise ValueError(_VALUES_OF_OPERATOR)
        return self


class LabelSelector(Model):
    """Which labels: all of it must hold; an empty one selects everything."""

    match_labels: dict[Annotated[str, Field(max_length=317)], Annotated[str, Field(max_length=63)]] = Field(
        default={}, max_length=32, description="Labels that must have these values."
    )
    match_expressions: tuple[LabelSelectorRequirement, ...] = Field(
        default=(), max_length=32, description="Requirements on labels."
    )


class Access(Model):
    """Who else may require it."""

    namespace_selector: LabelSelector | None = Field(
        default=None,
        description=(
            "Namespaces whose pods may require this ModelWeights, beside its own, by the labels of the namespace; {} means all. "
            "Needs the chart's access.enabled. Looked at when a gate opens: what runs goes on. It gives nobody the files: those "
            "pods mount them by a volume of their own, see docs/tenants.md."
        ),
    )


class Resources(Model):
    """Requests and limits as containers have them."""

    requests: dict[str, int | str] = Field(
        default={"cpu": "100m", "memory": "256Mi"}, max_length=16, description="What the scheduler sets aside."
    )
    limits: dict[str, int | str] = Field(
        default={},
        max_length=16,
        description=(
            "Limits. A memory limit below the checkpoint's size evicts what was just read into the page cache, "
            "since the kernel charges the cache to the pod that reads it first."
        ),
    )


class Staging(Model):
    """What the staging pods need to be let in."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                (
                    "!has(self.labels) || !self.labels.exists(key, "
                    "key.startsWith('modelweights.io/') || key.startsWith('batch.kubernetes.io/'))"
                ),
                "labels must not start with modelweights.io/ or batch.kubernetes.io/: these are the operator's",
            ),
            (
                "!has(self.annotations) || !self.annotations.exists(key, key.startsWith('modelweights.io/'))",
                "annotations must not start with modelweights.io/: these are the operator's",
            ),
        ),
    )

    resources: Resources = Field(
        default_factory=Resources, description="Requests and limits of each of the staging pod's containers."
    )
    service_account_name: str = Field(
        default="", max_length=253, description="Service account of the staging pods; no token of it is mounted."
    )
    priority_class_name: str = Field(default="", max_length=253, description="Priority class of the staging pods.")
    runtime_class_name: str = Field(default="", max_length=253, description="Runtime class of the staging pods.")
    image_pull_secrets: tuple[LocalObjectReference, ...] = Field(
        default=(),
        max_length=16,
        description="Pull secrets for the loader's image and for an image as source, in the same namespace.",
    )
    labels: dict[Annotated[str, Field(max_length=317)], Annotated[str, Field(max_length=63)]] = Field(
        default={}, max_length=32, description="Labels put on staging Jobs and pods: a queue's, a cost centre's."
    )
    annotations: dict[Annotated[str, Field(max_length=317)], Annotated[str, Field(max_length=4096)]] = Field(
        default={}, max_length=32, description="Annotations put on staging Jobs and pods."
    )
    env: tuple[EnvVar, ...] = Field(default=(), max_length=64, description="Environment of the loader's containers.")
    uid: int = Field(
        default=65532,
        ge=1,
        le=4294967294,
        description="User and group that the loader runs as: it must be able to read the files.",
    )


class Spec(Model):
    """What is to be staged, where and how."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                "!has(self.files) || has(self.storage) || has(self.source.huggingFace) || has(self.source.objectStore)",
                _ONLY_FETCHED,
            ),
            (
                (
                    "!has(self.storage) || !has(self.storage.layout) || self.storage.layout == 'Plain' || "
                    "has(self.source.huggingFace)"
                ),
                _ONLY_HUGGING_FACE,
            ),
            (
                (
                    "!has(self.deletionPolicy) || self.deletionPolicy == 'Retain' || has(self.storage) || "
                    "has(self.source.huggingFace) || has(self.source.objectStore)"
                ),
                _DELETES_FETCHED,
            ),
        ),
    )

    source: Source = Field(description="Where the checkpoint comes from.")
    files: Files | None = Field(
        default=None, description="Which files are fetched; default: what an engine would read."
    )
    storage: Storage | None = Field(
        default=None,
        description=(
            "Where fetched files go. With hostPath, persistentVolumeClaim and image it asks for a copy on each node; without "
            "it these are used in place."
        ),
    )
    placement: Placement = Field(default_factory=Placement, description="Which nodes are staged.")
    prefetch: Prefetch = Field(default_factory=Prefetch, description="How it is read into the page cache.")
    validation: Validation = Field(default_factory=Validation, description="How a node proves that it loads.")
    staging: Staging = Field(default_factory=Staging, description="What the staging pods need to be let in.")
    deletion_policy: Literal["Retain", "Delete"] = Field(
        default="Retain",
        description=(
            "What becomes of the files on the nodes when this object is deleted. Retain leaves them. Delete removes what was "
            "fetched for it, and the object stays until that is done, or has waited long enough for nodes that are away."
        ),
    )
    access: Access = Field(
        default_factory=Access, description="Which other namespaces' pods may require it; by default none."
    )
    suspend: bool = Field(
        default=False, description="True starts no further staging; what runs and what is staged stays."
    )

    @property
    def is_fetched(self) -> bool:
        """Whether files are copied to the nodes, rather than used where they are."""
        return self.storage is not None or self.source.hugging_face is not None or self.source.object_store is not None

    @model_validator(mode="after")
    def _fitting(self) -> "Spec":
        if self.files is not None and not self.is_fetched:
            raise ValueError(_ONLY_FETCHED)
        if self.storage is not None and self.storage.layout != "Plain" and self.source.hugging_face is None:
            raise ValueError(_ONLY_HUGGING_FACE)
        if self.deletion_policy == "Delete" and not self.is_fetched:
            raise ValueError(_DELETES_FETCHED)
        return self


# --- status ---------------------------------------------------------------------------------------------------------


class Condition(Model):
    """A condition as in metav1."""

    type: str = Field(max_length=316, description="Available, Ready, Reconciling or Stalled.")
    status: Literal["True", "False", "Unknown"] = Field(description="Whether it holds.")
    reason: str = Field(max_length=1024, description="One word for machines.")
    message: str = Field(default="", max_length=32768, description="What is the case and what to do about it.")
    observed_generation: int = Field(default=0, ge=0, description="The generation of the spec that this speaks of.")
    last_transition_time: str = Field(
        description="When status last changed.", json_schema_extra={"format": "date-time"}
    )


class ProvenEngine(Model):
    """Settings of the engine's loader under which a node loaded the checkpoint."""

    # Written as a whole, as it was proven as a whole; nothing has a default, since defaults are left out of the status.
    model_config = ConfigDict(json_schema_extra={"x-kubernetes-map-type": "atomic"})

    load_format: Literal["fastsafetensors", "safetensors"] = Field(description="The library that loaded.")
    queue_size: int = Field(ge=-1, le=64, description="ParallelLoader's queue size.")
    odirect: bool = Field(description="Whether it read past the page cache.")
    nogds: bool = Field(description="Whether it did without GPUDirect Storage.")
    ranks: int = Field(ge=1, le=MAX_RANKS, description="Number of processes that loaded as a group.")
    tuned: bool = Field(description="Whether these were the fastest of those that were timed there.")
    staging_digest: str = Field(max_length=16, description="Short hash of what was staged and how when it was proven.")


class Revision(Model):
    """A checkpoint that nodes hold."""

    manifest_digest: str = Field(
        max_length=80,
        pattern=_DIGEST,
        description="sha256 over the names, sizes and hashes of the files.",
    )
    path: str = Field(default="", max_length=2100, description="Where a pod finds it: what MODEL_PATH says.")
    revision: str = Field(
        default="", max_length=80, description="Of a fetched source: the commit, or the digest of what was listed."
    )
    requested: str = Field(
        default="",
        max_length=255,
        description="Of a huggingFace source: the revision as the spec asked for it when this was staged.",
    )
    file_count: int = Field(default=0, ge=0, description="Number of files.")
    size_bytes: int = Field(default=0, ge=0, description="Bytes of all files.", json_schema_extra={"format": "int64"})
    tensor_count: int = Field(default=0, ge=0, description="Number of tensors.")
    engine: ProvenEngine | None = Field(
        default=None, description="Settings under which it was first loaded; none when nothing was loaded."
    )
    since: str = Field(
        default="",
        description="When it became the published one, or was first proven.",
        json_schema_extra={"format": "date-time"},
    )
    superseded_at: str = Field(
        default="",
        description="When another one was published in its place; only in previous.",
        json_schema_extra={"format": "date-time"},
    )


class Summary(Model):
    """Counts of nodes."""

    desired: int = Field(default=0, ge=0, description="Nodes that are to hold the checkpoint.")
    ready: int = Field(default=0, ge=0, description="Nodes that hold it as asked.")
    staging: int = Field(default=0, ge=0, description="Nodes on which a staging Job is under way.")
    failed: int = Field(default=0, ge=0, description="Nodes on which the last staging failed.")
    ready_ratio: str = Field(default="0/0", max_length=16, description="Ready nodes of desired ones.")
    counted: int | None = Field(
        default=None,
        ge=0,
        description="Of how many nodes a percentage in placement.minAvailableNodes is taken; none where that is a number.",
    )
    size: str = Field(default="", max_length=16, description="Size of the published checkpoint, for people.")


class NodeStatus(Model):
    """What is known of one node."""

    # Written as a whole: managed fields then track the entry and not each of its fields.
    model_config = ConfigDict(json_schema_extra={"x-kubernetes-map-type": "atomic"})

    state: Literal["Waiting", "Staging", "Ready", "Failed"] = Field(description="Where the node stands.")
    reason: str = Field(default="", max_length=128, description="Why, in one word.")
    message: str = Field(default="", max_length=1024, description="Why, in a sentence; empty when ready.")
    attempts: int = Field(default=0, ge=0, description="Stagings that failed in a row.")
    exit_code: int = Field(default=0, ge=0, description="The loader's exit code when it failed.")
    progress_percent: int = Field(
        default=0,
        ge=0,
        le=100,
        description="How far the step under way is, where it takes longer than a minute; left out when none does.",
    )
    staging_digest: str = Field(
        default="",
        max_length=16,
        description="Short hash of what was staged and how; another one means to stage again.",
    )
    manifest_digest: str = Field(
        default="", max_length=80, pattern=_DIGEST, description="The checkpoint that this node proved."
    )
    other_digests: tuple[Annotated[str, Field(max_length=80, pattern=_DIGEST)], ...] = Field(
        default=(),
        max_length=MAX_DIGESTS_BESIDE,
        description="Checkpoints beside manifestDigest that this node proved earlier and still has; the latest first.",
    )
    boot_id: str = Field(
        default="",
        max_length=64,
        alias="bootID",
        description="Boot of the node under which it was staged; another one means that its page cache is gone.",
    )
    resident_bytes: int = Field(
        default=0, ge=0, description="Bytes in the page cache.", json_schema_extra={"format": "int64"}
    )
    measured_at: str = Field(
        default="",
        description="When residentBytes was measured; only with prefetch.refreshIntervalSeconds.",
        json_schema_extra={"format": "date-time"},
    )
    cold_digest: str = Field(
        default="",
        max_length=80,
        pattern=_DIGEST,
        description=(
            "The checkpoint of which a refresh found less than prefetch.minResidentPercent in the page cache, with policy "
            "Required: until more of it is there, no pod is sent to this node for it."
        ),
    )
    refresh_refused_at: str = Field(
        default="",
        description="When the API server refused the Job of a refresh that is due; it is tried again ten minutes later.",
        json_schema_extra={"format": "date-time"},
    )
    prefetch_bytes_per_second: int = Field(
        default=0, ge=0, description="Rate of the prefetch.", json_schema_extra={"format": "int64"}
    )
    load_seconds: float = Field(default=0, ge=0, description="Time that ParallelLoader took for all shards.")
    fetch_seconds: float = Field(
        default=0, ge=0, description="Time that fetching took; left out when all was there already."
    )
    fetched_bytes: int = Field(
        default=0,
        ge=0,
        description="Bytes that came over the network; left out when all was there already.",
        json_schema_extra={"format": "int64"},
    )
    disk_free_bytes: int = Field(
        default=0,
        ge=0,
        description="Free bytes of the disk that fetched files go to; only while there is no room for them.",
        json_schema_extra={"format": "int64"},
    )
    last_transition_time: str = Field(
        default="", description="When state last changed.", json_schema_extra={"format": "date-time"}
    )


class SourceStatus(Model):
    """What a fetched source was resolved to: all nodes are given this revision."""

    digest: str = Field(max_length=16, description="Short hash of the source that this belongs to.")
    revision: str = Field(
        max_length=80, description="The commit; for sources that have none a digest of what was listed."
    )
    described: str = Field(default="", max_length=512, description="Source and revision in words.")


class Status(Model):
    """What the operator observed. It alone writes here."""

    observed_generation: int = Field(default=0, ge=0, description="The generation of the spec that this speaks of.")
    source: SourceStatus | None = Field(
        default=None, description="The revision of a fetched source that is staged; none until the first node found it."
    )
    published: Revision | None = Field(default=None, description="The checkpoint that pods may start with.")
    candidate: Revision | None = Field(
        default=None, description="What nodes have proven that isn't published: on too few nodes as yet."
    )
    previous: tuple[Revision, ...] = Field(
        default=(),
        max_length=MAX_PREVIOUS,
        description="What was published before and nodes still hold; the latest first.",
    )
    proven_staging: str | None = Field(
        default=None,
        max_length=16,
        description="Short hash of the staging, and of the source's revision, that a node has proven: no canary is needed for it.",
    )
    last_handled_retry: str | None = Field(
        default=None,
        max_length=256,
        description="Value of the annotation modelweights.io/retry-now that was heeded last.",
    )
    last_retry_time: str | None = Field(
        default=None,
        description="When that was: failures before it wait no longer.",
        json_schema_extra={"format": "date-time"},
    )
    summary: Summary = Field(default_factory=Summary, description="Counts of nodes.")
    nodes: dict[str, NodeStatus] = Field(
        default={}, max_length=MAX_NODES, description="Each selected node by its name."
    )
    conditions: tuple[Condition, ...] = Field(
        default=(),
        max_length=8,
        description="Available and Ready always; Reconciling and Stalled only while true.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )


class ModelWeights(Model):
    """A checkpoint of a model, staged on nodes before the pods that need it start."""

    spec: Spec = Field(description="What is to be staged, where and how.")
    status: Status = Field(default_factory=Status, description="What the operator observed. It alone writes here.")
