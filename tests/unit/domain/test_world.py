"""Whatever happens to Jobs and nodes, the invariants hold after each step; and once faults stop, all becomes ready."""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from modelweights_operator.api import v1alpha1 as api
from modelweights_operator.domain import names, policies
from modelweights_operator.domain.placement import least_available
from modelweights_operator.domain.required import staged_model
from tests.unit.domain.machine import WorldMachine, pick
from tests.unit.domain.samples import DIGEST_A, DIGEST_B, OWNER_UID, make_owner, make_spec
from tests.unit.domain.test_conditions import check_kstatus
from tests.unit.domain.world import World

NODE_NAMES = ["node-a", "node-b", "node-c", "node-d"]
LABEL = names.node_label(OWNER_UID, DIGEST_A)

specs = st.builds(
    lambda threads, warm, need, cap, canaries, suspend: make_spec(
        prefetch={"numThreads": threads, **warm},
        placement={"minAvailableNodes": need, "maxConcurrentNodes": cap, "canaryNodes": canaries},
        suspend=suspend,
    ),
    st.integers(1, 2),
    st.sampled_from([{}, {"refreshIntervalSeconds": 300}, {"refreshIntervalSeconds": 300, "policy": "Required"}]),
    st.sampled_from([1, 2, 3, "1%", "60%", "100%"]),
    st.integers(1, 3),
    st.integers(0, 2),
    st.sampled_from([False, False, True]),
)


