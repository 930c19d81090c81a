"""What the images promise, as plain functions over `build_images()`'s result; pytest calls them one by one.

Each returns a short figure for the log, or nothing, and fails by `assert` or ImageError.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import tempfile
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.images.engine import Buildah, ImageError, run
from tests.images.inputs import CODE, REPOSITORY, Target
from tests.images.lock import torch_version
from tests.images.remnants import working_container

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tests.images.build import ImageRef

    Images = Mapping[Target, ImageRef]

UID = 65532
_SECONDS_FOR_A_COMMAND = 60
SIZE_LIMIT_BYTES: dict[Target, int] = {"operator": 200 * 10**6, "loader": 1100 * 10**6}
_SITE = "opt/venv/lib/python3.13/site-packages"
_FORBIDDEN = ("gcc", "cc", "g++", "clang", "ld", "make", "ninja", "pip", "pip3", "curl", "wget", "git", "ssh")


def sizes_stay_in_bounds(images: Images) -> str:
    """Unpacked, as a node's disk sees them."""
    figures = []
    for target, image in images.items():
        with unpacked(image) as root:
            size = _size_bytes(root)
        assert size <= SIZE_LIMIT_BYTES[target], f"{target}: {size / 1e6:.0f} MB"
        figures.append(f"{target} {size / 1e6:.0f} MB")
    return ", ".join(figures)


def runs_unprivileged_on_a_read_only_root(images: Images) -> None:
    """The restricted Pod Security level plus a read-only root: who it is, what it may, where it can write."""
    code = (
        "import os, pathlib, tempfile\n"
        "status = pathlib.Path('/proc/self/status').read_text()\n"
        "print(os.getuid(), os.getgid(), [l.split()[1] for l in status.splitlines() if l[:7] in ('CapEff:', 'CapBnd:')])\n"
        "print(os.access('/', os.W_OK), os.access('/opt/venv', os.W_OK), os.statvfs('/').f_flag & os.ST_RDONLY)\n"
        "tempfile.TemporaryFile().close()\n"
    )
    zero = "0" * 16
    for image in images.values():
        assert image.engine.describe(image.name)["config"]["User"] == f"{UID}:{UID}"
        expected = f"{UID} {UID} ['{zero}', '{zero}']\nFalse False 1\n"
        assert expected == run_in(image, ["python", "-c", code])


def has_no_set_user_id_files(images: Images) -> None:
    """Neither set-user-ID nor set-group-ID, anywhere."""
    for image in images.values():
        with unpacked(image) as root:
            assert [str(path) for path, mode in _files(root) if mode & (stat.S_ISUID | stat.S_ISGID)] == []


def has_no_build_tools(images: Images) -> None:
    """No compiler, no installer, no downloader, no header, no package list."""
    for image in images.values():
        with unpacked(image) as root:
            for folder in ("usr/bin", "usr/local/bin", "usr/sbin", "opt/venv/bin"):
                assert [name for name in _FORBIDDEN if (root / folder / name).exists()] == [], folder
            assert [str(path) for path, _ in _files(root) if path.suffix in {".h", ".hpp", ".a"}] == []
            assert [str(path) for path in (root / "var/lib/apt/lists").glob("*") if path.is_file()] == []


def entry_points_work(images: Images) -> None:
    """By the image's entry point and by name. The operator has no help to print: it says what it lacks, or waits."""
    for target, image in images.items():
        for command in (image.engine.describe(image.name)["config"]["Entrypoint"], [f"modelweights-{target}"]):
            if target == "loader":
                assert "usage: modelweights-loader" in run_in(image, [*command, "--help"])
                continue
            # The shell says how it ended, because without a cluster it does so by itself or when its time is up.
            shell = ["sh", "-c", f"timeout 8 {' '.join(command)} 2>&1; echo ended with $?"]
            said = run_in(image, shell)
            assert "ImportError" not in said, said
            assert "ModuleNotFoundError" not in said, said
            assert said.endswith(("ended with 1\n", "ended with 124\n")), said


def holds_its_own_code_only(images: Images) -> None:
    """The loader never sees Kubernetes, the operator never sees torch."""
    foreign: dict[Target, tuple[str, ...]] = {
        "operator": ("modelweights_loader", "torch", "fastsafetensors"),
        "loader": ("modelweights_operator", "kopf", "kubernetes", "aiohttp"),
    }
    for target, image in images.items():
        with unpacked(image) as root:
            assert (root / _SITE / Path(CODE[target]).name).is_dir()
            for name in foreign[target]:
                assert not list(root.glob(f"{_SITE}/{name}")), f"{target} has {name}"


def code_is_compiled(images: Images) -> None:
    """A read-only root can't be given bytecode later, so each of our modules has it."""
    for target, image in images.items():
        with unpacked(image) as root:
            for source in (root / _SITE / Path(CODE[target]).name).rglob("*.py"):
                assert list((source.parent / "__pycache__").glob(f"{source.stem}.cpython-*.pyc")), source


def a_change_of_code_changes_the_last_layer_only(images: Images) -> None:
    """Builds a copy of the tree with one more line of code: all layers but the last are the same."""
    for target, image in images.items():
        with tempfile.TemporaryDirectory() as folder:
            changed = Path(folder) / "tree"
            _copy_inputs(changed, target)
            with (changed / CODE[target] / "__init__.py").open("a") as module:
                module.write("\n# One more line, which changes nothing.\n")
            name = f"localhost/modelweights-{target}:changed"
            image.engine.build(name, replace(image.recipe, repository=changed))
            after = image.engine.describe(name)["rootfs"]["diff_ids"]
            image.engine.remove(name)
        before = image.layers()
        assert before[:-1] == after[:-1]
        assert before[-1] != after[-1]


