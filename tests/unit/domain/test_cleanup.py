"""What goes from the nodes' disks, when, and what keeps it: tables for retention, use and deletion."""

from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from modelweights_operator.api import v1alpha1 as api
from modelweights_operator.domain import cleanup, names, retention
from modelweights_operator.domain.cleanup import Cleanup
from modelweights_operator.domain.cleanup_jobs import CleanupJob, Target, cleanup_job
from modelweights_operator.domain.clock import rfc3339
from modelweights_operator.domain.retention import World
from modelweights_operator.domain.snapshot import Node, Owner, Reader, StorageClass, Taint
from modelweights_operator.domain.usage import PodUse, users
from tests.unit.domain.samples import (
    DIGEST_A,
    DIGEST_B,
    NOW,
    OWNER_UID,
    POLICY,
    ago,
    make_fetch_spec,
    make_job,
    make_node,
    make_owner,
    make_spec,
)

SITE = replace(POLICY, namespace="system", pull_secrets=("pull",))
NVME, SHARED = POLICY.storage_classes
DIGEST_C = "sha256:" + "c" * 64
FOLDER = f"/data/team/llama/{DIGEST_A.removeprefix('sha256:')}"
NODE = make_node()
JOB = ("system", "clean-1")


def revision(digest: str, superseded: float | None = None, path: str = "") -> api.Revision:
    at = "" if superseded is None else rfc3339(ago(superseded))
    where = path or f"/data/team/llama/{digest.removeprefix('sha256:')}"
    return api.Revision(manifest_digest=digest, path=where, size_bytes=100, superseded_at=at)


def entry(*others: str, digest: str = DIGEST_B, state: str = "Ready", **fields: Any) -> api.NodeStatus:
    return api.NodeStatus.model_validate(
        {
            "state": state,
            "manifest_digest": digest,
            "other_digests": others,
            "bootID": NODE.boot_id,
            "last_transition_time": rfc3339(ago(50)),
            **fields,
        }
    )


def owner_of(*others: str, superseded: float = 700, spec: api.Spec | None = None, **changes: Any) -> Owner:
    """B is published, A was before it; the node holds B and what is named beside."""
    status = api.Status(
        published=revision(DIGEST_B),
        previous=(revision(DIGEST_A, superseded),),
        nodes={"node-a": entry(*others)},
    )
    return make_owner(spec or make_fetch_spec(), status, **changes)


def world(owner: Owner, *nodes: Node, **fields: Any) -> World:
    return World(owner, nodes or (NODE,), policy=SITE, **fields)


def decide(given: World, *pods: PodUse, now: datetime = NOW) -> Cleanup:
    targets, _ = retention.due(given, now)
    return cleanup.plan(given, targets, {node.name: pods for node in given.nodes}, now)


def made(plan: Cleanup) -> list[tuple[str, str]]:
    """Per Job that is made, its node and the digests in it."""
    found = [job["metadata"]["annotations"] for job in plan.create]
    return [(each[names.NODE_ANNOTATION], each[names.CLEANUP_DIGESTS_ANNOTATION]) for each in found]


def job(*digests: str, **changes: Any) -> CleanupJob:
    fields: dict[str, Any] = {
        "name": "clean-1",
        "namespace": "system",
        "owner_uid": OWNER_UID,
        "node_name": NODE.name,
        "node_uid": NODE.uid,
        "class_name": "nvme",
        "digests": frozenset(digests),
        "round": 0,
        "created_at": ago(30),
        **changes,
    }
    return CleanupJob(**fields)


# --- retention --------------------------------------------------------------------------------------------------------

RETENTION = {
    "after the grace period it goes": ({}, 601, True),
    "within the grace period it stays": ({}, 599, False),
    "without a grace period it goes at once": ({"gracePeriodSeconds": 0}, 0, True),
    "one that lies ahead by less than the period is waited for": ({}, -600, False),
    "one that lies further ahead comes from a wrong clock and is over": ({}, -601, True),
    "kept ones stay": ({"retention": "Keep"}, 10**6, False),
    "those that are kept until there is no room stay": ({"retention": "LeastRecentlyUsed"}, 10**6, False),
}


