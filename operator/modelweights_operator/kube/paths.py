"""Paths of the API that the operator uses. Called by the rest of `kube`."""

from typing import Final
from urllib.parse import quote

from modelweights_operator.api.v1alpha1 import API_VERSION, PLURAL

ALL_MODELWEIGHTS: Final = f"/apis/{API_VERSION}/{PLURAL}"
NODES: Final = "/api/v1/nodes"
NAMESPACES: Final = "/api/v1/namespaces"
JOBS: Final = "/apis/batch/v1/jobs"
PODS: Final = "/api/v1/pods"
ACCESS_REVIEWS: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


def modelweights(namespace: str, name: str) -> str:
    """One ModelWeights."""
    return f"/apis/{API_VERSION}/namespaces/{quote(namespace)}/{PLURAL}/{quote(name)}"


def jobs(namespace: str) -> str:
    """The Jobs of a namespace."""
    return f"/apis/batch/v1/namespaces/{quote(namespace)}/jobs"


def config_map(namespace: str, name: str) -> str:
    """One ConfigMap."""
    return f"/api/v1/namespaces/{quote(namespace)}/configmaps/{quote(name)}"


def pods(namespace: str) -> str:
    """The pods of a namespace."""
    return f"/api/v1/namespaces/{quote(namespace)}/pods"


def pod(namespace: str, name: str) -> str:
    """One pod."""
    return f"{pods(namespace)}/{quote(name)}"


def log(namespace: str, pod_name: str) -> str:
    """The log of one pod."""
    return f"{pod(namespace, pod_name)}/log"


def node(name: str) -> str:
    """One node."""
    return f"{NODES}/{quote(name)}"


def events(namespace: str) -> str:
    """The events of a namespace."""
    return f"/api/v1/namespaces/{quote(namespace)}/events"


def leases(namespace: str) -> str:
    """The Leases of a namespace."""
    return f"/apis/coordination.k8s.io/v1/namespaces/{quote(namespace)}/leases"


def lease(namespace: str, name: str) -> str:
    """One Lease."""
    return f"{leases(namespace)}/{quote(name)}"
