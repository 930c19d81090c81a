"""Revisions forth and back, in any order, on nodes that come, go and boot: nothing good is lost, no gate opens to a wrong node."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from modelweights_operator.api import v1alpha1 as api
from modelweights_operator.domain import gate, names
from modelweights_operator.domain.required import staged_model
from tests.unit.domain.machine import WorldMachine, pick
from tests.unit.domain.samples import digest_of, failure_text, make_fetch_spec, make_owner, make_spec, report_text
from tests.unit.domain.test_conditions import check_kstatus
from tests.unit.domain.world import World

NODE_NAMES = ["node-a", "node-b", "node-c"]
COMMITS = {"first": "1" * 40, "second": "2" * 40, "twin": "3" * 40, "bad": "4" * 40}
FIRST, SECOND, FOLDER, NEXT = (f"sha256:{character * 64}" for character in "abcd")
EXPECTED = {"first": FIRST, "second": SECOND, "twin": FIRST, "folder": FOLDER, "next": NEXT}
"""The twin's files are those of the first revision. The bad one never proves anything."""
BROKEN = f"sha256:{'e' * 64}"
"""What is fetched of it."""
ASKED = {
    **{COMMITS[source][:9]: EXPECTED[source] for source in ("first", "second", "twin")},
    **{digest: digest for digest in EXPECTED.values()},
    COMMITS["bad"]: "",
}


def make_source(source: str, need: int, canaries: int, threads: int) -> api.Spec:
    fields = {
        "placement": {"minAvailableNodes": need, "canaryNodes": canaries},
        "prefetch": {"numThreads": threads},
    }
    if source in COMMITS:
        hub = {"huggingFace": {"repository": "org/name", "revision": COMMITS[source]}}
        return make_fetch_spec(hub, **fields)
    path = {"folder": "/models/llama", "next": "/models/next", "nowhere": "/etc/llama"}[source]
    return make_spec(source={"hostPath": {"path": path}}, **fields)


sources = st.sampled_from([*EXPECTED, *EXPECTED, "bad", "nowhere"])
specs = st.builds(make_source, sources, st.integers(1, 3), st.integers(0, 1), st.integers(1, 2))


