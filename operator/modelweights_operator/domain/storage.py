"""Where a checkpoint lies: inside a staging pod, on a node, and for the pods that use it. Called by the planner; pure.

used in place                    <allowed root>/…                     the claim's folder, the image's folder
fetched, class with a root       <root>/<namespace>/<name>/<digest>   home is without the digest
fetched, class with a claim      <claim>/<name>/<digest>              likewise
"""

import contextlib
import posixpath
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import quote

from modelweights_operator.api.v1alpha1 import Spec
from modelweights_operator.domain import host_folders
from modelweights_operator.domain.host_folders import HostFolder, LocationError
from modelweights_operator.domain.snapshot import Owner, Policy, StorageClass

MARKER_FOLDER: Final = ".modelweights"
"""Below a root: where the loader writes what `modelweights-loader wait` reads."""
VOLUME_MOUNT: Final = "/mnt/model"
"""Where a claim or an image is mounted, of which a pod sees nothing but the volume."""
SOURCE_VOLUME_MOUNT: Final = "/mnt/source"
"""Where the one is mounted that a copy is made of."""
HUGGING_FACE_HOST: Final = "huggingface.co"

STORAGE_CLASS_NOT_FOUND: Final = "StorageClassNotFound"

_STORE_HOSTS: Final = {"s3": "amazonaws.com", "gs": "storage.googleapis.com", "az": "blob.core.windows.net"}


@dataclass(frozen=True)
class ModelLocation:
    """Where the checkpoint is inside a staging pod.

    Attributes:
        root: Where the volume is mounted.
        path: The checkpoint's folder, at or below root; of a fetched one the home, which holds it.
        marked: Whether a marker for `modelweights-loader wait` can be written beside it.
        marker_root: The folder on the node that holds the markers' folder; "" without markers.
        sub_path: What of the volume is mounted at root; "" for all of it.
        source: The folder on the node that a copy is made of; None for other sources.
    """

    root: str
    path: str
    marked: bool
    marker_root: str = ""
    sub_path: str = ""
    source: HostFolder | None = None


def find_class(spec: Spec, policy: Policy) -> StorageClass:
    """The storage class of a spec that fetches.

    Raises:
        LocationError: There is none of that name, or no default one.
    """
    wanted = spec.storage.class_name if spec.storage else ""
    known = ", ".join(each.name for each in policy.storage_classes) or "none"
    for each in policy.storage_classes:
        if each.name == wanted or (not wanted and each.is_default):
            return each
    what = (
        f"spec.storage.class {wanted} isn't among" if wanted else "spec.storage.class is empty, and no default is among"
    )
    raise LocationError(
        STORAGE_CLASS_NOT_FOUND,
        f"{what} the administrator's storage classes ({known}): name one of them, or let the administrator add it to the "
        "chart's value storage.classes",
    )


def class_of_spec(spec: Spec | None, policy: Policy) -> StorageClass | None:
    """The storage class that a spec fetches into; None where it fetches nothing, or names none that there is."""
    with contextlib.suppress(LocationError):
        return find_class(spec, policy) if spec is not None and spec.is_fetched else None
    return None


def place(spec: Spec, policy: Policy) -> str:
    """Where fetched files go, by what the class means now; "" for what is used in place.

    Raises:
        LocationError: There is no such storage class.
    """
    if not spec.is_fetched:
        return ""
    found = find_class(spec, policy)
    return f"claim:{found.claim}" if found.claim else found.root


def locate(owner: Owner, spec: Spec, policy: Policy) -> ModelLocation:
    """Where the staging pod finds, or puts, the checkpoint.

    Raises:
        LocationError: The path lies below no allowed root, or there is no such storage class.
    """
    if spec.is_fetched:
        source = _host_folder(owner, spec, policy) if spec.source.host_path is not None else None
        return replace(home(owner, find_class(spec, policy)), source=source)
    folder = _folder_of_volume(spec)
    if folder is not None:
        path = posixpath.join(VOLUME_MOUNT, folder).rstrip("/")
        return ModelLocation(VOLUME_MOUNT, path, marked=False)
    found = _host_folder(owner, spec, policy)
    return ModelLocation(found.mount, found.path, marked=True, marker_root=found.volume, sub_path=found.sub_path)


def _folder_of_volume(spec: Spec) -> str | None:
    """The checkpoint's folder in a claim or an image, "" for its root; None for other sources."""
    source = spec.source.persistent_volume_claim or spec.source.image
    return source.path if source is not None else None