def torch_versions_agree(images: Images) -> None:
    """The CPU wheels, which no lock file can pin, are of the version that is pinned for CUDA."""
    del images
    text = (REPOSITORY / "Dockerfile").read_text()
    assert f"ARG TORCH_VERSION={torch_version()}\n" in text


def torch_loads_without_what_was_left_out(images: Images) -> str:
    """Import, a computation, a thread pool and the types that checkpoints hold."""
    if "loader" not in images:
        return "no loader"
    code = (
        "import time; began = time.perf_counter()\n"
        "import torch, fastsafetensors, numpy, safetensors.torch\n"
        "seconds = time.perf_counter() - began\n"
        "assert torch.ones(512, 512).matmul(torch.ones(512, 512)).sum().item() == 512**3\n"
        "torch.zeros(8, dtype=torch.bfloat16).to(torch.float8_e4m3fn)\n"
        "torch.linalg.svd(torch.eye(3)); torch.ones(3).numpy()\n"
        "print(f'torch {torch.__version__} imported in {seconds:.2f} s')\n"
    )
    return run_in(images["loader"], ["python", "-c", code]).strip()


ALL: Sequence[Callable[[Images], str | None]] = (
    sizes_stay_in_bounds,
    runs_unprivileged_on_a_read_only_root,
    has_no_set_user_id_files,
    has_no_build_tools,
    entry_points_work,
    holds_its_own_code_only,
    code_is_compiled,
    torch_versions_agree,
    torch_loads_without_what_was_left_out,
    a_change_of_code_changes_the_last_layer_only,
)


_open: dict[str, Path] = {}
"""Images that stay unpacked, by name."""


@contextmanager
def kept_unpacked(images: Images) -> Iterator[None]:
    """Unpack the images once for all checks within."""
    with ExitStack() as stack:
        for image in images.values():
            _open[image.name] = stack.enter_context(unpacked(image))
            stack.callback(_open.pop, image.name)
        yield


@contextmanager
def unpacked(image: ImageRef) -> Iterator[Path]:
    """Give the image's files as a folder; reading only."""
    if image.name in _open:
        yield _open[image.name]
        return
    engine = image.engine
    if isinstance(engine, Buildah):
        with working_container(engine, image.name) as container:
            yield Path(run(engine.command("mount", container)).strip())
        return
    container = run(engine.command("create", image.name)).strip()
    try:
        with tempfile.TemporaryDirectory() as folder:
            archive = Path(folder) / "root.tar"
            run(engine.command("export", "--output", str(archive), container), seconds=300)
            run(["tar", "--extract", "--file", str(archive), "--directory", folder, "--exclude=dev/*"], seconds=300)
            archive.unlink()
            yield Path(folder)
    finally:
        run(engine.command("rm", container))


def run_in(image: ImageRef, command: Sequence[str]) -> str:
    """Run a command as a staging pod would: the image's user, read-only root, no capability, /tmp writable.

    By the OCI runtime itself, so that the result doesn't depend on which engine built the image.

    Raises:
        ImageError: the command failed; the message has its output.
    """
    with unpacked(image) as root, tempfile.TemporaryDirectory() as bundle:
        configuration = image.engine.describe(image.name)["config"]
        specification = _runtime_configuration(root, command, configuration["Env"])
        (Path(bundle) / "config.json").write_text(json.dumps(specification))
        name = f"modelweights-check-{os.getpid()}"
        path = f"{os.environ.get('PATH', '')}:/usr/sbin"
        runtime = [shutil.which("runc", path=path) or "runc", "--root", f"{bundle}/state"]
        try:
            done = subprocess.run(
                [*runtime, "run", "--bundle", bundle, name],
                check=False,
                text=True,
                capture_output=True,
                timeout=_SECONDS_FOR_A_COMMAND,
                stdin=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired as error:
            raise ImageError(f"{' '.join(command)[:80]} still ran after {_SECONDS_FOR_A_COMMAND} s") from error
        finally:
            # The time-out above ends runc only, not what it started.
            subprocess.run([*runtime, "delete", "--force", name], check=False, capture_output=True, timeout=30)
        if done.returncode:
            raise ImageError(f"{' '.join(command)[:80]} ended with {done.returncode}: {done.stderr[-2000:]}")
        return done.stdout


def _runtime_configuration(root: Path, command: Sequence[str], environment: list[str]) -> dict[str, Any]:
    options = ["nosuid", "nodev"]
    namespaces = [{"type": kind} for kind in ("pid", "mount", "ipc", "uts", "network")]
    none: dict[str, list[str]] = {kind: [] for kind in ("bounding", "effective", "inheritable", "permitted")}
    return {
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": UID, "gid": UID},
            "args": list(command),
            "env": environment,
            "cwd": "/",
            "capabilities": none,
            "noNewPrivileges": True,
        },
        "root": {"path": str(root), "readonly": True},
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
            {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": [*options, "mode=1777"]},  # noqa: S108 - the container's own
        ],
        "linux": {"namespaces": namespaces},
    }


def _files(root: Path) -> Iterator[tuple[Path, int]]:
    for folder, _, names in os.walk(root):
        for name in names:
            path = Path(folder) / name
            status = path.lstat()
            if stat.S_ISREG(status.st_mode):
                yield path.relative_to(root), status.st_mode


def _size_bytes(root: Path) -> int:
    return sum((root / path).lstat().st_size for path, _ in _files(root))


def _copy_inputs(destination: Path, target: Target) -> None:
    for name in ("Dockerfile", ".dockerignore"):
        (destination / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(REPOSITORY / name, destination / name)
    for folder in ("requirements", CODE[target]):
        shutil.copytree(REPOSITORY / folder, destination / folder, ignore=shutil.ignore_patterns("__pycache__"))
