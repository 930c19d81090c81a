"""What the planner sees of the cluster: frozen values that `kube.gather` makes of API objects. No behaviour but views."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any, Final, Literal

from modelweights_operator.api.v1alpha1 import Spec, Status
from modelweights_operator.domain import names


@dataclass(frozen=True)
class Taint:
    """A taint of a node."""

    key: str
    value: str
    effect: str


_PRESSURES: Final = frozenset(
    f"node.kubernetes.io/{each}" for each in ("memory-pressure", "disk-pressure", "pid-pressure")
)
"""Taints of a node whose kubelet evicts pods and lets hardly any in."""


@dataclass(frozen=True)
class Node:
    """A node, as far as staging cares."""

    name: str
    uid: str
    boot_id: str
    labels: Mapping[str, str]
    taints: tuple[Taint, ...] = ()
    ready: bool = True
    cordoned: bool = False
    memory_bytes: int = 0
    """Its capacity, 0 when it says none."""

    @cached_property
    def pressure(self) -> str:
        """The taint by which its kubelet says that it runs out of something, "" for none."""
        return next((taint.key for taint in self.taints if taint.key in _PRESSURES), "")

    @property
    def takes_pods(self) -> bool:
        """Whether what is begun there would run: it is ready, nobody drains it, and its kubelet is short of nothing."""
        return self.ready and not self.cordoned and not self.pressure

    @cached_property
    def staged(self) -> Mapping[str, Mapping[str, str]]:
        """Our labels, by what `names.node_label_owner` says of their ModelWeights. Hundreds of these may have one here."""
        return names.labels_by_owner(self.labels)

    def staged_of(self, owner_uid: str) -> Mapping[str, str]:
        """Our labels of one ModelWeights."""
        return self.staged.get(names.node_label_owner(owner_uid), {})


@dataclass(frozen=True)
class ContainerState:
    """One container of a staging pod: what it waits for, or how it ended.

    `message` is the termination message, that is the loader's report, or the reason for the wait in words.
    """

    name: str
    image: str = ""
    waiting_reason: str = ""
    exit_code: int | None = None
    terminated_reason: str = ""
    message: str = ""


@dataclass(frozen=True)
class StagingPod:
    """A pod of a staging Job. `owner_uid` is the ModelWeights'."""

    name: str
    created_at: datetime
    phase: str
    reason: str = ""
    message: str = ""
    deleting: bool = False
    scheduled: bool = False
    containers: tuple[ContainerState, ...] = ()
    owner_uid: str = ""
    memory_limit_bytes: int = 0
    """The smallest memory limit of its containers after admission; 0 without one."""
    volume_image: str = ""
    """The image that it mounts as a volume, "" for none."""
    claims: tuple[str, ...] = ()
    """The claims that it mounts."""


@dataclass(frozen=True)
class StagingJob:
    """A staging Job with its pods. `owner_uid` is the ModelWeights'; `result` the report that was copied to it, or ""."""

    name: str
    node_name: str
    node_uid: str
    staging_digest: str
    boot_id: str
    round: int
    created_at: datetime
    state: Literal["Active", "Complete", "Failed"] = "Active"
    finished_at: datetime | None = None
    failure_reason: str = ""
    failure_message: str = ""
    result: str = ""
    deleting: bool = False
    suspended: bool = False
    owner_uid: str = ""
    image: str = ""
    """The loader's image that it was made with, "" when that isn't known."""
    rejection: str = ""
    """Why no pod could be made (quota, Pod Security, a webhook), from the Job's events."""
    pods: tuple[StagingPod, ...] = ()
    namespace: str = ""
    source_digest: str = ""
    """Hash of the source that it fetches from, "" when it fetches nothing."""
    source_host: str = ""
    revision: str = ""
    """The revision that it was given, "" when it is to find out."""
    has_image_volume: bool = False
    """Whether its template, as the API server keeps it, mounts an image as a volume."""
    pull_secrets: str = ""
    """The pull secrets that it was made with, as `names.pull_secrets` writes them."""
    progress_percent: int = 0
    """How far its running step is, 0 where that isn't known."""
    total_bytes: int = 0
    """Of how many bytes, as the step's log says; 0 where that isn't known."""
    follows: str = ""
    """Of one that refreshes: when it was measured before; "" of one that stages."""
    started_at: datetime | None = None
    """Since when it may have a pod; None while a queue holds it back, or let it go a moment ago."""
    parallelism: int = 1
    """0 makes it have no pod; nobody but a stranger's hand sets it so."""


@dataclass(frozen=True)
class EngineConfigMap:
    """The ConfigMap of the ModelWeights' name, whoever made it."""

    ours: bool
    data: Mapping[str, str]


