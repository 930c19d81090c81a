"""How long the answer about an object's events is good: seconds, the longer the older the object is."""

from datetime import timedelta

import pytest

from modelweights_operator.kube.last_warnings import kept_for


@pytest.mark.parametrize(("age_seconds", "kept_seconds"), [(0, 4), (16, 4), (40, 10), (240, 60), (9999, 60)])
def test_an_answer_is_kept_for_a_part_of_the_objects_age(age_seconds: int, kept_seconds: int) -> None:
    assert kept_for(timedelta(seconds=age_seconds)) == timedelta(seconds=kept_seconds)
