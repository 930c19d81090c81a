"""Which pods use fetched files, as far as the API server tells. Called by `cleanup`; pure.

The loader's lock on the node is the second guard, for pods that hold one (`modelweights-loader wait --hold`).
"""

import posixpath
from collections.abc import Iterable
from dataclasses import dataclass

from modelweights_operator.domain import gate, storage
from modelweights_operator.domain.host_folders import holds
from modelweights_operator.domain.snapshot import Owner, StorageClass


@dataclass(frozen=True)
class PodUse:
    """What a pod that hasn't ended mounts and was let in with.

    Attributes:
        namespace: Of the pod.
        name: Of the pod.
        node: Where it runs, "" for one that isn't bound yet.
        digests: The annotation that it got with the gate's lift, "" without one.
        require: What it asked for at the gate, "" for nothing.
        host_paths: The folders of the node that it mounts.
        claims: The claims that it mounts.
        ours: A staging or cleanup pod, or one that prepares nodes.
    """

    namespace: str
    name: str
    node: str = ""
    digests: str = ""
    require: str = ""
    host_paths: tuple[str, ...] = ()
    claims: tuple[str, ...] = ()
    ours: bool = False


def users(pods: Iterable[PodUse], owner: Owner, where: StorageClass, digest: str) -> list[str]:
    """The pods that use, or may use, a checkpoint.

    A pod that says which digests it was let in with, uses these and no others. Of the rest whoever mounts a folder at,
    above or below the checkpoint's within the class' root (what mounts all of the node's disk, as agents do, doesn't count), or
    the claim, or one by which another namespace reads what lies there. Where all is to go, whoever required the object does too.

    Args:
        pods: Of one node, and those that are bound to none as yet.
        owner: The ModelWeights.
        where: The storage class whose files they are.
        digest: Manifest digest of the checkpoint; "" for all of them.
    """
    return sorted(f"{pod.namespace}/{pod.name}" for pod in pods if not pod.ours and _uses(pod, owner, where, digest))


def _uses(pod: PodUse, owner: Owner, where: StorageClass, digest: str) -> bool:
    if pod.digests:
        return _names(pod, owner, where, digest)
    if not pod.node:
        return False
    return _mounts(pod, owner, where, digest)


def _names(pod: PodUse, owner: Owner, where: StorageClass, digest: str) -> bool:
    """Whether it was let in with the digest; where all is to go, whether it required the object, or mounts any of it."""
    if digest:
        return digest in pod.digests
    required = gate.requires(pod.require, pod.namespace, (owner.namespace, owner.name))
    return required or _mounts(pod, owner, where, digest)


def _mounts(pod: PodUse, owner: Owner, where: StorageClass, digest: str) -> bool:
    if any(
        (pod.namespace, owner.namespace) == (reader.namespace, reader.reads) and reader.claim in pod.claims
        for reader in where.readers
    ):
        return True
    if where.claim:
        return pod.namespace == owner.namespace and where.claim in pod.claims
    folder = posixpath.join(storage.home(owner, where).path, digest.removeprefix("sha256:")).rstrip("/")
    return any(
        holds(where.root, path) and (holds(folder, path) or holds(path, folder))
        for path in map(posixpath.normpath, pod.host_paths)
    )
