"""Prefetch and residency on real file systems: what is read stays in memory, or it is said that it does not."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import TYPE_CHECKING, NamedTuple

import pytest

from modelweights_loader import file_systems, page_cache
from modelweights_loader.checkpoint import find_checkpoint
from modelweights_loader.file_systems import UNKNOWN, FileSystem, detect
from modelweights_loader.prefetch import prefetch
from modelweights_loader.residency import measure
from tests import filesystems
from tests.checkpoints.synthetic import make_synthetic
from tests.unit.loader.conftest import evict, run_as_staging_user, run_loader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SIZE = 2**23


class Case(NamedTuple):
    """A mount: how it is made, the kernel's name for it, what becomes of pages, and the method that tells the truth."""

    mount: Callable[[Path, Path], AbstractContextManager[Path]]
    type: str
    kept: str
    method: str
    # An empty file system is filled with a copy; the others show the source folder.
    empty: bool = False


def _image(kind: str) -> Callable[[Path, Path], AbstractContextManager[Path]]:
    return lambda _, at: filesystems.mount_image(kind, at.parent / "image", at)


CASES = {
    "disk": Case(lambda source, _: nullcontext(source), "ext4", page_cache.KEPT, "cachestat"),
    "ext4": Case(_image("ext4"), "ext4", page_cache.KEPT, "cachestat", empty=True),
    "xfs": Case(_image("xfs"), "xfs", page_cache.KEPT, "cachestat", empty=True),
    "overlay": Case(
        lambda source, at: filesystems.mount_overlay(source, at, at.parent / "scratch"),
        "overlay",
        page_cache.KEPT,
        "mincore",
    ),
    "sshfs": Case(filesystems.show_sshfs, "fuse.sshfs", page_cache.DROPPED_AT_OPEN, "cachestat"),
    "sshfs with kernel_cache": Case(
        lambda source, at: filesystems.show_sshfs(source, at, "kernel_cache"),
        "fuse.sshfs",
        page_cache.KEPT,
        "cachestat",
    ),
    "sshfs with auto_cache": Case(
        lambda source, at: filesystems.show_sshfs(source, at, "auto_cache"), "fuse.sshfs", page_cache.KEPT, "cachestat"
    ),
    "sshfs with direct I/O": Case(
        lambda source, at: filesystems.show_sshfs(source, at, direct_io=True),
        "fuse.sshfs",
        page_cache.BYPASSED,
        "cachestat",
    ),
    "bindfs": Case(filesystems.show_bindfs, "fuse", page_cache.DROPPED_AT_OPEN, "cachestat"),
    "bindfs with auto_cache": Case(
        lambda source, at: filesystems.show_bindfs(source, at, "auto_cache"), "fuse", page_cache.KEPT, "cachestat"
    ),
    "bindfs with kernel_cache": Case(
        lambda source, at: filesystems.show_bindfs(source, at, "kernel_cache"), "fuse", page_cache.KEPT, "cachestat"
    ),
    "bindfs with direct I/O": Case(
        lambda source, at: filesystems.show_bindfs(source, at, direct_io=True), "fuse", page_cache.BYPASSED, "cachestat"
    ),
    "mergerfs": Case(filesystems.show_mergerfs, "fuse.mergerfs", page_cache.KEPT, "cachestat"),
    "mergerfs with auto-full": Case(
        lambda source, at: filesystems.show_mergerfs(source, at, "cache.files=auto-full"),
        "fuse.mergerfs",
        page_cache.KEPT,
        "cachestat",
    ),
    "mergerfs with direct I/O": Case(
        lambda source, at: filesystems.show_mergerfs(source, at, direct_io=True),
        "fuse.mergerfs",
        page_cache.BYPASSED,
        "cachestat",
    ),
    "rclone": Case(filesystems.show_rclone, "fuse.rclone", page_cache.DROPPED_AT_OPEN, "cachestat"),
}
FOR_ALL = {
    "mergerfs for all, with direct I/O": Case(
        lambda source, at: filesystems.show_mergerfs(source, at, "allow_other", direct_io=True),
        "fuse.mergerfs",
        page_cache.BYPASSED,
        "unknown",
    ),
}
KEEPING = [name for name, case in CASES.items() if case.kept == page_cache.KEPT]
USELESS = [name for name, case in CASES.items() if case.kept != page_cache.KEPT]


