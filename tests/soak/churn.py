"""A soak: churn for so many minutes, samples all along, and at the end whether all is ready, nothing is left and memory was flat.

Called by `tests.soak` and, for seconds, by tests. Operators are killed during the first third; the last one lives through the
others, so that its memory can be judged.
"""

import http.client
import itertools
import os
import random
import statistics
import threading
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from tests.integration.client import Kube
from tests.integration.job_player import JobPlayer
from tests.integration.operator_process import OperatorProcess
from tests.json_client import Json, RefusedError
from tests.polling import poll
from tests.soak.cluster import PREFIX, SoakCluster, tolerant

if TYPE_CHECKING:
    from collections.abc import Callable

SETTLE_SECONDS = 1200
_HEAL_SECONDS = 20
_MIB = 1 << 20


@dataclass(frozen=True)
class Sample:
    """What there was at one moment.

    Attributes:
        seconds: Since the begin.
        process: How many operators there were before this one.
        rss_mib: Of the operator; 0 while there is none.
        cpu_seconds: That the operator has used.
    """

    seconds: float
    process: int
    rss_mib: float
    cpu_seconds: float
    nodes: int
    objects: int
    jobs: int
    config_maps: int
    finalizers: int
    staging_pods: int
    node_labels: int


@dataclass(frozen=True)
class Size:
    """How big and how long a soak is.

    Attributes:
        minutes: Of churn.
        pause_seconds: Between two things that happen, at least: while more Jobs than nodes wait to be ended, nothing more happens,
            so that a machine with other work gets no backlog that no cluster would have.
        kill_every_seconds: During the first third.
        sample_seconds: Between two samples.
        least_events: However long it takes, so much happens.
        least_kills: Likewise.
    """

    nodes: int = 50
    objects: int = 100
    minutes: float = 30.0
    pause_seconds: float = 2.0
    kill_every_seconds: float = 45.0
    sample_seconds: float = 10.0
    least_events: int = 0
    least_kills: int = 0


@dataclass
class Outcome:
    """What came of it.

    Attributes:
        happened: How often what happened.
        killed: How many operators were killed.
        jobs: How many Jobs were ended.
        settled_seconds: From the end of the churn until all was ready.
        left: What was there after all objects were deleted; all zero.
        rss_mib: Of the last operator: medians of each quarter of the time without kills.
        samples: All along.
    """

    size: Size
    happened: dict[str, int] = field(default_factory=dict)
    killed: int = 0
    jobs: int = 0
    settled_seconds: float = 0.0
    left: dict[str, int] = field(default_factory=dict)
    rss_mib: list[float] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)

    @property
    def is_flat(self) -> bool:
        """Whether the last operator's memory grew by less than a tenth since its second quarter."""
        return len(self.rss_mib) == 4 and self.rss_mib[3] <= 1.1 * self.rss_mib[1]

    def to_json(self) -> Json:
        """As it is kept."""
        return asdict(self)


