"""Disks that are full, others that fetch, links that are planted, memory, and the page cache."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from modelweights_loader.checkpoint import find_checkpoint
from modelweights_loader.errors import NoRoomError, TryAgainError, WillNotWorkError
from modelweights_loader.fetch import fetching
from modelweights_loader.fetch.folders import open_home
from modelweights_loader.fetch.lock import hold_lock
from modelweights_loader.memory import MemoryRoom, Reserve
from modelweights_loader.residency import measure
from modelweights_loader.sources.contract import DEFAULT_CONNECTIONS
from tests.filesystems.loop import mount_image
from tests.polling import wait_for
from tests.unit.loader.conftest import LOADER, run_loader
from tests.unit.loader.fetch.conftest import MIB, QUICK, read_published
from tests.unit.loader.fetch.scripted_source import COMMIT, ScriptedSource, make_checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from modelweights_loader.sources.contract import RemoteFile
    from tests.unit.loader.fetch.conftest import Fetch


def test_full_disk_is_said_and_gone_on_with(disk: Path) -> None:
    """Something else fills the disk after the fetch has begun: no room, and what was verified stays of use."""
    with mount_image("ext4", disk / "image", disk / "mounted", 64 * MIB) as mounted:
        ballast = mounted / "ballast"

        def fault(_file: RemoteFile, _begin: int, _end: int, pieces: Iterator[bytes]) -> Iterator[bytes]:
            if not ballast.exists():
                status = os.statvfs(mounted)
                with ballast.open("wb") as file:
                    os.posix_fallocate(file.fileno(), 0, (status.f_bavail - 1500) * status.f_frsize)
            yield from pieces

        source = ScriptedSource(make_checkpoint((6 * MIB,) * 4), fault=fault)
        options = fetching.FetchOptions(
            "hf://org/tiny", download=QUICK._replace(num_connections=1), reserve=Reserve(percent=0)
        )
        with pytest.raises(NoRoomError) as caught:
            fetching.fetch(str(mounted / "home"), source, options)
        assert ("NoRoom", 40) == (caught.value.reason, caught.value.exit_code)
        ballast.unlink()
        source.fault = None
        result = fetching.fetch(str(mounted / "home"), source, options)
        found = read_published(mounted / "home", result)
        assert found == {path: source.contents[path] for path in found}


@pytest.mark.parametrize("limit_bytes", [5 * MIB, 100])
def test_disk_that_takes_no_more_ends_it_and_is_not_the_sources_fault(disk: Path, limit_bytes: int) -> None:
    """A limit of the file's size shows at a write that comes after bytes have come; fetching again would never end."""
    source = disk / "source"
    source.mkdir()
    (source / "config.json").write_bytes(b"{}")
    (source / "model.safetensors").write_bytes(os.urandom(8 * MIB - 1))
    (source / "tokenizer.json").write_bytes(os.urandom(100_000))
    program = (
        "import resource, sys; from modelweights_loader.fetch import transfer; from modelweights_loader.cli import main; "
        # As on file systems that can't allocate.
        "transfer.allocate = lambda *_: None; limit = int(sys.argv[1]); "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)); sys.exit(main(sys.argv[2:]))"
    )
    given = ["fetch", str(disk / "home"), "--source", f"file://{source}", "--disk-reserve", "0"]
    ended = subprocess.run(
        [sys.executable, "-c", program, str(limit_bytes), *given],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(LOADER)},
    )
    assert (40, "NoRoom") == (ended.returncode, ended.stderr.splitlines()[-1].split(": ")[1]), ended.stderr
    assert 0 == run_loader(*given).code


def test_disk_without_inodes_is_said_before_the_first_byte(disk: Path) -> None:
    with mount_image("ext4", disk / "image", disk / "mounted", 16 * MIB) as mounted:
        free = os.statvfs(mounted).f_favail
        for number in range(free - 6):
            (mounted / str(number)).touch()
        source = ScriptedSource(make_checkpoint())
        options = fetching.FetchOptions("hf://org/tiny", download=QUICK, reserve=Reserve(percent=0))
        with pytest.raises(NoRoomError, match="inodes"):
            fetching.fetch(str(mounted / "home"), source, options)
        assert ["model.safetensors.index.json"] == [path for path, _, _ in source.reads]
        for number in range(30):
            (mounted / str(number)).unlink()
        assert "Fetched" == fetching.fetch(str(mounted / "home"), source, options).reason


