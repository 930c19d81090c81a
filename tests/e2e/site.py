"""The cluster with the operator installed, as the tests see it: what is asked again and again, with deadlines."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from modelweights_operator.domain import names
from tests.cluster.pki import Authority
from tests.cluster.providers import Cluster
from tests.e2e.client import Client, Recorder, path_of, selecting
from tests.installation import NAMESPACE, RELEASE, Images, condition, install
from tests.json_client import Json
from tests.polling import poll

REAL: Final = "/models/minilm"
SPLIT: Final = "/models/minilm-split"
CORRUPT: Final = "/models/corrupt"
BIG: Final = "/models/big"
SPLIT_SHARDS: Final = 12

FETCHED: Final = "/models/fetched"
"""Root of the storage class: each namespace has a folder below it, and may name nothing else there."""
STORAGE_CLAIM: Final = "models"
STORAGE_CLASS_OF_CLAIM: Final = "tenant"
SMALL_DISK: Final = "/models/small"
"""Root of a class to which a test gives a disk of its own; for the others it is a folder without use."""
SETTINGS: Final = (
    # The marker's folder is there before the first staging.
    "prepareNodes.enabled=true",
    "startupTaint.enabled=true",
    "storage.classes[0].name=disk",
    f"storage.classes[0].root={FETCHED}",
    "storage.classes[0].default=true",
    f"storage.classes[1].name={STORAGE_CLASS_OF_CLAIM}",
    f"storage.classes[1].claimName={STORAGE_CLAIM}",
    "storage.classes[1].volumesRoot=/models/tenants",
    "access.enabled=true",
    "storage.classes[2].name=small",
    f"storage.classes[2].root={SMALL_DISK}",
)
"""The chart's settings for all tests."""

OPERATOR_SELECTOR: Final = f"app.kubernetes.io/instance={RELEASE},app.kubernetes.io/name=modelweights-operator"


def install_for_tests(cluster: Cluster, images: Images, authority: Authority, *settings: str) -> None:
    """Install or upgrade the chart with the usual settings and these."""
    files = {"fetch.extraCABundle": authority.certificate}
    install(cluster, images, *SETTINGS, *settings, files=files)


@dataclass(frozen=True)
class Site:
    """What the tests work with.

    `checkpoints` is a local folder with real, split and corrupt; `authority` vouches for servers, and the chart trusts it.
    """

    cluster: Cluster
    images: Images
    client: Client
    record: Recorder
    checkpoints: Path
    authority: Authority

    def install(self, *settings: str) -> None:
        """Install or upgrade the chart with the usual settings and these."""
        install_for_tests(self.cluster, self.images, self.authority, *settings)

    def model(self, namespace: str, name: str) -> Json | None:
        """A ModelWeights as it stands."""
        return self.client.find(path_of("ModelWeights", namespace, name))

    def pod(self, namespace: str, name: str) -> Json:
        """A pod as it stands."""
        return self.client.get(path_of("Pod", namespace, name))

    def await_condition(self, namespace: str, name: str, kind: str = "Ready", *, seconds: float = 60) -> Json:
        """Wait until a condition of a ModelWeights is True for its present generation; return the object."""

        def ask() -> Json | None:
            body = self.model(namespace, name)
            found = condition(body, kind)
            current = body is not None and found.get("observedGeneration") == body["metadata"]["generation"]
            return body if current and found.get("status") == "True" else None

        what = f"ModelWeights {namespace}/{name} has condition {kind}"
        return poll(what, ask, seconds=seconds, show=[self.describe(namespace, name)])

    def describe(self, namespace: str, name: str) -> Callable[[], str]:
        """What kubectl says of a ModelWeights, for the message of a failed poll."""
        return lambda: self.cluster.kubectl("describe", "mw", name, f"--namespace={namespace}", check=False)

    def await_running(self, namespace: str, name: str, *, seconds: float = 60) -> Json:
        """Wait until a pod runs; return it."""
        return self.await_phase(namespace, name, "Running", seconds=seconds)

    def await_phase(self, namespace: str, name: str, phase: str, *, seconds: float = 60) -> Json:
        """Wait until a pod is in a phase; return it."""

        def ask() -> Json | None:
            pod = self.pod(namespace, name)
            return pod if pod["status"].get("phase") == phase else None

        return poll(f"pod {namespace}/{name} is {phase}", ask, seconds=seconds)

    def log(self, namespace: str, name: str, container: str = "") -> str:
        """A pod's log."""
        query = f"?container={container}" if container else ""
        status, text = self.client.ask("GET", f"{path_of('Pod', namespace, name)}/log{query}")
        assert status == 200, text
        return text

    def is_gated(self, namespace: str, name: str) -> bool:
        """Whether a pod waits at our gate and says so."""
        pod = self.pod(namespace, name)
        gates = [gate["name"] for gate in pod["spec"].get("schedulingGates") or []]
        return names.GATE in gates and condition(pod, "PodScheduled").get("reason") == "SchedulingGated"

    def waits_on_its_node(self, namespace: str, name: str) -> Json | None:
        """The pod, when it was scheduled and its first init container runs."""
        pod = self.pod(namespace, name)
        states = [status["state"] for status in pod["status"].get("initContainerStatuses") or []]
        return pod if pod["spec"].get("nodeName") and states and "running" in states[0] else None

    def jobs(self, namespace: str) -> list[Json]:
        """The Jobs of a namespace."""
        return self.client.items(path_of("Job", namespace))

    def job_uids(self, namespace: str) -> dict[str, set[str]]:
        """Per node, the UIDs of all staging Jobs that there ever were in a namespace."""
        found: dict[str, set[str]] = {}
        for _, body in self.record.history("jobs", namespace):
            annotations = body["metadata"].get("annotations") or {}
            if names.NODE_ANNOTATION in annotations:
                found.setdefault(annotations[names.NODE_ANNOTATION], set()).add(body["metadata"]["uid"])
        return found

    def node_labels(self, body: Json) -> dict[str, set[str]]:
        """Per node that has any, the digests that labels of a ModelWeights name."""
        owner = names.node_label_owner(body["metadata"]["uid"])
        labels = {
            node["metadata"]["name"]: set(names.labels_by_owner(node["metadata"]["labels"]).get(owner, {}).values())
            for node in self.client.items("/api/v1/nodes")
        }
        return {name: digests for name, digests in labels.items() if digests}

    def operator_pods(self) -> list[Json]:
        """The operator's pods, those that end included."""
        return self.client.items(selecting(path_of("Pod", NAMESPACE), labelSelector=OPERATOR_SELECTOR))

    def remove_namespace(self, name: str) -> None:
        """Delete a namespace; nobody waits for its end, since the next test has another one."""
        self.cluster.kubectl("delete", "namespace", name, "--wait=false")
