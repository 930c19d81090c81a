"""The steps of a staging pod: which there are, their arguments, what each may see. Called by `manifests`; pure.

    resolve (revision unknown) -> fetch (fetched sources) -> prefetch -> validate -> tune (where asked) -> report

Secrets, proxies and certificates are those of `resolve` and `fetch` alone, the right to write is that of `fetch`.
"""

from dataclasses import dataclass
from typing import Final

from modelweights_operator.api.v1alpha1 import Revision, Spec
from modelweights_operator.domain import storage
from modelweights_operator.domain.memory import Bound
from modelweights_operator.domain.pods import TERMINATION_LOG, Manifest, container
from modelweights_operator.domain.snapshot import FetchSettings, Node, Policy
from modelweights_operator.domain.storage import ModelLocation

RESOLVE: Final = "resolve"
FETCH: Final = "fetch"
PREFETCH: Final = "prefetch"
VALIDATE: Final = "validate"
REPORT: Final = "report"
REFRESH: Final = "refresh"
CA_VARIABLE: Final = "MODELWEIGHTS_EXTRA_CA"

_ASKS_SOURCE: Final = (RESOLVE, FETCH)

_MARKER_MOUNT: Final = "/run/modelweights/markers"
_PREPARED_MOUNT: Final = "/run/modelweights/prepared"
_RESULTS_MOUNT: Final = "/run/modelweights/results"
_SECRETS_MOUNT: Final = "/run/modelweights/secrets"
"""Below it by the Secret's name and key, so that the loader's messages name them."""
_TMP: Final = "/tmp"  # noqa: S108 - the pod's own emptyDir
_SMALL_TMP: Final = "64Mi"
_FETCH_TMP: Final = "1Gi"
"""The libraries keep caches, locks and logs in their home; past this the kubelet would evict the pod."""
_SECRET_MODE: Final = 0o440
"""Read by the pod's fsGroup."""


@dataclass(frozen=True)
class Staging:
    """What the steps are made of.

    `revision` is the resolved one of a fetched source, "" to find it out; `bound` what may be kept in the page cache.
    """

    spec: Spec
    node: Node
    location: ModelLocation
    policy: Policy
    revision: str = ""
    bound: Bound | None = None

    @property
    def resolves(self) -> bool:
        """Whether the revision is to be found out first, so that other nodes wait for no more than that."""
        return not self.revision and needs_revision(self.spec)


def needs_revision(spec: Spec) -> bool:
    """Whether the nodes must agree on a revision beforehand.

    Not for hostPath: each node has its own folder, whose files have times of their own. As with those that are used in
    place, the digests of the contents tell the nodes apart.
    """
    return spec.is_fetched and spec.source.host_path is None


def containers(staging: Staging) -> list[Manifest]:
    """All steps as containers, in order; the last one is the pod's container, the others are its init containers."""
    return [_container(staging, step, arguments) for step, arguments in _steps(staging)]


def volumes(staging: Staging) -> list[Manifest]:
    """The pod's volumes."""
    spec, location = staging.spec, staging.location
    if not spec.is_fetched:
        return [_in_place(spec, location), *_scratch(_SMALL_TMP)]
    return [_home(staging), *_prepared(location), *_scratch(_FETCH_TMP), *_copied(staging), *_secrets(spec)]


def refresh_container(staging: Staging, digest: str, known: Revision | None) -> Manifest:
    """The one step that warms what has cooled: of a home the checkpoint with that digest, else what lies at the path.

    Args:
        staging: What it is made of.
        digest: Of the checkpoint that the node proved.
        known: What is known of it; None for nothing.
    """
    prefetch = staging.spec.prefetch
    which = [f"--digest={digest}"] if staging.spec.is_fetched else []
    if not staging.spec.is_fetched and known is not None and known.size_bytes and known.file_count:
        which = ["--expect-size", str(known.size_bytes), "--expect-files", str(known.file_count)]
    read = ["--num-threads", str(prefetch.num_threads), "--block-size", str(prefetch.block_bytes)]
    warmth = [
        *("--min-resident-percent", str(prefetch.min_resident_percent)),
        *("--unknown-residency", prefetch.unknown_residency),
        *_marker(staging.location),
    ]
    marks = warmth if _writes_marker(staging, REFRESH) else []
    return _container(staging, REFRESH, [*which, *read, "--pages", prefetch.pages, *_bounded(staging), *marks])


