"""The fixed facts of the cluster: versions, addresses and nodes. Every module may import this one; it imports nothing.

The addresses are constants because every instance has a network namespace of its own: they never meet the host's.
"""

from dataclasses import dataclass, field

KUBERNETES_VERSION = "v1.34.4"

SERVICE_SUBNET = "10.96.0.0/16"
KUBERNETES_SERVICE_ADDRESS = "10.96.0.1"
POD_SUBNET = "10.244.0.0/16"
CONTROL_PLANE_ADDRESS = "10.90.0.1"
API_PORT = 6443
REGISTRY_PORT = 5000
KUBELET_PORT = 10250

IMAGE_HOST = "registry.local"
"""First part of the names of images that pods use: ``registry.local/modelweights-operator:TAG``.

The nodes' containerd fetches it by plain HTTP from the instance's registry; kind gets images under the same name loaded.
"""

PAUSE_IMAGE = f"{IMAGE_HOST}/pause:embedded"
MODEL_ROOT = "/models"
MODEL_OWNER = (0, 65532)
MODEL_MODE = 0o2775

GPU_RESOURCE = "nvidia.com/gpu"
GPU_LABEL = "nvidia.com/gpu.present"

POD_SECURITY_NAMESPACES = {
    "ps-privileged": "privileged",
    "ps-baseline": "baseline",
    "ps-restricted": "restricted",
}


@dataclass(frozen=True)
class NodeSpec:
    """One node: number gives its addresses; gpus is how many devices its plugin pretends to have."""

    name: str
    number: int
    gpus: int = 0
    disk_gib: int = 40
    labels: dict[str, str] = field(default_factory=dict)

    @property
    def address(self) -> str:
        return f"10.90.0.{10 + self.number}"

    @property
    def pod_subnet(self) -> str:
        return f"10.244.{self.number}.0/24"

    @property
    def pod_gateway(self) -> str:
        return f"10.244.{self.number}.1"

    @property
    def taints(self) -> list[dict[str, str]]:
        if not self.gpus:
            return []
        return [{"key": GPU_RESOURCE, "value": "present", "effect": "NoSchedule"}]


NODES = (
    NodeSpec("gpu-1", 1, gpus=1, labels={GPU_LABEL: "true"}),
    NodeSpec("gpu-2", 2, gpus=1, labels={GPU_LABEL: "true"}),
    NodeSpec("cpu-1", 3),
)


def node_spec(name: str) -> NodeSpec:
    """Return the node of that name, or raise KeyError."""
    return {node.name: node for node in NODES}[name]