def test_two_fetchers_take_turns_and_one_of_them_fetches(home: Path, fetch_it: Fetch) -> None:
    release = threading.Event()

    def fault(_file: RemoteFile, _begin: int, _end: int, pieces: Iterator[bytes]) -> Iterator[bytes]:
        assert release.wait(60)
        return pieces

    first, second = ScriptedSource(make_checkpoint(), fault=fault), ScriptedSource(make_checkpoint())
    reasons: list[str] = []
    threads = [
        threading.Thread(target=lambda source=source: reasons.append(fetch_it(source).reason), daemon=True)
        for source in (first, second)
    ]
    threads[0].start()
    assert wait_for(lambda: bool(first.reads), 30)
    threads[1].start()
    with pytest.raises(TryAgainError) as caught:
        fetch_it(second, lock_seconds=0.1)
    assert ("Locked", 10) == (caught.value.reason, caught.value.exit_code)
    release.set()
    for thread in threads:
        thread.join(60)
    assert (["Fetched", "AlreadyThere"], 0) == (reasons, second.served_bytes)
    assert home.exists()


def test_lock_dies_with_its_holder_and_waiting_is_said(tmp_path: Path) -> None:
    program = (
        "import fcntl, os, sys, time; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); print(flush=True); "
        "time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "lock")], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        said: list[str] = []

        def hear(line: str) -> None:
            said.append(line)
            holder.kill()

        with open_home(str(tmp_path), make=False) as folder, hold_lock(folder, 60.0, hear):
            pass
    assert 1 == len(said)
    assert "lock" in said[0]


@pytest.mark.parametrize(
    "place",
    [
        ".fetch",
        ".fetch/lock",
        ".fetch/{key}",
        ".fetch/{key}/files",
        ".fetch/{key}/files/1_Pooling",
        ".fetch/{key}/journal",
        ".fetch/{key}.json",
    ],
)
@pytest.mark.parametrize("kind", ["link", "fifo"])
def test_planted_links_are_refused_and_not_followed(
    home: Path, fetch_it: Fetch, tmp_path: Path, place: str, kind: str
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "victim").write_text("mine")
    source = ScriptedSource(make_checkpoint())
    key = next(name for name in _names_of_a_run(home.parent / "other", source) if name.endswith(".json"))[:-5]
    planted = home / place.format(key=key)
    planted.parent.mkdir(parents=True)
    if kind == "link":
        is_file = planted.suffix == ".json" or planted.name in {"lock", "journal"}
        planted.symlink_to(outside / "victim" if is_file else outside)
    else:
        os.mkfifo(planted)
    with pytest.raises(WillNotWorkError) as caught:
        fetch_it(source)
    assert ("UnsafePath", 20) == (caught.value.reason, caught.value.exit_code)
    assert str(planted) in caught.value.message
    assert ("mine", ["victim"]) == ((outside / "victim").read_text(), os.listdir(outside))


def _names_of_a_run(home: Path, source: ScriptedSource) -> list[str]:
    options = fetching.FetchOptions("hf://org/tiny", download=QUICK, reserve=Reserve(percent=0))
    fetching.fetch(str(home), source, options)
    return os.listdir(home / ".fetch")


@pytest.mark.parametrize("kind", ["link", "hard link", "fifo", "folder"])
def test_planted_file_is_replaced_and_never_written_to(home: Path, fetch_it: Fetch, kind: str) -> None:
    victim = home.parent / "victim"
    victim.write_text("mine")
    source = ScriptedSource(make_checkpoint())
    key = next(name for name in _names_of_a_run(home.parent / "other", source) if name.endswith(".json"))[:-5]
    planted = home / ".fetch" / key / "files" / "config.json"
    planted.parent.mkdir(parents=True)
    if kind == "link":
        planted.symlink_to(victim)
    elif kind == "hard link":
        planted.hardlink_to(victim)
    elif kind == "fifo":
        os.mkfifo(planted)
    else:
        planted.mkdir()
    if kind == "folder":
        with pytest.raises(WillNotWorkError) as caught:
            fetch_it(source)
        assert "UnsafePath" == caught.value.reason
    else:
        assert source.contents["config.json"] == read_published(home, fetch_it(source))["config.json"]
    assert "mine" == victim.read_text()


_MEMORY_BYTES = 256 * MIB


def test_memory_is_bounded_whatever_the_size(disk: Path) -> None:
    """A file of 1 GiB by eight connections, from a folder."""
    source = disk / "source"
    source.mkdir()
    (source / "config.json").write_text("{}")
    with (source / "model.safetensors").open("wb") as file:
        file.write(b"begin")
        file.truncate(2**30)
    program = (
        "import re, sys; from modelweights_loader.cli import main; code = main(sys.argv[1:]); "
        # Not ru_maxrss, in which what the test's own process had counts too.
        "print(code, int(re.search(r'VmHWM:\\s+(\\d+) kB', open('/proc/self/status').read())[1]) * 1024)"
    )
    command = ["fetch", str(disk / "home"), "--source", f"file://{source}", "--disk-reserve", "0"]
    ended = subprocess.run(
        [sys.executable, "-c", program, *command],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(LOADER)},
    )
    code, peak = map(int, ended.stdout.splitlines()[-1].split())
    print(f"peak {peak / MIB:.1f} MiB")
    assert (0, True) == (code, peak <= _MEMORY_BYTES), ended.stderr