class Rollout(WorldMachine):
    """Rules are what happens; after each of them the operator runs, is slow, or dies half way.

    Attributes:
        proven: Per boot of a node, the checkpoints that it proved: they stay on its disk.
        told: Per boot of a node, those that its labels told of.
        meant: Per staging digest, what the source is.
        disks: Per UID of a node, what was ever fetched there, also what failed then.
    """

    def __init__(self) -> None:
        super().__init__()
        self.proven: dict[str, set[str]] = {}
        self.told: dict[str, set[str]] = {}
        self.meant: dict[str, str] = {}
        self.disks: dict[str, set[str]] = {}

    @initialize(spec=specs, count=st.integers(1, 3))
    def start(self, spec: api.Spec, count: int) -> None:
        self.world = World(spec=spec)
        self._note(spec)
        for name in NODE_NAMES[:count]:
            self.world.add_node(name)

    # --- what happens ---------------------------------------------------------------------------------------------

    @rule(spec=specs, rounds=st.integers(0, 4), nodes=st.integers(1, 3))
    def rollout(self, spec: api.Spec, rounds: int, nodes: int) -> None:
        """Another spec, and stagings that end well on the first nodes that get a Job; it may be left half way."""
        self.edit(spec)
        for _ in range(rounds):
            self.operator_runs()
            for name in sorted(self.world.jobs)[:nodes]:
                self._end(name, good=True)
            self.operator_runs()
            self.world.collect()
            self.world.pass_time(700)

    @rule(spec=specs)
    def edit(self, spec: api.Spec) -> None:
        self._note(spec)
        self.world.edit(spec)
        self.planned = False

    @rule(name=st.sampled_from(NODE_NAMES))
    def node_joins(self, name: str) -> None:
        self.world.add_node(name)
        self.planned = False

    @precondition(lambda self: self.world.nodes)
    @rule(which=pick)
    def node_goes(self, which: int) -> None:
        del self.world.nodes[sorted(self.world.nodes)[which % len(self.world.nodes)]]
        self.planned = False

    @precondition(lambda self: self.world.nodes)
    @rule(which=pick)
    def node_reboots(self, which: int) -> None:
        self.world.reboot(sorted(self.world.nodes)[which % len(self.world.nodes)])
        self.planned = False

    @precondition(lambda self: self.world.jobs)
    @rule(which=pick, good=st.sampled_from([True, True, True, False]))
    def job_ends(self, which: int, good: bool) -> None:  # noqa: FBT001 - what hypothesis hands over
        self._end(self.job(which).name, good=good)

    @rule()
    def operator_runs(self) -> None:
        status = self.world.status
        known = [each for each in (status.published, status.candidate, *status.previous) if each is not None]
        digests = {names.label_digest(each.manifest_digest) for each in known}
        self._run(99)
        self.planned = True
        for node in self.world.nodes.values():
            labels = set(names.staged_labels(node.labels).values())
            # Of one that was never published, nor is about to be, nobody knows whether files in place took its place.
            assert labels >= self.told.get(node.boot_id, set()) & digests, "what a node holds it goes on holding"
            self.told[node.boot_id] = labels

    @rule(steps=st.integers(0, 6))
    def operator_dies_half_way(self, steps: int) -> None:
        self._run(steps)

    def _note(self, spec: api.Spec) -> None:
        hub, path = spec.source.hugging_face, spec.source.host_path
        by_commit = {commit: source for source, commit in COMMITS.items()}
        by_path = {"/models/llama": "folder", "/models/next": "next"}
        source = by_commit[hub.revision] if hub else by_path.get(path.path if path else "", "nowhere")
        self.meant[digest_of(spec)] = source

    def _end(self, name: str, *, good: bool) -> None:
        job = self.world.jobs[name]
        if job.state != "Active" or job.deleting:
            return
        source = self.meant[job.staging_digest]
        digest, disk = EXPECTED.get(source, ""), self.disks.setdefault(job.node_uid, set())
        beside = {"leftovers": sorted(each.removeprefix("sha256:") for each in disk - {digest})}
        disk |= {digest or BROKEN} if source in COMMITS else set()
        if good and digest:
            self.proven.setdefault(job.boot_id, set()).add(digest)
            more = beside if source in COMMITS else {}
            self.world.finish_job(name, "Complete", report_text(manifestDigest=digest, **more))
        else:
            self.world.finish_job(name, "Failed", failure_text("MissingShard", 10 if digest else 30))

    def _run(self, steps: int) -> None:
        before = self.world.status.published
        self.world.cycle(steps)
        published = self.world.status.published
        if published is None:
            assert before is None, "what is published is never withdrawn"
        elif before is None or before.manifest_digest != published.manifest_digest:
            assert self._holding(published.manifest_digest) >= self._need

    @property
    def _need(self) -> int:
        need = self.world.spec.placement.min_available_nodes
        assert isinstance(need, int)
        return need

    def _holding(self, digest: str) -> int:
        return sum(digest in self.proven.get(node.boot_id, ()) for node in self.world.nodes.values())

    # --- what must hold -------------------------------------------------------------------------------------------

    @invariant()
    def labels_tell_of_what_is_proven_there(self) -> None:
        if not self.planned:
            return
        for node in self.world.nodes.values():
            true = {names.label_digest(digest) for digest in self.proven.get(node.boot_id, ())}
            assert set(names.staged_labels(node.labels).values()) <= true

    @invariant()
    def pods_may_start_while_enough_nodes_hold_what_is_published(self) -> None:
        status = self.world.status
        if not self.planned or not status.conditions:
            return
        found = check_kstatus(status.conditions, self.world.generation)
        published = names.label_digest(status.published.manifest_digest) if status.published else "none"
        nodes = self.world.nodes.values()
        holding = sum(published in names.staged_labels(node.labels).values() for node in nodes)
        assert (found["Available"].status == "True") == (holding >= self._need)

    @invariant()
    def previous_ones_are_held_and_not_published(self) -> None:
        if not self.planned:
            return
        digests = [known.manifest_digest for known in self.world.status.previous]
        assert len(digests) == len(set(digests)) <= api.MAX_PREVIOUS
        assert all(self._holding(digest) for digest in digests)
        assert all(known.superseded_at for known in self.world.status.previous)
        published = self.world.status.published
        assert published is None or (published.manifest_digest not in digests and not published.superseded_at)

    @invariant()
    def what_is_left_over_is_held_by_nobody(self) -> None:
        for entry in self.world.status.nodes.values():
            assert not {entry.manifest_digest, *entry.other_digests} & set(entry.leftovers)
            assert bool(entry.leftovers) == bool(entry.leftovers_since)

    @invariant()
    def gates_open_to_nodes_that_hold_what_is_asked_for(self) -> None:
        """Also while the operator hasn't seen yet what happened."""
        owner = make_owner(self.world.spec, self.world.status)
        published = self.world.status.published
        for asked, expected in {"": published.manifest_digest if published else "", **ASKED}.items():
            require = f"llama@{asked}" if asked else "llama"
            pod = gate.GatedPod("team", "server", "pod-uid", "1", require)
            model = staged_model(owner, asked, self.world.nodes.values(), label_nodes=True)
            decision = gate.decide(pod, {gate.Requirement("team", "llama", asked): model}, label_nodes=True)
            if isinstance(decision, gate.Lift):
                assert model.digest == expected
                assert decision.patch["metadata"]["annotations"][names.DIGEST_ANNOTATION] == expected
                boots = [self.world.nodes[name].boot_id for name in model.holders]
                assert boots
                assert all(expected in self.proven[boot] for boot in boots)

    def teardown(self) -> None:
        """Faults stop, and the spec asks for the second revision, then for the first one again: each is there in the end."""
        if not self.world.nodes:
            return
        for source in ("second", "first"):
            self.edit(make_source(source, 1, 1, 1))
            for _ in range(12):
                self.operator_runs()
                for name in list(self.world.jobs):
                    self._end(name, good=True)
                self.world.collect()
                self.world.pass_time(700)
            found = {condition.type: condition.status for condition in self.world.status.conditions}
            assert found == {"Available": "True", "Ready": "True"}
            published = self.world.status.published
            assert published is not None
            assert (published.manifest_digest, published.revision) == (EXPECTED[source], COMMITS[source])
            assert published.path == f"/data/team/llama/{EXPECTED[source].removeprefix('sha256:')}"
        for node in self.world.nodes.values():
            entry = self.world.status.nodes[node.name]
            known = {entry.manifest_digest, *entry.other_digests, *entry.leftovers}
            assert self.disks[node.uid] <= known, "nothing lies on a disk that nobody knows of"
            assert {names.label_digest(FIRST), names.label_digest(SECOND)} <= set(
                names.staged_labels(node.labels).values()
            )


TestRollout = Rollout.TestCase
TestRollout.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
