"""Who else may require a checkpoint. Part of `v1alpha1`."""

from typing import Annotated, Final, Literal

from pydantic import ConfigDict, Field, model_validator

from modelweights_operator.api.base import Model, rules

_VALUES_OF_OPERATOR: Final = "operators In and NotIn need values, the others take none"


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
