"""Where a checkpoint comes from, which of its files are taken and where they go. Part of `v1alpha1`."""

from typing import Annotated, Final, Literal

from pydantic import ConfigDict, Field, model_validator

from modelweights_operator.api.base import NO_CONTROL_CHARACTERS, Model, rules

_OBJECT_NAME: Final = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
_HOST: Final = r"([A-Za-z0-9._$-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?"
"""A host as URLs write it, in ASCII, or a bucket; anything else is no host to one library or another."""
ENDPOINT: Final = rf"^(https?://{_HOST}(/[^?#@\s]*)?)?$"
"""No user name and password, no query: such a URL would stand in arguments and logs."""
_IMAGE_REFERENCE: Final = (
    r"^(([A-Za-z0-9][A-Za-z0-9.-]*|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?/)?[a-z0-9]+([._/-]+[a-z0-9]+)*"
    r"(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@sha256:[0-9a-f]{64})?$"
)
_FOLDER_OF_VOLUME: Final = rules(
    ("!self.startsWith('/')", "must be relative to the volume's root: leave out the leading '/'"),
    (
        "!self.split('/').exists(part, part == '..' || part == '.')",
        "must not hold '.' or '..' as a part: write the path out",
    ),
    NO_CONTROL_CHARACTERS,
)
_EXACTLY_ONE: Final = "exactly one of huggingFace, objectStore, persistentVolumeClaim, hostPath and image must be given"
_ONLY_S3: Final = "region and pathStyle are for s3:// only: leave them out"
_NOT_FOR_HTTPS: Final = "endpoint and anonymous aren't for https://: leave them out"
_ANONYMOUS: Final = "anonymous sends no credentials: leave out credentialsSecretRef, or set anonymous to false"
_PATTERN_RULES: Final = rules(
    (
        "self.all(pattern, !pattern.startsWith('/') && !pattern.matches('[\\\\x00-\\\\x1f\\\\x7f]'))",
        "must be relative patterns without control characters",
    ),
)


class HostPathSource(Model):
    """A checkpoint that is on the nodes' disks already; nothing is fetched."""

    path: str = Field(
        min_length=2,
        max_length=1024,
        description=(
            "Absolute path of the checkpoint's folder on each node. It must lie below one of the roots that the "
            "administrator allows (the chart's value hostPathRoots)."
        ),
        json_schema_extra=rules(
            ("self.startsWith('/')", "must be an absolute path such as /models/llama"),
            (
                "!self.split('/').exists(part, part == '..' || part == '.')",
                "must not hold '.' or '..' as a part: write the path out",
            ),
            ("!self.contains('//')", "must not hold '//'"),
            NO_CONTROL_CHARACTERS,
        ),
    )


class PersistentVolumeClaimSource(Model):
    """A checkpoint in a claim of the same namespace: mounted read-only, nothing is fetched."""

    claim_name: str = Field(
        min_length=1,
        max_length=253,
        pattern=_OBJECT_NAME,
        description="Name of a PersistentVolumeClaim in the namespace of the ModelWeights.",
    )
    path: str = Field(
        default="",
        max_length=1024,
        description="Folder of the checkpoint inside the volume; empty means the volume's root.",
        json_schema_extra=_FOLDER_OF_VOLUME,
    )


class ImageSource(Model):
    """A checkpoint in an OCI image, which the kubelet pulls and mounts as an image volume."""

    reference: str = Field(
        min_length=1,
        max_length=512,
        pattern=_IMAGE_REFERENCE,
        description=(
            "The image: registry/name:tag or, better, registry/name@sha256:…, which is the same everywhere and for ever. "
            "A tag is what each node's runtime makes of it when it pulls; nodes that got different files say DigestMismatch."
        ),
    )
    path: str = Field(
        default="",
        max_length=1024,
        description="Folder of the checkpoint inside the image; empty means the image's root.",
        json_schema_extra=_FOLDER_OF_VOLUME,
    )
    pull_policy: Literal["IfNotPresent", "Always", "Never"] = Field(
        default="IfNotPresent",
        description=(
            "IfNotPresent: a node that has the image asks nobody. Always: it asks the registry at each staging, what a tag "
            "means by now. Never: the node must have it. Give the pods that use it the same."
        ),
    )


