"""Views of a plan that the tests of the planner share; each plan is checked against kstatus on the way."""

from typing import Any

from modelweights_operator.api import v1alpha1 as api
from modelweights_operator.domain import engine, names
from modelweights_operator.domain.clock import rfc3339
from modelweights_operator.domain.plan import Plan, make_plan
from modelweights_operator.domain.snapshot import EngineConfigMap, Snapshot
from tests.unit.domain.samples import (
    DIGEST_A,
    DIGEST_B,
    NOW,
    OWNER_UID,
    ago,
    make_entry,
    make_node,
    make_owner,
    make_revision,
    make_snapshot,
    make_spec,
    make_status,
)
from tests.unit.domain.test_conditions import check_kstatus

A, B, C = make_node("node-a"), make_node("node-b"), make_node("node-c")
RECENTLY = rfc3339(ago(1))
LABEL, LABEL_B = names.node_label(OWNER_UID, DIGEST_A), names.node_label(OWNER_UID, DIGEST_B)
OURS = EngineConfigMap(ours=True, data=engine.settings(make_spec(), None, "/models/llama"))
THEIRS = EngineConfigMap(ours=False, data={})


def plan_of(snapshot: Snapshot) -> Plan:
    plan = make_plan(snapshot, NOW)
    check_kstatus(plan.status.conditions, snapshot.owner.generation)
    return plan


def reasons(plan: Plan) -> dict[str, str]:
    return {condition.type: condition.reason for condition in plan.status.conditions}


def states(plan: Plan) -> dict[str, tuple[str, str]]:
    return {name: (entry.state, entry.reason) for name, entry in plan.status.nodes.items()}


def is_true(plan: Plan, kind: str) -> bool:
    return any(condition.type == kind and condition.status == "True" for condition in plan.status.conditions)


def job_nodes(plan: Plan) -> list[str]:
    return [job["metadata"]["annotations"]["modelweights.io/node"] for job in plan.create_jobs]


def message(plan: Plan, kind: str = "Ready") -> str:
    return next(condition.message for condition in plan.status.conditions if condition.type == kind)


def with_spec(spec: api.Spec, *nodes: Any, status: api.Status | None = None, **fields: Any) -> Snapshot:
    return make_snapshot(make_owner(spec, status), nodes, **fields)


READY_STATUS = make_status({"node-a": make_entry(A), "node-b": make_entry(B)}, make_revision())
