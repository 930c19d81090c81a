"""What a source may do to us: resets, stalls, too few and too many bytes, wrong ones, no ranges, changes."""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING

import pytest

from modelweights_loader.errors import BadCheckpointError, LoaderError, TryAgainError, WillNotWorkError
from modelweights_loader.fetch.bandwidth import TokenBucket
from modelweights_loader.fetch.retry import MAX_RETRY_AFTER_SECONDS, Backoff
from modelweights_loader.sources.contract import (
    Listing,
    RangesNotSupportedError,
    RemoteFile,
    SourceChangedError,
    SourceUnavailableError,
)
from tests.unit.loader.fetch.conftest import MIB, QUICK, read_published
from tests.unit.loader.fetch.scripted_source import COMMIT, ScriptedSource, make_bytes, make_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.unit.loader.fetch.conftest import Fetch

SHARD = "model-00001-of-00002.safetensors"


class Faults:
    """A fault that happens a number of times, with every file but the index, or with one file only once."""

    def __init__(self, times: int, change: Callable[[Iterator[bytes]], Iterator[bytes]]) -> None:
        self.left = times
        self._change = change
        self._spared = {"model.safetensors.index.json"}
        self._lock = threading.Lock()

    def __call__(self, file: RemoteFile, _begin: int, _end: int, pieces: Iterator[bytes]) -> Iterator[bytes]:
        if file.path in self._spared:
            return pieces
        with self._lock:
            self.left -= 1
            if self._change is give_too_much:
                self._spared.add(file.path)
            return self._change(pieces) if self.left >= 0 else pieces


def reset_midway(pieces: Iterator[bytes]) -> Iterator[bytes]:
    yield from itertools.islice(pieces, 3)
    message = "connection reset"
    raise SourceUnavailableError(message)


def end_early(pieces: Iterator[bytes]) -> Iterator[bytes]:
    yield from itertools.islice(pieces, 2)


def give_nothing(_pieces: Iterator[bytes]) -> Iterator[bytes]:
    return iter(())


def give_too_much(pieces: Iterator[bytes]) -> Iterator[bytes]:
    yield from pieces
    yield b"more"


def give_odd_pieces(pieces: Iterator[bytes]) -> Iterator[bytes]:
    for piece in pieces:
        yield b""
        yield from (piece[begin : begin + 7919] for begin in range(0, len(piece), 7919))


@pytest.mark.parametrize("change", [reset_midway, end_early, give_too_much, give_odd_pieces])
def test_passing_faults_are_mended(
    home: Path, fetch_it: Fetch, change: Callable[[Iterator[bytes]], Iterator[bytes]]
) -> None:
    faults = Faults(6, change)
    source = ScriptedSource(make_checkpoint((5 * MIB, 4 * MIB)), fault=faults)
    result = fetch_it(source)
    found = read_published(home, result)
    assert found == {path: source.contents[path] for path in found}
    assert faults.left < 3
    assert (change is give_odd_pieces) == (result.retries == 0)


@pytest.mark.parametrize(
    ("change", "reason"),
    [(give_nothing, "EndedEarly"), (give_too_much, "TooManyBytes")],
)
def test_lasting_fault_ends_after_some_attempts_without_progress(
    fetch_it: Fetch, change: Callable[[Iterator[bytes]], Iterator[bytes]], reason: str
) -> None:
    def fault(file: RemoteFile, _begin: int, _end: int, pieces: Iterator[bytes]) -> Iterator[bytes]:
        return change(pieces) if file.path == "config.json" else pieces

    with pytest.raises(TryAgainError) as caught:
        fetch_it(ScriptedSource(make_checkpoint(), fault=fault))
    assert (reason, 10) == (caught.value.reason, caught.value.exit_code)
    assert "config.json" in caught.value.message


def test_slow_progress_through_many_resets_is_no_end(home: Path, fetch_it: Fetch) -> None:
    def one_piece(pieces: Iterator[bytes]) -> Iterator[bytes]:
        yield next(pieces)
        message = "connection reset"
        raise SourceUnavailableError(message)

    source = ScriptedSource(make_checkpoint((3 * MIB,)), fault=Faults(40, one_piece))
    result = fetch_it(source)
    assert read_published(home, result)["model-00001-of-00001.safetensors"] == make_bytes("1", 3 * MIB)
    assert 40 <= result.retries