@pytest.fixture
def mounted(disk: Path, request: pytest.FixtureRequest) -> Iterator[tuple[Path, Case]]:
    """The checkpoint as the named file system shows it, cold."""
    case = (CASES | FOR_ALL)[request.param]
    source = disk / "source"
    make_synthetic(source / "model", SIZE, shards=3)
    with ExitStack() as stack:
        folder = stack.enter_context(case.mount(source, disk / "mount"))
        if case.empty:
            make_synthetic(folder / "model", SIZE, shards=3)
        evict(source / "model")
        evict(folder / "model")
        yield folder / "model", case


@pytest.mark.parametrize("mounted", CASES, indirect=True)
def test_all_bytes_are_read_and_the_truth_is_told(mounted: tuple[Path, Case]) -> None:
    model, case = mounted
    checkpoint = find_checkpoint(str(model))
    result = prefetch(checkpoint.shards, num_threads=4, block_bytes=2**20)
    assert (result.read_bytes, result.failures, result.ways) == (checkpoint.size_bytes, (), ("sendfile",))
    assert [(probe.kept, probe.file_system.type) for probe in result.probes] == [(case.kept, case.type)]
    residency = measure(checkpoint.shards)
    assert (residency.method, residency.percent) == (case.method, 100.0 if case.kept == page_cache.KEPT else 0.0)


@pytest.mark.parametrize("mounted", KEEPING, indirect=True)
def test_where_pages_stay_the_command_is_content(mounted: tuple[Path, Case]) -> None:
    model, case = mounted
    ran = run_loader("prefetch", model, "--policy", "Required")
    assert (ran.code, ran.report["reason"]) == (0, "Prefetched"), ran
    told = {
        key: ran.report[key] for key in ("fileSystem", "pageCache", "readWay", "residentPercent", "residencyMethod")
    }
    assert told == {
        "fileSystem": case.type,
        "pageCache": "Kept",
        "readWay": "sendfile",
        "residentPercent": 100.0,
        "residencyMethod": case.method,
    }


@pytest.mark.parametrize("mounted", USELESS, indirect=True)
def test_where_pages_do_not_stay_it_says_so_and_reads_no_more_than_it_must(mounted: tuple[Path, Case]) -> None:
    model, case = mounted
    ran = run_loader("prefetch", model)
    assert (ran.code, ran.report["reason"]) == (0, "PageCacheBypassed"), ran
    assert ran.report["readBytes"] <= 2**20
    for said in (ran.stderr, ran.report["message"]):
        assert "staging into memory is useless there" in said
        assert f"{case.type} at {model.parent}" in said
        assert FileSystem(case.type, "").remedy in said
    reading = run_loader("prefetch", model, "--past-page-cache", "Read")
    assert (reading.code, reading.report["reason"]) == (0, "PageCacheBypassed")
    assert reading.report["readBytes"] == reading.report["sizeBytes"]
    staged = run_loader("stage", model, "--mode", "Structure")
    assert (staged.code, staged.report["pageCache"]) == (0, case.kept), staged
    assert "staging into memory is useless there" in staged.report["message"]
    required = run_loader("prefetch", model, "--policy", "Required")
    assert (required.code, required.report["reason"]) == (20, "PageCacheBypassed"), required
    assert FileSystem(case.type, "").remedy in required.stderr
    assert required.report["readBytes"] <= 2**20


@pytest.mark.parametrize("mounted", ["mergerfs for all, with direct I/O"], indirect=True)
def test_direct_io_is_seen_also_by_who_may_not_measure(mounted: tuple[Path, Case]) -> None:
    """The staging user owns nothing, so cachestat and mincore are out; a shared mapping is refused all the same."""
    model, _ = mounted
    ran = run_as_staging_user("prefetch", model)
    assert (ran.code, ran.report["reason"]) == (0, "PageCacheBypassed"), ran