class Soak:
    """Runs it; a context manager that ends what it started.

    Args:
        admin: The administrator.
        kubeconfig: The operator's.
        size: How much.
        log: Where the operator's log goes.
        seed: Of what happens.
    """

    def __init__(self, admin: Kube, kubeconfig: Path, size: Size, log: Path, seed: int = 7) -> None:
        chance = random.Random(seed)  # noqa: S311 - no secret
        self._cluster = SoakCluster(admin, size.nodes, size.objects, chance)
        self._chance, self._size = chance, size
        self._operator = OperatorProcess(kubeconfig, log)
        self._player = JobPlayer(admin, PREFIX, fails=self._fails)
        self._began = time.monotonic()
        self._stop = threading.Event()
        self._sampler = threading.Thread(target=self._sample_all, daemon=True)
        self._failing = True
        self.outcome = Outcome(size)

    def __enter__(self) -> Self:
        self._operator.start()
        self._player.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._sampler.is_alive():
            self._sampler.join(30)
        self._player.__exit__(kind, error, traceback)
        self._operator.kill()

    def run(self) -> Outcome:
        """All of it, and the checks at the end."""
        outcome, size = self.outcome, self._size
        self._cluster.begin()
        self._sampler.start()
        self._churn(size.minutes * 60)
        self._failing, ended = False, time.monotonic()
        self._cluster.heal()
        healed = time.monotonic()

        def waiting() -> list[str]:
            # One that was about to fail when the failures ended did so after the others were tried again.
            nonlocal healed
            if time.monotonic() - healed > _HEAL_SECONDS:
                healed = time.monotonic()
                self._cluster.heal()
            return self._cluster.unready()

        poll("all is ready", lambda: not waiting(), seconds=SETTLE_SECONDS, every=1, show=[lambda: str(waiting())])
        outcome.settled_seconds = round(time.monotonic() - ended, 1)
        self._cluster.delete_all()
        left = self._cluster.leftovers
        poll(
            "all is gone", lambda: not any(left().values()), seconds=SETTLE_SECONDS, every=1, show=[lambda: str(left())]
        )
        outcome.left, outcome.jobs = left(), self._player.played
        self._cluster.delete_nodes()
        assert self._operator.probe("healthz") == 200
        assert "Traceback" not in self._operator.log()
        self._stop.set()
        self._sampler.join(30)
        outcome.rss_mib = quarters(outcome.samples, size.minutes * 60)
        return outcome

    # --- what happens ---------------------------------------------------------------------------------------------

    def _churn(self, seconds: float) -> None:
        begin, happened = time.monotonic(), Counter[str]()
        kill_at = self._size.kill_every_seconds
        actions: list[tuple[Callable[[], None], int]] = [
            (self._cluster.lose_node, 2),
            (self._cluster.reboot_node, 3),
            (self._cluster.replace_model, 4),
            (self._cluster.edit_model, 4),
            (self._cluster.add_pod, 5),
            (self._cluster.remove_job, 2),
        ]
        while (passed := time.monotonic() - begin) < seconds or self._lacks(happened):
            may_kill = passed < seconds / 3 or self.outcome.killed < self._size.least_kills
            if kill_at < passed and may_kill:
                kill_at += self._size.kill_every_seconds
                self._operator.kill()
                self.outcome.killed += 1
                self._operator.start()
            if self._player.waiting > self._size.nodes:
                self._stop.wait(1)
                continue
            action = self._chance.choices([each for each, _ in actions], [weight for _, weight in actions])[0]
            try:
                action()
                happened[action.__name__] += 1
            except RefusedError as error:
                if not tolerant(error):
                    raise
            self._stop.wait(self._size.pause_seconds)
        self.outcome.happened = dict(sorted(happened.items()))

    def _lacks(self, happened: Counter[str]) -> bool:
        return happened.total() < self._size.least_events or self.outcome.killed < self._size.least_kills

    def _fails(self, _: Json) -> bool:
        """Of a hundred Jobs three fail, until the end comes."""
        return self._failing and self._chance.random() < 3 / 100

    # --- samples --------------------------------------------------------------------------------------------------

    def _sample_all(self) -> None:
        while not self._stop.wait(self._size.sample_seconds):
            try:
                self.outcome.samples.append(self._sample())
            except (OSError, http.client.HTTPException, RefusedError):
                continue

    def _sample(self) -> Sample:
        there = self._cluster.leftovers()
        rss_bytes, cpu_seconds = usage(self._operator.pid)
        return Sample(
            seconds=round(time.monotonic() - self._began, 1),
            process=self.outcome.killed,
            rss_mib=round(rss_bytes / _MIB, 1),
            cpu_seconds=round(cpu_seconds, 1),
            nodes=len(self._cluster.nodes),
            objects=there["objects"],
            jobs=there["jobs"],
            config_maps=there["configMaps"],
            finalizers=there["finalizers"],
            staging_pods=there["stagingPods"],
            node_labels=there["nodeLabels"],
        )


def usage(pid: int) -> tuple[int, float]:
    """Resident bytes of a process, and the CPU seconds that it has used; zeros when there is none."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, IndexError):
        return 0, 0.0
    ticks = int(fields[11]) + int(fields[12])
    return pages * os.sysconf("SC_PAGE_SIZE"), ticks / os.sysconf("SC_CLK_TCK")


def quarters(samples: list[Sample], churn_seconds: float) -> list[float]:
    """The median of the last operator's memory in each quarter of the churn that it lived through."""
    last = [each for each in samples if each.process == samples[-1].process and each.seconds <= churn_seconds]
    last = [each for each in last if each.rss_mib]
    if len(last) < 4:
        return []
    bounds = [len(last) * number // 4 for number in range(5)]
    pairs = itertools.pairwise(bounds)
    return [round(statistics.median(each.rss_mib for each in last[begin:end]), 1) for begin, end in pairs]