@pytest.mark.parametrize(("storage", "seconds", "goes"), RETENTION.values(), ids=RETENTION.keys())
def test_retention(storage: dict[str, Any], seconds: float, goes: bool) -> None:  # noqa: FBT001
    owner = owner_of(DIGEST_A, superseded=seconds, spec=make_fetch_spec(storage=storage))
    assert made(decide(world(owner))) == ([("node-a", DIGEST_A)] if goes else [])


def test_it_is_looked_again_when_the_period_ends() -> None:
    _, again = retention.due(world(owner_of(DIGEST_A, superseded=500)), NOW)
    assert again == 100


def test_room_for_others_is_made_of_what_is_kept_as_long_as_there_is_room() -> None:
    owner = owner_of(DIGEST_A, spec=make_fetch_spec(storage={"retention": "LeastRecentlyUsed"}))
    assert made(decide(world(owner, victims={"node-a": frozenset({DIGEST_A})}))) == [("node-a", DIGEST_A)]


LRU = make_fetch_spec(storage={"retention": "LeastRecentlyUsed"})
ASKED_ABOUT = {
    "a pod uses it": ({}, [PodUse("apps", "engine", "node-a", digests=DIGEST_A)], True),
    "no pod uses it": ({}, [], False),
    "nobody asked about the node's pods": ({}, None, None),
    "a waiting pod asks for it": ({"asked": True}, [], True),
    "its cleanup was given up": ({"jobs": "given up"}, [], True),
    "the object is suspended": ({"suspend": True}, [], True),
}


@pytest.mark.parametrize(("changes", "pods", "stays"), ASKED_ABOUT.values(), ids=ASKED_ABOUT.keys())
def test_what_others_need_the_room_of_has_to_stay_when(
    changes: dict[str, Any],
    pods: list[PodUse] | None,
    stays: bool | None,  # noqa: FBT001
) -> None:
    spec = LRU.model_copy(update={"suspend": "suspend" in changes})
    jobs = (job(DIGEST_A, state="Failed", round=4),) if "jobs" in changes else ()
    victims = {"node-a": frozenset({DIGEST_A})}
    given = world(owner_of(DIGEST_A, spec=spec), jobs=jobs, asked="asked" in changes, victims=victims)
    targets, _ = retention.due(given, NOW)
    usage = {} if pods is None else {"node-a": tuple(pods)}
    found = cleanup.has_to_stay(given, cleanup.without_given_up(given, targets), usage)
    assert found.get(("node-a", DIGEST_A)) == stays


def test_what_was_never_published_goes_after_the_node_went_on() -> None:
    owner = owner_of(DIGEST_C, spec=make_fetch_spec(storage={"gracePeriodSeconds": 49}))
    assert made(decide(world(owner))) == [("node-a", DIGEST_C)]
    assert made(decide(world(owner_of(DIGEST_C)))) == []


NEVER = {
    "what is published": owner_of(DIGEST_B),
    "what a node was staged with last": make_owner(
        make_fetch_spec(storage={"gracePeriodSeconds": 0}),
        api.Status(previous=(revision(DIGEST_A, 9),), nodes={"node-a": entry(DIGEST_A, digest=DIGEST_A)}),
    ),
    "a candidate": make_owner(
        make_fetch_spec(storage={"gracePeriodSeconds": 0}),
        api.Status(published=revision(DIGEST_B), candidate=revision(DIGEST_A), nodes={"node-a": entry(DIGEST_A)}),
    ),
    "files that are used in place": make_owner(
        make_spec(),
        api.Status(previous=(revision(DIGEST_A, 900, "/models/llama"),), nodes={"node-a": entry(DIGEST_A)}),
    ),
    "files of a class that is no more": make_owner(
        make_fetch_spec(),
        api.Status(previous=(revision(DIGEST_A, 900, f"/gone{FOLDER}"),), nodes={"node-a": entry(DIGEST_A)}),
    ),
    "anything while it is suspended": owner_of(DIGEST_A, spec=make_fetch_spec(suspend=True)),
}


