"""A small cluster in memory for the property test of the planner: it does to Jobs and nodes what the test tells it.

A stand-in for the API server, the Job controller and the kubelets; the operator's `apply` is played by `cycle`.
"""

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Literal

from modelweights_operator.api import v1alpha1 as api
from modelweights_operator.domain import names
from modelweights_operator.domain.plan import Plan, make_plan
from modelweights_operator.domain.snapshot import ContainerState, EngineConfigMap, Node, Snapshot, StagingJob
from tests.unit.domain.samples import (
    DIGEST_A,
    NOW,
    POLICY,
    failure_text,
    make_node,
    make_owner,
    make_pod,
    make_spec,
    report_text,
)


@dataclass
class World:
    """What the API server holds, and the time.

    Attributes:
        files: Per node name, the digest of the checkpoint on its disk.
        joined: How many nodes ever joined: no two have the same UID, be it at the same moment.
        promised: Per UID of a Job, the checkpoint that its node's disk held when it was made good.
    """

    spec: api.Spec = field(default_factory=make_spec)
    status: api.Status = field(default_factory=api.Status)
    generation: int = 1
    nodes: dict[str, Node] = field(default_factory=dict)
    jobs: dict[str, StagingJob] = field(default_factory=dict)
    config_map: EngineConfigMap | None = None
    files: dict[str, str] = field(default_factory=dict)
    now: datetime = NOW
    again_after_seconds: float | None = None
    joined: int = 0
    retry: str = ""

    # --- the operator ---------------------------------------------------------------------------------------------

    def cycle(self, steps: int = 99) -> Plan:
        """Plan and apply; with fewer steps the operator dies in between."""
        owner = make_owner(self.spec, self.status, generation=self.generation, retry=self.retry)
        nodes = tuple(self.nodes.values())
        staging = tuple(job for job in self.jobs.values() if not job.follows)
        refreshes = tuple(job for job in self.jobs.values() if job.follows)
        plan = make_plan(Snapshot(owner, nodes, staging, self.config_map, POLICY, refreshes=refreshes), self.now)
        effects = [self._delete, self._create, self._record, self._label, self._publish, self._write, self._finish]
        for effect in effects[:steps]:
            effect(plan)
        return plan

    def _delete(self, plan: Plan) -> None:
        for name in plan.delete_jobs:
            self.jobs[name] = replace(self.jobs[name], deleting=True)

    def _create(self, plan: Plan) -> None:
        for manifest in plan.create_jobs:
            metadata = manifest["metadata"]
            notes = metadata["annotations"]
            job = StagingJob(
                name=metadata["name"],
                node_name=notes[names.NODE_ANNOTATION],
                node_uid=notes[names.NODE_UID_ANNOTATION],
                staging_digest=notes[names.STAGING_DIGEST_ANNOTATION],
                boot_id=notes[names.BOOT_ID_ANNOTATION],
                round=int(notes.get(names.ROUND_ANNOTATION, "0")),
                follows=notes.get(names.FOLLOWS_ANNOTATION, ""),
                created_at=self.now,
                source_digest=notes.get(names.SOURCE_DIGEST_ANNOTATION, ""),
                revision=notes.get(names.REVISION_ANNOTATION, ""),
            )
            self.jobs.setdefault(job.name, job)

    def _record(self, plan: Plan) -> None:
        for name, text in plan.record_results.items():
            self.jobs[name] = replace(self.jobs[name], result=text)

    def _label(self, plan: Plan) -> None:
        for name, changes in plan.label_nodes.items():
            labels = {**self.nodes[name].labels, **changes}
            left = {key: value for key, value in labels.items() if value is not None}
            self.nodes[name] = replace(self.nodes[name], labels=left)

    def _publish(self, plan: Plan) -> None:
        if plan.config_map is not None:
            self.config_map = EngineConfigMap(ours=True, data=plan.config_map["data"])

    def _write(self, plan: Plan) -> None:
        self.status, self.again_after_seconds = plan.status, plan.again_after_seconds

    def _finish(self, plan: Plan) -> None:
        for name in plan.finished_jobs:
            self.jobs[name] = replace(self.jobs[name], deleting=True)

    def is_ready(self) -> bool:
        """Whether the status says that pods may start, and that nothing is left to do."""
        found = {condition.type: condition.status for condition in self.status.conditions}
        return found == {"Available": "True", "Ready": "True"}

    # --- the cluster ----------------------------------------------------------------------------------------------

    def pass_time(self, seconds: float) -> None:
        """Let time pass."""
        self.now += timedelta(seconds=seconds)

    def collect(self) -> None:
        """Let the garbage collector end its work."""
        self.jobs = {name: job for name, job in self.jobs.items() if not job.deleting}

    def end_job(self, name: str, exit_code: int, resident_percent: float = 99.0) -> None:
        """End a running Job: with the digest of the node's files, with what it left warm, or with a failure."""
        job = self.jobs[name]
        if job.state != "Active" or job.deleting:
            return
        good = exit_code == 0
        if job.follows:
            report = (
                report_text(step="refresh", residentPercent=resident_percent)
                if good
                else failure_text("Gone", exit_code)
            )
            pod = make_pod(ContainerState("refresh", exit_code=exit_code, message=report))
            self.jobs[name] = replace(job, state="Complete" if good else "Failed", finished_at=self.now, pods=(pod,))
            return
        text = report_text(manifestDigest=self.files[job.node_name]) if good else failure_text("Broken", exit_code)
        self.finish_job(name, "Complete" if good else "Failed", text)

    def finish_job(self, name: str, state: Literal["Complete", "Failed"], text: str) -> None:
        """End a Job with a report."""
        self.jobs[name] = replace(self.jobs[name], state=state, finished_at=self.now, result=text)

    def add_node(self, name: str, digest: str = DIGEST_A) -> None:
        """Let a node join, with a checkpoint on its disk; one of that name comes back as another node."""
        self.joined += 1
        uid = f"uid-{name}-{self.joined}"
        self.nodes[name] = make_node(name, uid=uid, boot_id=f"boot-{uid}")
        self.files[name] = digest

    def reboot(self, name: str) -> None:
        """Give a node another boot."""
        node = self.nodes[name]
        first, _, count = node.boot_id.partition("+")
        self.nodes[name] = replace(node, boot_id=f"{first}+{int(count or 0) + 1}")

    def change_node(self, name: str, *, ready: bool, cordoned: bool) -> None:
        """Make a node ready or not, cordoned or not."""
        self.nodes[name] = replace(self.nodes[name], ready=ready, cordoned=cordoned)

    def edit(self, spec: api.Spec) -> None:
        """Change the spec."""
        self.spec, self.generation = spec, self.generation + 1
