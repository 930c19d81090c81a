"""Builds the cluster's programs from pinned Go modules, once, into the cache. Called before anything is started."""

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.cluster.errors import ClusterError, MissingToolError
from tests.cluster.paths import PACKAGE, cache_root
from tests.cluster.topology import KUBERNETES_VERSION

_MAJOR, _MINOR, _ = KUBERNETES_VERSION.removeprefix("v").split(".")
_VERSION = "k8s.io/component-base/version"
_KUBERNETES_LDFLAGS = (
    f"-s -w -X {_VERSION}.gitVersion={KUBERNETES_VERSION} -X {_VERSION}.gitMajor={_MAJOR}"
    f" -X {_VERSION}.gitMinor={_MINOR} -X {_VERSION}.gitTreeState=clean"
)


@dataclass(frozen=True)
class Program:
    """One Go program: the module's folder below go/, and the package to build in it."""

    name: str
    module: str
    package: str = "."
    ldflags: str = "-s -w"
    tags: str = ""


_CONTAINERD = "github.com/containerd/containerd/v2/cmd"
_CONTAINERD_TAGS = "no_btrfs no_devmapper no_zfs"
PROGRAMS = {
    program.name: program
    for program in (
        Program("init", "init"),
        Program("pause", "init", "./pause"),
        Program("kubernetes", "kubernetes", ldflags=_KUBERNETES_LDFLAGS),
        Program("containerd", "containerd", f"{_CONTAINERD}/containerd", tags=_CONTAINERD_TAGS),
        Program(
            "containerd-shim-runc-v2", "containerd", f"{_CONTAINERD}/containerd-shim-runc-v2", tags=_CONTAINERD_TAGS
        ),
        Program("ctr", "containerd", f"{_CONTAINERD}/ctr", tags=_CONTAINERD_TAGS),
        Program("registry", "registry", "github.com/distribution/distribution/v3/cmd/registry"),
        Program("helm", "helm", "helm.sh/helm/v3/cmd/helm"),
        Program("kind", "kind", "sigs.k8s.io/kind"),
        Program("versitygw", "versitygw", "github.com/versity/versitygw/cmd/versitygw"),
        Program("fake-gcs-server", "fakegcs", "github.com/fsouza/fake-gcs-server"),
        Program("leader-worker-set", "lws", "sigs.k8s.io/lws/cmd"),
        Program("gitops", "gitops"),
    )
}
_OF_SINGLE_TESTS = frozenset({"kind", "versitygw", "fake-gcs-server", "leader-worker-set", "gitops"})
EMBEDDED_PROGRAMS = tuple(name for name in PROGRAMS if name not in _OF_SINGLE_TESTS)
API_PROGRAMS = ("init", "kubernetes")


@cache
def _go_version() -> str:
    if shutil.which("go") is None:
        raise MissingToolError("the cluster's programs are built by Go: install Go 1.26 or newer and put it on PATH")
    # Outside of the module: GOTOOLCHAIN may choose another toolchain inside one, which its go.mod (hashed) decides.
    return subprocess.run(["go", "version"], check=True, capture_output=True, text=True, cwd="/").stdout.strip()


def _fingerprint(program: Program) -> str:
    digest = hashlib.sha256(repr((program, _go_version())).encode())
    folder = PACKAGE / "go" / program.module
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix in {".go", ".mod", ".sum"}:
            digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


@contextlib.contextmanager
def _build_lock() -> Iterator[None]:
    """Keep two processes from building at once: the second would only wait for the same compiler's cache."""
    folder = cache_root() / "bin"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _compile(program: Program, folder: Path) -> None:
    started = time.monotonic()
    argv = ["go", "build", "-trimpath", "-ldflags", program.ldflags, "-tags", program.tags]
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".building-") as scratch:
        target = Path(scratch) / "out" / program.name
        target.parent.mkdir()
        finished = subprocess.run(
            [*argv, "-o", str(target), program.package],
            cwd=PACKAGE / "go" / program.module,
            env={**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false -mod=readonly"},
            capture_output=True,
            text=True,
            check=False,
        )
        if finished.returncode != 0:
            raise ClusterError(f"building {program.name} failed:\n{finished.stderr.strip()[-4000:]}")
        target.parent.rename(folder)
    for old in folder.parent.glob(f"{program.name}-????????????????"):
        if old != folder:
            shutil.rmtree(old, ignore_errors=True)
    print(f"built {program.name} in {time.monotonic() - started:.0f} s", flush=True)


def ensure_program(name: str) -> Path:
    """Return the path of a built program, building it if these very inputs were not built before."""
    program = PROGRAMS[name]
    folder = cache_root() / "bin" / f"{name}-{_fingerprint(program)}"
    if not folder.is_dir():
        with _build_lock():
            if not folder.is_dir():
                _compile(program, folder)
    return folder / name


def ensure_programs(names: tuple[str, ...] = EMBEDDED_PROGRAMS) -> dict[str, Path]:
    """Return the paths of several programs, built if needed."""
    return {name: ensure_program(name) for name in names}
