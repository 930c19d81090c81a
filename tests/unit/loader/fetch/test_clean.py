"""`clean` removes what `fetch` made and nothing else, whatever was planted, exchanged, held or killed meanwhile."""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from modelweights_loader.errors import LoaderError, TryAgainError, UsageError, WillNotWorkError
from modelweights_loader.fetch import folders
from modelweights_loader.fetch.cleaning import CleanOptions, CleanResult, clean
from modelweights_loader.hold import find_held_folder
from modelweights_loader.marker import Marker, name_marker, read_boot_id, write_marker
from tests.polling import wait_for
from tests.unit.loader.conftest import LOADER, run_loader
from tests.unit.loader.fetch.scripted_source import ScriptedSource, make_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.unit.loader.fetch.conftest import Fetch

OTHER = "b" * 40


class Home(NamedTuple):
    """A home with two checkpoints, and what lies around it."""

    path: Path
    digests: tuple[str, str]
    markers: Path

    def clean(self, *digests: str, everything: bool = False, **options: Any) -> CleanResult:
        given = {"marker_dir": str(self.markers), "lock_seconds": 0.0, **options}
        return clean(str(self.path), CleanOptions(digests=digests, everything=everything, **given))

    def listed(self) -> list[str]:
        return sorted(os.listdir(self.path)) if self.path.exists() else []

    def mark(self, place: str) -> Path:
        relative = f"{self.path.name}/{place}"
        marker = Marker(relative, f"sha256:{place[:64]}", read_boot_id(), "node-boot", 7, 2, "2026-01-01T00:00:00Z")
        write_marker(str(self.markers), marker)
        return self.markers / name_marker(relative)


@pytest.fixture
def full(home: Path, fetch_it: Fetch) -> Home:
    """The second checkpoint shares a file with the first one."""
    contents = make_checkpoint()
    first = fetch_it(ScriptedSource(contents))
    contents["model-00002-of-00002.safetensors"] = b"other" * 1000
    second = fetch_it(ScriptedSource(contents, revision=OTHER))
    assert first.published
    assert second.published
    markers = home.parent / ".modelweights"
    markers.mkdir()
    one, other = first.published.manifest_digest, second.published.manifest_digest
    return Home(home, (one.removeprefix("sha256:"), other.removeprefix("sha256:")), markers)


