"""What quotas, policies and people do to staging Jobs and pods, with the real Job controller: docs/cases.md.

The test plays scheduler and kubelet: no container runs here, and a pod ends when the test says so.
"""

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tests.cluster.api import ApiServer
from tests.integration.client import Kube, core_path, job_path
from tests.integration.cluster_double import Team, now, report
from tests.integration.conftest import RELEASE, SYSTEM, render
from tests.integration.operator_process import OperatorProcess
from tests.json_client import Json
from tests.polling import poll

CONTROLLERS = (
    "job-controller",
    "garbage-collector-controller",
    "namespace-controller",
    "resourcequota-controller",
)
EVICTED = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 80Mi."


@pytest.fixture(scope="module")
def admin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kube]:
    """The administrator of an API server with those controllers, and with the operator."""
    with ApiServer(CONTROLLERS) as server:
        server.kubectl("create", "namespace", SYSTEM)
        server.kubectl("apply", "--server-side", "-f", "-", input=render(RELEASE, "hostPathRoots={/models}"))
        server.kubectl("wait", "--for=condition=Established", "crd/modelweights.modelweights.io", "--timeout=20s")
        admin = Kube(server.kubeconfig)
        admin.create("/api/v1/nodes", {"metadata": {"name": "bystander"}})
        log = tmp_path_factory.mktemp("operator") / "log"
        with OperatorProcess(server.kubeconfig_for_service_account(SYSTEM, RELEASE), log) as operator:
            yield admin
            assert operator.probe("healthz") == 200
            assert operator.stop() == 0
            assert "Traceback" not in operator.log()


_numbers = itertools.count()