@pytest.mark.parametrize("owner", NEVER.values(), ids=NEVER.keys())
def test_it_never_goes(owner: Owner) -> None:
    plan = decide(world(owner))
    assert (made(plan), plan.leaving) == ([], {})


def test_what_a_waiting_pod_asks_for_by_its_revision_stays() -> None:
    assert made(decide(world(owner_of(DIGEST_A), asked=True))) == []


@pytest.mark.parametrize(
    ("require", "asks"),
    [("llama@main", True), ("other,team/llama@" + "a" * 40, True), ("llama", False), ("llama-2@x,b/llama@x", False)],
)
def test_which_pods_ask_for_a_revision(require: str, asks: bool) -> None:  # noqa: FBT001
    assert retention.asks_for_revision(require, "team", make_owner()) == asks


# --- one node ---------------------------------------------------------------------------------------------------------

STARVED = replace(NODE, taints=(Taint("node.kubernetes.io/disk-pressure", "", "NoSchedule"),))
WAITS = {
    "a node that isn't ready": {"nodes": (replace(NODE, ready=False),)},
    "a node whose kubelet lets no pod in": {"nodes": (STARVED,)},
    "a node that is gone": {"nodes": ()},
    "a staging on it": {"staging": (make_job(spec=make_fetch_spec()),)},
    "a cleanup that runs there": {"jobs": (job(DIGEST_A),)},
    "a cleanup that is being deleted": {"jobs": (job(DIGEST_C, deleting=True),)},
    "a cleanup that failed a moment ago": {"jobs": (job(DIGEST_A, state="Failed", finished_at=ago(19)),)},
}


@pytest.mark.parametrize("fields", WAITS.values(), ids=WAITS.keys())
def test_a_cleanup_waits_for(fields: dict[str, Any]) -> None:
    nodes = fields.pop("nodes", (NODE,))
    assert made(decide(World(owner_of(DIGEST_A), nodes, policy=SITE, **fields))) == []


def test_the_label_goes_before_the_files() -> None:
    """A pod that is bound in between is seen at the second look."""
    labelled = make_node(labels={**NODE.labels, names.node_label(OWNER_UID, DIGEST_A): names.label_digest(DIGEST_A)})
    plan = decide(world(owner_of(DIGEST_A), labelled))
    assert (made(plan), plan.leaving) == ([], {"node-a": frozenset({DIGEST_A})})
    assert plan.again_after_seconds == cleanup.LABEL_SECONDS
    plan = decide(world(owner_of(DIGEST_A)))
    assert (made(plan), plan.leaving) == ([("node-a", DIGEST_A)], {"node-a": frozenset({DIGEST_A})})


def test_the_label_stays_off_while_the_job_runs() -> None:
    assert decide(world(owner_of(DIGEST_A), jobs=(job(DIGEST_A),))).leaving == {"node-a": frozenset({DIGEST_A})}


def test_what_is_gone_leaves_the_status_and_then_its_job_goes() -> None:
    plan = decide(world(owner_of(DIGEST_A), jobs=(job(DIGEST_A, state="Complete"),)))
    assert (plan.cleaned, plan.finished) == ({"node-a": frozenset({DIGEST_A})}, (JOB,))
    assert made(plan) == []


def test_a_job_ends_when_what_it_removes_is_wanted_again() -> None:
    assert decide(world(owner_of(DIGEST_A), jobs=(job(DIGEST_B),))).delete == (JOB,)


def test_a_job_on_a_node_of_another_life_ends() -> None:
    assert decide(world(owner_of(DIGEST_A), jobs=(job(DIGEST_A, node_uid="former"),))).delete == (JOB,)


@pytest.mark.parametrize(("attempt", "seconds"), [(0, 20), (1, 40), (2, 80), (3, 160)])
def test_a_failed_job_is_followed_by_the_next_one_later_and_later(attempt: int, seconds: int) -> None:
    def planned(passed: float) -> Cleanup:
        failed = job(DIGEST_A, state="Failed", round=attempt, finished_at=ago(passed))
        return decide(world(owner_of(DIGEST_A), jobs=(failed,)))

    assert made(planned(seconds - 1)) == []
    plan = planned(seconds + 1)
    assert plan.create[0]["metadata"]["annotations"][names.ROUND_ANNOTATION] == str(attempt + 1)
    assert plan.delete == (JOB,)


