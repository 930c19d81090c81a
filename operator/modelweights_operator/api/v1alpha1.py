"""The resource `modelweights.io/v1alpha1`, kind ModelWeights: the one source of the CRD.

`crdgen` turns these models into the schema, so the description, default and bounds of each field stand here, and in
the modules beside it, and nowhere else. The models are frozen; unknown fields are ignored, since an object may have been written by a newer
version. It holds only fields that do something.
"""

from typing import Final, Literal

from pydantic import ConfigDict, Field, model_validator

from modelweights_operator.api.access import Access, LabelSelector, LabelSelectorRequirement
from modelweights_operator.api.base import Model, rules
from modelweights_operator.api.bounds import MAX_DIGESTS_BESIDE, MAX_LEFTOVERS, MAX_NODES, MAX_PREVIOUS, MAX_RANKS
from modelweights_operator.api.loading import (
    MAX_BLOCK_BYTES,
    MAX_READ_BYTES_IN_FLIGHT,
    MIN_BLOCK_BYTES,
    MIN_REFRESH_SECONDS,
    Engine,
    Prefetch,
    Validation,
)
from modelweights_operator.api.placement import (
    GPU_NODE_LABEL,
    Affinity,
    NodeAffinity,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    Placement,
    Toleration,
)
from modelweights_operator.api.sources import Files, Source, Storage
from modelweights_operator.api.staging import EnvVar, LocalObjectReference, Resources, Staging
from modelweights_operator.api.status import (
    Condition,
    NodeStatus,
    ProvenEngine,
    Revision,
    SourceStatus,
    Status,
    Summary,
)

__all__ = [
    "API_VERSION",
    "AVAILABLE",
    "GPU_NODE_LABEL",
    "GROUP",
    "KIND",
    "MAX_BLOCK_BYTES",
    "MAX_DIGESTS_BESIDE",
    "MAX_LEFTOVERS",
    "MAX_NODES",
    "MAX_PREVIOUS",
    "MAX_RANKS",
    "MAX_READ_BYTES_IN_FLIGHT",
    "MIN_BLOCK_BYTES",
    "MIN_REFRESH_SECONDS",
    "PLURAL",
    "READY",
    "RECONCILING",
    "STALLED",
    "VERSION",
    "Access",
    "Affinity",
    "Condition",
    "Engine",
    "EnvVar",
    "Files",
    "LabelSelector",
    "LabelSelectorRequirement",
    "LocalObjectReference",
    "ModelWeights",
    "NodeAffinity",
    "NodeSelector",
    "NodeSelectorRequirement",
    "NodeSelectorTerm",
    "NodeStatus",
    "Placement",
    "Prefetch",
    "ProvenEngine",
    "Resources",
    "Revision",
    "Source",
    "SourceStatus",
    "Spec",
    "Staging",
    "Status",
    "Storage",
    "Summary",
    "Toleration",
    "Validation",
]

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

_ONLY_FETCHED: Final = (
    "files is for what is fetched: a huggingFace or objectStore source, or a copy that storage asks for"
)
_DELETES_FETCHED: Final = (
    "deletionPolicy Delete is for what is fetched: files that are used in place are never deleted by this operator"
)
_ONLY_HUGGING_FACE: Final = "storage.layout HuggingFaceCache needs source.huggingFace: others have no repository's name"


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


class ModelWeights(Model):
    """A checkpoint of a model, staged on nodes before the pods that need it start."""

    spec: Spec = Field(description="What is to be staged, where and how.")
    status: Status = Field(default_factory=Status, description="What the operator observed. It alone writes here.")