def test_prefetch_after_fetch_reads_nothing_from_storage(disk: Path) -> None:
    source = disk / "source"
    source.mkdir()
    (source / "config.json").write_text("{}")
    (source / "model.safetensors").write_bytes(os.urandom(MIB) * 64)
    home, results = disk / "home", disk / "results"
    given = (home, "--results", results)
    assert 0 == run_loader("fetch", *given, "--source", f"file://{source}", "--disk-reserve", "0").code
    program = (
        "import re, sys; from modelweights_loader.cli import main; "
        "read = lambda: int(re.search(r'^read_bytes: (\\d+)', open('/proc/self/io').read(), re.M)[1]); before = read(); "
        "code = main(sys.argv[1:]); print(code, read() - before)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, "prefetch", str(home), "--results", str(results), "--fetched"],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(LOADER)},
    )
    code, read_bytes = map(int, ended.stdout.splitlines()[-1].split())
    assert 0 == code
    # Programs and libraries may come from the disk; of the weights less than a sixteenth.
    assert read_bytes < 4 * MIB


def test_what_does_not_fit_leaves_the_page_cache_to_others(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files that prefetch reads first stay, the rest is dropped once it is on the disk."""
    monkeypatch.setattr(fetching, "measure_room", lambda _: MemoryRoom(5 * MIB, "a test"))
    source = ScriptedSource(make_checkpoint((4 * MIB, 12 * MIB)))
    result = fetching.fetch(
        str(disk / "home"), source, fetching.FetchOptions("hf://o/t", download=QUICK, reserve=Reserve(percent=0))
    )
    assert "KeptPartly" == result.page_cache
    assert result.published is not None
    kept, dropped = find_checkpoint(str(disk / "home" / result.published.folder)).shards
    assert 4 * MIB == measure((kept,)).resident_bytes
    assert (measure((dropped,)).resident_bytes or 0) <= MIB


def test_command_reports_and_repeats(disk: Path) -> None:
    source, home, results = disk / "source", disk / "home", disk / "results"
    source.mkdir()
    for path, content in make_checkpoint().items():
        (source / path).parent.mkdir(exist_ok=True)
        (source / path).write_bytes(content)
    given = (home, "--source", f"file://{source}", "--disk-reserve", "0", "--results", results)
    planned = run_loader("fetch", *given, "--dry-run")
    assert (0, "Planned", False) == (planned.code, planned.report["reason"], home.exists())
    assert {"fetch", "config.json"} <= set(planned.stdout.split())
    first = run_loader("fetch", *given)
    assert (0, "Fetched") == (first.code, first.report["reason"])
    keys = ["folder", "revision", "manifestDigest", "sizeBytes", "fileCount", "fetchedBytes", "reusedBytes"]
    assert keys == [key for key in first.report if key in keys]
    assert json.loads((results / "fetch.json").read_text())["path"] == str(home)
    second = run_loader("fetch", *given, "--revision", first.report["revision"])
    assert ("AlreadyThere", 0, first.report["sizeBytes"]) == (
        second.report["reason"],
        second.report["fetchSeconds"],
        second.report["reusedBytes"],
    )
    (source / "config.json").write_text('{"changed": true}')
    moved = run_loader("fetch", disk / "elsewhere", *given[1:-2], "--revision", first.report["revision"])
    assert (20, "SourceChanged") == (moved.code, moved.report["reason"])
    assert 0 == run_loader("validate", home, "--results", results, "--fetched", "--mode", "None").code
    staged = run_loader("report", home, "--results", results, "--fetched")
    assert (0, first.report["manifestDigest"]) == (staged.code, staged.report["manifestDigest"])


def test_rotten_bytes_are_not_published_and_the_next_fetch_mends_them(disk: Path) -> None:
    source, home, results = disk / "source", disk / "home", disk / "results"
    source.mkdir()
    (source / "config.json").write_text("{}")
    (source / "model.safetensors").write_bytes(bytes(MIB))
    fetched = ("fetch", home, "--source", f"file://{source}", "--disk-reserve", "0", "--results", results)
    folder = home / run_loader(*fetched).report["folder"]
    status = (folder / "model.safetensors").stat()
    with (folder / "model.safetensors").open("rb+") as file:
        file.write(b"rotten")
    os.utime(folder / "model.safetensors", ns=(status.st_atime_ns, status.st_mtime_ns))
    assert "AlreadyThere" == run_loader(*fetched).report["reason"]
    assert 0 == run_loader("validate", home, "--results", results, "--fetched", "--mode", "None").code
    refused = run_loader("report", home, "--results", results, "--fetched")
    assert (30, "HashMismatch") == (refused.code, refused.report["reason"])
    assert "Fetched" == run_loader(*fetched).report["reason"]
    assert bytes(MIB) == (folder / "model.safetensors").read_bytes()
    assert "AlreadyThere" == run_loader(*fetched).report["reason"]


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (("--source", "nonsense"), 2, "Usage"),
        (("--source", "ftp://host/x"), 2, "Usage"),
        (("--source", "file://host/x"), 2, "Usage"),
        (("--source", "file:///nowhere/at/all"), 20, "NotFound"),
        (("--source", "file:///proc/self/status"), 20, "NotFound"),
    ],
)
def test_reasons_of_the_command(tmp_path: Path, arguments: tuple[str, ...], code: int, reason: str) -> None:
    ended = run_loader("fetch", tmp_path / "home", *arguments)
    assert (code, reason) == (ended.code, ended.report["reason"])


def test_steps_after_fetch_say_what_they_lack(tmp_path: Path, disk: Path) -> None:
    assert "Usage" == run_loader("prefetch", tmp_path, "--fetched").report["reason"]
    missing = run_loader("prefetch", tmp_path, "--fetched", "--results", disk / "results")
    assert (20, "NotFetched") == (missing.code, missing.report["reason"])


def test_secrets_in_a_url_are_never_shown(tmp_path: Path) -> None:
    ended = run_loader("fetch", tmp_path / "home", "--source", "ftp://user:hunter2@host/x?sig=hunter3#hunter4")
    assert "hunter" not in ended.stdout + ended.stderr + json.dumps(ended.report)
    assert "ftp://host/x?…" in ended.stderr


def test_every_option_is_in_the_documents() -> None:
    told = subprocess.run(
        [sys.executable, "-m", "modelweights_loader", "fetch", "--help"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(LOADER)},
    ).stdout
    page = (LOADER.parent / "docs" / "fetch.md").read_text()
    own = set(re.findall(r"^  (--[a-z-]+)", told, re.MULTILINE)) - {"--root", "--report", "--results"}
    assert own == set(re.findall(r"`(--[a-z-]+)`", page.split("| option |")[1].split("The report has")[0]))
    assert f"| `--num-connections` | {DEFAULT_CONNECTIONS} |" in page


@pytest.mark.parametrize(
    ("dry", "kind"), [*itertools.product([False, True], ["file", "below a file", "link to nowhere"])]
)
def test_home_that_can_be_none(tmp_path: Path, *, dry: bool, kind: str) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "model.safetensors").write_bytes(b"x")
    home = tmp_path / "home"
    if kind == "link to nowhere":
        home.symlink_to(tmp_path / "nowhere")
    else:
        home.write_text("mine")
    path = home / "below" if kind == "below a file" else home
    ended = run_loader("fetch", path, "--source", f"file://{source}", *(["--dry-run"] if dry else []))
    assert (20, "UnsafePath") == (ended.code, ended.report["reason"])


def test_home_where_no_folder_can_be(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "model.safetensors").write_bytes(b"x")
    ended = run_loader("fetch", "/proc/nothing", "--source", f"file://{source}")
    assert (20, "NotWritable") == (ended.code, ended.report["reason"])


def test_pinned_checkpoint_that_is_there_needs_nothing_of_its_source(disk: Path) -> None:
    """No network, no Secret, no authorities, no library; also for the plan."""
    source = ScriptedSource(make_checkpoint())
    commit = "sha256:" + "ab" * 32
    urls = {
        "hf://org/tiny": ("--token-file", "/nowhere/token", "--endpoint", "http://127.0.0.1:1"),
        "s3://bucket/tiny": ("--credentials-dir", "/nowhere", "--endpoint", "http://127.0.0.1:1"),
        "https://127.0.0.1:1/tiny/": ("--ca-file", "/nowhere"),
    }
    for number, (url, given) in enumerate(urls.items()):
        home = disk / str(number)
        source.revision = COMMIT if number == 0 else commit
        endpoint = "" if "--endpoint" not in given else given[given.index("--endpoint") + 1]
        options = fetching.FetchOptions(url, endpoint=endpoint, download=QUICK, reserve=Reserve(percent=0))
        fetching.fetch(str(home), source, options)
        arguments: tuple[str | Path, ...] = ("fetch", home, "--source", url, *given, "--revision", source.revision)
        for extra in ((), ("--dry-run",)):
            ended = run_loader(*arguments, *extra)
            assert (0, "AlreadyThere") == (ended.code, ended.report["reason"]), ended.stderr
        if url.startswith("s3:"):
            missing = run_loader("fetch", disk / "other", *arguments[2:])
            assert (20, "SecretMissing") == (missing.code, missing.report["reason"])