def test_after_some_rounds_it_is_said_and_left() -> None:
    failed = job(DIGEST_A, state="Failed", round=4, finished_at=ago(10**6), reason="NotWritable", message="no right")
    plan = decide(world(owner_of(DIGEST_A), jobs=(failed,)))
    assert (made(plan), plan.delete) == ([], ())
    (notice,) = plan.notices
    assert notice.reason == cleanup.CLEANUP_FAILED
    assert "no right" in notice.message


def test_nodes_that_ran_out_of_rounds_keep_no_other_waiting() -> None:
    nodes = tuple(make_node(f"n{number:02}") for number in range(26))
    status = api.Status(
        published=revision(DIGEST_B),
        previous=(revision(DIGEST_A, 900),),
        nodes={node.name: entry(DIGEST_A) for node in nodes},
    )
    jobs = tuple(
        job(DIGEST_A, state="Failed", round=4, node_name=node.name, node_uid=node.uid, finished_at=ago(5))
        for node in nodes[:25]
    )
    given = world(make_owner(make_fetch_spec(), status), *nodes, jobs=jobs)
    targets, _ = retention.due(given, NOW)
    asking = cleanup.without_given_up(given, targets)
    assert [target.node.name for target in asking] == ["n25"]
    plan = cleanup.plan(given, targets, {"n25": ()}, NOW)
    assert made(plan) == [("n25", DIGEST_A)]
    # What is left of it there is nothing to send a pod to.
    assert set(plan.leaving) == {node.name for node in nodes}
    # Another checkpoint of the node is another matter.
    both = replace(targets[0], digests=frozenset({DIGEST_A, DIGEST_C}))
    assert [target.digests for target in cleanup.without_given_up(given, [both])] == [{DIGEST_C}]


def test_a_deletion_ends_though_more_nodes_ran_out_of_rounds_than_are_asked_at_a_time() -> None:
    nodes = tuple(make_node(f"n{number:02}") for number in range(25))
    status = api.Status(published=revision(DIGEST_B), nodes={node.name: entry() for node in nodes})
    owner = make_owner(DELETE, status, deleting=True, deleted_at=ago(10), finalizers=HELD)
    jobs = tuple(
        job(state="Failed", round=4, node_name=node.name, node_uid=node.uid, finished_at=ago(5), message="bad disk")
        for node in nodes
    )
    given = world(owner, *nodes, jobs=jobs)
    targets, _ = retention.due(given, NOW)
    assert cleanup.without_given_up(given, targets) == ()
    assert cleanup.plan(given, targets, {}, NOW).released


def test_no_more_than_some_run_at_a_time() -> None:
    nodes = tuple(make_node(f"n{number}") for number in range(30))
    status = api.Status(
        published=revision(DIGEST_B),
        previous=(revision(DIGEST_A, 900),),
        nodes={node.name: entry(DIGEST_A) for node in nodes},
    )
    plan = decide(world(make_owner(make_fetch_spec(), status), *nodes))
    assert len(plan.create) == cleanup.MAX_AT_A_TIME
    assert plan.again_after_seconds


# --- use --------------------------------------------------------------------------------------------------------------


def pod(node: str = "node-a", **fields: Any) -> PodUse:
    return PodUse("apps", "engine", node, **fields)


USE = {
    "was let in with it": (pod(digests=f"{DIGEST_C},{DIGEST_A}"), True),
    "was let in with it and isn't bound yet": (pod("", digests=DIGEST_A), True),
    "was let in with another one": (pod(digests=DIGEST_B, host_paths=("/data",)), False),
    "mounts the root": (pod(host_paths=("/data",)), True),
    "mounts its folder": (pod(host_paths=(FOLDER,)), True),
    "mounts a folder in it": (pod(host_paths=(f"{FOLDER}/models--a--b",)), True),
    "mounts another one": (pod(host_paths=(f"/data/team/llama/{'b' * 64}",)), False),
    "mounts one whose name begins alike": (pod(host_paths=("/data/team/llama-2",)), False),
    "mounts a namespace by a crooked path": (pod(host_paths=("/data/x/../team/",)), True),
    "mounts the whole disk, as agents do": (pod(host_paths=("/", "/var")), False),
    "mounts a claim": (pod(claims=("models",)), False),
    "is ours": (pod(host_paths=("/data",), ours=True), False),
    "mounts nothing": (pod(), False),
}


