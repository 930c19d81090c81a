"""A branch that moves, pods that are evicted, an operator that dies anywhere: one source never gives two revisions."""

import hashlib
from dataclasses import replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from modelweights_operator.api import v1alpha1 as api
from modelweights_operator.domain import names
from modelweights_operator.domain.snapshot import ContainerState, StagingJob, StagingPod
from tests.unit.domain.machine import WorldMachine, pick
from tests.unit.domain.samples import failure_text, fetch_ended, make_fetch_spec, make_pod, report_text, resolve_ended
from tests.unit.domain.test_conditions import check_kstatus
from tests.unit.domain.world import World

NODE_NAMES = ["node-a", "node-b", "node-c"]

specs = st.builds(
    lambda branch, threads, cap, canaries: make_fetch_spec(
        {"huggingFace": {"repository": "org/name", "revision": branch}},
        prefetch={"numThreads": threads},
        placement={"maxConcurrentNodes": cap, "canaryNodes": canaries},
    ),
    st.sampled_from(["main", "main", "v2"]),
    st.integers(1, 2),
    st.integers(1, 3),
    st.integers(0, 1),
)


def digest_of(commit: str) -> str:
    return f"sha256:{hashlib.sha256(commit.encode()).hexdigest()}"


def revision_of(ended: ContainerState) -> str:
    """What a step said that it found."""
    return ended.message.split('"revision": "')[1][:40]


def youngest(job: StagingJob) -> StagingPod:
    return max(job.pods, key=lambda pod: pod.created_at)