@pytest.mark.parametrize("mounted", ["overlay"], indirect=True)
def test_what_nobody_can_tell_is_unknown_and_read(mounted: tuple[Path, Case]) -> None:
    model, _ = mounted
    ran = run_as_staging_user("prefetch", model)
    assert (ran.code, ran.report["reason"], ran.report["pageCache"]) == (0, "Prefetched", "Unknown"), ran
    assert (ran.report["readBytes"], ran.report["residencyMethod"]) == (ran.report["sizeBytes"], "unknown")
    assert "residentBytes" not in ran.report
    required = run_as_staging_user("prefetch", model, "--policy", "Required")
    assert (required.code, required.report["reason"]) == (20, "ResidencyUnknown")
    assert "--unknown-residency Accept" in required.report["message"]
    for command in ("prefetch", "report"):
        accepted = run_as_staging_user(command, model, "--policy", "Required", "--unknown-residency", "Accept")
        assert accepted.code == 0, accepted


def test_on_tmpfs_nothing_is_read_since_all_of_it_is_in_memory(disk: Path) -> None:
    with filesystems.mount_tmpfs(disk / "mount", 2 * SIZE) as folder:
        model = make_synthetic(folder / "model", SIZE, shards=3)
        ran = run_loader("prefetch", model, "--policy", "Required")
    assert (ran.code, ran.report["reason"], ran.report["readBytes"]) == (0, "Prefetched", 0), ran
    assert f"in memory already (tmpfs at {disk}/mount)" in ran.report["message"]
    assert ran.report["residentPercent"] == 100.0


def test_a_mount_with_a_space_in_its_name_is_found(disk: Path) -> None:
    with filesystems.mount_tmpfs(disk / "a mount", 2**20) as folder:
        (folder / "file").touch()
        assert detect(str(folder / "file")) == FileSystem("tmpfs", str(folder))


def test_a_mount_below_another_one_is_told_from_it(disk: Path) -> None:
    with (
        filesystems.mount_tmpfs(disk / "mount", 2**20) as outer,
        filesystems.mount_overlay(disk, outer / "inner", disk / "scratch") as inner,
    ):
        (inner / "file").touch()
        assert (detect(str(inner / "file")).type, detect(str(outer)).type) == ("overlay", "tmpfs")


def test_what_is_not_there_is_unknown(disk: Path) -> None:
    assert detect(str(disk / "gone")) == UNKNOWN
    assert detect(str(disk), proc=str(disk)) == UNKNOWN
    assert str(UNKNOWN) == "unknown"


@pytest.mark.parametrize(
    ("kind", "fuse", "network", "memory", "says"),
    [
        ("nfs4", False, True, False, "local disk"),
        ("lustre", False, True, False, "local disk"),
        ("ceph", False, True, False, "local disk"),
        ("gpfs", False, True, False, "cache of its own"),
        ("zfs", False, False, False, "cache of its own"),
        ("fuse.sshfs", True, True, False, "auto_cache"),
        ("fuse.rclone", True, True, False, "local disk"),
        ("fuse.mergerfs", True, False, False, "cache.files=full"),
        ("fuse", True, False, False, "kernel_cache"),
        ("tmpfs", False, False, True, "local disk"),
        ("ext4", False, False, False, "dax"),
    ],
)
def test_types_and_their_remedies(kind: str, *, fuse: bool, network: bool, memory: bool, says: str) -> None:
    found = FileSystem(kind, "/mnt")
    assert (found.is_fuse, found.is_network, found.is_memory) == (fuse, network, memory)
    assert says in found.remedy


def test_the_kernels_own_list_is_understood(tmp_path: Path) -> None:
    (tmp_path / "self" / "fdinfo").mkdir(parents=True)
    descriptor = os.open(tmp_path, os.O_RDONLY)
    (tmp_path / "self" / "fdinfo" / str(descriptor)).write_text("pos:\t0\nflags:\t012\nmnt_id:\t30\nino:\t1\n")
    (tmp_path / "self" / "mountinfo").write_text(
        "29 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n"
        "30 29 0:44 / /a\\040b\\134c rw,relatime shared:9 master:2 - nfs4 server:/x rw,vers=4.2\n"
    )
    try:
        assert file_systems.detect_open(descriptor, str(tmp_path)) == FileSystem("nfs4", "/a b\\c")
    finally:
        os.close(descriptor)