@pytest.mark.parametrize(("user", "keeps"), USE.values(), ids=USE.keys())
def test_a_pod_that(user: PodUse, keeps: bool) -> None:  # noqa: FBT001
    plan = decide(world(owner_of(DIGEST_A)), user)
    assert (not plan.create) == keeps
    assert plan.leaving == ({} if keeps else {"node-a": frozenset({DIGEST_A})})
    assert plan.again_after_seconds == (cleanup.USE_SECONDS if keeps else None)


@pytest.mark.parametrize(
    ("user", "keeps"),
    [
        (PodUse("team", "engine", "node-a", claims=("models",)), True),
        (PodUse("other", "engine", "node-a", claims=("models",)), False),
        (PodUse("team", "engine", "node-a", claims=("models",), digests=DIGEST_B), False),
        (PodUse("team", "engine", "node-a", host_paths=("/data",)), False),
    ],
)
def test_of_a_claim_its_pods_are_the_users(user: PodUse, keeps: bool) -> None:  # noqa: FBT001
    assert bool(users([user], make_owner(), SHARED, DIGEST_A)) == keeps


READERS = (Reader("web", "catalogue", "team"), Reader("web", "others", "elsewhere"))


@pytest.mark.parametrize("where", [NVME, SHARED], ids=["root", "claim"])
@pytest.mark.parametrize(
    ("user", "keeps"),
    [
        (PodUse("web", "engine", "node-a", claims=("catalogue",)), True),
        (PodUse("web", "engine", "node-a", claims=("others",)), False),
        (PodUse("other", "engine", "node-a", claims=("catalogue",)), False),
        # It says itself which one it uses.
        (PodUse("web", "engine", "node-a", claims=("catalogue",), digests=DIGEST_B), False),
    ],
)
def test_who_reads_it_in_another_namespace_uses_it_without_any_annotation(
    where: StorageClass,
    user: PodUse,
    keeps: bool,  # noqa: FBT001
) -> None:
    assert bool(users([user], make_owner(), replace(where, readers=READERS), DIGEST_A)) == keeps


@pytest.mark.parametrize(
    ("namespace", "require", "keeps"),
    [
        ("web", "team/llama", True),
        ("web", "team/qwen, team/llama@v1", True),
        ("team", "llama", True),
        ("web", "llama", False),
        ("web", "team/qwen", False),
        ("web", "", False),
    ],
)
def test_where_all_goes_the_pods_that_required_it_are_users_wherever_they_are(
    namespace: str,
    require: str,
    keeps: bool,  # noqa: FBT001
) -> None:
    """Whatever they mount: what a volume of another namespace leads to is not told."""
    pod = PodUse(namespace, "engine", "node-a", digests=DIGEST_A, require=require, claims=("unknown",))
    assert bool(users([pod], make_owner(), SHARED, "")) == keeps


# --- deletion ---------------------------------------------------------------------------------------------------------

DELETE = make_fetch_spec(deletionPolicy="Delete")
HELD = (names.FINALIZER,)


def deleted(seconds: float = 10, spec: api.Spec = DELETE, **changes: Any) -> Owner:
    return owner_of(spec=spec, deleting=True, deleted_at=ago(seconds), finalizers=("x", *HELD), **changes)


def test_the_finalizer_comes_with_the_policy_and_goes_with_it() -> None:
    assert decide(world(owner_of(spec=DELETE, finalizers=("x",)))).finalizers == ("x", *HELD)
    assert decide(world(owner_of(spec=DELETE, finalizers=HELD))).finalizers is None
    assert decide(world(owner_of(finalizers=("x", *HELD)))).finalizers == ("x",)
    assert decide(world(owner_of(finalizers=("x",)))).finalizers is None


