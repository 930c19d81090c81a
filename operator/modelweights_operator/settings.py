"""Settings of the operator, from environment variables that the chart sets. Read once at start by `__main__`."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from modelweights_operator import fetch_settings
from modelweights_operator.api.quantity import to_bytes
from modelweights_operator.domain.snapshot import FetchSettings, StorageClass
from modelweights_operator.errors import SettingsError

_PERCENT: Final = re.compile(r"([1-9][0-9]?|100)%", re.ASCII)


@dataclass(frozen=True)
class Settings:
    """What the chart decides.

    Attributes:
        loader_image: Image of the staging pods.
        image_pull_policy: Its pull policy.
        host_path_roots: Folders on the nodes below which hostPath sources may lie.
        health_port: Port of `/healthz` and `/readyz`.
        metrics_port: Port of `/metrics`; 0 for none.
        quiet_seconds: After this long without a sign of life from a watch, `/healthz` fails.
        storage_classes: Where fetched files may go.
        fetch: How they are fetched.
        memory_budget: What warm checkpoints may take of a node's memory together: bytes, or percent with its sign.
        label_nodes: Whether nodes are labelled with what they hold.
        startup_taint: Whether the startup taint is taken off nodes that are staged.
        namespace: The operator's own; "" where it runs outside of a cluster.
        pull_secrets: For the loader's image, in that namespace.
        lease_seconds: For how long an operator that is gone for sure keeps the next one from acting.
        identity: This process' name among those that may act, unlike any other that lives; "" for one of its own making.
    """

    loader_image: str
    image_pull_policy: str = "IfNotPresent"
    host_path_roots: tuple[str, ...] = ()
    health_port: int = 8080
    metrics_port: int = 0
    quiet_seconds: float = 180.0
    storage_classes: tuple[StorageClass, ...] = ()
    fetch: FetchSettings = field(default_factory=FetchSettings)
    memory_budget: str = ""
    label_nodes: bool = True
    startup_taint: bool = False
    namespace: str = ""
    pull_secrets: tuple[str, ...] = ()
    lease_seconds: int = 15
    identity: str = ""


def from_environment(environment: Mapping[str, str] = os.environ) -> Settings:
    """Read the settings.

    Raises:
        SettingsError: One is missing or wrong; the message names it.
    """
    image = environment.get("MODELWEIGHTS_LOADER_IMAGE", "")
    if not image:
        raise SettingsError("MODELWEIGHTS_LOADER_IMAGE is not set: name the loader's image")
    roots = tuple(root for root in environment.get("MODELWEIGHTS_HOST_PATH_ROOTS", "").split(":") if root)
    for root in roots:
        # normpath keeps two leading slashes, as POSIX allows: '//' would be '/' itself.
        if not fetch_settings.is_folder(root):
            raise SettingsError(f"MODELWEIGHTS_HOST_PATH_ROOTS holds {root!r}: absolute, written out, and not / itself")
    policy = environment.get("MODELWEIGHTS_IMAGE_PULL_POLICY", "IfNotPresent")
    if policy not in ("Always", "IfNotPresent", "Never"):
        raise SettingsError(f"MODELWEIGHTS_IMAGE_PULL_POLICY is {policy!r}: Always, IfNotPresent or Never")
    return Settings(
        loader_image=image,
        image_pull_policy=policy,
        host_path_roots=roots,
        health_port=_number(environment, "MODELWEIGHTS_HEALTH_PORT", 8080, at_most=65535),
        metrics_port=_number(environment, "MODELWEIGHTS_METRICS_PORT", 0, at_least=0, at_most=65535),
        quiet_seconds=float(_number(environment, "MODELWEIGHTS_QUIET_SECONDS", 180)),
        storage_classes=fetch_settings.read_storage_classes(environment),
        fetch=fetch_settings.read_fetch(environment),
        memory_budget=_memory_budget(environment.get("MODELWEIGHTS_NODE_MEMORY_BUDGET", "")),
        label_nodes=_switch(environment, "MODELWEIGHTS_NODE_LABELS", default=True),
        startup_taint=_switch(environment, "MODELWEIGHTS_STARTUP_TAINT", default=False),
        namespace=environment.get("MODELWEIGHTS_NAMESPACE", ""),
        pull_secrets=tuple(filter(None, environment.get("MODELWEIGHTS_PULL_SECRETS", "").split(","))),
        lease_seconds=_number(environment, "MODELWEIGHTS_LEASE_SECONDS", 15, at_least=3, at_most=300),
        identity=environment.get("MODELWEIGHTS_IDENTITY", ""),
    )


def _memory_budget(text: str) -> str:
    """Bytes as a plain number, or percent; "" for no bound."""
    if not text or _PERCENT.fullmatch(text):
        return text
    try:
        size_bytes = to_bytes(text)
    except ValueError:
        size_bytes = 0
    if size_bytes < 1:
        raise SettingsError(
            f"MODELWEIGHTS_NODE_MEMORY_BUDGET is {text!r} (nodeMemory.budget): percent from 1% to 100%, or bytes such as 500Gi"
        )
    return str(size_bytes)


def _switch(environment: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = environment.get(name, str(default).lower())
    if text not in ("true", "false"):
        raise SettingsError(f"{name} is {text!r}: true or false")
    return text == "true"


def _number(environment: Mapping[str, str], name: str, default: int, *, at_least: int = 1, at_most: int = 10**9) -> int:
    text = environment.get(name, str(default))
    if not (text.isascii() and text.isdigit() and at_least <= int(text[:20]) <= at_most):
        raise SettingsError(f"{name} is {text!r}: a whole number from {at_least} to {at_most}")
    return int(text)
