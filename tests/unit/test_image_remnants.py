"""What builds and checks of images left that were killed goes before the next build; what is in use stays."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.filesystems.tools import is_mounted
from tests.images.engine import Buildah, run
from tests.images.remnants import remove_remnants, working_container
from tests.polling import poll

ROOT = Path(__file__).resolve().parents[2]
CHECK = """
import sys
from tests.images.engine import Buildah, run
from tests.images.remnants import working_container
engine = Buildah()
with working_container(engine, "scratch") as name:
    print(name, run(engine.command("mount", name)).strip(), flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Buildah]:
    """A store of its own; nothing of it is mounted in the end."""
    monkeypatch.setenv("MODELWEIGHTS_CACHE", str(tmp_path))
    engine = Buildah()
    yield engine
    run(engine.command("rm", "--all"))
    subprocess.run(["umount", str(engine.folder / "storage" / "overlay")], check=False, capture_output=True)


def names(store: Buildah) -> list[str]:
    return run(store.command("containers", "--noheading", "--format", "{{.ContainerName}}")).split()


def test_what_a_dead_build_left_is_removed_with_its_mount(store: Buildah) -> None:
    container = run(store.command("from", "scratch")).strip()
    mounted = Path(run(store.command("mount", container)).strip())
    assert is_mounted(mounted)
    with working_container(store, "scratch") as open_still:
        assert remove_remnants(store) == [container]
        assert names(store) == [open_still]
    assert names(store) == []
    assert not is_mounted(mounted)
    assert remove_remnants(store) == []


def test_what_a_check_has_open_stays_until_it_is_dead(store: Buildah) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    argv = [sys.executable, "-c", CHECK]
    with subprocess.Popen(argv, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as check:
        assert check.stdout is not None
        name, mounted = check.stdout.readline().split()
        assert remove_remnants(store) == []
        check.send_signal(signal.SIGKILL)
    assert names(store) == [name]
    assert is_mounted(Path(mounted))
    assert poll("it is taken for dead", lambda: remove_remnants(store)) == [name]
    assert (names(store), list((store.folder / "held").iterdir())) == ([], [])
    assert not is_mounted(Path(mounted))
