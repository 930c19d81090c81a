"""Which nodes are staged. Part of `v1alpha1`."""

from typing import Annotated, Final, Literal

from pydantic import ConfigDict, Field, model_validator

from modelweights_operator.api.base import Model, rules
from modelweights_operator.api.bounds import MAX_NODES

GPU_NODE_LABEL: Final = "nvidia.com/gpu.present"


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
