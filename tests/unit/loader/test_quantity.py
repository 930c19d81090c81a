"""Amounts: what users write on the command line, and its bounds."""

from __future__ import annotations

import pytest

from modelweights_loader import quantity


@pytest.mark.parametrize(
    ("text", "expected"),
    [("16Mi", 16777216), ("16M", 16000000), ("16777216", 16777216), ("4Ki", 4096), ("1Gi", 2**30), ("1G", 10**9)],
)
def test_quantities_are_those_of_kubernetes(text: str, expected: int) -> None:
    assert expected == quantity.parse_bytes(text)


@pytest.mark.parametrize("text", ["", "16MB", "16m", "-1", "1.5Mi", " 16Mi", "0x10", "16 Mi", "Mi", "1e6", "١٦"])
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="16Mi"):
        quantity.parse_bytes(text)


@pytest.mark.parametrize("size", [1, 4095, 4096, 16_000_000, 2**24, 2**30])
def test_blocks_within_bounds_pass_also_those_of_no_whole_pages(size: int) -> None:
    assert size == quantity.check_block_bytes(size)


@pytest.mark.parametrize("size", [-1, 0, 2**30 + 1])
def test_blocks_out_of_bounds_are_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"{size} bytes is outside of 1 byte to 1Gi"):
        quantity.check_block_bytes(size)


@pytest.mark.parametrize(
    ("rank", "world_size", "match"),
    [
        (0, 0, "world size of 0 is outside of 1 to 65536"),
        (0, 65537, "world size of 65537"),
        (-1, 2, "rank -1 is outside of 0 to 1"),
        (2, 2, "rank 2 is outside of 0 to 1"),
    ],
)
def test_stripes_have_bounds(rank: int, world_size: int, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        quantity.check_stripe(rank, world_size)


def test_each_rank_of_a_group_passes() -> None:
    quantity.check_stripe(0, 1)
    quantity.check_stripe(65535, 65536)


@pytest.mark.parametrize(("threads", "good"), [(0, False), (1, True), (256, True), (257, False), (-1, False)])
def test_threads_have_bounds(threads: int, good: bool) -> None:  # noqa: FBT001 - a table's column
    if good:
        assert threads == quantity.check_threads(threads)
    else:
        with pytest.raises(ValueError, match="1 to 256"):
            quantity.check_threads(threads)


def test_bytes_in_flight_are_at_most_4gi() -> None:
    quantity.check_in_flight(256, 2**24)
    with pytest.raises(ValueError, match="4Gi"):
        quantity.check_in_flight(256, 2**24 + 4096)


@pytest.mark.parametrize(
    ("size", "expected"), [(0, "0 B"), (1023, "1023 B"), (2**20, "1.0 MiB"), (5 * 2**40, "5.0 TiB")]
)
def test_bytes_are_printed_for_people(size: int, expected: str) -> None:
    assert expected == quantity.format_bytes(size)


@pytest.mark.parametrize(("seconds", "expected"), [(0.26, "0.3 s"), (125, "2 min 5 s"), (3720, "1 h 2 min")])
def test_durations_are_printed_for_people(seconds: float, expected: str) -> None:
    assert expected == quantity.format_seconds(seconds)