@pytest.fixture(scope="module")
def make_team(admin: Kube) -> Callable[..., Team]:
    """Makes a namespace with a node."""

    def make(**labels: str) -> Team:
        name = f"case-{next(_numbers)}"
        admin.create("/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
        team = Team(admin, name)
        team.add_node("a")
        return team

    return make


@pytest.fixture
def team(make_team: Callable[..., Team]) -> Team:
    """A namespace with a node and a ModelWeights."""
    team = make_team()
    team.create_model()
    return team


def pods_of(team: Team) -> list[Json]:
    """Those that aren't being deleted and may yet do something."""
    pods = team.admin.items(core_path(team.namespace, "pods"))
    return [
        pod for pod in pods if "deletionTimestamp" not in pod["metadata"] and pod["status"].get("phase") != "Failed"
    ]


def wait_for_pod(team: Team, other_than: str = "") -> Json:
    """The staging pod that the Job controller made."""

    def ask() -> Json | None:
        return next((pod for pod in pods_of(team) if pod["metadata"]["uid"] != other_than), None)

    return poll("a pod", ask, seconds=40)


def bind(team: Team, pod: Json) -> Json:
    """Play the scheduler."""
    path = f"{core_path(team.namespace, 'pods', pod['metadata']['name'])}/binding"
    target = {"apiVersion": "v1", "kind": "Node", "name": team.node_name("a")}
    team.admin.create(path, {"metadata": {"name": pod["metadata"]["name"]}, "target": target})
    return pod


def container(name: str, **state: object) -> Json:
    """A container's status; its state is running, waiting or terminated."""
    return {"name": name, "image": "x", "imageID": "x", "ready": False, "restartCount": 0, "state": state}


def write_status(team: Team, pod: Json, **status: object) -> None:
    """Play the kubelet."""
    path = f"{core_path(team.namespace, 'pods', pod['metadata']['name'])}/status"
    team.admin.patch(path, {"status": status})


# --- what refuses pods --------------------------------------------------------------------------------------------


def _quota(team: Team) -> None:
    quota = {"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
    path = core_path(team.namespace, "resourcequotas")
    team.admin.create(path, quota)
    poll("the quota counts", lambda: team.admin.get(f"{path}/none").get("status", {}).get("used"))


def _limits(team: Team) -> None:
    limit = {"type": "Container", "max": {"cpu": "1m"}, "default": {"cpu": "1m"}, "defaultRequest": {"cpu": "1m"}}
    path = core_path(team.namespace, "limitranges")
    team.admin.create(path, {"metadata": {"name": "tiny"}, "spec": {"limits": [limit]}})


def _policy(team: Team) -> None:
    """As a policy engine does: it takes what the API server would."""
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    here = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": team.namespace}}}
    policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolic"
    spec: Json = {
        "matchConstraints": {"resourceRules": [rule]},
        "validations": [{"expression": "'cost-centre' in object.metadata.labels", "message": "name your cost centre"}],
    }
    team.admin.create(f"{policies}ies", {"metadata": {"name": "cost"}, "spec": spec})
    binding = {"policyName": "cost", "validationActions": ["Deny"], "matchResources": here}
    team.admin.create(f"{policies}ybindings", {"metadata": {"name": "cost"}, "spec": binding})
    pod = {"metadata": {"name": "try"}, "spec": {"containers": [{"name": "c", "image": "x"}]}}
    path = f"{core_path(team.namespace, 'pods')}?dryRun=All"
    poll("the policy holds", lambda: team.admin.ask("POST", path, pod)[0] == 422)


REFUSALS: dict[str, tuple[dict[str, str], Callable[[Team], None] | None, str]] = {
    "a quota": ({}, _quota, "exceeded quota: none, requested: pods=1, used: pods=0, limited: pods=0"),
    "Pod Security": ({"pod-security.kubernetes.io/enforce": "restricted"}, None, 'violates PodSecurity "restricted'),
    "a LimitRange": ({}, _limits, "maximum cpu usage per Container is 1m"),
    "a policy engine": ({}, _policy, "name your cost centre"),
}


@pytest.fixture(scope="module")
def refused(make_team: Callable[..., Team]) -> dict[str, Team]:
    """A namespace for each that refuses; all of them wait at the same time."""
    teams = {}
    for name, (labels, prepare, _) in REFUSALS.items():
        teams[name] = make_team(**labels)
        if prepare:
            prepare(teams[name])
    for name, team in teams.items():
        team.create_model(staging={"resources": {"limits": {"cpu": "2"}}} if name == "a LimitRange" else {})
    return teams


@pytest.mark.parametrize("what", REFUSALS)
def test_who_refuses_pods_is_quoted_in_the_condition(refused: dict[str, Team], what: str) -> None:
    team = refused[what]
    message = team.wait_for("Stalled", "True", "PodRejected", seconds=30)
    assert REFUSALS[what][2] in message
    assert team.state("a") == "Staging PodRejected"
    assert team.model()["status"]["nodes"][team.node_name("a")].get("attempts", 0) == 0


def test_it_goes_on_by_itself_once_it_is_let(refused: dict[str, Team]) -> None:
    team = refused["a quota"]
    team.wait_for("Stalled", "True", "PodRejected", seconds=30)
    job = team.wait_for_job("a")
    team.admin.delete(core_path(team.namespace, "resourcequotas", "none"))
    wait_for_pod(team)
    team.wait_for("Ready", "False", "Staging")
    assert "Stalled" not in team.conditions()
    assert team.wait_for_job("a")["metadata"]["uid"] == job["metadata"]["uid"]


def test_a_quota_of_jobs_is_quoted_too(make_team: Callable[..., Team]) -> None:
    team = make_team()
    path = core_path(team.namespace, "resourcequotas")
    team.admin.create(path, {"metadata": {"name": "none"}, "spec": {"hard": {"count/jobs.batch": "0"}}})
    poll("the quota counts", lambda: team.admin.get(f"{path}/none").get("status", {}).get("used"))
    team.create_model()
    assert "exceeded quota: none" in team.wait_for("Stalled", "True", "JobRefused")


# --- what people do -----------------------------------------------------------------------------------------------


def test_a_job_deleted_by_hand_in_mid_run_is_made_again(team: Team) -> None:
    first = wait_for_pod(team)
    job = team.wait_for_job("a")
    team.admin.delete(job_path(team.namespace, job["metadata"]["name"]), propagationPolicy="Background")
    wait_for_pod(team, first["metadata"]["uid"])
    second = team.wait_for_job("a")
    assert second["metadata"]["uid"] != job["metadata"]["uid"]
    assert second["metadata"]["name"] == job["metadata"]["name"]
    poll("one pod is left", lambda: len(team.admin.items(core_path(team.namespace, "pods"))) == 1)


def test_a_pod_deleted_by_hand_in_mid_run_costs_one_round(team: Team) -> None:
    first = bind(team, wait_for_pod(team))
    path = core_path(team.namespace, "pods", first["metadata"]["name"])
    team.admin.delete(path)
    write_status(team, first, phase="Failed")
    team.admin.delete(path, gracePeriodSeconds=0)
    poll("it is counted", lambda: team.state("a").startswith("Failed"))
    assert team.model()["status"]["nodes"][team.node_name("a")]["attempts"] == 1
    wait_for_pod(team, first["metadata"]["uid"])
    team.wait_for("Ready", "False", "Staging")


def test_a_job_whose_parallelism_was_taken_says_so_and_goes_on_when_it_is_given_back(team: Team) -> None:
    wait_for_pod(team)
    path = job_path(team.namespace, team.wait_for_job("a")["metadata"]["name"])
    team.admin.patch(path, {"spec": {"parallelism": 0}})
    message = team.wait_for("Stalled", "True", "JobPaused")
    assert "set it to 1, or delete the Job" in message
    team.admin.patch(path, {"spec": {"parallelism": 1}})
    wait_for_pod(team)
    team.wait_for("Ready", "False", "Staging")


def test_a_queue_that_holds_a_job_back_is_no_failure(team: Team) -> None:
    wait_for_pod(team)
    path = job_path(team.namespace, team.wait_for_job("a")["metadata"]["name"])
    team.admin.patch(path, {"spec": {"suspend": True}})
    poll("it is said", lambda: team.state("a") == "Staging JobSuspended")
    assert team.conditions()["Reconciling"] == ("True", "Staging")
    team.admin.patch(path, {"spec": {"suspend": False}})
    poll("it goes on", lambda: team.state("a") == "Staging Starting")


# --- what kubelets do ---------------------------------------------------------------------------------------------


def _evict_three_times(team: Team) -> None:
    last = ""
    for _ in range(3):
        pod = wait_for_pod(team, last)
        last = pod["metadata"]["uid"]
        disruption = {"type": "DisruptionTarget", "status": "True", "lastTransitionTime": now()}
        write_status(team, pod, phase="Failed", reason="Evicted", message=EVICTED, conditions=[disruption])


@pytest.fixture(scope="module", autouse=True)
def evicted(make_team: Callable[..., Team]) -> Iterator[tuple[Team, Future[None]]]:
    """Begun before all other tests: between two pods the Job controller waits for 10 and for 20 seconds."""
    team = make_team()
    team.create_model()
    with ThreadPoolExecutor(1) as pool:
        yield team, pool.submit(_evict_three_times, team)


def test_a_step_that_was_killed_for_memory_is_named_and_not_tried_again_at_once(team: Team) -> None:
    pod = bind(team, wait_for_pod(team))
    ended = {"exitCode": 137, "reason": "OOMKilled", "startedAt": now(), "finishedAt": now()}
    write_status(team, pod, phase="Failed", initContainerStatuses=[container("prefetch", terminated=ended)])
    assert "step prefetch was killed for memory" in team.wait_for("Stalled", "True", "OOMKilled")
    assert team.state("a") == "Failed OOMKilled"
    assert team.conditions()["Available"] == ("False", "NotEnoughNodes")


def test_an_image_that_cannot_be_pulled_is_named_at_once_and_heals_in_the_same_job(team: Team) -> None:
    pod = bind(team, wait_for_pod(team))
    job = team.wait_for_job("a")["metadata"]["uid"]
    backing_off = {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}
    write_status(team, pod, initContainerStatuses=[container("prefetch", waiting=backing_off)])
    assert "image loader:test can't be pulled" in team.wait_for("Stalled", "True", "ImagePullFailed")
    running = {"startedAt": now()}
    write_status(team, pod, phase="Running", initContainerStatuses=[container("prefetch", running=running)])
    poll("it goes on", lambda: team.state("a") == "Staging Prefetching")
    assert "Stalled" not in team.conditions()
    assert team.wait_for_job("a")["metadata"]["uid"] == job


# --- the end of it all --------------------------------------------------------------------------------------------


def stage(team: Team, pod: Json) -> None:
    """Let a staging pod end well."""
    ended = {"exitCode": 0, "message": report(), "startedAt": now(), "finishedAt": now()}
    write_status(team, pod, phase="Succeeded", containerStatuses=[container("report", terminated=ended)])
    team.wait_for("Ready", "True")


def test_a_namespace_deleted_in_mid_run_goes_with_all_that_is_in_it(team: Team) -> None:
    """Kubernetes removes the pods first, and waits for them, while the operator sees their Job and may make nothing."""
    pod = bind(team, wait_for_pod(team))
    path = f"/api/v1/namespaces/{team.namespace}"
    team.admin.delete(path)
    where = core_path(team.namespace, "pods", pod["metadata"]["name"])
    poll("the pod is to end", lambda: "deletionTimestamp" in team.admin.get(where)["metadata"])
    write_status(team, pod, phase="Failed")
    team.admin.delete(where, gracePeriodSeconds=0)
    poll("the namespace is gone", lambda: team.admin.find(path) is None)


def test_a_namespace_with_a_staged_one_goes_and_the_nodes_label_with_it(team: Team) -> None:
    stage(team, bind(team, wait_for_pod(team)))
    assert len(team.staged_labels("a")) == 1
    poll("the Job is gone", lambda: not team.admin.items(job_path(team.namespace)))
    path = f"/api/v1/namespaces/{team.namespace}"
    team.admin.delete(path)
    poll("the namespace is gone", lambda: team.admin.find(path) is None)
    poll("the label is gone", lambda: not team.staged_labels("a"))


def test_a_staging_that_is_evicted_again_and_again_ends(evicted: tuple[Team, Future[None]]) -> None:
    """The Job controller makes a new pod each time, and counts none of those that were evicted."""
    team, done = evicted
    done.result()
    message = team.wait_for("Stalled", "True", "EvictedRepeatedly")
    assert EVICTED in message
    poll("its Job is gone", lambda: not team.admin.items(job_path(team.namespace)))
    team.label_node("a", {"wake": "up"})
    assert team.conditions()["Stalled"] == ("True", "EvictedRepeatedly")
    assert team.admin.items(job_path(team.namespace)) == []
