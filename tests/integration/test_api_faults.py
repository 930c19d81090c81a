"""Rollouts while the API server refuses, cuts, expires and delays; `make faults` does it longer, one fault at a time and without an API server."""

import pytest

from tests.integration import interruptions
from tests.integration.api_faults import FAULTS, survive
from tests.integration.interruptions import Site
from tests.integration.test_interrupted import site

__all__ = ["site"]


@pytest.mark.timeout(600)
def test_what_comes_in_doses_is_survived_by_the_process_that_was_there(site: Site) -> None:
    site.begin("kill-faults")
    interruptions.run(site, interruptions.STAGE, interruptions.revision_of(0))
    kinds = list(FAULTS)
    for number, some in enumerate((kinds[::2], kinds[1::2]), 1):
        survive(site, [FAULTS[kind]() for kind in some], number)
    site.end()
