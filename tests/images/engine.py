"""The program that builds and pushes: Docker where an engine answers, else buildah, which needs none.

Called by tests.images.build and tests.images.base. Buildah works in a store of its own below the cache folder, so that
the host's images and containers are neither used nor touched.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from abc import ABC, abstractmethod
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.images.inputs import cache_folder

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.images.inputs import Recipe

_SECONDS_FOR_A_BUILD = 1800
_SECONDS_FOR_A_PUSH = 600
_SECONDS_FOR_A_QUESTION = 60


class ImageError(Exception):
    """An image can't be built, found or pushed here; the message names the remedy."""


def run(command: list[str], *, seconds: int = _SECONDS_FOR_A_QUESTION) -> str:
    """Run a program to its end and return what it printed.

    Raises:
        ImageError: it failed; the message has the last lines of its output.
    """
    done = subprocess.run(
        command, check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=seconds
    )
    if done.returncode:
        last = "\n".join(done.stdout.splitlines()[-15:])
        raise ImageError(f"`{' '.join(command[:2])} ... {command[-1]}` ended with {done.returncode}:\n{last}")
    return done.stdout


def require_packages(programs: Mapping[str, str]) -> None:
    """Install the Debian packages of the programs that are missing, or say which those are.

    Args:
        programs: the Debian package by the program's name.

    Raises:
        ImageError: a program is missing and can't be installed by this user.
    """
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    missing = sorted({package for program, package in programs.items() if not shutil.which(program, path=path)})
    if not missing:
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise ImageError(f"missing: {' '.join(missing)}. Install with: apt-get install {' '.join(missing)}")
    run(["apt-get", "update", "-qq"], seconds=_SECONDS_FOR_A_PUSH)
    install = ["apt-get", "install", "--yes", "-qq", "--no-install-recommends"]
    run(["env", "DEBIAN_FRONTEND=noninteractive", *install, *missing], seconds=_SECONDS_FOR_A_PUSH)


def extra_certificates() -> Path | None:
    """Return the certificate authorities that pip uses on this machine, where they are set apart."""
    for variable in ("PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"):
        value = os.environ.get(variable)
        if value and Path(value).is_file():
            return Path(value)
    return None


class Engine(ABC):
    """What the builds need from either program. Images are named `localhost/NAME:TAG`."""

    name: str
    reason: str

    @abstractmethod
    def command(self, *words: str) -> list[str]:
        """Return the program's command line, with the options that all calls need."""

    @abstractmethod
    def build_words(self) -> list[str]:
        """Return the subcommand that builds, with its options of this engine only."""

    @abstractmethod
    def push(self, image: str, destination: str, *, tls_verify: bool) -> None:
        """Send the layers that the registry lacks, then the manifest."""

    @abstractmethod
    def describe(self, image: str) -> dict[str, Any]:
        """Return the image's OCI configuration (`rootfs`, `config`, ...)."""

    def build(self, image: str, recipe: Recipe) -> None:
        """Build a target of the Dockerfile and name the result; blocks for minutes when nothing is cached."""
        tree = recipe.repository
        words = [*self.build_words(), "--target", recipe.target, "--tag", image, "--file", str(tree / "Dockerfile")]
        arguments = recipe.build_arguments()
        words += [word for name, value in arguments.items() for word in ("--build-arg", f"{name}={value}")]
        certificates = extra_certificates()
        if certificates:
            words += ["--secret", f"id=pip_ca,src={certificates}", "--build-arg", "PIP_CERT=/run/secrets/pip_ca"]
        run(self.command(*words, str(tree)), seconds=_SECONDS_FOR_A_BUILD)

    def has(self, image: str) -> bool:
        """Tell whether the image is in the store."""
        try:
            self.describe(image)
        except ImageError:
            return False
        return True

    def images(self, repository: str) -> Iterator[str]:
        """Yield the names with tags of one repository, newest first."""
        listed = run(self.command("images", "--format", "{{.Name}}:{{.Tag}}" if self.name == "buildah" else _DOCKER))
        yield from (line for line in listed.splitlines() if line.startswith(f"{repository}:"))

    def remove(self, image: str) -> None:
        """Take the name away, and the layers that nothing else uses."""
        run(self.command("rmi", image))


