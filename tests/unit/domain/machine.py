"""What happens to any ModelWeights, as rules of a state machine. Base of those in `test_world` and `test_fetch_world`."""

from collections.abc import Callable
from typing import Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from modelweights_operator.domain.snapshot import StagingJob
from tests.unit.domain.world import World

_MORE_ROUNDS: Final = 10
pick = st.integers(0, 99)
"""Which of the nodes or Jobs that there are."""


class WorldMachine(RuleBasedStateMachine):
    """Rules are what happens; after each of them the operator runs, is slow, or dies half way.

    `planned`: the status says what there is, as the operator ran to the end since the last edit.
    """

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.planned = False

    @precondition(lambda self: self.world.jobs)
    @rule(which=pick)
    def someone_removes_a_job(self, which: int) -> None:
        del self.world.jobs[self.job(which).name]

    @rule()
    def garbage_is_collected(self) -> None:
        self.world.collect()

    @rule(seconds=st.sampled_from([1, 15, 120, 700]))
    def time_passes(self, seconds: int) -> None:
        self.world.pass_time(seconds)

    @rule(seconds=st.sampled_from([-86_400, -700, -5, 3_600]))
    def clock_is_set(self, seconds: int) -> None:
        """The operator's node gets another time, or the next operator runs on one whose clock is wrong."""
        self.world.pass_time(seconds)

    @rule()
    def someone_asks_to_try_again(self) -> None:
        self.world.retry += "!"

    @rule()
    def operator_runs(self) -> None:
        self.world.cycle()
        self.planned = True

    @rule(steps=st.integers(0, 6))
    def operator_dies_half_way(self, steps: int) -> None:
        self.world.cycle(steps)

    def end_in_ready(self, run: Callable[[], None], rounds: int) -> None:
        """Faults stop: within so many rounds all is ready, and stays so for a few more."""
        for _ in range(rounds):
            run()
            if self.world.is_ready():
                break
        for _ in range(_MORE_ROUNDS):
            run()
            assert self.world.is_ready()

    def job(self, which: int) -> StagingJob:
        """One of the Jobs that there are."""
        return self.world.jobs[sorted(self.world.jobs)[which % len(self.world.jobs)]]
