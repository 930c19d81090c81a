"""What an image is made of, and the tag that follows from it. Imported by all of tests.images; reads files only."""

from __future__ import annotations

import hashlib
import json
import os
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

REPOSITORY = Path(__file__).resolve().parents[2]
Target = Literal["operator", "loader"]
Torch = Literal["pip", "debian", "cuda"]
TARGETS: tuple[Target, ...] = ("operator", "loader")
CODE: dict[Target, str] = {"operator": "operator/modelweights_operator", "loader": "loader/modelweights_loader"}


def cache_folder() -> Path:
    """Return the folder that keeps what the tests build between runs."""
    xdg = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("MODELWEIGHTS_CACHE") or Path(xdg) / "modelweights")


def version() -> str:
    """Return the project's version: the images' label and what the programs in them say."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    return str(project["version"])


@dataclass(frozen=True)
class Recipe:
    """Everything that decides about an image's content.

    Args:
        target: the Dockerfile's final stage.
        torch: where the loader's torch comes from; the operator has none.
        base: the base image's name with a tag of its own content, or empty for the Dockerfile's default.
        repository: the root of the source tree.
    """

    target: Target
    torch: Torch
    base: str
    repository: Path = field(default=REPOSITORY)

    def build_arguments(self) -> dict[str, str]:
        """Return the Dockerfile's ARGs by name."""
        arguments = {"TORCH": self.torch, "VERSION": version()}
        return {**arguments, "BASE": self.base} if self.base else arguments

    def files(self) -> list[Path]:
        """List the files that the build reads, in a stable order."""
        names = ["operator.txt"] if self.target == "operator" else self._loader_requirements()
        fixed = [self.repository / "Dockerfile", self.repository / ".dockerignore"]
        code = (self.repository / CODE[self.target]).rglob("*")
        return [
            *fixed,
            *(self.repository / "requirements" / name for name in names),
            *sorted(path for path in code if path.is_file() and path.suffix != ".pyc"),
        ]

    def content_tag(self) -> str:
        """Hash the inputs into a tag, so that no pod ever runs an older build under the tag that a test asked for."""
        digest = hashlib.sha256(json.dumps(self.build_arguments(), sort_keys=True).encode())
        for path in self.files():
            digest.update(f"\0{path.relative_to(self.repository)}\0".encode())
            digest.update(path.read_bytes())
        return digest.hexdigest()[:16]

    def _loader_requirements(self) -> list[str]:
        return ["loader.txt"] if self.torch == "debian" else ["loader.txt", f"loader-{self.torch}.txt"]
