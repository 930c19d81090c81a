"""The ConfigMap with the engine's settings, and whose proof they are. Called by `plan` and `revisions`; pure.

report of a node -> Revision.engine (the first one under a spec) -> ConfigMap
"""

from modelweights_operator.api import v1alpha1 as api
from modelweights_operator.domain import names, storage
from modelweights_operator.domain.manifests import owner_reference
from modelweights_operator.domain.pods import Manifest
from modelweights_operator.domain.reports import Report
from modelweights_operator.domain.snapshot import Owner


def advance(known: api.ProvenEngine | None, spec: api.Spec, report: Report | None) -> api.ProvenEngine | None:
    """The settings that a checkpoint is published with: those that the first node under this spec proved.

    Args:
        known: What is published for the checkpoint so far.
        spec: The present spec.
        report: A report of this cycle about this checkpoint, under this spec.
    """
    digest = names.staging_digest(spec)
    if (known is not None and known.staging_digest == digest) or report is None or report.engine is None:
        return known
    return api.ProvenEngine(**report.engine.model_dump(), staging_digest=digest)


def settings(spec: api.Spec, proven: api.ProvenEngine | None, path: str = "") -> dict[str, str]:
    """What engines need so that the staging counts.

    The names in capitals are meant for `envFrom`, the files for the engines' own `--config`. fastsafetensors opens with
    O_DIRECT on ext4 and xfs, which reads past a warm cache, unless FASTSAFETENSORS_ODIRECT is 0.

    Args:
        spec: Says what to publish where nothing was loaded.
        proven: The settings under which the load was proven.
        path: Where the checkpoint lies; in a claim or image it depends on where that is mounted, so nothing is said of it.
    """
    asked = spec.validation.engine
    load_format = proven.load_format if proven else asked.load_format
    queue_size = proven.queue_size if proven else asked.queue_size
    found = {
        "FASTSAFETENSORS_ODIRECT": "1" if proven and proven.odirect else "0",
        "VLLM_FASTSAFETENSORS_QUEUE_SIZE": str(queue_size),
        "vllm-config.yaml": f"load-format: {load_format}\n",
        "sglang-config.yaml": f"load-format: {load_format}\n",
    }
    if load_format == "fastsafetensors":
        gds = "true" if proven and not proven.nogds else "false"
        found["sglang-config.yaml"] += f"model-loader-extra-config: '{{\"enable_gds\": {gds}}}'\n"
    on_node = path.startswith("/")
    if on_node:
        found["MODEL_PATH"] = path
    # By the path and not by spec.storage.layout: until all nodes are staged anew pods are sent to the former one.
    cache = storage.cache_folder(path) if spec.is_fetched else ""
    if cache:
        found["HF_HUB_OFFLINE"] = "1"
        if on_node:
            found["HF_HUB_CACHE"] = cache
    return found


def config_map(owner: Owner, spec: api.Spec, published: api.Revision) -> Manifest:
    """The ConfigMap of the ModelWeights' name with the engine's settings."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": owner.name,
            "namespace": owner.namespace,
            "labels": {names.MANAGED_BY_LABEL: names.MANAGED_BY},
            "annotations": {names.DIGEST_ANNOTATION: published.manifest_digest},
            "ownerReferences": [owner_reference(owner)],
        },
        "data": settings(spec, published.engine, published.path),
    }
