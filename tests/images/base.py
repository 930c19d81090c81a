"""A Debian base image without a registry: `python -m tests.images base`.

Called by tests.images.build where no Docker engine (which would pull the Dockerfile's default) answers. mmdebstrap
unpacks Debian's packages from the mirrors that this machine already uses, and leaves out what debian:trixie-slim does.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.images.engine import Buildah, ImageError, require_packages, run

if TYPE_CHECKING:
    from collections.abc import Iterable

SUITE = "trixie"
REPOSITORY_NAME = "localhost/modelweights-base"
_LEFT_OUT = ("man", "info", "locale", "lintian", "doc")
_SECONDS = 900


def ensure_base(engine: Buildah) -> str:
    """Return the base image's name, building it once a month and whenever its inputs change.

    Raises:
        ImageError: mmdebstrap is missing and can't be installed, or no mirror answers.
    """
    command = _mmdebstrap_command()
    # Once a month, because nothing else would ever bring in the security updates.
    inputs = json.dumps([command, time.strftime("%Y-%m", time.gmtime())])
    image = f"{REPOSITORY_NAME}:{SUITE}-{hashlib.sha256(inputs.encode()).hexdigest()[:12]}"
    if not engine.has(image):
        require_packages({"mmdebstrap": "mmdebstrap"})
        _build(engine, command, image)
    return image


def _mmdebstrap_command() -> list[str]:
    # Debian's own images are made so: no manuals, no translations, but the licences stay.
    slim = [f"path-exclude=/usr/share/{name}/*" for name in _LEFT_OUT] + ["path-include=/usr/share/doc/*/copyright"]
    words = [f"--dpkgopt={option}" for option in slim] + [f"--aptopt={option}" for option in _apt_proxies()]
    return ["mmdebstrap", "--quiet", "--variant=minbase", *words, SUITE, "TARBALL", *_sources()]


def _build(engine: Buildah, command: Iterable[str], image: str) -> None:
    with tempfile.TemporaryDirectory(dir=engine.folder, prefix="base-") as folder:
        tarball = str(Path(folder) / "base.tar")
        run([tarball if word == "TARBALL" else word for word in command], seconds=_SECONDS)
        container = run(engine.command("from", "scratch")).strip()
        try:
            run(engine.command("add", "--quiet", container, tarball, "/"), seconds=_SECONDS)
            run(engine.command("config", "--cmd", "bash", "--created-by", "mmdebstrap", container))
            run(engine.command("commit", "--quiet", container, image), seconds=_SECONDS)
            run(engine.command("tag", image, f"{REPOSITORY_NAME}:{SUITE}-slim"))
        finally:
            run(engine.command("rm", container))


def _sources() -> list[str]:
    """Return the lines of a sources.list for the suite, on the mirrors that this machine's apt uses.

    A machine without such mirrors (another distribution) gets mmdebstrap's default.
    """
    try:
        listed = run(["apt-get", "indextargets", "--format", "$(LABEL) $(REPO_URI)"])
    except (ImageError, FileNotFoundError):
        return []
    mirrors = dict(line.split(" ", 1) for line in sorted(set(listed.splitlines())) if line.startswith("Debian"))
    lines = []
    if "Debian" in mirrors:
        lines += [f"deb {mirrors['Debian']} {suite} main" for suite in (SUITE, f"{SUITE}-updates")]
    if "Debian-Security" in mirrors:
        lines.append(f"deb {mirrors['Debian-Security']} {SUITE}-security main")
    return lines


def _apt_proxies() -> list[str]:
    try:
        dump = run(["apt-config", "dump"])
    except (ImageError, FileNotFoundError):
        return []
    return [line.removesuffix(";") for line in dump.splitlines() if "::Proxy" in line and not line.endswith('"";')]
