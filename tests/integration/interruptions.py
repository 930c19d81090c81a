"""The operator killed at a chosen write of a full staging, a full rollover or a deletion, and what must be true in the end.

Which writes there are is found by counting them, one run after the other, until a run ends before its moment comes.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from modelweights_operator.domain import names
from tests.integration.client import core_path, job_path, model_path
from tests.integration.cluster_double import Team, gated_pod
from tests.integration.conftest import SYSTEM
from tests.integration.job_player import JobPlayer, digest_of
from tests.integration.ledger import Ledger, history
from tests.integration.operator_process import OperatorProcess
from tests.json_client import Json
from tests.polling import poll
from tests.servers.api_proxy import ApiProxy, Moment, Seen, When

NODES = ("a", "b")
_TAINT = {"key": "modelweights.io/unstaged", "effect": "NoSchedule"}
_SECONDS = 150
_QUIET_SECONDS = 0.5


@dataclass
class Site:
    """The operator behind the proxy, and a team whose Jobs end well by themselves.

    Attributes:
        killed: At which writes the operator was killed so far, with how often.
    """

    team: Team
    proxy: ApiProxy
    operator: OperatorProcess
    player: JobPlayer
    killed: Counter[str] = field(default_factory=Counter)
    _ledger: Ledger = field(default_factory=Ledger)
    _version: str = ""

    def begin(self, namespace: str) -> None:
        """Another namespace, with nodes of its own."""
        made = self.team.admin.create("/api/v1/namespaces", {"metadata": {"name": namespace}})
        self.team = Team(self.team.admin, namespace)
        self._ledger, self._version = Ledger(), made["metadata"]["resourceVersion"]
        self.proxy.counts = self._is_own

    def check(self, what: str) -> None:
        """Look at all that happened since the last look."""
        events = history(self.team.admin, self.team.namespace, self._version)
        for kind, event in events:
            self._ledger.take(kind, event)
            self._version = event["object"]["metadata"]["resourceVersion"]
        assert not self._ledger.broken, f"{what}: {self._ledger.broken}"

    def _is_own(self, seen: Seen) -> bool:
        cleanup = seen.resource == "jobs" and f"/{SYSTEM}/" in seen.path
        return cleanup or f"/{self.team.namespace}/" in seen.path or f"/{self.team.namespace}-" in seen.path

    def end(self) -> None:
        """Leave nothing on which the operator would go on working."""
        self.team.admin.delete(model_path(self.team.namespace))
        for node in NODES:
            self.team.delete_node(node)


def stage(team: Team, revision: str) -> None:
    """Two nodes, one of which starts with the taint, a pod that waits, and what it waits for."""
    for node, taints in zip(NODES, ([_TAINT], []), strict=True):
        team.add_node(node, taints=taints)
    add_pod(team, f"engine-{revision[:7]}", "llama")
    source = {"repository": "org/name", "endpoint": f"https://{team.namespace}.example", "revision": revision}
    team.create_model(
        source={"huggingFace": source},
        deletionPolicy="Delete",
        storage={"gracePeriodSeconds": 1},
        placement={"nodeSelector": {"team": team.namespace}, "canaryNodes": 1, "minAvailableNodes": 2},
    )


def roll_out(team: Team, revision: str) -> None:
    """Another revision, and a pod that asks for it; those of the former one go, so that its files may."""
    _delete_pods(team)
    add_pod(team, f"engine-{revision[:7]}", f"llama@{revision}")
    team.admin.patch(model_path(team.namespace, "llama"), {"spec": {"source": {"huggingFace": {"revision": revision}}}})


def delete(team: Team, _: str) -> None:
    """The object goes, and its files with it: no pod uses them any more."""
    _delete_pods(team)
    team.admin.delete(model_path(team.namespace, "llama"))


def _delete_pods(team: Team) -> None:
    for pod in team.admin.items(core_path(team.namespace, "pods")):
        if pod["metadata"]["name"].startswith("engine-"):
            team.admin.delete(core_path(team.namespace, "pods", pod["metadata"]["name"]), gracePeriodSeconds=0)


def add_pod(team: Team, name: str, require: str) -> None:
    """A pod that waits at the gate."""
    team.admin.create(core_path(team.namespace, "pods"), gated_pod(name, require))


def unfinished(team: Team, revision: str) -> list[str]:
    """What isn't yet as it has to be when all is staged at a revision; empty in the end."""
    digest, model = digest_of(revision), team.model()
    status = model.get("status", {})
    wanted = {team.node_name(node): {names.node_label(model["metadata"]["uid"], digest)} for node in NODES}
    pods = team.admin.items(core_path(team.namespace, "pods"))
    engine = next(pod for pod in pods if pod["metadata"]["name"] == f"engine-{revision[:7]}")
    settings = team.admin.find(core_path(team.namespace, "configmaps", "llama")) or {}
    entries = status.get("nodes", {})
    facts = {
        "Ready": team.conditions().get("Ready", ("",))[0] == "True",
        "observed": status.get("observedGeneration") == model["metadata"]["generation"],
        "published": (status.get("published") or {}).get("manifestDigest") == digest,
        "no former revision": not status.get("previous") and not status.get("candidate"),
        "nodes": {name: entry["state"] for name, entry in entries.items()} == dict.fromkeys(wanted, "Ready"),
        "no leftovers": not any(entry.get("leftovers") or entry.get("otherDigests") for entry in entries.values()),
        "labels": {team.node_name(node): set(team.staged_labels(node)) for node in NODES} == wanted,
        "taint": not _tainted(team),
        "engine's settings": digest.removeprefix("sha256:") in (settings.get("data") or {}).get("MODEL_PATH", ""),
        "finalizer": model["metadata"].get("finalizers") == [names.FINALIZER],
        "pod": engine["metadata"]["annotations"].get(names.DIGEST_ANNOTATION) == digest,
        "gate": not engine["spec"].get("schedulingGates"),
        **_no_jobs(team, pods),
    }
    return [name for name, holds in facts.items() if not holds]


