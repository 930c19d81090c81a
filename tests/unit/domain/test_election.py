"""The election: a table of single decisions, and a world in which anything happens in any order and two never write at once.

In the world a server keeps one Lease with optimistic locking. Candidates stop and go on at any point, their requests arrive
late or never, answers are lost, they die and come back under the same name or another, and the Lease is deleted by hand.
Their clocks start anywhere and run a tenth too fast or too slow. Nothing here knows what time it is on a wall.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from modelweights_operator.domain.election import Candidate, Lease, Step, Timing

TIMING = Timing.of(15)
SLOW, FAST = 0.9, 1.1
MARGIN_SECONDS = TIMING.lease_seconds / FAST - TIMING.renew_seconds / SLOW
"""A write that was let through arrives within this, 2.5 s of 15: what is left when the holder's clock is slow and the other's fast."""


def lease(holder: str = "other", version: str = "1", seconds: float = 15, transitions: int = 1) -> Lease:
    return Lease(version, holder, seconds, transitions)


def new() -> Candidate:
    return Candidate("me", TIMING)


def leading(at: float = 100.0) -> Candidate:
    return new().saw(None, at).wrote(lease("me"), at)


def test_the_proportions_are_those_of_kubernetes_own_controllers() -> None:
    assert Timing.of(15) == Timing(15, 10, 2)


@pytest.mark.parametrize(
    ("candidate", "now", "expected"),
    [
        (new().saw(None, 100), 100, (Step.CREATE, 0)),
        (new().saw(lease(""), 100), 100, (Step.TAKE, 0)),
        (new().saw(lease("me"), 100), 100, (Step.TAKE, 0)),
        (new().saw(lease(), 100), 100, (Step.WAIT, 2)),
        (new().saw(lease(), 100), 114, (Step.WAIT, 1)),
        (new().saw(lease(), 100), 115, (Step.TAKE, 0)),
        (new().saw(lease(seconds=60), 100), 115, (Step.WAIT, 2)),
        (new().saw(lease(), 100).saw(lease(), 114), 115, (Step.TAKE, 0)),
        (new().saw(lease(), 100).saw(lease(version="2"), 114), 115, (Step.WAIT, 2)),
        (new().saw(lease(), 100).saw(None, 101), 101, (Step.WAIT, 2)),
        (new().saw(lease(), 100).saw(None, 110).saw(None, 124), 124, (Step.WAIT, 1)),
        (new().saw(lease(), 100).saw(None, 110).saw(None, 125), 125, (Step.CREATE, 0)),
        (new().saw(lease(), 100).saw(lease("", "2"), 101), 101, (Step.TAKE, 0)),
        (leading(), 101, (Step.WAIT, 1)),
        (leading(), 102, (Step.RENEW, 0)),
        (leading(), 10_000, (Step.RENEW, 0)),
        (leading().saw(lease("me", "2"), 102), 102, (Step.RENEW, 0)),
        (leading().saw(lease("other", "2", transitions=2), 102), 102, (Step.LOST, 0)),
        (leading().saw(lease("", "2"), 102), 102, (Step.LOST, 0)),
        (leading().saw(lease("me", "9", transitions=3), 102), 102, (Step.LOST, 0)),
        (leading().saw(None, 102), 102, (Step.CREATE, 0)),
        (leading().saw(None, 102), 110, (Step.LOST, 0)),
        (leading().saw(None, 110), 110, (Step.LOST, 0)),
    ],
    ids=[
        "there is none",
        "it was released",
        "an earlier process of this pod had it",
        "another one has it",
        "nearly over",
        "unchanged for all its time",
        "its own time counts, not ours",
        "the same again is no change",
        "a change starts the time anew",
        "deleted: whoever had it may not know",
        "deleted, and it may have been renewed just before",
        "deleted, and its time is over",
        "released while it stood by",
        "renewed a moment ago",
        "to be renewed",
        "stopped for hours, and nobody took it",
        "somebody labelled it",
        "another one took it",
        "somebody took it away by hand",
        "another one had it in between",
        "deleted under the leader",
        "deleted, and noticed too late to be sure",
        "deleted while it was stopped",
    ],
)
def test_what_is_done_next(candidate: Candidate, now: float, expected: tuple[Step, float]) -> None:
    assert candidate.next(now) == expected


@pytest.mark.parametrize(
    ("candidate", "now", "expected"),
    [
        (new(), 100, False),
        (new().saw(lease("me"), 100), 100, False),
        (leading(), 109.9, True),
        (leading(), 110, False),
        (leading().saw(lease("other", "2"), 101), 101, False),
        (leading().saw(lease("me", "2"), 109), 110, False),
        (leading().wrote(lease("me", "2"), 109), 118.9, True),
    ],
    ids=["new", "before it took it", "renewed", "not renewed", "lost", "a read renews nothing", "renewed again"],
)
def test_who_may_write(candidate: Candidate, now: float, *, expected: bool) -> None:
    assert candidate.may_write(now) == expected


@dataclass
class Request:
    """A write of the Lease under way; `version` None creates it."""

    version: str | None
    record: Lease
    began: float
    answer: Lease | str | None = None


@dataclass
class Process:
    """A candidate, its clock, and what it waits for."""

    candidate: Candidate
    offset: float
    speed: float
    request: Request | None = None
    writes: list[float] = field(default_factory=list)
    """When writes that were let through had begun; they arrive or are lost."""

    def clock(self, now: float) -> float:
        return self.offset + self.speed * now


NAMES = ("a", "b", "c")
CHOICES = st.sampled_from(NAMES)
SPEEDS = st.sampled_from((SLOW, 1.0, FAST))
OFFSETS = st.sampled_from((0.0, -3600.0, 3600.0))


class World(RuleBasedStateMachine):
    """Two or three candidates and a server."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.versions, self.record = 0.0, 0, None  # type: tuple[float, int, Lease | None]
        self.processes: dict[str, Process] = {}
        self.late: list[Request] = []
        self.restarts = 0

    @initialize(count=st.integers(2, 3), speeds=st.tuples(SPEEDS, SPEEDS, SPEEDS), offset=OFFSETS)
    def start(self, count: int, speeds: tuple[float, float, float], offset: float) -> None:
        for number, name in enumerate(NAMES[:count]):
            self.processes[name] = Process(Candidate(name, TIMING), offset * number, speeds[number])
        self.take_whole_turns(NAMES[:count], reads=True)

    def _process(self, name: str) -> Process:
        return self.processes[name] if name in self.processes else self.processes["a"]

    def _read(self, process: Process) -> None:
        process.candidate = process.candidate.saw(self.record, process.clock(self.now))

    @rule(seconds=st.sampled_from((0.1, 0.5, 1.0, 2.0, 4.0, 7.0, 16.0, 40.0)))
    def time_passes(self, seconds: float) -> None:
        self._pass(seconds)

    @rule(name=CHOICES, early=st.booleans(), names=st.lists(CHOICES, max_size=2))
    def time_passes_until_one_may_no_longer_write_or_another_may_take_it(
        self, name: str, *, early: bool, names: list[str]
    ) -> None:
        """To the moments at which something turns, and then some take a turn."""
        process = self._process(name)
        candidate, clock = process.candidate, process.clock(self.now)
        ends = candidate.renewed_at + TIMING.renew_seconds if candidate.leads else candidate.held_until
        if clock < ends:
            self._pass((ends - clock) / process.speed - (0.01 if early else -1e-6))
        self.take_whole_turns(names, reads=False)

    def _pass(self, seconds: float) -> None:
        self.now += max(seconds, 0)
        for process in self.processes.values():
            process.writes = [began for began in process.writes if self.now - began < MARGIN_SECONDS]

    @rule(names=st.lists(CHOICES, min_size=1, max_size=3), reads=st.booleans())
    def take_whole_turns(self, names: Sequence[str], *, reads: bool) -> None:
        """One after the other, and nothing goes wrong."""
        for name in names:
            self.begins_a_turn(name, reads=reads)
            self.request_arrives(name)
            self.answer_arrives(name, lost=False)

    @rule(name=CHOICES, reads=st.booleans())
    def begins_a_turn(self, name: str, *, reads: bool) -> None:
        """It looks at the Lease if it wants to, and begins what is to be done."""
        process = self._process(name)
        if process.request is not None:
            return
        if reads or not process.candidate.leads:
            self._read(process)
        self._begin(process)

    def _begin(self, process: Process) -> None:
        began = process.clock(self.now)
        step, _ = process.candidate.next(began)
        known = process.candidate.lease
        if step in (Step.WAIT, Step.LOST):
            return
        taken = (known.transitions if known else 0) + (step is not Step.RENEW)
        record = Lease("", process.candidate.name, TIMING.lease_seconds, taken)
        version = None if step is Step.CREATE or known is None else known.version
        process.request = Request(version, record, began)

    @rule(name=CHOICES)
    def request_arrives(self, name: str) -> None:
        request = self._process(name).request
        if request is not None and request.answer is None:
            self._execute(request)

    @rule()
    @precondition(lambda self: self.late)
    def request_of_a_dead_one_arrives(self) -> None:
        self._execute(self.late.pop())

    def _execute(self, request: Request) -> None:
        if request.version != (self.record.version if self.record else None):
            request.answer = "conflict"
            return
        self.versions += 1
        self.record = replace(request.record, version=str(self.versions))
        request.answer = self.record

    @rule(name=CHOICES, lost=st.booleans())
    def answer_arrives(self, name: str, *, lost: bool) -> None:
        process = self._process(name)
        if process.request is None:
            return
        if process.request.answer is None:
            # It was waited for long enough; the request may still arrive.
            self.late.append(process.request)
        elif isinstance(process.request.answer, Lease) and not lost:
            process.candidate = process.candidate.wrote(process.request.answer, process.request.began)
        elif not lost:
            self._read(process)
        process.request = None

    @rule(name=CHOICES)
    def writes(self, name: str) -> None:
        process = self._process(name)
        if process.candidate.may_write(process.clock(self.now)):
            process.writes.append(self.now)

    @rule(name=CHOICES, same=st.booleans())
    @precondition(lambda self: self.record is not None)
    def dies_and_comes_back(self, name: str, *, same: bool) -> None:
        """As the next container of the same pod, or as another pod."""
        process = self._process(name)
        if process.request is not None and process.request.answer is None:
            self.late.append(process.request)
        self.restarts += 1
        own = process.candidate.name if same else f"{name}{self.restarts}"
        # What it wrote last may arrive after its death: nothing can be said of it but that it was let through in time.
        kept = process.writes if same else []
        self.processes[name if name in self.processes else "a"] = Process(
            Candidate(own, TIMING), process.offset, process.speed, writes=kept
        )

    @rule(name=CHOICES)
    def releases(self, name: str) -> None:
        """SIGTERM: what is at hand is finished first, and nothing is written afterwards."""
        process = self._process(name)
        known = process.candidate.lease
        if process.request is not None or not process.candidate.leads or known is None or process.writes:
            return
        self._execute(Request(known.version, Lease("", "", 1, known.transitions), 0.0))
        self.restarts += 1
        self.processes[name if name in self.processes else "a"] = Process(
            Candidate(f"{name}{self.restarts}", TIMING), process.offset, process.speed
        )

    @rule()
    def somebody_labels_it(self) -> None:
        if self.record is not None:
            self.versions += 1
            self.record = replace(self.record, version=str(self.versions))

    @rule()
    @precondition(lambda self: all(each.candidate.lease is not None for each in self.processes.values()))
    def somebody_deletes_it(self) -> None:
        """While nobody is new: one that never saw it can't know that there was one."""
        self.record = None

    @invariant()
    def never_two_that_may_write(self) -> None:
        may = [name for name, each in self.processes.items() if each.candidate.may_write(each.clock(self.now))]
        assert len(may) <= 1, may

    @invariant()
    def never_a_write_under_way_while_another_may(self) -> None:
        busy = {name for name, each in self.processes.items() if each.writes}
        may = {name for name, each in self.processes.items() if each.candidate.may_write(each.clock(self.now))}
        assert len(busy | may) <= 1, (busy, may)

    def teardown(self) -> None:
        """Once requests arrive again and nobody dies, one acts: within the Lease's time and a retry, on slow clocks."""
        if not self.processes:
            return
        for process in self.processes.values():
            if process.candidate.lost:
                process.candidate = Candidate(process.candidate.name + "'", TIMING)
            process.request = None
        end = self.now + (TIMING.lease_seconds + 2 * TIMING.retry_seconds) / SLOW
        while not any(each.candidate.may_write(each.clock(self.now)) for each in self.processes.values()):
            assert self.now < end, "nobody acts"
            for process in self.processes.values():
                self._read(process)
                self._begin(process)
                if process.request is not None:
                    self._execute(process.request)
                    if isinstance(process.request.answer, Lease):
                        process.candidate = process.candidate.wrote(process.request.answer, process.request.began)
                    process.request = None
                if process.candidate.lost:
                    process.candidate = Candidate(process.candidate.name + "'", TIMING)
            self.now += 0.5


World.TestCase.settings = settings(max_examples=300, stateful_step_count=30, deadline=None)
TestWorld = World.TestCase