def test_without_the_right_it_is_said_that_nothing_goes() -> None:
    plan = decide(world(owner_of(spec=DELETE), may_hold=False))
    assert (plan.finalizers, [each.reason for each in plan.notices]) == (None, [cleanup.CLEANUP_OFF])


def test_the_finalizer_stays_until_each_node_is_clean() -> None:
    plan = decide(world(deleted()))
    assert (made(plan), plan.finalizers, plan.released) == ([("node-a", "")], None, False)
    plan = decide(world(deleted(), jobs=(job(state="Complete"),)))
    assert (plan.finalizers, plan.released, plan.finished) == (("x",), True, (JOB,))
    assert [(each.kind, each.reason) for each in plan.notices] == [("Normal", cleanup.CLEANED)]


def test_stagings_end_before_their_files_go() -> None:
    staging = make_job(spec=DELETE)
    plan = decide(world(deleted(), staging=(staging,), jobs=(job(DIGEST_A),)))
    assert (plan.delete_staging, plan.delete, made(plan)) == ((staging.name,), (JOB,), [])


def test_a_staging_of_which_no_status_tells_is_noted_before_it_ends() -> None:
    """Deleted between the Job and the status: the Job goes, and its files would stay for ever."""
    staging = make_job(spec=DELETE)
    unseen = replace(deleted(), status=api.Status())
    plan = decide(world(unseen, staging=(staging,)))
    assert (list(plan.noted), plan.delete_staging, plan.released) == (["node-a"], (staging.name,), False)
    assert plan.noted["node-a"].state == "Staging"
    known = replace(unseen, status=api.Status(nodes=plan.noted))
    assert made(decide(world(known))) == [("node-a", "")]
    assert decide(world(known, staging=(staging,))).noted == {}