_DOCKER = "{{.Repository}}:{{.Tag}}"


class Docker(Engine):
    """An engine that answers; its own store, its own cache."""

    name = "docker"
    reason = "its engine answers"

    def command(self, *words: str) -> list[str]:
        """Return `docker WORDS`."""
        return ["docker", *words]

    def build_words(self) -> list[str]:
        """Return the words of a build whose result can be pushed from the engine's store."""
        return ["buildx", "build", "--load", "--provenance=false"]

    def push(self, image: str, destination: str, *, tls_verify: bool) -> None:
        """Push by a second name; Docker takes registries on loopback without TLS by itself."""
        del tls_verify
        run(self.command("tag", image, destination))
        run(self.command("push", destination), seconds=_SECONDS_FOR_A_PUSH)

    def describe(self, image: str) -> dict[str, Any]:
        """Return the configuration in OCI's spelling."""
        found: dict[str, Any] = json.loads(run(self.command("image", "inspect", image)))[0]
        return {"config": found["Config"], "rootfs": {"diff_ids": found["RootFS"]["Layers"]}}


class Buildah(Engine):
    """No engine and no daemon; as root, in a chroot, since this may itself be a container."""

    name = "buildah"
    reason = "no Docker engine answers"

    def __init__(self) -> None:
        if os.geteuid() != 0:
            raise ImageError("without a Docker engine images are built as root: run as root, or start Docker")
        require_packages({"buildah": "buildah", "newuidmap": "uidmap", "runc": "runc"})
        self.folder = cache_folder() / "containers"
        self.folder.mkdir(parents=True, exist_ok=True)

    def command(self, *words: str) -> list[str]:
        """Return `buildah WORDS` on our own store; overlay, because vfs copies each layer in full."""
        own = ["--root", str(self.folder / "storage"), "--runroot", str(self.folder / "run")]
        return ["buildah", *own, "--storage-driver", "overlay", *words]

    def build_words(self) -> list[str]:
        """Return the words of a build that keeps each step's layer for the next one."""
        return ["build", "--isolation", "chroot", "--layers", "--force-rm"]

    def push(self, image: str, destination: str, *, tls_verify: bool) -> None:
        """Push with the compression that costs least, both to write and for a node to read.

        On loopback the processor is the narrow place. Measured on two busy cores with the loader's 690 MB, processor
        seconds of the push and of a pull: zstd at level 1 9 and 13 (216 MB), gzip at level 1 11 and 19 (254 MB), gzip's
        default 14 and 16 (225 MB). This version of buildah pushes nothing uncompressed, whatever its options say.
        """
        words = ["push", "--quiet", "--compression-format", "zstd", "--compression-level", "1"]
        verify = f"--tls-verify={str(tls_verify).lower()}"
        run(self.command(*words, verify, image, f"docker://{destination}"), seconds=_SECONDS_FOR_A_PUSH)

    def describe(self, image: str) -> dict[str, Any]:
        """Return the OCI configuration."""
        found: dict[str, Any] = json.loads(run(self.command("inspect", "--type", "image", image)))["OCIv1"]
        return found

    def layer_sizes(self) -> dict[str, int]:
        """Return the unpacked bytes of each layer in the store by its digest (diff ID)."""
        text = (self.folder / "storage" / "overlay-layers" / "layers.json").read_text()
        return {layer["diff-digest"]: layer["diff-size"] for layer in json.loads(text) if "diff-digest" in layer}


@cache
def choose_engine(wanted: str = "auto") -> Engine:
    """Return the engine, and say in one line which and why.

    Args:
        wanted: auto, docker or buildah.

    Raises:
        ImageError: Docker was asked for and doesn't answer, or buildah can't be had.
    """
    answers = wanted != "buildah" and _docker_answers()
    if wanted == "docker" and not answers:
        raise ImageError("docker was asked for, but `docker info` reaches no engine; start it, or use --engine buildah")
    engine: Engine = Docker() if answers else Buildah()
    print(f"images: using {engine.name}: {'asked for' if wanted == engine.name else engine.reason}")
    return engine


def _docker_answers() -> bool:
    if not shutil.which("docker"):
        return False
    try:
        run(["docker", "info"], seconds=15)
    except (ImageError, subprocess.TimeoutExpired):
        return False
    return True