def undeleted(team: Team, _: str) -> list[str]:
    """What a deleted object left behind; empty in the end."""
    facts = {
        "object": team.admin.find(model_path(team.namespace, "llama")) is None,
        "engine's settings": team.admin.find(core_path(team.namespace, "configmaps", "llama")) is None,
        "labels": not any(team.staged_labels(node) for node in NODES),
        **_no_jobs(team, team.admin.items(core_path(team.namespace, "pods"))),
    }
    return [name for name, holds in facts.items() if not holds]


def _tainted(team: Team) -> bool:
    nodes = [team.admin.get(f"/api/v1/nodes/{team.node_name(node)}") for node in NODES]
    return any(taint["key"] == _TAINT["key"] for node in nodes for taint in node["spec"].get("taints") or [])


def _no_jobs(team: Team, pods: Iterable[Json]) -> dict[str, bool]:
    jobs = [*team.admin.items(job_path(team.namespace)), *team.admin.items(job_path(SYSTEM))]
    return {
        "no Jobs": not any(team.namespace in str(job["metadata"]) for job in jobs),
        "no staging pods": all(pod["metadata"]["name"].startswith("engine-") for pod in pods),
    }


Step = tuple[Callable[[Team, str], None], Callable[[Team, str], list[str]]]
STAGE: Step = (stage, unfinished)
ROLL_OUT: Step = (roll_out, unfinished)
DELETE: Step = (delete, undeleted)


def run(site: Site, step: Step, revision: str, moment: Moment | None = None, *, with_history: bool = True) -> bool:
    """One step from its beginning to its end, with the operator killed at a moment.

    Args:
        site: Where.
        step: What is done, and what isn't yet as it has to be.
        revision: Which.
        moment: When the operator is killed.
        with_history: Whether the API server remembers what happened; one that was restarted doesn't.

    Returns:
        Whether the moment came; it doesn't when the step has fewer writes.

    Raises:
        AssertionError: It didn't end as it has to, or an invariant was broken on the way.
    """
    team, (begin, left) = site.team, step
    site.proxy.begin(moment, site.operator.kill)
    begin(team, revision)
    what = f"{begin.__name__} with the operator killed {moment.when if moment else 'never at'} "

    def ended() -> bool:
        return site.proxy.reached.is_set() or (not left(team, revision) and site.proxy.quiet_seconds > _QUIET_SECONDS)

    def show() -> str:
        return (
            f"left: {left(team, revision)}; {site.proxy.writes}; {team.admin.find(model_path(team.namespace, 'llama'))}"
        )

    poll(what, ended, seconds=_SECONDS, show=[show])
    came = site.proxy.reached.is_set()
    if came:
        write = site.proxy.writes[-1]
        site.killed[write] += 1
        site.proxy.begin()
        site.proxy.go_on()
        site.operator.start()
        poll(f"{what}{write}", ended, seconds=_SECONDS, show=[show])
    twice = {key: uids for key, uids in site.player.ended.items() if len(uids) > 1}
    assert not twice, f"{what}{moment}: done more than once: {twice}"
    if with_history:
        site.check(f"{what}{moment}")
    return came


def revision_of(number: int) -> str:
    """A commit."""
    return f"{number:040x}"[::-1]


def moments(when: When, first: int = 1, every: int = 1) -> Iterable[Moment]:
    """All of them, or each so manieth."""
    return (Moment(number, when) for number in itertools.count(first, every))


def played(team: Team) -> JobPlayer:
    """Ends the Jobs of all namespaces of this kind of test."""
    return JobPlayer(team.admin, "kill-")
