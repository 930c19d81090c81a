"""The operator killed before and after every write that it makes in a full staging, a full rollover and a deletion."""

from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from tests.integration.interruptions import DELETE, ROLL_OUT, STAGE, Site, moments, revision_of, run
from tests.servers.api_proxy import Moment, When

pytestmark = pytest.mark.timeout(3600)

# What each step writes at least; how much there is of each depends on what happens at once.
STAGES = {
    "POST jobs",
    "PATCH jobs",
    "DELETE jobs",
    "PATCH nodes",
    "PATCH pods",
    "POST configmaps",
    "POST events",
    "PATCH modelweights",
    "PATCH modelweights/status",
}
ROLLS_OUT = (STAGES - {"POST configmaps", "PATCH modelweights"}) | {"PATCH configmaps"}
DELETES = {"PATCH nodes", "POST jobs", "DELETE jobs", "PATCH modelweights"}


def _name(moment: Moment) -> str:
    return f"{moment.when}-{moment.number}-{moment.write.lower().replace(' ', '-').replace('/', '-')}".rstrip("-")


def _stage(site: Site, moment: Moment) -> bool:
    site.begin(f"kill-stage-{_name(moment)}")
    came = run(site, STAGE, revision_of(1), moment)
    site.end()
    return came


def _roll_out(site: Site, moment: Moment) -> bool:
    """One rollout after the other of the same object."""
    if not site.killed:
        site.begin(f"kill-roll-out-{moment.when}")
        run(site, STAGE, revision_of(0))
    return run(site, ROLL_OUT, revision_of(1 + site.killed.total()), moment)


def _delete(site: Site, moment: Moment) -> bool:
    site.begin(f"kill-delete-{_name(moment)}")
    run(site, STAGE, revision_of(1))
    came = run(site, DELETE, revision_of(1), moment)
    site.end()
    return came


@pytest.fixture
def killed(site: Site, request: pytest.FixtureRequest) -> Iterator[Counter[str]]:
    """At which writes the operator was killed, printed in the end."""
    yield site.killed
    print(f"\n{request.node.name}: killed at {site.killed.total()} writes: {dict(sorted(site.killed.items()))}")


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    ("attempt", "writes", "least"),
    [(_stage, STAGES, 15), (_roll_out, ROLLS_OUT, 20), (_delete, DELETES, 6)],
    ids=["staging", "rollout", "deletion"],
)
def test_nothing_is_lost_and_nothing_done_twice(
    site: Site,
    killed: Counter[str],
    attempt: Callable[[Site, Moment], bool],
    writes: set[str],
    least: int,
    when: When,
) -> None:
    for moment in moments(when):
        if not attempt(site, moment):
            break
    # Two runs needn't have the same order, so that a count may pass over a kind of which there is one.
    for write in sorted(writes - killed.keys()):
        assert attempt(site, Moment(1, when, write)), f"there is no {write}"
    assert writes <= killed.keys()
    assert killed.total() >= least