def refresh_volumes(staging: Staging) -> list[Manifest]:
    """Its volumes: no source, no Secret."""
    spec = staging.spec
    if not spec.is_fetched:
        return [_in_place(spec, staging.location), *_scratch(_SMALL_TMP)]
    prepared = _prepared(staging.location) if _writes_marker(staging, REFRESH) else []
    return [_home(staging), *prepared, *_scratch(_SMALL_TMP)]


def _bounded(staging: Staging) -> list[str]:
    bound = staging.bound
    if bound is None:
        return []
    return [f"--max-resident={bound.size_bytes}", f"--max-resident-because={bound.because}"]


def _scratch(tmp_size: str) -> list[Manifest]:
    return [
        {"name": "results", "emptyDir": {"sizeLimit": "64Mi"}},
        {"name": "tmp", "emptyDir": {"sizeLimit": tmp_size}},
    ]


def _in_place(spec: Spec, location: ModelLocation) -> Manifest:
    volume = _mountable(spec)
    return {"name": "model", **(volume or {"hostPath": {"path": location.marker_root, "type": "Directory"}})}


def _mountable(spec: Spec) -> Manifest | None:
    """The volume of a source that is one by itself; None for the others."""
    claim, image = spec.source.persistent_volume_claim, spec.source.image
    if claim is not None:
        return {"persistentVolumeClaim": {"claimName": claim.claim_name, "readOnly": True}}
    if image is not None:
        return {"image": {"reference": image.reference, "pullPolicy": image.pull_policy}}
    return None


def _home(staging: Staging) -> Manifest:
    storage_class = storage.find_class(staging.spec, staging.policy)
    if storage_class.claim:
        return {"name": "model", "persistentVolumeClaim": {"claimName": storage_class.claim}}
    return {"name": "model", "hostPath": {"path": storage_class.root, "type": "Directory"}}


def _prepared(location: ModelLocation) -> list[Manifest]:
    """Of a class's root: holds the pod back until the root is prepared.

    In one that isn't as yet, on a node that has just joined, the kubelet would make the subPath as root's alone, and no
    staging could ever write there.
    """
    if not location.marked:
        return []
    path = f"{location.marker_root}/{storage.MARKER_FOLDER}"
    return [{"name": "prepared", "hostPath": {"path": path, "type": "Directory"}}]


def _copied(staging: Staging) -> list[Manifest]:
    """What a local copy is made of."""
    volume = _mountable(staging.spec)
    if volume is not None:
        return [{"name": "source", **volume}]
    source = staging.location.source
    if source is not None:
        return [{"name": "source", "hostPath": {"path": source.volume, "type": "Directory"}}]
    return []


def _secrets(spec: Spec) -> list[Manifest]:
    """Optional, because the loader says that one is missing, where the kubelet would only repeat an event."""
    found: list[Manifest] = []
    token = spec.source.hugging_face and spec.source.hugging_face.token_secret_ref
    if token:
        items = [{"key": token.key, "path": token.key}]
        secret = {"secretName": token.name, "items": items, "optional": True, "defaultMode": _SECRET_MODE}
        found.append({"name": "token", "secret": secret})
    credentials = spec.source.object_store and spec.source.object_store.credentials_secret_ref
    if credentials:
        secret = {"secretName": credentials.name, "optional": True, "defaultMode": _SECRET_MODE}
        found.append({"name": "credentials", "secret": secret})
    return found


# --- arguments --------------------------------------------------------------------------------------------------------


