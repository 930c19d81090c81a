"""What the staging pods need to be let in. Part of `v1alpha1`."""

import re
from typing import Annotated, Final

from pydantic import ConfigDict, Field, model_validator

from modelweights_operator.api.base import Model, rules

_CODE_VARIABLES: Final = "^(PYTHON|LD_|OPENSSL_|GCONV_PATH|OMP_TOOL|CUDA_INJECTION|NVTX_INJECTION|SSLKEYLOGFILE)"
"""The interpreter's, the linker's, and those by which libraries load what else is named: the configuration of OpenSSL, whose
providers are shared objects; and the one that has TLS write its keys to a file."""
_NO_CODE: Final = (
    "must not start with PYTHON, LD_ or OPENSSL_, nor be GCONV_PATH, OMP_TOOL_LIBRARIES, SSLKEYLOGFILE or one that injects: "
    "these decide whose code runs, or write keys down"
)


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