def test_final_errors_end_all_at_once(fetch_it: Fetch) -> None:
    """Also a read that would take long, since the source is closed."""
    closed = threading.Event()

    class Source(ScriptedSource):
        def close(self) -> None:
            super().close()
            closed.set()

    def fault(file: RemoteFile, _begin: int, _end: int, pieces: Iterator[bytes]) -> Iterator[bytes]:
        if file.path == SHARD:
            assert closed.wait(60)
            message = "closed"
            raise SourceUnavailableError(message)
        if file.path == "tokenizer.json":
            message = "this repository is gated"
            raise WillNotWorkError(message, reason="Gated")
        return pieces

    source = Source(make_checkpoint(), fault=fault)
    with pytest.raises(WillNotWorkError) as caught:
        fetch_it(source)
    assert ("Gated", True) == (caught.value.reason, source.is_closed)


def test_wrong_bytes_are_fetched_again_once(home: Path, fetch_it: Fetch) -> None:
    left = 1

    def fault(file: RemoteFile, begin: int, _end: int, pieces: Iterator[bytes]) -> Iterator[bytes]:
        nonlocal left
        if file.path != SHARD or begin or left <= 0:
            return pieces
        left -= 1
        content = bytearray(b"".join(pieces))
        content[12345] ^= 1
        return iter((bytes(content),))

    source = ScriptedSource(make_checkpoint(), fault=fault)
    result = fetch_it(source)
    assert source.contents[SHARD] == read_published(home, result)[SHARD]
    left = 9
    source.revision = "e" * 40
    source.contents[SHARD] = make_bytes("other", 3 * MIB)
    with pytest.raises(BadCheckpointError, match=r"has the sha256 [0-9a-f]{64}, but a test's source says") as caught:
        fetch_it(source)
    assert ("HashMismatch", 30) == (caught.value.reason, caught.value.exit_code)
    assert SHARD in caught.value.message
    # The next run, of a source that is good again, takes none of the wrong bytes.
    left = 0
    assert source.contents[SHARD] == read_published(home, fetch_it(source))[SHARD]


