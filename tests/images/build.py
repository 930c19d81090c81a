"""Builds the images, once for each content: `build_images`, which the end-to-end tests call, and its result."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.images.base import REPOSITORY_NAME as BASE_NAME
from tests.images.base import ensure_base
from tests.images.engine import Buildah, Engine, ImageError, choose_engine, run
from tests.images.inputs import TARGETS, Recipe, Target, Torch, cache_folder
from tests.images.remnants import one_at_a_time, remove_remnants

if TYPE_CHECKING:
    from collections.abc import Iterable

# Each image's newest builds that stay: the one in use, and the one before (another checkout, a test that still runs).
_KEPT_BUILDS = 2
STORE_LIMIT_BYTES = 3 * 10**9


@dataclass(frozen=True)
class ImageRef:
    """An image in the local store.

    Args:
        target: the Dockerfile's final stage.
        name: the local name with the tag.
        tag: a hash of all that the image is made of.
        engine: the program that holds it.
        recipe: what it was built from.
    """

    target: Target
    name: str
    tag: str
    engine: Engine
    recipe: Recipe

    def push(self, registry: str, *, tls_verify: bool = False) -> str:
        """Push to a registry, which gets the layers that it lacks only, and return the name to put into a pod.

        Args:
            registry: host and port.
            tls_verify: whether the registry must prove who it is; one on loopback has no certificate.

        Raises:
            ImageError: the registry refused, or nothing answers there.
        """
        destination = f"{registry}/modelweights-{self.target}:{self.tag}"
        self.engine.push(self.name, destination, tls_verify=tls_verify)
        return destination

    def layers(self) -> list[str]:
        """Return the digests of the unpacked layers (diff IDs), the base first."""
        return list(self.engine.describe(self.name)["rootfs"]["diff_ids"])


def build_images(
    targets: Iterable[Target] = TARGETS, *, engine: str = "auto", torch: Torch = "debian"
) -> dict[Target, ImageRef]:
    """Build what isn't built yet, one process at a time; blocks for minutes on a new machine, for nothing otherwise.

    Args:
        targets: operator, loader or both.
        engine: auto, docker or buildah.
        torch: where the loader's torch comes from.

    Returns:
        The image of each target, tagged by its content.

    Raises:
        ImageError: no engine, or a step failed; the message has its last lines.
    """
    chosen = choose_engine(engine)
    with one_at_a_time(cache_folder() / "containers"):
        if isinstance(chosen, Buildah):
            remove_remnants(chosen)
        base = ensure_base(chosen) if isinstance(chosen, Buildah) else ""
        built = {target: _build_one(chosen, Recipe(target, torch, base)) for target in targets}
        if isinstance(chosen, Buildah):
            _prune(chosen, keep={image.name for image in built.values()} | {base})
    return built


def disk_usage() -> int:
    """Return the bytes that our own store takes on disk; 0 with Docker, whose store isn't ours."""
    folder = cache_folder() / "containers"
    if not folder.is_dir():
        return 0
    # Not by `du`: that gives up, and says nothing at all, when a folder goes while it looks, as those of another process's push do.
    device, seen, total = folder.lstat().st_dev, set[int](), 0
    for here, folders, files in os.walk(folder):
        for name in (*folders, *files):
            with contextlib.suppress(FileNotFoundError):
                found = os.lstat(os.path.join(here, name))  # noqa: PTH118 - a hundred thousand of them
                # Mounted containers are views of the layers that are counted already; so are a file's further names.
                if found.st_dev == device and found.st_ino not in seen:
                    seen.add(found.st_ino)
                    total += found.st_blocks * 512
        folders[:] = [name for name in folders if not os.path.ismount(os.path.join(here, name))]  # noqa: PTH118
    return total


def _build_one(engine: Engine, recipe: Recipe) -> ImageRef:
    tag = recipe.content_tag()
    image = f"localhost/modelweights-{recipe.target}:{tag}"
    began = time.monotonic()
    if not engine.has(image):
        engine.build(image, recipe)
    print(f"images: {image} ready after {time.monotonic() - began:.1f} s")
    return ImageRef(recipe.target, image, tag, engine, recipe)


def _prune(engine: Buildah, keep: set[str]) -> None:
    """Take old builds away; where the store is still too large, the layers that no build uses any more too."""
    for repository in (*(f"localhost/modelweights-{target}" for target in TARGETS), BASE_NAME):
        names = [name for name in engine.images(repository) if not name.endswith("-slim")]
        for name in [name for name in names if name not in keep][_KEPT_BUILDS - 1 :]:
            _remove(engine, name)
    if disk_usage() > STORE_LIMIT_BYTES:
        try:
            run(engine.command("rmi", "--prune"), seconds=300)
        except ImageError as error:
            # A check of the images has a container open; the next build tries again.
            print(f"images: the store stays above {STORE_LIMIT_BYTES / 1e9:.0f} GB for now: {error}")


def _remove(engine: Engine, name: str) -> None:
    try:
        engine.remove(name)
    except ImageError as error:
        # A test that still has it open; the next build tries again.
        print(f"images: {name} stays for now: {error}")
