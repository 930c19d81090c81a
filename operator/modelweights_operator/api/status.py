"""What the operator observed. Part of `v1alpha1`."""

from typing import Annotated, Final, Literal

from pydantic import ConfigDict, Field

from modelweights_operator.api.base import Model
from modelweights_operator.api.bounds import MAX_DIGESTS_BESIDE, MAX_LEFTOVERS, MAX_NODES, MAX_PREVIOUS, MAX_RANKS

_DIGEST: Final = r"^(sha256:[0-9a-f]{64})?$"
"""A part of it becomes the value of a node label, which anything else might not be."""


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
    proven_staging: str = Field(
        default="",
        max_length=16,
        description=(
            "Short hash of what was staged and how when it was proven last; where it is asked for again in the same way, all nodes "
            "may begin at once."
        ),
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
    proven_before: bool = Field(
        default=False,
        description=(
            "Whether what the spec asks for was proven here under an earlier boot, so that its files should be there still; "
            "only until it is proven anew."
        ),
    )
    leftovers: tuple[Annotated[str, Field(max_length=80, pattern=_DIGEST)], ...] = Field(
        default=(),
        max_length=MAX_LEFTOVERS,
        description=(
            "Checkpoints that lie beside the others on this node and of which nothing is known, as after a reboot; nobody is "
            "sent there for them, and they go like superseded ones."
        ),
    )
    leftovers_since: str = Field(
        default="",
        description="Since when all of leftovers are known.",
        json_schema_extra={"format": "date-time"},
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

    observed_generation: int = Field(
        default=0,
        ge=-1,
        description="The generation of the spec that this speaks of; -1 before the operator has seen it.",
    )
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