class SecretKeyReference(Model):
    """A key of a Secret in the namespace of the ModelWeights."""

    name: str = Field(min_length=1, max_length=253, pattern=_OBJECT_NAME, description="Name of the Secret.")
    key: str = Field(
        default="token",
        min_length=1,
        max_length=253,
        pattern=r"^[-._a-zA-Z0-9]+$",
        description="Key in the Secret's data.",
    )


class SecretReference(Model):
    """A Secret in the namespace of the ModelWeights."""

    name: str = Field(min_length=1, max_length=253, pattern=_OBJECT_NAME, description="Name of the Secret.")


class HuggingFaceSource(Model):
    """A repository of the Hugging Face Hub or of a mirror, fetched to each node."""

    repository: str = Field(
        max_length=193,
        pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,95}/[A-Za-z0-9_][A-Za-z0-9._-]{0,95}$",
        description="The repository as organisation/name.",
        json_schema_extra=rules(
            ("!self.contains('--') && !self.contains('..')", "must not hold '--' or '..': the hub has no such names"),
        ),
    )
    revision: str = Field(
        default="main",
        min_length=1,
        max_length=255,
        pattern=r"^[A-Za-z0-9_][A-Za-z0-9._/+@#-]*$",
        description=(
            "Branch, tag or commit. A branch or tag is resolved to a commit once, by the first node; all nodes get that "
            "one, and status.source.revision shows it. Another commit of the branch is staged when the source changes."
        ),
        json_schema_extra=rules(("!self.contains('..')", "must not hold '..'")),
    )
    endpoint: str = Field(
        default="",
        max_length=512,
        pattern=ENDPOINT,
        description="Base URL of a mirror. Default: the chart's fetch.huggingFaceEndpoint, else https://huggingface.co.",
    )
    token_secret_ref: SecretKeyReference | None = Field(
        default=None,
        description=(
            "Secret with an access token, for private and gated repositories. It is mounted into the step that fetches "
            "alone, and read anew at each attempt."
        ),
    )