class Cluster(WorldMachine):
    """Rules are what happens; after each of them the operator runs, is slow, or dies half way."""

    def __init__(self) -> None:
        super().__init__()
        self.largest_cap = 0
        self.cut_off: set[str] = set()
        self.cold: dict[str, tuple[str, str]] = {}

    @initialize(spec=specs, count=st.integers(0, 4))
    def start(self, spec: api.Spec, count: int) -> None:
        self.world = World(spec=spec)
        for name in NODE_NAMES[:count]:
            self.world.add_node(name)

    # --- what happens ---------------------------------------------------------------------------------------------

    @rule(spec=specs)
    def edit(self, spec: api.Spec) -> None:
        self.world.edit(spec)
        self.planned = False

    @rule(name=st.sampled_from(NODE_NAMES), digest=st.sampled_from([DIGEST_A, DIGEST_A, DIGEST_A, DIGEST_B]))
    def node_joins(self, name: str, digest: str) -> None:
        self.world.add_node(name, digest)
        self.planned = False

    @precondition(lambda self: self.world.nodes)
    @rule(which=pick)
    def node_goes(self, which: int) -> None:
        del self.world.nodes[self._node(which)]
        self.planned = False

    @precondition(lambda self: self.world.nodes)
    @rule(which=pick)
    def node_reboots(self, which: int) -> None:
        self.world.reboot(self._node(which))
        self.planned = False

    @precondition(lambda self: self.world.nodes)
    @rule(which=pick, ready=st.booleans(), cordoned=st.booleans())
    def node_changes(self, which: int, ready: bool, cordoned: bool) -> None:  # noqa: FBT001 - what hypothesis hands over
        name = self._node(which)
        self.world.change_node(name, ready=ready, cordoned=cordoned)
        if not ready or cordoned:
            self.cut_off |= {job.name for job in self.world.jobs.values() if job.node_name == name}

    @precondition(lambda self: self.world.jobs)
    @rule(which=pick, exit_code=st.sampled_from([0, 0, 0, 10, 30, 137]), resident=st.sampled_from([99.0, 61.0]))
    def job_ends(self, which: int, exit_code: int, resident: float) -> None:
        self.world.end_job(self.job(which).name, exit_code, resident)

    @precondition(lambda self: self.world.nodes)
    @rule(refreshed=st.sampled_from([None, 61.0, 99.0]))
    def all_is_staged_and_cools(self, refreshed: float | None) -> None:
        for _ in range(10):
            self.world.cycle()
            for name in list(self.world.jobs):
                self.world.end_job(name, 0)
            self.world.collect()
        self.world.pass_time(700)
        self.world.cycle()
        if refreshed is not None:
            for name in list(self.world.jobs):
                self.world.end_job(name, 0, refreshed)
            self.world.cycle()
        self.planned = True

    @rule()
    def status_is_lost(self) -> None:
        self.world.status = type(self.world.status)()
        self.planned = False

    def _node(self, which: int) -> str:
        return sorted(self.world.nodes)[which % len(self.world.nodes)]

    # --- what must hold -------------------------------------------------------------------------------------------

    @invariant()
    def at_most_one_job_runs_on_each_node(self) -> None:
        # One that is being deleted counts: its pod may still read and write there.
        running = Counter(job.node_name for job in self.world.jobs.values() if job.state == "Active")
        assert all(count == 1 for count in running.values())

    @invariant()
    def jobs_are_bounded_by_the_cap(self) -> None:
        # A cap that was lowered ends nothing that runs.
        self.largest_cap = max(self.largest_cap, self.world.spec.placement.max_concurrent_nodes)
        active = {job.name for job in self.world.jobs.values() if job.state == "Active" and not job.deleting}
        # What a node that was lost or drained had begun may never end: it takes no other's place, also when it comes back.
        assert len(active - self.cut_off) <= self.largest_cap

    @invariant()
    def conditions_are_true_as_long_as_the_cluster_is_what_was_seen(self) -> None:
        status = self.world.status
        if not self.planned or not status.conditions:
            return
        found = check_kstatus(status.conditions, self.world.generation)
        holders = [
            name
            for name, entry in status.nodes.items()
            if status.published is not None
            and entry.manifest_digest == status.published.manifest_digest
            and entry.boot_id == self.world.nodes[name].boot_id
            and self.world.files[name] == entry.manifest_digest
        ]
        if found["Available"].status == "True":
            assert len(holders) >= least_available(self.world.spec.placement, self.world.status.summary.counted or 0)
        if found["Ready"].status == "True":
            digest = names.staging_digest(self.world.spec)
            assert status.nodes
            assert status.nodes.keys() == self.world.nodes.keys()
            assert all(entry.state == "Ready" for entry in status.nodes.values())
            assert {entry.staging_digest for entry in status.nodes.values()} == {digest}
            assert len({entry.manifest_digest for entry in status.nodes.values()}) == 1

    @invariant()
    def no_two_refreshes_follow_the_same_measurement_on_a_node(self) -> None:
        followed = Counter((job.node_uid, job.follows) for job in self.world.jobs.values() if job.follows)
        assert all(count == 1 for count in followed.values())

    @invariant()
    def who_lost_its_pages_still_holds_the_checkpoint(self) -> None:
        for name, entry in self.world.status.nodes.items():
            if entry.reason == policies.RESIDENCY_LOST:
                assert entry.manifest_digest
                assert self.world.spec.prefetch.policy == "Required" or not self.planned, name

    @invariant()
    def neither_gate_nor_label_leads_to_who_lost_its_pages_until_it_is_proven_warm(self) -> None:
        """From the loss on, whatever happens in between, until the node is ready or booted anew, or nothing has to be warm."""
        entries = self.world.status.nodes
        self.cold = {name: was for name, was in self.cold.items() if name in entries and entries[name].state != "Ready"}
        for name, entry in entries.items():
            if entry.reason == policies.RESIDENCY_LOST:
                self.cold[name] = (entry.manifest_digest, entry.boot_id)
        if self.world.spec.prefetch.policy != "Required":
            self.cold.clear()
            return
        owner = make_owner(self.world.spec, self.world.status)
        for label_nodes in (True, False):
            model = staged_model(owner, "", self.world.nodes.values(), label_nodes=label_nodes)
            for name in model.holders:
                assert self.cold.get(name) != (model.digest, self.world.nodes[name].boot_id)
        # Where a result is being taken in, the label comes before the status.
        ended = {job.node_name for job in self.world.jobs.values() if job.state == "Complete"}
        for name, (digest, _) in self.cold.items() if self.planned else ():
            assert name in ended or names.node_label(OWNER_UID, digest) not in self.world.nodes[name].labels

    @invariant()
    def labels_lead_to_proven_files(self) -> None:
        if not self.planned:
            return
        for name, node in self.world.nodes.items():
            digests = set(names.staged_labels(node.labels).values())
            assert digests <= {names.label_digest(self.world.files[name])}

    def _one_good_round(self) -> None:
        self.world.cycle()
        for name in list(self.world.jobs):
            self.world.end_job(name, 0)
        self.world.collect()
        self.world.pass_time(60)

    def teardown(self) -> None:
        """Faults stop: all nodes hold the same files, work and are let be. Then all must become ready."""
        world = self.world
        if not world.nodes:
            return
        need = min(least_available(world.spec.placement, len(world.nodes)), len(world.nodes))
        world.edit(make_spec(placement={"minAvailableNodes": need, "maxConcurrentNodes": 1, "canaryNodes": 1}))
        for name in world.nodes:
            world.change_node(name, ready=True, cordoned=False)
            if world.files[name] != DIGEST_A:
                # Other files on the disk are seen when it is staged again; here the node comes anew.
                world.add_node(name)
        self.end_in_ready(self._one_good_round, rounds=200)
        assert world.jobs == {}
        assert all(node.labels[LABEL] == names.label_digest(DIGEST_A) for node in world.nodes.values())


TestCluster = Cluster.TestCase
TestCluster.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
