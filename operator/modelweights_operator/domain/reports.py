"""The loader's reports, read strictly: they come from a pod, so nothing in them is believed to be well-formed.

Called by the planner. The keys are those that `modelweights-loader` documents; the operator never imports the loader.
"""

import json
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from modelweights_operator.api.v1alpha1 import MAX_RANKS

# What the status can hold: a figure past it would have the API server reject the whole status, for ever.
_MOST: Final = 2**53


def plain(text: str) -> str:
    """With spaces for what terminals would act on, or show otherwise than it is: control characters, changes of direction."""
    return "".join(character if character.isprintable() else " " for character in text)


_Text = Annotated[str, AfterValidator(plain)]


class EngineReport(BaseModel):
    """The settings under which a load succeeded."""

    model_config = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True, extra="ignore")

    load_format: Literal["fastsafetensors", "safetensors"]
    queue_size: int = Field(ge=-1, le=64)
    odirect: bool
    nogds: bool = True
    ranks: int = Field(default=1, ge=1, le=MAX_RANKS)
    tuned: bool = False


class Report(BaseModel):
    """The report of one step, with the figures that the operator uses; others are ignored."""

    model_config = ConfigDict(
        frozen=True, alias_generator=to_camel, populate_by_name=True, extra="ignore", allow_inf_nan=False
    )

    step: str = Field(default="", max_length=32)
    exit_code: int = Field(default=0, ge=0, le=255)
    reason: str = Field(default="", pattern=r"^([A-Za-z][A-Za-z0-9]{0,127})?$")
    message: _Text = Field(default="", max_length=1024)
    manifest_digest: str = Field(default="", pattern=r"^(sha256:[0-9a-f]{64})?$")
    file_count: int = Field(default=0, ge=0, le=_MOST)
    size_bytes: int = Field(default=0, ge=0, le=_MOST)
    tensor_count: int = Field(default=0, ge=0, le=_MOST)
    resident_bytes: int | None = Field(default=None, ge=0, le=_MOST)
    resident_percent: float | None = Field(default=None, ge=0, le=100)
    residency_method: str = Field(default="", max_length=64)
    residency_measured_at: str = Field(default="", max_length=64)
    prefetch_bytes_per_second: float | None = Field(default=None, ge=0, le=_MOST)
    load_seconds: float | None = Field(default=None, ge=0, le=_MOST)
    marker: str = Field(default="", max_length=32)
    engine: EngineReport | None = None
    # Of the step fetch.
    revision: str = Field(default="", max_length=128)
    described: _Text = Field(default="", max_length=1024)
    fetch_seconds: float | None = Field(default=None, ge=0, le=_MOST)
    fetched_bytes: int = Field(default=0, ge=0, le=_MOST)
    needed_bytes: int = Field(default=0, ge=0, le=_MOST)
    reserve_bytes: int = Field(default=0, ge=0, le=_MOST)
    disk_free_bytes: int = Field(default=0, ge=0, le=_MOST)
    leftovers: tuple[Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")], ...] | None = Field(default=None, max_length=64)


_FETCH_FIGURES: Final = ("revision", "fetchSeconds", "fetchedBytes", "leftovers")


def join(final: str, fetched: str) -> str:
    """The last step's report with the figures of `fetch`, so that one text has all that is to be kept.

    Args:
        final: Termination message of the last step.
        fetched: That of the step fetch, "" without one.
    """
    if parse(final) is None or parse(fetched) is None:
        return final
    figures = json.loads(fetched)
    return json.dumps({**{key: figures[key] for key in _FETCH_FIGURES if key in figures}, **json.loads(final)})


def parse(text: str) -> Report | None:
    """Read a termination message.

    Returns:
        The report, or None when the text is empty, cut off, or not a report.
    """
    try:
        return Report.model_validate(json.loads(text))
    except (ValueError, ValidationError, RecursionError):
        return None


NO_ROOM: Final = "NoRoom"
"""What `fetch` calls too little disk; other steps call too little memory otherwise."""


def disk_free_bytes(text: str) -> int:
    """Free bytes of the disk as a fetch found it that had no room there; 0 for any other report."""
    report = parse(text)
    return report.disk_free_bytes if report is not None and (report.step, report.reason) == ("fetch", NO_ROOM) else 0
