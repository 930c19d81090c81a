"""How a checkpoint is read into memory, and how it is proven to load. Part of `v1alpha1`."""

from typing import Annotated, Final, Literal

from pydantic import ConfigDict, Field, model_validator

from modelweights_operator.api.base import Model, rules
from modelweights_operator.api.bounds import MAX_RANKS
from modelweights_operator.api.quantity import to_bytes

MIN_BLOCK_BYTES: Final = 4 * 1024
MAX_BLOCK_BYTES: Final = 1024**3
MAX_READ_BYTES_IN_FLIGHT: Final = 4 * 1024**3
MIN_REFRESH_SECONDS: Final = 300
_ONLY_LOADED: Final = "Measured needs mode Load or Full: the others load nothing that could be timed"
_ONLY_FIXED: Final = "above 1 needs selection Fixed: what is timed is a load by one process"
_ONLY_FASTSAFETENSORS: Final = "above 1 needs loadFormat fastsafetensors: safetensors loads in each rank by itself"
_REFRESH_BOUNDS: Final = "must be 0, which turns it off, or at least 300"
_REFRESH_READS: Final = "refreshIntervalSeconds needs mode PageCache: None warms nothing that could cool"
_BYTES: Final = "(type(self) == int ? self : quantity(self).asInteger())"
"""CEL for the bytes of a field that is an integer or a quantity."""


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
