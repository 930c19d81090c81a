"""The nodes and objects of a soak, and what can happen to them. Called by `churn`; the names of all begin with PREFIX."""

import random
from dataclasses import dataclass, field

from modelweights_operator.domain import names
from tests.integration.client import Kube, core_path, job_path, model_path
from tests.integration.cluster_double import Team, boot_node, gated_pod
from tests.integration.interruptions import revision_of
from tests.json_client import Json, RefusedError

PREFIX = "soak-"
_GROUPS = 5
_NAMESPACES = 4
_ON_ALL_NODES = 2


@dataclass
class SoakCluster:
    """What there is at the moment, as the test made it.

    Attributes:
        admin: The administrator.
        node_count: How many nodes there are to be.
        object_count: How many ModelWeights.
        chance: Decides what happens.
        nodes: Names of the nodes, each with its group.
        models: Namespace and name of each ModelWeights.
        pods: Namespace and name of each pod that waits, or did.
    """

    admin: Kube
    node_count: int
    object_count: int
    chance: random.Random
    nodes: list[tuple[str, int]] = field(default_factory=list)
    models: list[tuple[str, str]] = field(default_factory=list)
    pods: list[tuple[str, str]] = field(default_factory=list)
    _number: int = 0

    def begin(self) -> None:
        """Make all nodes and objects."""
        for number in range(_NAMESPACES):
            self.admin.create("/api/v1/namespaces", {"metadata": {"name": f"{PREFIX}{number}"}})
        for number in range(self.node_count):
            self.add_node(number % _GROUPS)
        for _ in range(self.object_count):
            self.add_model()

    # --- what happens ---------------------------------------------------------------------------------------------

    def add_node(self, group: int) -> None:
        """A node of a new name, in one of the groups."""
        name = f"{PREFIX}node-{self._next()}"
        labels = {"group": f"g{group}", "soak": "true", "kubernetes.io/hostname": name}
        self.admin.create("/api/v1/nodes", {"metadata": {"name": name, "labels": labels}})
        self._boot(name)
        self.nodes.append((name, group))

    def lose_node(self) -> None:
        """A node goes for good, and another one comes in its place: in the same group, or one might be left without any."""
        name, group = self.nodes.pop(self.chance.randrange(len(self.nodes)))
        self.admin.delete(f"/api/v1/nodes/{name}")
        self.add_node(group)

    def reboot_node(self) -> None:
        """A node boots anew: its page cache is empty."""
        self._boot(self.chance.choice(self.nodes)[0])

    def add_model(self) -> None:
        """A ModelWeights: two are on all nodes, the others on those of a group; most of them are fetched."""
        number = self._next()
        place = {"soak": "true"} if len(self.models) < _ON_ALL_NODES else {"group": f"g{number % _GROUPS}"}
        key = (f"{PREFIX}{number % _NAMESPACES}", f"m{number}")
        hub = {"repository": "org/name", "endpoint": f"https://{key[1]}.example", "revision": revision_of(number)}
        fetched = {
            "source": {"huggingFace": hub},
            "storage": {"gracePeriodSeconds": 5},
            "deletionPolicy": ("Delete", "Retain")[number % 2],
        }
        spec = fetched if number % 4 else {"source": {"hostPath": {"path": f"/models/{key[1]}"}}}
        placement = {"nodeSelector": place, "canaryNodes": number % 2, "maxConcurrentNodes": 4}
        Team(self.admin, key[0]).create_model(key[1], **spec, placement=placement)
        self.models.append(key)

    def replace_model(self) -> None:
        """A ModelWeights is deleted, wherever it is, and another one is made. Pods that wait for it would wait for ever."""
        key = self.models.pop(self.chance.randrange(_ON_ALL_NODES, len(self.models)))
        for namespace, name in list(self.pods):
            pod = self.admin.get(core_path(namespace, "pods", name))
            if (namespace, pod["metadata"]["annotations"][names.REQUIRE_ANNOTATION]) == key:
                self._end_pod(namespace, name)
        self.admin.delete(model_path(*key))
        self.add_model()

    def edit_model(self) -> None:
        """Another revision, or another way of reading."""
        key = self.chance.choice(self.models)
        source = self.admin.get(model_path(*key))["spec"]["source"]
        if "huggingFace" in source and self.chance.random() < 1 / 2:
            spec: Json = {"source": {"huggingFace": {"revision": revision_of(self._next())}}}
        else:
            spec = {"prefetch": {"numThreads": self.chance.randint(1, 64)}}
        self.admin.patch(model_path(*key), {"spec": spec})

    def add_pod(self) -> None:
        """A pod that waits at the gate; one that was let go ends."""
        for namespace, name in list(self.pods):
            pod = self.admin.get(core_path(namespace, "pods", name))
            if names.DIGEST_ANNOTATION in pod["metadata"]["annotations"]:
                self._end_pod(namespace, name)
        namespace, model = self.chance.choice(self.models)
        name = f"engine-{self._next()}"
        self.admin.create(core_path(namespace, "pods"), gated_pod(name, model))
        self.pods.append((namespace, name))

    def _end_pod(self, namespace: str, name: str) -> None:
        self.admin.delete(core_path(namespace, "pods", name), gracePeriodSeconds=0)
        self.pods.remove((namespace, name))

    def remove_job(self) -> None:
        """Someone removes a Job."""
        jobs = self.jobs()
        if jobs:
            metadata = self.chance.choice(jobs)["metadata"]
            self.admin.delete(job_path(metadata["namespace"], metadata["name"]), propagationPolicy="Foreground")

    # --- the end --------------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """Have all that failed tried again."""
        patch = {"metadata": {"annotations": {names.RETRY_ANNOTATION: f"at the end {self._next()}"}}}
        for key in self.models:
            self.admin.patch(model_path(*key), patch)

    def delete_all(self) -> None:
        """Delete all objects and pods; the nodes stay."""
        for namespace, name in self.pods:
            self.admin.delete(core_path(namespace, "pods", name), gracePeriodSeconds=0)
        for key in self.models:
            self.admin.delete(model_path(*key))
        self.pods, self.models = [], []

    def delete_nodes(self) -> None:
        """Delete the nodes."""
        for name, _ in self.nodes:
            self.admin.delete(f"/api/v1/nodes/{name}")

    # --- what there is --------------------------------------------------------------------------------------------

    def jobs(self) -> list[Json]:
        """All Jobs of the operator here, cleanups included."""
        found = self.admin.items("/apis/batch/v1/jobs")
        return [
            job for job in found if PREFIX in (job["metadata"].get("annotations") or {}).get(names.NODE_ANNOTATION, "")
        ]

    def objects(self) -> list[Json]:
        """All ModelWeights."""
        found = self.admin.items("/apis/modelweights.io/v1alpha1/modelweights")
        return [each for each in found if each["metadata"]["namespace"].startswith(PREFIX)]

    def unready(self) -> list[str]:
        """Which ModelWeights aren't ready, and which pods wait."""
        waiting = []
        for each in self.objects():
            status = each.get("status", {})
            ready = any((c["type"], c["status"]) == ("Ready", "True") for c in status.get("conditions", []))
            if not ready or status.get("observedGeneration") != each["metadata"]["generation"]:
                waiting.append(f"{each['metadata']['name']}: {status.get('conditions')}")
        for namespace, name in self.pods:
            if self.admin.get(core_path(namespace, "pods", name))["spec"].get("schedulingGates"):
                waiting.append(f"pod {name}")
        return waiting

    def leftovers(self) -> dict[str, int]:
        """How many there are of what has to be gone with the objects."""
        listed = "/api/v1/configmaps?labelSelector=app.kubernetes.io%2Fmanaged-by%3D" + names.MANAGED_BY
        nodes = [each for each in self.admin.items("/api/v1/nodes") if each["metadata"]["name"].startswith(PREFIX)]
        objects, pods = self.objects(), self.admin.items("/api/v1/pods")
        return {
            "objects": len(objects),
            "finalizers": sum(names.FINALIZER in (each["metadata"].get("finalizers") or ()) for each in objects),
            "jobs": len(self.jobs()),
            "configMaps": sum(each["metadata"]["namespace"].startswith(PREFIX) for each in self.admin.items(listed)),
            "stagingPods": sum(
                each["metadata"]["namespace"].startswith(PREFIX) and not each["metadata"]["name"].startswith("engine-")
                for each in pods
            ),
            "nodeLabels": sum(len(names.staged_labels(each["metadata"].get("labels") or {})) for each in nodes),
        }

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _boot(self, name: str) -> None:
        boot_node(self.admin, name, f"boot-{self._next()}")


def tolerant(error: RefusedError) -> bool:
    """Whether what was to be changed went meanwhile, by the operator's or the garbage collector's hand."""
    return error.status in (404, 409)