def used_bytes(folder: Path) -> int:
    """On the disk, each file once."""
    statuses = [path.stat() for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return sum({status.st_ino: status.st_blocks * 512 for status in statuses}.values())


def test_one_checkpoint_goes_with_its_marker_and_the_other_stays(full: Home, fetch_it: Fetch) -> None:
    one, other = full.digests
    mark, kept = full.mark(one), full.mark(other)
    before = used_bytes(full.path / one) + used_bytes(full.path / other)
    result = full.clean(one)
    assert result.removed == (one,)
    # The first shard is shared: the second one is all that went.
    assert 2_000_000 <= result.freed_bytes < 2_100_000
    assert before - used_bytes(full.path / other) > result.freed_bytes
    assert full.listed() == [".fetch", other]
    assert (mark.exists(), kept.exists()) == (False, True)
    assert fetch_it(ScriptedSource({}, revision=OTHER), revision=OTHER).reason == "AlreadyThere"


def test_what_went_is_fetched_again(full: Home, fetch_it: Fetch) -> None:
    full.clean(full.digests[0])
    again = fetch_it(ScriptedSource(make_checkpoint()))
    assert again.reason == "Fetched"
    # The shard of the other one is here still.
    assert again.reused_bytes >= 3_000_000


def test_cleaning_twice_is_cleaning_once(full: Home) -> None:
    for removed in (full.digests[:1], ()):
        assert full.clean(full.digests[0]).removed == removed


def test_all_leaves_nothing(full: Home) -> None:
    marks = [full.mark(digest) for digest in full.digests]
    marks.append(full.mark(f"{full.digests[0]}/models--a--b/snapshots/{OTHER}"))
    foreign = full.markers / "other%2Fm.json"
    foreign.write_text("{}")
    (full.path / ".fetch" / ("c" * 32) / "files").mkdir(parents=True)
    result = full.clean(everything=True)
    assert sorted(result.removed) == sorted(full.digests)
    assert not full.path.exists()
    assert [mark for mark in marks if mark.exists()] == []
    assert foreign.exists()
    assert full.clean(everything=True).removed == ()


def test_a_cache_of_the_hub_goes_with_the_markers_of_its_snapshots(home: Path, fetch_it: Fetch) -> None:
    published = fetch_it(ScriptedSource(make_checkpoint()), layout="HuggingFaceCache").published
    assert published
    markers = home.parent / ".modelweights"
    markers.mkdir()
    full = Home(home, ("", ""), markers)
    mark = full.mark(published.folder)
    full.clean(published.manifest_digest.removeprefix("sha256:"))
    assert (full.listed(), mark.exists()) == ([".fetch"], False)


def test_what_fetch_did_not_make_stays_and_is_told(full: Home) -> None:
    (full.path / "mine").mkdir()
    (full.path / "mine" / "notes").write_text("x")
    result = full.clean(everything=True)
    assert result.left == ("mine",)
    assert full.listed() == ["mine"]


def test_a_home_that_is_not_there_is_clean(tmp_path: Path) -> None:
    result = clean(str(tmp_path / "none" / "m"), CleanOptions(everything=True, root=str(tmp_path)))
    assert (result.removed, result.freed_bytes) == ((), 0)
    assert os.listdir(tmp_path) == []


# --- held -------------------------------------------------------------------------------------------------------------


def test_what_somebody_holds_stays_and_the_others_go(full: Home) -> None:
    one = full.digests[0]
    mark = full.mark(one)
    descriptor = os.open(full.path / one, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    with pytest.raises(TryAgainError) as caught:
        full.clean(everything=True)
    assert (caught.value.reason, caught.value.figures["inUse"]) == ("InUse", [one[:12]])
    assert full.listed() == [".fetch", one]
    assert mark.exists()
    os.close(descriptor)
    assert full.clean(everything=True).removed == (one,)
    assert not full.path.exists()


def test_a_sidecar_holds_it_until_it_is_ended(full: Home, tmp_path: Path) -> None:
    one, _ = full.digests
    full.mark(one)
    held = tmp_path / "held"
    command = [
        sys.executable,
        "-m",
        "modelweights_loader",
        "wait",
        str(full.path / one),
        "--hold",
        "--held-file",
        str(held),
    ]
    environment = {**os.environ, "PYTHONPATH": str(LOADER)}
    sidecar = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert wait_for(held.exists, 20)
        with pytest.raises(TryAgainError, match="is held by a pod"):
            full.clean(one)
    finally:
        sidecar.terminate()
        said = sidecar.communicate(timeout=20)[0]
    assert sidecar.returncode == 0
    assert "no longer held" in said
    assert full.clean(one).removed == (one,)


def test_a_sidecar_waits_for_what_is_being_removed(full: Home) -> None:
    """`clean` has it locked, and its marker still lies there."""
    one, _ = full.digests
    full.mark(one)
    descriptor = os.open(full.path / one, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    ran = run_loader("wait", full.path / one, "--hold", "--timeout-seconds", "0.5")
    os.close(descriptor)
    assert (ran.code, ran.report["reason"]) == (10, "NotStaged")


@pytest.mark.parametrize(
    ("below", "expected"),
    [
        ("ns/m/" + "a" * 64, "ns/m/" + "a" * 64),
        (f"ns/m/{'a' * 64}/models--o--n/snapshots/x", "ns/m/" + "a" * 64),
        ("x/y", "x/y"),
    ],
)
def test_the_folder_of_the_digest_is_what_is_held(tmp_path: Path, below: str, expected: str) -> None:
    (tmp_path / ".modelweights").mkdir()
    (tmp_path / below).mkdir(parents=True)
    assert find_held_folder(str(tmp_path / below)) == str(tmp_path / expected)


def test_a_fetch_under_way_is_waited_for(full: Home) -> None:
    descriptor = os.open(full.path / ".fetch" / "lock", os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with pytest.raises(TryAgainError) as caught:
        full.clean(full.digests[0])
    assert caught.value.reason == "Locked"
    os.close(descriptor)
    assert full.clean(full.digests[0]).removed == full.digests[:1]


def test_a_fetch_that_waited_for_a_clean_begins_anew(
    full: Home, fetch_it: Fetch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock that it waited for is gone with the home, and protects nothing any more."""
    found: list[BaseException] = []

    def fetch() -> None:
        try:
            fetch_it(ScriptedSource(make_checkpoint()), lock_seconds=20.0)
        except LoaderError as error:
            found.append(error)

    waiter = threading.Thread(target=fetch)
    remove = folders.Folder.remove_tree

    def remove_with_a_waiter(self: folders.Folder, name: str) -> None:
        if not waiter.ident:
            before = _open_locks(full.path)
            waiter.start()
            assert wait_for(lambda: _open_locks(full.path) > before, 10)
        remove(self, name)

    monkeypatch.setattr(folders.Folder, "remove_tree", remove_with_a_waiter)
    full.clean(everything=True)
    waiter.join(20)
    assert [getattr(error, "reason", "") for error in found] == ["Locked"]
    assert fetch_it(ScriptedSource(make_checkpoint())).reason == "Fetched"


def _open_locks(home: Path) -> int:
    """How often this process has the lock open."""
    links = (os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd"))
    return sum(os.path.lexists(link) and os.readlink(link) == str(home / ".fetch" / "lock") for link in links)


def test_two_at_once_remove_it_once(full: Home) -> None:
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda _: full.clean(everything=True, lock_seconds=20.0), range(2), timeout=60))
    assert sorted(digest for result in results for digest in result.removed) == sorted(full.digests)
    assert not full.path.exists()


# --- planted and exchanged --------------------------------------------------------------------------------------------


@pytest.fixture
def outside(full: Home) -> Iterator[Path]:
    """A folder of somebody else, which must be untouched in the end."""
    folder = full.path.parent / "outside"
    folder.mkdir()
    (folder / "precious").write_text("precious")
    (folder / "folder").mkdir()
    yield folder
    assert (folder / "precious").read_text() == "precious"
    assert sorted(os.listdir(folder)) == ["folder", "precious"]


def test_links_in_a_checkpoint_go_and_what_they_lead_to_stays(full: Home, outside: Path) -> None:
    one, _ = full.digests
    (full.path / one / "link").symlink_to(outside)
    (full.path / one / "file").symlink_to(outside / "precious")
    (full.path / one / "hard").hardlink_to(outside / "precious")
    os.mkfifo(full.path / one / "fifo")
    full.clean(one)
    assert full.listed() == [".fetch", full.digests[1]]


def test_a_link_in_the_place_of_a_checkpoint_goes(full: Home, outside: Path) -> None:
    (full.path / ("c" * 64)).symlink_to(outside)
    assert full.clean("c" * 64).removed == ()
    assert "c" * 64 not in full.listed()


@pytest.mark.parametrize("name", ["home", ".fetch", ".fetch/gone", ".fetch/lock"])
def test_a_planted_link_on_the_way_is_refused_or_removed(full: Home, outside: Path, name: str) -> None:
    one, _ = full.digests
    place = full.path if name == "home" else full.path / name
    if os.path.lexists(place):
        place.rename(full.path.parent / "away")
    place.symlink_to(outside / "precious" if name.endswith("lock") else outside)
    with pytest.raises(WillNotWorkError) as caught:
        full.clean(one, everything=False)
    assert caught.value.reason == "UnsafePath"
    place.unlink()
    if (full.path.parent / "away").exists():
        (full.path.parent / "away").rename(place)


def test_a_link_above_the_home_is_refused_where_the_root_is_known(full: Home, outside: Path) -> None:
    namespace = full.path.parent / "namespace"
    namespace.symlink_to(outside)
    (outside / "folder").rmdir()
    (outside / "folder").mkdir()
    with pytest.raises(WillNotWorkError) as caught:
        clean(str(namespace / "folder"), CleanOptions(everything=True, root=str(full.path.parent)))
    assert caught.value.reason == "UnsafePath"


@pytest.mark.parametrize("path", ["..", "x/../..", "."])
def test_a_home_outside_of_the_root_is_a_wrong_use(tmp_path: Path, path: str) -> None:
    (tmp_path / "root").mkdir()
    with pytest.raises(UsageError, match="doesn't lie below the root"):
        clean(str(tmp_path / "root" / path), CleanOptions(everything=True, root=str(tmp_path / "root")))


@pytest.mark.parametrize("moment", range(1, 12))
def test_a_folder_that_becomes_a_link_meanwhile_leads_nowhere(
    full: Home, outside: Path, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    """Exchanged right after it was looked at, which is the worst moment."""
    one, _ = full.digests
    for number in range(4):
        (full.path / one / f"d{number}" / "below").mkdir(parents=True)
    looks, real = 0, folders.Folder.status

    def status(self: folders.Folder, name: str) -> os.stat_result | None:
        nonlocal looks
        found = real(self, name)
        if found is not None and name.startswith(("d", "below")) and (looks := looks + 1) == moment:
            os.rename(name, f"away-{name}", src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)
            os.symlink(outside, name, dir_fd=self.descriptor)
        return found

    monkeypatch.setattr(folders.Folder, "status", status)
    full.clean(one)
    assert full.listed() == [".fetch", full.digests[1]]


def test_folders_of_any_depth_go(full: Home) -> None:
    one, _ = full.digests
    descriptor = os.open(full.path / one, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("deep", dir_fd=descriptor)
        below = os.open("deep", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = below
    os.close(descriptor)
    full.clean(one)
    assert full.listed() == [".fetch", full.digests[1]]


# --- killed -----------------------------------------------------------------------------------------------------------


def _clean_and_die(full: Home, calls: int) -> None:
    """Ends the process at its so-and-so-manieth change of the disk, as SIGKILL would."""
    left = [calls]
    for name in ("rename", "unlink", "rmdir"):
        setattr(os, name, _dying(getattr(os, name), left))
    full.clean(full.digests[0])
    os._exit(0)


def _dying(real: Callable[..., None], left: list[int]) -> Callable[..., None]:
    def call(*arguments: Any, **options: Any) -> None:
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] -= 1
        real(*arguments, **options)

    return call


def test_killed_before_any_change_it_is_whole_or_gone_and_the_next_run_ends_it(full: Home, fetch_it: Fetch) -> None:
    one, other = full.digests
    context = multiprocessing.get_context("fork")
    for calls in range(60):
        mark = full.mark(one)
        files = sorted(os.listdir(full.path / one))
        process = context.Process(target=_clean_and_die, args=(full, calls))
        process.start()
        process.join(30)
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
        if one in full.listed():
            assert sorted(os.listdir(full.path / one)) == files
        else:
            assert not mark.exists()
        # Whichever comes next: a fetch that needs it again, every second time after a clean.
        if calls % 2:
            full.clean(one)
            assert full.listed() == [".fetch", other]
        assert fetch_it(ScriptedSource(make_checkpoint())).reason in ("Fetched", "AlreadyThere")
    assert 8 < calls < 60
    full.clean(everything=True)
    assert not full.path.exists()


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_reports_what_it_freed(full: Home) -> None:
    one, _ = full.digests
    root = full.path.parent
    arguments = ("--root", root, "--marker-dir", full.markers, "--marker-root", root)
    ran = run_loader("clean", full.path, "--digest", f"sha256:{one}", *arguments)
    assert ran.code == 0, ran
    status = os.statvfs(root)
    assert ran.report["step"] == "clean"
    assert ran.report["removed"] == [one[:12]]
    assert ran.report["diskTotalBytes"] == status.f_blocks * status.f_frsize
    assert ran.report["freedBytes"] > 2_000_000
    assert json.dumps(ran.report["diskFreeBytes"]).isdigit()


@pytest.mark.parametrize("arguments", [[], ["--all", "--digest", "sha256:" + "a" * 64], ["--digest", "sha256:x"]])
def test_what_goes_must_be_named(tmp_path: Path, arguments: list[str]) -> None:
    assert run_loader("clean", tmp_path / "m", *arguments).code == 2


def test_held_files_need_a_holder(tmp_path: Path) -> None:
    assert run_loader("wait", tmp_path, "--held-file", tmp_path / "x").code == 2