def _steps(staging: Staging) -> list[tuple[str, list[str]]]:
    """The loader's steps in order, each with its arguments."""
    spec, location = staging.spec, staging.location
    prefetch, validation = spec.prefetch, spec.validation
    warm = [
        *("--policy", prefetch.policy if prefetch.mode == "PageCache" else "BestEffort"),
        *("--min-resident-percent", str(prefetch.min_resident_percent)),
        *("--unknown-residency", prefetch.unknown_residency),
    ]
    read = ["--num-threads", str(prefetch.num_threads), "--block-size", str(prefetch.block_bytes), *warm]
    check = [
        *("--mode", validation.mode),
        *("--load-format", validation.engine.load_format),
        *("--queue-size", str(validation.engine.queue_size)),
        *("--world-size", str(validation.engine.tensor_parallel_size)),
        *("--timeout-seconds", str(validation.timeout_seconds)),
    ]
    publish = ["--node-boot-id", staging.node.boot_id, *warm, *(_marker(location) if location.marked else [])]
    steps = [(PREFETCH, [*read, *_bounded(staging)])] if prefetch.mode == "PageCache" else []
    steps.append((VALIDATE, check))
    if validation.engine.selection == "Measured":
        steps.append(("tune", []))
    steps.append((REPORT, [*publish, "--pages", prefetch.pages]))
    if not spec.is_fetched:
        return steps
    first = [(RESOLVE, _source(staging, _asked(spec)))] if staging.resolves else []
    return [*first, (FETCH, _fetch(staging)), *((step, [*arguments, "--fetched"]) for step, arguments in steps)]


def _writes_marker(staging: Staging, step: str) -> bool:
    """Whether a step marks what it found: a refresh only says whether it is warm, where it has to be."""
    marks = step == REPORT or (step == REFRESH and staging.spec.prefetch.policy == "Required")
    return marks and staging.location.marked


def _marker(location: ModelLocation) -> list[str]:
    return ["--marker-dir", _MARKER_MOUNT, "--marker-root", location.marker_root]


def _asked(spec: Spec) -> str:
    return spec.source.hugging_face.revision if spec.source.hugging_face else ""


def _source(staging: Staging, revision: str) -> list[str]:
    """What both steps are told that ask the source. With '=' in between: what people wrote may begin with a dash."""
    spec, object_store = staging.spec, staging.spec.source.object_store
    given = {
        "source": storage.source_url(spec),
        "revision": revision,
        "endpoint": storage.source_endpoint(spec, staging.policy),
        "region": object_store.region if object_store else "",
        **_secret_places(spec),
        "extra-ca-env": CA_VARIABLE if staging.policy.fetch.extra_ca else "",
    }
    flags = {
        "--path-style": object_store is not None and object_store.path_style,
        "--anonymous": object_store is not None and object_store.anonymous,
    }
    return [*_options(given), *(flag for flag, wanted in flags.items() if wanted)]


def _options(given: dict[str, str]) -> list[str]:
    return [f"--{name}={value}" for name, value in given.items() if value]


def _fetch(staging: Staging) -> list[str]:
    spec, settings, files = staging.spec, staging.policy.fetch, staging.spec.files
    given = {
        "layout": spec.storage.layout if spec.storage else "Plain",
        "disk-reserve": storage.find_class(spec, staging.policy).reserve,
        "num-connections": str(settings.num_connections or ""),
        "max-bytes-per-second": str(settings.max_bytes_per_second or ""),
    }
    revision = ["--resolved"] if staging.resolves else []
    return [
        *_source(staging, "" if staging.resolves else staging.revision or _asked(spec)),
        *revision,
        *_options(given),
        *(f"--include={pattern}" for pattern in (files.include if files else ())),
        *(f"--exclude={pattern}" for pattern in (files.exclude if files else ())),
    ]


