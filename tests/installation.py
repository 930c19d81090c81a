"""Installs the operator as a user would: images to the cluster's registry, the chart by helm. Used by demo, e2e and bench."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.cluster.embedded import Embedded
from tests.cluster.providers import Cluster
from tests.cluster.topology import IMAGE_HOST
from tests.images.build import ImageRef, build_images

REPOSITORY: Final = Path(__file__).resolve().parent.parent
CHART: Final = REPOSITORY / "charts/modelweights-operator"
NAMESPACE: Final = "modelweights-system"
RELEASE: Final = "modelweights-operator"
MODELS_ROOT: Final = "/models"


@dataclass(frozen=True)
class Images:
    """References that the cluster's pods can pull."""

    operator: str
    loader: str


def deliver_images(cluster: Cluster) -> Images:
    """Build the images where they aren't built yet, and bring them to where the cluster pulls them; blocks."""
    built = build_images()
    return Images(operator=_deliver(cluster, built["operator"]), loader=_deliver(cluster, built["loader"]))


def _deliver(cluster: Cluster, image: ImageRef) -> str:
    name_and_tag = f"modelweights-{image.target}:{image.tag}"
    if isinstance(cluster, Embedded):
        if not cluster.has_image(name_and_tag):
            image.push(cluster.registry)
        return f"{IMAGE_HOST}/{name_and_tag}"
    return cluster.push_image(image.name, name_and_tag)


def install(cluster: Cluster, images: Images, *settings: str, files: Mapping[str, Path] | None = None) -> None:
    """Install or upgrade the chart, and wait until the operator is ready.

    Args:
        cluster: Where to.
        images: What to run.
        settings: Further `key=value` for helm's --set.
        files: By key, a file whose text is the value.
    """
    values = [
        f"hostPathRoots={{{MODELS_ROOT}}}",
        *_image_values("operator", images.operator),
        *_image_values("loader", images.loader),
        *settings,
    ]
    flags = [word for value in values for word in ("--set", value)]
    flags += [word for key, path in (files or {}).items() for word in ("--set-file", f"{key}={path}")]
    cluster.helm(
        *("upgrade", "--install", RELEASE, str(CHART), "--namespace", NAMESPACE, "--create-namespace"),
        *("--wait", "--timeout", "120s", *flags),
    )


def _image_values(part: str, reference: str) -> list[str]:
    repository, _, tag = reference.rpartition(":")
    return [f"{part}.image.repository={repository}", f"{part}.image.tag={tag}"]


def get_json(cluster: Cluster, *arguments: str) -> Any:
    """An object or list as kubectl gives it; None when it doesn't exist."""
    text = cluster.kubectl("get", *arguments, "--output=json", "--ignore-not-found")
    return json.loads(text) if text.strip() else None


def condition(body: dict[str, Any] | None, kind: str) -> dict[str, Any]:
    """A condition of an object; empty when it has none of that type."""
    entries = ((body or {}).get("status") or {}).get("conditions") or []
    return next((entry for entry in entries if entry["type"] == kind), {})