@pytest.mark.parametrize("breaks", [0, 3])
def test_source_without_ranges_is_read_in_one_piece(home: Path, fetch_it: Fetch, breaks: int) -> None:
    def fault(_file: RemoteFile, begin: int, _end: int, pieces: Iterator[bytes]) -> Iterator[bytes]:
        nonlocal breaks
        if begin:
            message = "no ranges here"
            raise RangesNotSupportedError(message)
        breaks -= 1
        return reset_midway(pieces) if breaks >= 0 else pieces

    source = ScriptedSource(make_checkpoint((12 * MIB, 2 * MIB)), fault=fault, piece_bytes=MIB // 4)
    result = fetch_it(source)
    assert {SHARD: source.contents[SHARD]}.items() <= read_published(home, result).items()


def test_source_without_ranges_that_always_breaks_ends(fetch_it: Fetch) -> None:
    def fault(file: RemoteFile, begin: int, _end: int, pieces: Iterator[bytes]) -> Iterator[bytes]:
        if begin:
            message = "no ranges here"
            raise RangesNotSupportedError(message)
        return reset_midway(pieces) if file.path == SHARD else pieces

    with pytest.raises(LoaderError) as caught:
        fetch_it(ScriptedSource(make_checkpoint((6 * MIB, 2 * MIB)), fault=fault))
    assert "RangesNotSupported" == caught.value.reason


@pytest.mark.parametrize("asked", ["", "main", COMMIT])
def test_change_in_mid_run_is_listed_anew_unless_it_was_pinned(home: Path, fetch_it: Fetch, asked: str) -> None:
    new = make_bytes("new", 2 * MIB)

    def fault(_file: RemoteFile, begin: int, end: int, pieces: Iterator[bytes]) -> Iterator[bytes]:
        if source.contents[SHARD] is not new and end - begin > MIB:
            source.contents[SHARD] = new
            source.revision = "d" * 40
            message = "another ETag"
            raise SourceChangedError(message)
        return pieces

    source = ScriptedSource(make_checkpoint(), fault=fault)
    if asked == COMMIT:
        with pytest.raises(WillNotWorkError) as caught:
            fetch_it(source, revision=asked)
        assert ("SourceChanged", 20) == (caught.value.reason, caught.value.exit_code)
        return
    result = fetch_it(source)
    assert (new, "d" * 40) == (read_published(home, result)[SHARD], result.revision)


def test_source_that_changes_all_the_time_ends(fetch_it: Fetch) -> None:
    def fault(_file: RemoteFile, _begin: int, _end: int, _pieces: Iterator[bytes]) -> Iterator[bytes]:
        message = "another ETag"
        raise SourceChangedError(message)

    with pytest.raises(SourceChangedError) as caught:
        fetch_it(ScriptedSource(make_checkpoint(), fault=fault))
    assert 10 == caught.value.exit_code


def test_file_of_unknown_size_is_read_to_its_end(home: Path, fetch_it: Fetch) -> None:
    class Source(ScriptedSource):
        def describe(self, path: str, content: bytes) -> RemoteFile:
            described = super().describe(path, content)
            return described._replace(size_bytes=-1) if path == "tokenizer.json" else described

    source = Source(make_checkpoint())
    assert source.contents["tokenizer.json"] == read_published(home, fetch_it(source))["tokenizer.json"]


def test_waits_double_with_jitter_and_progress_begins_anew() -> None:
    backoff = Backoff(max_attempts=4, first_seconds=1.0, draw=lambda: 0.5)
    error = SourceUnavailableError("away")
    assert [0.5, 1.0, 2.0, None] == [backoff.next_wait(error) for _ in range(4)]
    backoff.note_progress()
    assert 0.5 == backoff.next_wait(error)
    assert None is backoff.next_wait(WillNotWorkError("forbidden"))


@pytest.mark.parametrize(
    ("asked", "waits"), [(7.0, 7.5), (0.0, 0.5), (-5.0, 0.5), (10_000.0, MAX_RETRY_AFTER_SECONDS + 0.5)]
)
def test_retry_after_is_waited_for_within_bounds(asked: float, waits: float) -> None:
    backoff = Backoff(first_seconds=1.0, draw=lambda: 0.5)
    assert waits == backoff.next_wait(SourceUnavailableError("slow down", retry_after_seconds=asked))


def test_bandwidth_is_kept_over_any_time() -> None:
    now = 0.0
    bucket = TokenBucket(1000.0, lambda: now)
    taken = 0
    for size in [10, 500, 1, 4000, 250] * 20:
        taken += size
        now += bucket.take(size)
        assert taken <= 1000.0 * now + 100.0 + 0.001
    assert taken == pytest.approx(1000.0 * now + 100.0)
    assert 0.0 == TokenBucket(0.0, lambda: now).take(2**40)


def test_bandwidth_cap_slows_a_fetch_down(fetch_it: Fetch) -> None:
    """Never faster than the cap, however fast the machine is."""
    source = ScriptedSource(make_checkpoint((MIB, MIB)))
    result = fetch_it(source, download=QUICK._replace(max_bytes_per_second=4.0 * MIB))
    assert result.seconds >= (2 * MIB / (4.0 * MIB)) - 0.1 - 0.05


def test_listing_is_asked_for_again_while_the_source_is_busy(home: Path, fetch_it: Fetch) -> None:
    class Source(ScriptedSource):
        busy = 2

        def list_files(self) -> Listing:
            self.busy -= 1
            if self.busy >= 0:
                message = "429"
                raise SourceUnavailableError(message)
            return super().list_files()

    source = Source(make_checkpoint())
    assert "Fetched" == fetch_it(source).reason
    source.busy = 99
    with pytest.raises(SourceUnavailableError) as caught:
        fetch_it(source, exclude=("config.json",))
    assert 10 == caught.value.exit_code
    assert home.exists()