class ObjectStoreSource(Model):
    """A folder of an object store or web server, fetched to each node."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                (
                    "((!has(self.region) || self.region == '') && (!has(self.pathStyle) || !self.pathStyle)) || "
                    "self.url.startsWith('s3://')"
                ),
                _ONLY_S3,
            ),
            (
                (
                    "((!has(self.endpoint) || self.endpoint == '') && (!has(self.anonymous) || !self.anonymous)) || "
                    "!self.url.startsWith('https://')"
                ),
                _NOT_FOR_HTTPS,
            ),
            ("!has(self.anonymous) || !self.anonymous || !has(self.credentialsSecretRef)", _ANONYMOUS),
        ),
    )

    url: str = Field(
        max_length=1024,
        pattern=rf"^(s3|gs|az|https)://{_HOST}(/[^/?#\s]+)*/?$",
        description=(
            "The folder: s3://bucket/path, gs://bucket/path, az://container/path or https://host/path/. Without user name, "
            "password, query or fragment."
        ),
        json_schema_extra=rules(
            (
                "!self.split('/').exists(part, part == '..' || part == '.')",
                "must not hold '.' or '..' as a part: write the path out",
            ),
            NO_CONTROL_CHARACTERS,
        ),
    )
    endpoint: str = Field(
        default="",
        max_length=512,
        pattern=ENDPOINT,
        description="Base URL of a store of one's own that speaks the protocol of url's scheme.",
    )
    region: str = Field(
        default="", max_length=64, pattern=r"^[a-z0-9-]*$", description="Region of the bucket; for s3:// only."
    )
    path_style: bool = Field(
        default=False, description="Name the bucket in the path and not in the host name; for s3:// only."
    )
    anonymous: bool = Field(default=False, description="Send no credentials, even where the pod could get some.")
    credentials_secret_ref: SecretReference | None = Field(
        default=None,
        description=(
            "Secret whose keys are named as the store's environment variables, such as AWS_ACCESS_KEY_ID; for https:// its "
            "key token holds a bearer token. It is mounted into the step that fetches alone, and read anew at each attempt. "
            "Without one: the identity of the staging pod's service account, as far as it has any."
        ),
    )

    @model_validator(mode="after")
    def _fitting(self) -> "ObjectStoreSource":
        if (self.region or self.path_style) and not self.url.startswith("s3://"):
            raise ValueError(_ONLY_S3)
        if (self.endpoint or self.anonymous) and self.url.startswith("https://"):
            raise ValueError(_NOT_FOR_HTTPS)
        if self.anonymous and self.credentials_secret_ref is not None:
            raise ValueError(_ANONYMOUS)
        return self


class Source(Model):
    """Where the checkpoint comes from: exactly one of the fields."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                (
                    "[has(self.huggingFace), has(self.objectStore), has(self.persistentVolumeClaim), has(self.hostPath), "
                    "has(self.image)].filter(given, given).size() == 1"
                ),
                _EXACTLY_ONE,
            ),
        ),
    )

    hugging_face: HuggingFaceSource | None = Field(
        default=None, description="A repository of the Hugging Face Hub or of a mirror."
    )
    object_store: ObjectStoreSource | None = Field(
        default=None, description="A folder of an object store (S3, Google Cloud, Azure) or of a web server."
    )
    host_path: HostPathSource | None = Field(default=None, description="A folder on the disks of the nodes.")
    persistent_volume_claim: PersistentVolumeClaimSource | None = Field(
        default=None,
        description="A claim that the selected nodes can mount, such as one on a shared file system.",
    )
    image: ImageSource | None = Field(
        default=None,
        description=(
            "An OCI image, mounted as an image volume: the feature gate ImageVolume must be on in the API server and the "
            "kubelets, and the container runtime must know it (containerd 2.1, CRI-O 1.31)."
        ),
    )

    @model_validator(mode="after")
    def _exactly_one(self) -> "Source":
        sources = (self.hugging_face, self.object_store, self.persistent_volume_claim, self.host_path, self.image)
        if sum(source is not None for source in sources) != 1:
            raise ValueError(_EXACTLY_ONE)
        return self


_Pattern = Annotated[str, Field(min_length=1, max_length=256)]


class Files(Model):
    """Which of the source's files are fetched, by shell patterns over their paths."""

    include: tuple[_Pattern, ...] = Field(
        default=(),
        max_length=32,
        description=(
            "Patterns of files to fetch, such as *.safetensors. Default: what an engine would read: weights, index, "
            "configuration, tokenizer, chat template, code."
        ),
        json_schema_extra=_PATTERN_RULES,
    )
    exclude: tuple[_Pattern, ...] = Field(
        default=(),
        max_length=32,
        description="Patterns of files to leave out; they count more than include.",
        json_schema_extra=_PATTERN_RULES,
    )


class Storage(Model):
    """Where on the nodes fetched files go."""

    class_name: str = Field(
        default="",
        alias="class",
        max_length=63,
        pattern=r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$",
        description="A storage class that the administrator named in the chart (storage.classes); empty: the default one.",
    )
    layout: Literal["Plain", "HuggingFaceCache"] = Field(
        default="Plain",
        description=(
            "Plain: the files in one folder. HuggingFaceCache: a cache of the Hub's libraries, so that engines which are "
            "given the repository's name find it offline; only with huggingFace."
        ),
    )
    retention: Literal["Delete", "LeastRecentlyUsed", "Keep"] = Field(
        default="Delete",
        description=(
            "What becomes of a checkpoint on the nodes after another one was published in its place. Delete: it goes "
            "gracePeriodSeconds later. LeastRecentlyUsed: it stays for a quick way back until a staging finds no room on the "
            "node's disk. Keep: it stays. What a pod uses never goes."
        ),
    )
    grace_period_seconds: int = Field(
        default=600,
        ge=0,
        le=31_536_000,
        description="For retention Delete: how long a checkpoint stays after another one was published in its place.",
    )