def home(owner: Owner, storage_class: StorageClass) -> ModelLocation:
    """Where all fetched files of a ModelWeights lie in a storage class."""
    if storage_class.claim:
        home = posixpath.join(VOLUME_MOUNT, owner.name)
        return ModelLocation(home, home, marked=False, sub_path=owner.name)
    sub_path = f"{owner.namespace}/{owner.name}"
    home = posixpath.join(storage_class.root, sub_path)
    return ModelLocation(home, home, marked=True, marker_root=storage_class.root, sub_path=sub_path)


def _host_folder(owner: Owner, spec: Spec, policy: Policy) -> HostFolder:
    assert spec.source.host_path is not None  # noqa: S101 - exactly one source: the callers looked at the others
    return host_folders.find(owner.namespace, spec.source.host_path.path, policy)


def source_url(spec: Spec) -> str:
    """The source as `modelweights-loader fetch` is told it."""
    source = spec.source
    if source.hugging_face is not None:
        return f"hf://{source.hugging_face.repository}"
    if source.object_store is not None:
        return source.object_store.url
    folder = _folder_of_volume(spec)
    if folder is not None:
        return f"file://{quote(posixpath.join(SOURCE_VOLUME_MOUNT, folder).rstrip('/'))}"
    assert source.host_path is not None  # noqa: S101 - exactly one source: the model holds it
    return f"file://{quote(posixpath.normpath(source.host_path.path))}"


def source_endpoint(spec: Spec, policy: Policy) -> str:
    """The base URL that isn't the source's usual one, "" when it is."""
    if spec.source.hugging_face is not None:
        return spec.source.hugging_face.endpoint or policy.fetch.hugging_face_endpoint
    return spec.source.object_store.endpoint if spec.source.object_store is not None else ""


def source_host(spec: Spec, policy: Policy) -> str:
    """The host whose patience is to be spared; "" for a copy of what the node can mount."""
    endpoint = source_endpoint(spec, policy)
    if endpoint:
        return _authority(endpoint)[1]
    if spec.source.hugging_face is not None:
        return HUGGING_FACE_HOST
    if spec.source.object_store is not None:
        scheme, host = _authority(spec.source.object_store.url)
        return _STORE_HOSTS.get(scheme, host)
    return ""


def _authority(url: str) -> tuple[str, str]:
    """Scheme and host with port of a URL, whatever it holds: `urlsplit` raises for what it doesn't take for a host."""
    scheme, _, rest = url.partition("://")
    return scheme.lower(), rest.partition("/")[0].lower()


def published_path(owner: Owner, spec: Spec, policy: Policy, *, manifest_digest: str, revision: str) -> str:
    """Where an engine finds the checkpoint: a path on the node, or inside a claim or an image.

    Args:
        owner: The ModelWeights.
        spec: Its spec.
        policy: Settings of the operator.
        manifest_digest: Of the checkpoint.
        revision: The resolved revision of a fetched one.

    Raises:
        LocationError: See `locate`.
    """
    if not spec.is_fetched:
        claim, image = spec.source.persistent_volume_claim, spec.source.image
        if image is not None:
            return f"image:{image.reference}/{image.path}"
        return f"claim:{claim.claim_name}/{claim.path}" if claim is not None else _host_folder(owner, spec, policy).path
    storage_class = find_class(spec, policy)
    digest = manifest_digest.removeprefix("sha256:")
    if storage_class.claim:
        folder = f"claim:{storage_class.claim}/{owner.name}/{digest}"
    else:
        folder = posixpath.join(storage_class.root, owner.namespace, owner.name, digest)
    if spec.source.hugging_face is not None and spec.storage is not None and spec.storage.layout == "HuggingFaceCache":
        repository = spec.source.hugging_face.repository.replace("/", "--")
        return f"{folder}/models--{repository}/snapshots/{revision}"
    return folder


def class_of(owner: Owner, path: str, manifest_digest: str, policy: Policy) -> StorageClass | None:
    """The storage class in which a published path lies; None for what is used in place, or of a class that is no more."""
    digest = manifest_digest.removeprefix("sha256:")
    for each in policy.storage_classes:
        if each.claim:
            folder = f"claim:{each.claim}/{owner.name}/{digest}"
        else:
            folder = posixpath.join(each.root, owner.namespace, owner.name, digest)
        if digest and f"{path}/".startswith(f"{folder}/"):
            return each
    return None


def cache_folder(path: str) -> str:
    """Of a published path in a Hugging Face cache, the cache itself; "" for others."""
    folder, found, _ = path.rpartition("/models--")
    return folder if found and "/snapshots/" in path else ""
