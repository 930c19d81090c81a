"""Folders on the nodes that a hostPath source may name, and what of them its staging pod sees. Called by `storage`; pure.

    <allowed root>/…                       let in for every namespace
    <root of a storage class>/<namespace>  let in for that namespace, which sees nothing but this

An allowed root may hold a class's root, or be the same folder: what is fetched there belongs to the namespaces all the same.
"""

import posixpath
from dataclasses import dataclass
from typing import Final

from modelweights_operator.domain.snapshot import Policy

PATH_NOT_ALLOWED: Final = "PathNotAllowed"


class LocationError(ValueError):
    """What the spec asks for lies nowhere that the administrator allows; `reason` is the condition's."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True)
class HostFolder:
    """A folder on the nodes.

    Attributes:
        volume: The allowed root, which is the pod's volume.
        mount: What of it is mounted, at its own path.
        path: The folder itself.
    """

    volume: str
    mount: str
    path: str

    @property
    def sub_path(self) -> str:
        """`mount` below `volume`; "" for all of it."""
        return "" if self.mount == self.volume else posixpath.relpath(self.mount, self.volume)


def allowed_root(path: str, roots: tuple[str, ...]) -> str | None:
    """The longest of the allowed roots that holds `path`, or None. A root itself is no checkpoint."""
    normal = posixpath.normpath(path)
    holding = [root for root in map(posixpath.normpath, roots) if is_below(normal, root)]
    return max(holding, key=len, default=None)


def is_below(path: str, folder: str) -> bool:
    """Whether a path, written out, lies in a folder; the folder itself doesn't."""
    return path.startswith(folder.rstrip("/") + "/")


def holds(folder: str, path: str) -> bool:
    """Whether a path, written out, is a folder or lies in it."""
    return path == folder.rstrip("/") or is_below(path, folder)


def find(namespace: str, path: str, policy: Policy) -> HostFolder:
    """Find out where a source lies.

    Args:
        namespace: Of the ModelWeights.
        path: As the spec has it.
        policy: Settings of the operator.

    Raises:
        LocationError: It lies below no allowed root, or in the part of another namespace.
    """
    path = posixpath.normpath(path)
    root = allowed_root(path, policy.host_path_roots)
    if root is None:
        allowed = ", ".join(policy.host_path_roots) or "none"
        raise LocationError(
            PATH_NOT_ALLOWED,
            f"spec.source.hostPath.path {path} lies below none of the allowed roots ({allowed}): "
            "move the checkpoint, or let the administrator add its root to the chart's value hostPathRoots",
        )
    mount = root
    for each in policy.storage_classes:
        shared = each.shared_root
        if not shared or not (holds(shared, path) or is_below(shared, path)):
            continue
        own = posixpath.join(shared, namespace)
        if not is_below(path, own):
            raise LocationError(
                PATH_NOT_ALLOWED,
                f"spec.source.hostPath.path {path}: below {shared}, the root of the storage class {each.name}, a "
                f"ModelWeights of {namespace} may name folders in {own} only; what all namespaces share lies elsewhere",
            )
        if is_below(own, root):
            mount = own
    return HostFolder(root, mount, path)
