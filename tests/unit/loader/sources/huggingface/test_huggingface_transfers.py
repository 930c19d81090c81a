"""What arrives is exactly the bytes that were asked for, or an error that says what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from modelweights_loader.errors import LoaderError
from tests.servers.hub import Fault, Hub
from tests.servers.repositories import NAME, WEIGHTS, is_vouched, read_whole

if TYPE_CHECKING:
    from tests.unit.loader.sources.huggingface.conftest import OpenHub

BEGIN, END = 1000, 300_000


@pytest.mark.parametrize(
    ("fault", "begin", "reason"),
    [
        (Fault("data", "cut", after=100_000), BEGIN, "SourceUnavailable"),
        (Fault("data", "cut", after=0), BEGIN, "SourceUnavailable"),
        (Fault("data", "stall", after=100_000), BEGIN, "SourceUnavailable"),
        (Fault("data", "stall"), BEGIN, "SourceUnavailable"),
        (Fault("data", "whole"), BEGIN, "RangesNotSupported"),
        (Fault("data", "whole"), 0, ""),
        (Fault("data", "noRange"), BEGIN, ""),
        (Fault("data", "badRange"), BEGIN, "SourceUnavailable"),
        (Fault("data", "gzip"), BEGIN, "EncodedAnswer"),
        (Fault("data", "chunked"), BEGIN, ""),
        (Fault("data", "extra"), BEGIN, "SourceUnavailable"),
        (Fault("data", "long"), BEGIN, "SourceUnavailable"),
    ],
    ids=lambda value: f"{value.kind}-{value.after}" if isinstance(value, Fault) else None,
)
def test_a_range_with_a_fault(hub: Hub, open_hub: OpenHub, fault: Fault, begin: int, reason: str) -> None:
    patient = open_hub(hub)
    source = open_hub(hub, stall_seconds=0.5) if fault.kind == "stall" else patient
    file = next(each for each in patient.list_files().files if each.path == WEIGHTS)
    expected = (hub.root / NAME / "one" / WEIGHTS).read_bytes()
    hub.set_faults(fault._replace(times=1))
    got = b""
    caught: LoaderError | None = None
    try:
        for piece in source.read_range(file, begin, END):
            got += piece
    except LoaderError as error:
        caught = error
    assert reason == (caught.reason if caught else "")
    # Whatever came before the error is right.
    assert expected[begin : begin + len(got)] == got
    assert caught is not None or len(got) == END - begin
    # Nothing of it is in the way of the next read.
    source._http.stall_seconds = patient._http.stall_seconds
    assert is_vouched(file, read_whole(source, file, 3))


@pytest.mark.parametrize(
    ("size", "begin", "end", "reason"),
    [(-1, 500_000, 600_000, "SourceChanged"), (-1, 0, 1000, "SourceChanged"), (1 << 20, 2_000_000, 2_000_010, "SourceChanged")],
)  # fmt: skip
def test_a_file_of_another_size_than_listed(
    hub: Hub, open_hub: OpenHub, size: int, begin: int, end: int, reason: str
) -> None:
    source = open_hub(hub)
    file = next(each for each in source.list_files().files if each.path == WEIGHTS)
    with pytest.raises(LoaderError) as caught:
        list(source.read_range(file._replace(size_bytes=file.size_bytes + size), begin, end))
    assert reason == caught.value.reason


def test_a_mirror_that_gives_another_commit(hub: Hub, open_hub: OpenHub) -> None:
    source = open_hub(hub)
    file = next(each for each in source.list_files().files if each.path == "config.json")
    hub.set_faults(Fault("resolve", "commit"))
    with pytest.raises(LoaderError, match="of commit") as caught:
        list(source.read_range(file, 0, file.size_bytes))
    assert "SourceChanged" == caught.value.reason