TERMINATING = "forbidden: unable to create new content in namespace team because it is being terminated"
AT_ONCE = {
    "the policy was changed": (world(deleted(spec=make_fetch_spec())), []),
    "the node is gone": (World(deleted(), (), policy=SITE), [cleanup.CLEANED]),
    "there is no class for it any more": (World(deleted(), (NODE,), policy=replace(SITE, storage_classes=())), [cleanup.CLEANED]),
    "the operator doesn't know where to run Jobs": (
        World(deleted(), (NODE,), policy=replace(SITE, namespace="")),
        [cleanup.LEFT_BEHIND],
    ),
    "the namespace of the claim goes": (world(deleted(), refusals={"node-a": TERMINATING}), [cleanup.LEFT_BEHIND]),
    "cleaning failed each time": (
        world(deleted(), jobs=(job(state="Failed", round=4, finished_at=ago(5), message="bad disk"),)),
        [cleanup.CLEANUP_FAILED, cleanup.LEFT_BEHIND],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("given", "reasons"), AT_ONCE.values(), ids=AT_ONCE.keys())
def test_a_deletion_ends_at_once_when(given: World, reasons: list[str]) -> None:
    plan = decide(given)
    assert (plan.released, plan.finalizers) == (True, ("x",))
    assert [each.reason for each in plan.notices] == reasons


AFTER_A_WHILE = {
    "a node that isn't ready": ({"nodes": (replace(NODE, ready=False),)}, 300),
    "a node whose kubelet lets no pod in": ({"nodes": (STARVED,)}, 300),
    "a pod that uses it": ({"pods": (pod(host_paths=("/data",)),)}, 300),
    "a staging that doesn't end": ({"staging": (make_job(spec=DELETE, deleting=True),)}, 300),
    "a pod that doesn't start": ({"jobs": (job(),)}, 300),
    "a refusal": ({"refusals": {"node-a": "exceeded quota"}}, 300),
    "a Job that runs": ({"jobs": (job(running=True),)}, 1800),
}


@pytest.mark.parametrize(("fields", "seconds"), AFTER_A_WHILE.values(), ids=AFTER_A_WHILE.keys())
def test_a_deletion_waits_for_some_time_for(fields: dict[str, Any], seconds: int) -> None:
    fields = dict(fields)
    nodes, pods = fields.pop("nodes", (NODE,)), fields.pop("pods", ())
    early = decide(World(deleted(seconds - 1), nodes, policy=SITE, **fields), *pods)
    assert (early.released, bool(early.again_after_seconds)) == (False, True)
    late = decide(World(deleted(seconds + 1), nodes, policy=SITE, **fields), *pods)
    assert late.released
    assert late.notices[-1].reason == cleanup.LEFT_BEHIND
    assert "node-a: /data/team/llama" in late.notices[-1].message


def test_a_node_that_nobody_asked_about_waits_for_its_turn() -> None:
    given = world(deleted(400))
    targets, _ = retention.due(given, NOW)
    plan = cleanup.plan(given, targets, {}, NOW)
    assert (plan.released, plan.create) == (False, ())


def test_each_class_in_which_it_had_files_is_cleaned() -> None:
    owner = deleted(spec=make_fetch_spec(deletionPolicy="Delete", storage={"class": "shared"}))
    classes = [where.name for where in retention.classes(owner, SITE)]
    assert classes == ["shared", "nvme"]


# --- the Job ----------------------------------------------------------------------------------------------------------


def job_of(where: StorageClass, digests: frozenset[str] = frozenset()) -> dict[str, Any]:
    target = Target(NODE, where, digests)
    return cleanup_job(deleted(), target, attempt=1, policy=SITE)


def test_of_a_root_it_sees_the_namespaces_folder_and_the_markers_alone() -> None:
    found = job_of(NVME, frozenset({DIGEST_A}))
    spec = found["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert found["metadata"]["namespace"] == "system"
    assert [(mount["mountPath"], mount["subPath"]) for mount in container["volumeMounts"]] == [
        ("/data/team", "team"),
        ("/run/modelweights/markers", ".modelweights"),
    ]
    assert container["args"][:4] == ["clean", "/data/team/llama", "--root", "/data"]
    assert container["args"][-2:] == ["--digest", DIGEST_A]
    assert spec["imagePullSecrets"] == [{"name": "pull"}]
    assert spec["securityContext"]["runAsUser"] == 65532
    assert spec["automountServiceAccountToken"] is False


def test_of_a_claim_it_is_in_the_objects_namespace() -> None:
    found = job_of(SHARED)
    (container,) = found["spec"]["template"]["spec"]["containers"]
    assert found["metadata"]["namespace"] == "team"
    assert container["args"][1:4] == ["/mnt/model/llama", "--root", "/mnt/model"]
    assert container["args"][-1] == "--all"
    assert "--marker-dir" not in container["args"]


def test_it_ends_by_itself_and_goes_by_itself() -> None:
    spec = job_of(NVME)["spec"]
    assert (spec["backoffLimit"], spec["activeDeadlineSeconds"], spec["ttlSecondsAfterFinished"]) == (0, 900, 86_400)


def test_its_name_says_what_it_is_for() -> None:
    names_found = {
        job_of(where, digests)["metadata"]["name"]
        for where in (NVME, SHARED)
        for digests in (frozenset[str](), frozenset({DIGEST_A}), frozenset({DIGEST_A, DIGEST_B}))
    }
    assert len(names_found) == 6
    assert all(name.startswith("clean-llama-") for name in names_found)


def test_every_node_has_its_turn_though_pods_stay_on_the_first_ones() -> None:
    nodes = [f"node-{number:02}" for number in range(50)]
    seen: list[str] = []
    last = ""
    for _ in range(3):
        asked, last = cleanup.next_asked(nodes, (), last)
        assert len(asked) == cleanup.MAX_NODES_ASKED
        seen += asked
    assert set(seen) == set(nodes)


def test_a_node_whose_label_went_is_asked_about_before_the_others() -> None:
    nodes = [f"node-{number:02}" for number in range(50)]
    asked, last = cleanup.next_asked(nodes, {"node-49"}, "node-19")
    assert (asked[0], asked[1], last) == ("node-49", "node-20", "node-38")
    assert cleanup.next_asked([], (), last) == ([], last)


def test_an_annotation_that_no_gate_reads_asks_for_nothing() -> None:
    assert not retention.asks_for_revision("llama@v1," + " " * 200_000, "team", make_owner())
