"""Sizes for people, quantities for machines, and times as the API writes them."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from modelweights_operator.api.quantity import to_bytes
from modelweights_operator.domain.clock import parse_time, rfc3339
from modelweights_operator.domain.sizes import human_bytes


@pytest.mark.parametrize(
    ("size_bytes", "expected"),
    [
        (-1, ""),
        (0, ""),
        (1, "1"),
        (1023, "1023"),
        (1024, "1Ki"),
        (1023 * 1024, "1023Ki"),
        (90_900_000, "86.7Mi"),
        (140_660_000_000, "131Gi"),
        (3 * 2**40, "3Ti"),
        (5000 * 2**40, "5000Ti"),
    ],
)
def test_sizes_have_three_digits_and_a_binary_unit(size_bytes: int, expected: str) -> None:
    assert human_bytes(size_bytes) == expected


@pytest.mark.parametrize(
    ("quantity", "expected"),
    [(5, 5), ("5", 5), ("16Mi", 2**24), ("16M", 16_000_000), ("2k", 2000), ("1Gi", 2**30), ("3T", 3 * 10**12)],
)
def test_quantities_are_whole_bytes(quantity: int | str, expected: int) -> None:
    assert to_bytes(quantity) == expected


@pytest.mark.parametrize("quantity", ["", "Mi", "1.5Gi", "-1", "1m", "1e3", "16mi", "1 Mi", "9" * 16, "１"])  # noqa: RUF001 - a digit of another script
def test_other_quantities_are_refused_by_name(quantity: str) -> None:
    with pytest.raises(ValueError, match="is not a whole quantity of bytes"):
        to_bytes(quantity)


def test_times_are_written_in_utc_and_whole_seconds() -> None:
    moment = datetime(2026, 3, 1, 14, 0, 0, 999, tzinfo=timezone(timedelta(hours=2)))
    assert rfc3339(moment) == "2026-03-01T12:00:00Z"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-03-01T12:00:00Z", datetime(2026, 3, 1, 12, tzinfo=UTC)),
        ("2026-03-01T12:00:00.500000Z", datetime(2026, 3, 1, 12, 0, 0, 500_000, tzinfo=UTC)),
        ("2026-03-01T12:00:00", datetime(2026, 3, 1, 12, tzinfo=UTC)),
        ("2026-03-01T12:00:60Z", None),
        ("2026-03-01T14:00:00+02:00", datetime(2026, 3, 1, 12, tzinfo=UTC)),
        ("0001-01-01T00:00:00Z", None),
        ("0001-01-01T00:00:00+14:00", None),
        ("9999-12-31T23:59:59-23:59", None),
        ("yesterday", None),
        ("", None),
    ],
)
def test_times_are_read_with_a_zone_or_not_at_all(text: str, expected: datetime | None) -> None:
    found = parse_time(text)
    assert found == expected
    assert found is None or found.tzinfo is not None
