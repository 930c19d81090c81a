"""What the API models are made of. Imported by the modules beside it only."""

from typing import Any, Final

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


def rules(*pairs: tuple[str, str]) -> dict[str, Any]:
    """CEL rules with their messages, as the schema's `x-kubernetes-validations`."""
    return {"x-kubernetes-validations": [{"rule": rule, "message": message} for rule, message in pairs]}


NO_CONTROL_CHARACTERS: Final = ("!self.matches('[\\\\x00-\\\\x1f\\\\x7f]')", "must not hold control characters")
"""A rule for paths: such a character comes of a slip, and a NUL ends the path for the kernel."""


class Model(BaseModel):
    """Frozen, camelCase on the wire; unknown fields are ignored: a newer version may have written them."""

    model_config = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True, extra="ignore")
