"""A fetch that is killed at any moment ends in the same bytes, and fetches little of them twice."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest

from modelweights_loader.fetch.folders import open_home
from modelweights_loader.fetch.journal import (
    JOURNAL_NAME,
    Chunk,
    Journal,
    Record,
    chunk_entry,
    part_entry,
    read_journal,
)
from tests.polling import wait_for
from tests.unit.loader.conftest import LOADER
from tests.unit.loader.fetch import slow_fetch
from tests.unit.loader.fetch.conftest import MIB, QUICK, read_published
from tests.unit.loader.fetch.scripted_source import ScriptedSource, make_checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from modelweights_loader.sources.contract import RemoteFile
    from tests.unit.loader.fetch.conftest import Fetch

SIZES = (20 * MIB, 9 * MIB + 123, 3 * MIB)
_CLONE = LOADER.parent
_KILLS = 12


def start(home: Path, log: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.unit.loader.fetch.slow_fetch", str(home), str(log), *map(str, SIZES)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=_CLONE,
        env={**os.environ, "PYTHONPATH": f"{LOADER}:{_CLONE}", "PYTHONDONTWRITEBYTECODE": "1"},
    )


def count_served(log: Path) -> int:
    """Bytes that the source gave in all runs."""
    return sum(map(int, log.read_text().split())) if log.exists() else 0


def kill_at(process: subprocess.Popen[str], log: Path, served_bytes: int) -> None:
    """Kills it once so many bytes have come, if it hasn't ended by then."""
    wait_for(lambda: count_served(log) >= served_bytes or process.poll() is not None, 60)
    process.kill()


def test_kills_at_random_moments_end_in_equal_bytes(home: Path, disk: Path) -> None:
    log = disk / "served"
    draw = random.Random(1)  # noqa: S311 - the same moments each time
    expected = make_checkpoint(SIZES)
    del expected["README.md"]
    total = sum(map(len, expected.values()))
    kills = 0
    while True:
        with start(home, log) as process:
            if kills < _KILLS:
                kill_at(process, log, count_served(log) + draw.randrange(1, 4 * MIB))
            _, complained = process.communicate(timeout=120)
        if process.returncode != -signal.SIGKILL:
            break
        kills += 1
    assert (0, "") == (process.returncode, complained)
    assert 8 <= kills
    folder = next(path for path in home.iterdir() if path.name != ".fetch")
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert expected == found
    twice = count_served(log) - total
    # What was in hand of each connection: a part at most, and a piece; and what was gathered to be written.
    lost_per_kill = slow_fetch.NUM_CONNECTIONS * (slow_fetch.PART_BYTES + MIB)
    assert 0 <= twice <= kills * lost_per_kill
    print(f"{twice} bytes of {total} fetched twice in {kills} kills")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_a_fetch_soon_with_its_journal(home: Path, disk: Path, number: signal.Signals) -> None:
    """Also one that hangs in its source's reads."""
    big = disk / "big"
    big.mkdir()
    (big / "config.json").write_bytes(b"{}")
    (big / "model.safetensors").write_bytes(os.urandom(MIB) * 48)
    command = [sys.executable, "-m", "modelweights_loader", "fetch", str(home), "--source", f"file://{big}"]
    # A shell starts background jobs with SIGINT ignored, which children inherit.
    with subprocess.Popen(
        ["env", "--default-signal=INT", *command, "--max-bytes-per-second", "4Mi", "--num-connections", "2"],
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(LOADER)},
    ) as process:
        assert wait_for(lambda: any(home.glob(f".fetch/*/{JOURNAL_NAME}")), 60)
        began = time.monotonic()
        process.send_signal(number)
        _, complained = process.communicate(timeout=30)
    assert {signal.SIGTERM: 143, signal.SIGINT: 130}[number] == process.returncode
    assert b"Traceback" not in complained
    assert time.monotonic() - began < 30


