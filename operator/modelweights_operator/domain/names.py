"""Names, labels and annotations that the operator writes, and the hashes in them. Called by the planner and `kube`.

Everything that could pass a limit of Kubernetes gets a hash suffix; nothing here depends on time or chance, so that a
restarted operator arrives at the same names.
"""

import functools
import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    # The API's models take their time to import, and `kubectl modelweights` needs the names alone.
    from modelweights_operator.api.v1alpha1 import Spec

PREFIX: Final = "modelweights.io"

# Labels of staging Jobs and pods.
MANAGED_BY_LABEL: Final = "app.kubernetes.io/managed-by"
MANAGED_BY: Final = "modelweights-operator"
OWNER_LABEL: Final = f"{PREFIX}/owner-uid"

# Annotations of staging Jobs.
NODE_ANNOTATION: Final = f"{PREFIX}/node"
NODE_UID_ANNOTATION: Final = f"{PREFIX}/node-uid"
STAGING_DIGEST_ANNOTATION: Final = f"{PREFIX}/staging-digest"
BOOT_ID_ANNOTATION: Final = f"{PREFIX}/boot-id"
ROUND_ANNOTATION: Final = f"{PREFIX}/round"
IMAGE_ANNOTATION: Final = f"{PREFIX}/image"
"""What the pod was asked to run; admission may have put another registry in front of it."""
PULL_SECRETS_ANNOTATION: Final = f"{PREFIX}/pull-secrets"
"""Likewise, with which pull secrets; left out where the spec names none."""
RESULT_ANNOTATION: Final = f"{PREFIX}/result"
FOLLOWS_ANNOTATION: Final = f"{PREFIX}/follows-measurement"
"""Of a Job that refreshes: when it was measured before. What carries it stages nothing."""
# Of those that fetch, too.
SOURCE_DIGEST_ANNOTATION: Final = f"{PREFIX}/source-digest"
REVISION_ANNOTATION: Final = f"{PREFIX}/revision"
"""The revision that the Job was given; without it, it is the one that finds out."""
SOURCE_HOST_ANNOTATION: Final = f"{PREFIX}/source-host"

RETRY_ANNOTATION: Final = f"{PREFIX}/retry-now"
"""Of the ModelWeights: with another value than was heeded last, what failed is tried again at once."""

# Of cleanup Jobs and their pods.
CLEANUP_LABEL: Final = f"{PREFIX}/cleanup"
"""With the UID of the ModelWeights, whatever namespace they are in."""
CLEANUP_OWNER_ANNOTATION: Final = f"{PREFIX}/cleanup-of"
CLEANUP_CLASS_ANNOTATION: Final = f"{PREFIX}/storage-class"
CLEANUP_DIGESTS_ANNOTATION: Final = f"{PREFIX}/digests"
"""Which checkpoints go, with a comma in between; "" for all of them."""
FINALIZER: Final = f"{PREFIX}/cleanup"

# What waiting pods carry, and what is put on nodes.
GATE: Final = f"{PREFIX}/staged"
REQUIRE_ANNOTATION: Final = f"{PREFIX}/require"
MAX_REQUIRE_LENGTH: Final = 16_384
"""Of that annotation, which may have 256 KiB and is looked at often: so much is enough for all that it may name."""
DIGEST_ANNOTATION: Final = f"{PREFIX}/digest"
PATH_ANNOTATION: Final = f"{PREFIX}/path"
GROUP_LABEL: Final = f"{PREFIX}/group"
"""Pods of a namespace with the same value start together."""
GROUP_SIZE_ANNOTATION: Final = f"{PREFIX}/group-size"
NODE_LABEL_PREFIX: Final = f"staged.{PREFIX}/"

_CREDENTIALS: Final = frozenset({"tokenSecretRef", "credentialsSecretRef", "anonymous"})
"""How one gets at a source changes nothing of what is there."""
_RETENTION: Final = frozenset({"retention", "gracePeriodSeconds"})
"""What becomes of files later changes nothing of what is staged."""
_SHORT_HASH: Final = 10
_LABEL_DIGEST: Final = 40
_LABEL_KEY_DIGEST: Final = 12
_JOB_NAME_LIMIT: Final = 52
"""A Job's name is a label's value of its pods, and pods add six characters."""