@dataclass(frozen=True)
class Owner:
    """The ModelWeights itself. `spec` is None and `invalid` says why when it can't be read.

    `deleting`: it only waits for the garbage collector to remove what belongs to it.
    """

    namespace: str
    name: str
    uid: str
    generation: int
    spec: Spec | None
    status: Status
    invalid: str = ""
    deleting: bool = False
    retry: str = ""
    """Value of the annotation that asks to try again at once, "" without one."""
    raw_status: Mapping[str, Any] = field(default_factory=dict)
    resource_version: str = ""
    finalizers: tuple[str, ...] = ()
    deleted_at: datetime | None = None
    """When its deletion was asked for."""

    @property
    def full_name(self) -> str:
        """Namespace and name, as people write it."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True)
class Reader:
    """A namespace that mounts what another one has in a storage class, by a claim of its own."""

    namespace: str
    claim: str
    reads: str


@dataclass(frozen=True)
class StorageClass:
    """A place for fetched files that the administrator named.

    Attributes:
        name: As `spec.storage.class` calls it.
        root: Folder on the nodes; "" with a claim.
        claim: Name of a claim in the namespace of each ModelWeights; "" with a root.
        volumes_root: Of a class with a claim: folder on the nodes that holds each namespace's volume, "" where that isn't known.
        reserve: How much of the disk stays free: bytes, or percent with its sign.
        is_default: Taken where `spec.storage.class` is empty.
        namespace_quota: Bytes on each node that the files of one namespace may take; 0 for no bound.
        readers: Namespaces whose pods read what others have there, as far as the administrator told the operator.
    """

    name: str
    root: str = ""
    claim: str = ""
    reserve: str = "12%"
    is_default: bool = False
    namespace_quota: int = 0
    volumes_root: str = ""
    readers: tuple[Reader, ...] = ()

    @property
    def shared_root(self) -> str:
        """The folder on the nodes below which each namespace has a part of its own; "" for none."""
        return self.root or self.volumes_root


@dataclass(frozen=True)
class FetchSettings:
    """How the administrator lets files be fetched.

    Attributes:
        num_connections: Of each staging; 0 for as many as the loader takes by itself.
        max_bytes_per_second: Of each staging; 0 for no bound.
        max_concurrent_per_host: Stagings that fetch from one host at a time, in the whole cluster; 0 for no bound.
        max_concurrent_per_node: Stagings that fetch on one node at a time.
        hugging_face_endpoint: Where the spec names none; "" for the hub itself.
        proxy: Environment variables that name proxies.
        extra_ca: Certificates in PEM that are trusted beside the system's.
    """

    num_connections: int = 0
    max_bytes_per_second: int = 0
    max_concurrent_per_host: int = 20
    max_concurrent_per_node: int = 1
    hugging_face_endpoint: str = ""
    proxy: Mapping[str, str] = field(default_factory=dict)
    extra_ca: str = ""


@dataclass(frozen=True)
class Policy:
    """The operator's settings that decisions depend on."""

    loader_image: str
    image_pull_policy: str
    host_path_roots: tuple[str, ...]
    label_nodes: bool = True
    """Whether the right to patch nodes is there."""
    storage_classes: tuple[StorageClass, ...] = ()
    fetch: FetchSettings = field(default_factory=FetchSettings)
    memory_budget: str = ""
    """What warm checkpoints may take of a node's memory together: bytes, or percent with its sign; "" for no bound."""
    namespace: str = ""
    """The operator's own, where cleanup Jobs of classes with a root run; "" where it isn't known."""
    pull_secrets: tuple[str, ...] = ()
    """Of the operator's namespace, for the loader's image."""


@dataclass(frozen=True)
class Resident:
    """What another ModelWeights keeps in the page cache of a node; `unknown` while nobody knows how much that is to be."""

    owner: str
    size_bytes: int
    unknown: bool = False


@dataclass(frozen=True)
class Fetch:
    """A staging Job whose step `fetch` hasn't ended, of whichever ModelWeights: it counts against the caps.

    Attributes:
        job: Namespace and name of the Job.
        owner: The ModelWeights as people write it.
        host: Where it fetches from, "" for a copy of what the node can mount.
        node: Name of the node.
    """

    job: str
    owner: str
    host: str
    node: str


@dataclass(frozen=True)
class Snapshot:
    """One ModelWeights and all that its plan depends on."""

    owner: Owner
    nodes: tuple[Node, ...]
    jobs: tuple[StagingJob, ...]
    config_map: EngineConfigMap | None
    policy: Policy
    refusals: Mapping[str, str] = field(default_factory=dict)
    """Per node name, why the API server refused its Job a moment ago."""
    fetching: tuple[Fetch, ...] = ()
    """All Jobs of the cluster that fetch at the moment, this object's among them."""
    ahead: tuple[Fetch, ...] = ()
    """What other objects wait for that go before this one, see `turns`."""
    refreshes: tuple[StagingJob, ...] = ()
    """Its Jobs that refresh the page cache; they are none of `jobs`."""
    resident: Mapping[str, tuple[Resident, ...]] = field(default_factory=dict)
    """Per node name, what other objects keep in its page cache."""
    cleaned: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Per node name, the checkpoints that cleanup Jobs have removed there."""
    leaving: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Per node name, the checkpoints that are about to be removed: no pod is to be sent there for them."""
    cleaning: frozenset[str] = frozenset()
    """Nodes on which a cleanup Job of this object is under way: nothing of it is staged there meanwhile."""
    room_made: Mapping[str, datetime] = field(default_factory=dict)
    """Per node name, when files had gone for a staging that found no room: failures up to then wait no longer."""
    room_missing: Mapping[str, str] = field(default_factory=dict)
    """Per node name, why no former revisions go for a staging that found no room there."""
    over_quota: Mapping[str, str] = field(default_factory=dict)
    """Per node name, why the namespace's quota lets nothing more be staged there."""
    write_refusal: str = ""
    """Why the API server refused a moment ago what has to be there before the status says so; "" when it didn't."""


def jobs_by_node(jobs: Iterable[StagingJob]) -> dict[str, tuple[StagingJob, ...]]:
    """Jobs by the names of their nodes, in the order in which they came."""
    found: dict[str, tuple[StagingJob, ...]] = {}
    for job in jobs:
        found[job.node_name] = (*found.get(job.node_name, ()), job)
    return found