@pytest.mark.parametrize("harm", ["torn", "foreign", "gone", "flipped", "zeros", "other version"])
def test_only_what_is_proven_is_believed(home: Path, fetch_it: Fetch, harm: str) -> None:
    """An interrupted run leaves parts; then its journal, or its file, is not what it was."""
    source = stop_midway(fetch_it)
    journal = next(home.glob(f".fetch/*/{JOURNAL_NAME}"))
    file = next(home.glob(".fetch/*/files/model-00001-of-00002.safetensors"))
    text = journal.read_bytes()
    served, size = source.served_bytes, len(source.contents[file.name])
    if harm == "torn":
        journal.write_bytes(text[: len(text) * 3 // 4])
    elif harm == "foreign":
        journal.write_bytes(text.replace(b'"end":', b'"end": '))
    elif harm == "gone":
        journal.unlink()
    elif harm == "flipped":
        with file.open("rb+") as opened:
            os.pwrite(opened.fileno(), b"!", 2 * MIB + 5)
    elif harm == "zeros":
        with file.open("rb+") as opened:
            opened.truncate(0)
            opened.truncate(size)
    else:
        source.contents[file.name] = bytes(reversed(source.contents[file.name]))
    result = fetch_it(source)
    found = read_published(home, result)
    assert found == {path: source.contents[path] for path in found}
    again = source.served_bytes - served
    if harm == "flipped":
        # All before the part that is wrong was kept.
        assert 2 * MIB <= result.reused_bytes
    elif harm in {"zeros", "gone", "foreign", "other version"}:
        assert size <= again


def stop_midway(fetch_it: Fetch) -> ScriptedSource:
    """A fetch that ends by an error when it has some parts of the first shard."""

    def fault(file: RemoteFile, begin: int, _end: int, pieces: Iterator[bytes]) -> Iterator[bytes]:
        for number, piece in enumerate(pieces):
            if file.path == "model-00001-of-00002.safetensors" and begin + number * len(piece) > 5 * MIB:
                message = "that was all"
                raise ValueError(message)
            yield piece

    source = ScriptedSource(make_checkpoint((12 * MIB, MIB)), fault=fault)
    with pytest.raises(ValueError, match="that was all"):
        fetch_it(source, download=QUICK._replace(num_connections=1))
    source.fault = None
    return source


def test_resume_fetches_only_what_is_missing(home: Path, fetch_it: Fetch) -> None:
    source = stop_midway(fetch_it)
    served = source.served_bytes
    result = fetch_it(source)
    found = read_published(home, result)
    assert found == {path: source.contents[path] for path in found}
    total = sum(map(len, found.values()))
    # Four parts at least were whole.
    assert source.served_bytes - served == total - result.reused_bytes
    assert 4 * MIB <= result.reused_bytes


@pytest.mark.parametrize("at", ["before the rename", "after the rename"])
def test_kill_while_it_is_published_costs_nothing(
    home: Path, fetch_it: Fetch, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    from modelweights_loader.fetch import publication  # noqa: PLC0415 - its functions are replaced

    class Killed(BaseException):
        pass

    def kill(*_: object) -> None:
        raise Killed

    source = ScriptedSource(make_checkpoint())
    for layout in ("Plain", "HuggingFaceCache"):
        with monkeypatch.context() as patched:
            patched.setattr(publication, "_put" if at == "before the rename" else "_note", kill)
            with pytest.raises(Killed):
                fetch_it(source, layout=layout)
        served = source.served_bytes
        result = fetch_it(source, layout=layout)
        assert served == source.served_bytes
        assert ("Fetched" if at == "before the rename" else "AlreadyThere") == result.reason
        assert (
            source.contents["model-00001-of-00002.safetensors"]
            == (read_published(home, result)["model-00001-of-00002.safetensors"])
        )


SHARD = "model-00001-of-00002.safetensors"


def stop_with_a_slow_front(fetch_it: Fetch) -> ScriptedSource:
    """A fetch whose first stream hangs after 1 MiB while the other connections get nearly all that lies behind it."""
    others = threading.Event()

    def fault(file: RemoteFile, begin: int, end: int, pieces: Iterator[bytes]) -> Iterator[bytes]:
        at = begin
        for piece in pieces:
            if file.path == SHARD and begin == 0 and at >= MIB:
                assert others.wait(30)
                message = "that was all"
                raise ValueError(message)
            yield piece
            at += len(piece)
        # The last range of all is asked for when those before it were given.
        if file.path == SHARD and end == 24 * MIB:
            others.set()

    source = ScriptedSource(make_checkpoint((24 * MIB, MIB)), fault=fault)
    with pytest.raises(ValueError, match="that was all"):
        fetch_it(source)
    source.fault = None
    return source


@pytest.mark.parametrize("harm", ["none", "flipped"])
def test_what_other_connections_wrote_behind_the_front_is_not_fetched_again(
    home: Path, fetch_it: Fetch, harm: str
) -> None:
    source = stop_with_a_slow_front(fetch_it)
    if harm == "flipped":
        with next(home.glob(f".fetch/*/files/{SHARD}")).open("rb+") as opened:
            os.pwrite(opened.fileno(), b"!", 12 * MIB + 5)
    served = source.served_bytes
    result = fetch_it(source)
    found = read_published(home, result)
    assert found == {path: source.contents[path] for path in found}
    # The front's own 3 MiB at most, a part of each of the three others, and the small files.
    assert source.served_bytes - served <= 7 * MIB + (MIB if harm == "flipped" else 0)


def test_notes_of_a_large_file_are_thinned_out(home: Path) -> None:
    """Each 4 MiB of a terabyte is noted; in memory are those of each 32 MiB, and the last few."""
    home.mkdir()
    with open_home(str(home), make=False) as folder:
        with contextlib.closing(Journal(folder, {"a": Record("x", ((1, "d"),))})) as journal:
            journal.append(part_entry("a", number * 4 * MIB, "d" * 64) for number in range(1, 10_001))
            journal.append(
                [chunk_entry("a", Chunk(begin * MIB, (begin + 4) * MIB, 7)) for begin in (4, 40_000, 40_008)]
            )
        record = read_journal(folder)["a"]
    ends = [end // MIB for end, _ in record.parts]
    assert list(range(40_000 - 63 * 4, 40_001, 4)) == ends[-64:]
    assert list(range(32, 40_000 - 63 * 4, 32)) == ends[:-64]
    assert [40_000, 40_008] == [chunk.begin // MIB for chunk in record.chunks]