def _secret_places(spec: Spec) -> dict[str, str]:
    """Where the step finds what `_secrets` mounts."""
    hugging_face, object_store = spec.source.hugging_face, spec.source.object_store
    if hugging_face and hugging_face.token_secret_ref:
        reference = hugging_face.token_secret_ref
        return {"token-file": f"{_SECRETS_MOUNT}/{reference.name}/{reference.key}"}
    if object_store and object_store.credentials_secret_ref:
        folder = f"{_SECRETS_MOUNT}/{object_store.credentials_secret_ref.name}"
        is_web = object_store.url.startswith("https://")
        return {"token-file": f"{folder}/token"} if is_web else {"credentials-dir": folder}
    return {}


# --- containers -------------------------------------------------------------------------------------------------------


def _container(staging: Staging, step: str, arguments: list[str]) -> Manifest:
    location, policy, resources = staging.location, staging.policy, staging.spec.staging.resources
    # The kubelet follows a link that stays in the volume, and that of a class' root holds the parts of all namespaces.
    part = ["--part", location.sub_path] if location.marked and location.sub_path and step != RESOLVE else []
    own = ["--root", location.root, *part, "--report", TERMINATION_LOG, "--results", _RESULTS_MOUNT]
    given = {"requests": dict(resources.requests), "limits": dict(resources.limits)}
    return {
        **container(step, (step, location.path, *own, *arguments), _mounts(staging, step), policy, given),
        "env": [{"name": name, "value": value} for name, value in _environment(staging, step).items()],
    }


def _environment(staging: Staging, step: str) -> dict[str, str]:
    """The user's variables; where the source is asked, they count more than the site's proxies and less than what is needed."""
    asked = {variable.name: variable.value for variable in staging.spec.staging.env}
    if step not in _ASKS_SOURCE:
        return asked
    settings = staging.policy.fetch
    needed = {"HOME": _TMP, "TMPDIR": _TMP, "HF_HOME": f"{_TMP}/huggingface"}
    trusted = {CA_VARIABLE: settings.extra_ca} if settings.extra_ca else {}
    return {**_escaped(settings), **asked, **needed, **trusted}


def _escaped(settings: FetchSettings) -> dict[str, str]:
    return {name: value.replace("$", "$$") for name, value in settings.proxy.items()}


def _mounts(staging: Staging, step: str) -> list[Manifest]:
    location = staging.location
    mounts: list[Manifest] = [
        {"name": "results", "mountPath": _RESULTS_MOUNT},
        {"name": "tmp", "mountPath": _TMP},
    ]
    if step != RESOLVE:
        mounts.insert(0, _model(location, step))
    if _writes_marker(staging, step):
        mounts.append({"name": "model", "mountPath": _MARKER_MOUNT, "subPath": storage.MARKER_FOLDER})
        if staging.spec.is_fetched:
            # Only a volume that a step mounts is waited for.
            mounts.append({"name": "prepared", "mountPath": _PREPARED_MOUNT, "readOnly": True})
    if step in _ASKS_SOURCE:
        mounts += _source_mounts(staging)
    return mounts


def _model(location: ModelLocation, step: str) -> Manifest:
    model: Manifest = {"name": "model", "mountPath": location.root}
    if step != FETCH:
        model["readOnly"] = True
    if location.sub_path:
        # subPath, because the kubelet refuses a planted link there and makes the folder with the root's group.
        model["subPath"] = location.sub_path
    return model


def _source_mounts(staging: Staging) -> list[Manifest]:
    source = staging.location.source
    found: list[Manifest] = []
    if _mountable(staging.spec) is not None:
        found.append({"name": "source", "mountPath": storage.SOURCE_VOLUME_MOUNT, "readOnly": True})
    if source is not None:
        # At its own path, so that messages name the node's; a home below it is mounted over it.
        part = {"subPath": source.sub_path} if source.sub_path else {}
        found.append({"name": "source", "mountPath": source.mount, "readOnly": True, **part})
    for volume in _secrets(staging.spec):
        path = f"{_SECRETS_MOUNT}/{volume['secret']['secretName']}"
        found.append({"name": volume["name"], "mountPath": path, "readOnly": True})
    return found
