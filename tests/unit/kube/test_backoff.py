"""The back-off: doubled up to its bound, however often it failed, and never less than the server asked for."""

import pytest

from modelweights_operator.kube import backoff


@pytest.mark.parametrize(
    ("failures", "asked", "least"),
    [
        (0, None, 0.5),
        (1, None, 1.0),
        (5, None, 16.0),
        (6, None, 30.0),
        (5000, None, 30.0),
        (0, 7.0, 7.0),
        (9, 1.0, 1.0),
    ],
)
def test_it_is_within_a_fifth_of_what_is_meant(failures: int, asked: float | None, least: float) -> None:
    found = [backoff.delay(failures, 30.0, asked) for _ in range(200)]
    assert min(found) >= least
    assert max(found) <= least * 1.2
    assert len(set(found)) > 100