class Site(WorldMachine):
    """Rules are what happens; after each of them the operator runs, is slow, or dies half way."""

    def __init__(self) -> None:
        super().__init__()
        self.commits = 0
        self.epoch = 0
        self.ready: dict[int, set[str]] = {}

    @property
    def head(self) -> str:
        return f"{self.commits:040x}"

    @initialize(spec=specs, count=st.integers(1, 3))
    def start(self, spec: api.Spec, count: int) -> None:
        self.world = World(spec=spec)
        for name in NODE_NAMES[:count]:
            self.world.add_node(name)

    # --- what happens ---------------------------------------------------------------------------------------------

    @rule(spec=specs)
    def edit(self, spec: api.Spec) -> None:
        if names.source_digest(spec) != names.source_digest(self.world.spec):
            self.epoch += 1
        self.world.edit(spec)
        self.planned = False

    @rule()
    def branch_moves(self) -> None:
        self.commits += 1

    @rule(name=st.sampled_from(NODE_NAMES))
    def node_joins(self, name: str) -> None:
        self.world.add_node(name)
        self.planned = False

    @rule(which=pick)
    def node_reboots(self, which: int) -> None:
        self.world.reboot(sorted(self.world.nodes)[which % len(self.world.nodes)])
        self.planned = False

    @precondition(lambda self: self.world.jobs)
    @rule(which=pick, former=st.sampled_from([False, False, True]))
    def pod_starts(self, which: int, former: bool) -> None:  # noqa: FBT001 - what hypothesis hands over
        """A Job of the operator's former version has no step `resolve`."""
        self._change(which, lambda job: () if job.pods else (self._started(job, former=former),))

    @precondition(lambda self: self.world.jobs)
    @rule(which=pick)
    def resolve_ends(self, which: int) -> None:
        self._change(which, lambda job: (self._resolved(job),))

    @precondition(lambda self: self.world.jobs)
    @rule(which=pick)
    def fetch_ends(self, which: int) -> None:
        self._change(which, lambda job: (self._ended(job),))

    @precondition(lambda self: self.world.jobs)
    @rule(which=pick, fetched=st.booleans())
    def pod_is_evicted(self, which: int, fetched: bool) -> None:  # noqa: FBT001 - what hypothesis hands over
        """After the operator saw what it found, and before the branch moved: the next one would find something else."""

        def again(job: StagingJob) -> tuple[StagingPod, ...]:
            former = tuple(replace(pod, phase="Failed", deleting=True) for pod in job.pods)
            return (*former, self._started(job)) if former else ()

        self._change(which, lambda job: (self._ended(job) if fetched else self._resolved(job),))
        self.world.cycle()
        self.commits += 1
        self._change(which, again)

    @precondition(lambda self: self.world.jobs)
    @rule(which=pick, how=st.sampled_from(["good", "good", "Broken", "Gone", "NoSafetensors", "SourceChanged"]))
    def job_ends(self, which: int, how: str) -> None:
        self._end(self.job(which), how)

    @precondition(lambda self: self.world.jobs)
    @rule(which=pick)
    def pods_are_collected(self, which: int) -> None:
        job = self.job(which)
        if job.state != "Active":
            self.world.jobs[job.name] = replace(job, pods=())

    # --- its parts ------------------------------------------------------------------------------------------------

    def _pod(self, *containers: ContainerState) -> StagingPod:
        self.world.pass_time(0.001)
        return make_pod(*containers, created_at=self.world.now)

    def _started(self, job: StagingJob, *, former: bool = False) -> StagingPod:
        return self._pod(ContainerState("fetch" if job.revision or former else "resolve"))

    def _resolved(self, job: StagingJob) -> StagingPod:
        """It found what the branch is at now, unless it was given a revision, or `fetch` is to find it."""
        pod = youngest(job) if job.pods else self._started(job)
        if pod.containers[-1].name != "resolve":
            return pod
        return replace(pod, containers=(resolve_ended(self.head), ContainerState("fetch")))

    def _ended(self, job: StagingJob) -> StagingPod:
        """Its fetch took what it was given, or what was found just before; else what the branch is at now."""
        pod = self._resolved(job)
        if pod.containers[-1].name != "fetch":
            return pod
        before = pod.containers[:-1]
        revision = job.revision or (revision_of(before[0]) if before else self.head)
        return replace(pod, containers=(*before, fetch_ended(revision), ContainerState("prefetch")))

    def _change(self, which: int, pods: Any) -> None:
        job = self.job(which)
        changed = pods(job) if job.state == "Active" and not job.deleting else ()
        if changed:
            self.world.jobs[job.name] = replace(job, pods=changed)

    def _end(self, job: StagingJob, how: str) -> None:
        if job.state != "Active" or job.deleting:
            return
        good, codes = how == "good", {"Gone": 10, "SourceChanged": 20, "NoSafetensors": 30}
        if how in codes:
            *before, _ = self._resolved(job).containers
            last = ContainerState("fetch", exit_code=codes[how], message=failure_text(how, codes[how]))
        else:
            *before, _ = self._ended(job).containers
            digest = digest_of(revision_of(before[-1]))
            last = ContainerState("report", exit_code=0, message=report_text(manifestDigest=digest))
        if how == "Broken":
            last = ContainerState("validate", exit_code=10, message='{"exitCode": 10, "reason": "Broken"}')
        pod = youngest(job) if job.pods else self._started(job)
        pod = replace(pod, phase="Succeeded" if good else "Failed", containers=(*before, last))
        state: Any = "Complete" if good else "Failed"
        self.world.jobs[job.name] = replace(job, state=state, finished_at=self.world.now, pods=(pod,))

    # --- what must hold -------------------------------------------------------------------------------------------

    @invariant()
    def one_source_gives_one_revision(self) -> None:
        if not self.planned:
            return
        status = self.world.status
        check_kstatus(status.conditions, self.world.generation)
        ready = {entry.manifest_digest for entry in status.nodes.values() if entry.state == "Ready"}
        if ready:
            assert status.source is not None
            assert ready == {digest_of(status.source.revision)}
        self.ready.setdefault(self.epoch, set()).update(ready)
        assert len(self.ready[self.epoch]) <= 1

    @invariant()
    def jobs_are_given_what_the_status_says(self) -> None:
        source = self.world.status.source
        for job in self.world.jobs.values():
            if job.revision and source is not None and job.source_digest == source.digest and not job.deleting:
                assert job.revision == source.revision

    @invariant()
    def one_node_looks_at_a_time(self) -> None:
        jobs = [job for job in self.world.jobs.values() if job.state == "Active" and not job.revision]
        assert len(jobs) <= 1

    def _one_good_round(self) -> None:
        self.commits += 1
        self.world.cycle()
        for job in list(self.world.jobs.values()):
            self._end(job, "good")
        self.world.collect()
        self.world.pass_time(700)

    def teardown(self) -> None:
        """Faults stop, but the branch goes on moving: all must become ready, on one revision."""
        self.end_in_ready(self._one_good_round, rounds=60)
        assert self.world.status.source is not None
        assert self.world.status.published is not None
        assert self.world.status.published.manifest_digest == digest_of(self.world.status.source.revision)
        assert self.world.status.published.revision == self.world.status.source.revision


TestSite = Site.TestCase
TestSite.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