def short_hash(*parts: str, length: int = _SHORT_HASH) -> str:
    """A hash of strings in order, in lower-case hexadecimal; different splits give different hashes."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:length]


def staging_digest(spec: "Spec", place: str = "") -> str:
    """Hash of what is staged and how.

    Args:
        spec: The spec.
        place: Where fetched files go, as `storage.place` says; "" for what is used in place.

    Never of the generation: suspending, tolerations, labels or another image stage nothing again. Only what would give
    another result on the node counts. Defaults are left out: a field that a later version adds changes no hash.
    """
    given = spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    validation = {key: value for key, value in given.get("validation", {}).items() if key != "timeoutSeconds"}
    prefetch = {key: value for key, value in given.get("prefetch", {}).items() if key != "refreshIntervalSeconds"}
    staged: dict[str, Any] = {
        "source": _without_credentials(given["source"]),
        # 16Mi and 16777216 are the same.
        "prefetch": {**prefetch, "blockSize": spec.prefetch.block_bytes},
        "validation": validation,
    }
    if spec.is_fetched:
        # Left out where nothing is fetched, so that a version which knew nothing of it gave the same hash.
        staged["files"] = given.get("files", {})
        staged["storage"] = {key: value for key, value in given.get("storage", {}).items() if key not in _RETENTION}
        staged["fetched"] = True
        staged["place"] = place
    return short_hash(json.dumps(staged, sort_keys=True))


def source_digest(spec: "Spec") -> str:
    """Hash of what a revision belongs to: the source alone, whichever of its files are taken and wherever they go."""
    given = spec.source.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return short_hash(json.dumps(_without_credentials(given), sort_keys=True))


def _without_credentials(source: Mapping[str, Any]) -> dict[str, Any]:
    return {
        kind: {key: value for key, value in fields.items() if key not in _CREDENTIALS}
        for kind, fields in source.items()
    }


def pull_secrets(spec: "Spec") -> str:
    """The pull secrets that a staging is given, as one string; "" for none."""
    return ",".join(secret.name for secret in spec.staging.image_pull_secrets)


def job_name(owner_name: str, *identity: str, verb: str = "stage") -> str:
    """Name of a Job: readable at its front, unique by the hash of its identity.

    Args:
        owner_name: Name of the ModelWeights, up to 253 characters and with dots.
        identity: UID of the ModelWeights, UID of the node, staging digest, boot ID, round; then the revision, if given one.
        verb: What it does.
    """
    suffix = short_hash(*identity, length=12)
    readable = owner_name.replace(".", "-")[: _JOB_NAME_LIMIT - len(f"{verb}--") - len(suffix)].rstrip("-")
    return f"{verb}-{readable}-{suffix}"


def node_label(owner_uid: str, manifest_digest: str) -> str:
    """Key of the node label that says that the node holds this digest of this ModelWeights.

    Each digest has its own, so that a node can hold several, and a pod that was lifted for one isn't concerned by another.
    """
    return f"{node_label_owner(owner_uid)}-{label_digest(manifest_digest)[:_LABEL_KEY_DIGEST]}"


@functools.lru_cache(maxsize=4096)
def node_label_owner(owner_uid: str) -> str:
    """What all node labels of this ModelWeights have in front of the dash."""
    return f"{NODE_LABEL_PREFIX}{short_hash(owner_uid, length=20)}"


def owner_of_label(key: str) -> str:
    """Of a node label of ours, the part that says whose it is; see `node_label_owner`."""
    return key.partition("-")[0]


def digest_labels(owner_uid: str, manifest_digests: Iterable[str]) -> dict[str, str]:
    """The labels of a node that holds these digests of this ModelWeights."""
    return {node_label(owner_uid, digest): label_digest(digest) for digest in manifest_digests}


def has_label(labels: Mapping[str, str], owner_uid: str, manifest_digest: str) -> bool:
    """Whether a node's labels say that it holds this checkpoint of this ModelWeights."""
    return labels.get(node_label(owner_uid, manifest_digest)) == label_digest(manifest_digest)


def label_digest(manifest_digest: str) -> str:
    """A manifest digest as a label's value, which is bounded to 63 characters: its first 160 bits."""
    return manifest_digest.removeprefix("sha256:")[:_LABEL_DIGEST]


def staged_labels(labels: Mapping[str, Any]) -> dict[str, str]:
    """The labels of a node that are ours."""
    return {key: value for key, value in labels.items() if key.startswith(NODE_LABEL_PREFIX)}


def labels_by_owner(labels: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """The labels of a node that are ours, by what `owner_of_label` says of them."""
    found: dict[str, dict[str, str]] = {}
    for key, value in staged_labels(labels).items():
        found.setdefault(owner_of_label(key), {})[key] = value
    return found
