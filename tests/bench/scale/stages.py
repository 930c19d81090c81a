"""What kwok plays: pods of staging Jobs that run for seconds and end with reports as long as real ones. Called by `cluster`.

Per pod two writes of its status, as of a kubelet that is asked for no more: it runs; it ended. Some fail at their first step, and
are staged anew after the operator's back-off; some are slow. Which of them, kwok draws by weight. The checkpoint's digest is that
of the object's UID, so that all nodes of an object have the same.
"""

import json
from typing import Any, Final

from modelweights_operator.domain import names

Json = dict[str, Any]

FAILING_PERCENT: Final = 5
SLOW_PERCENT: Final = 3
REPORT_BYTES: Final = 1024
"""Of each of the three steps: 3 KiB together."""

_DIGEST: Final = "@DIGEST@"
_ENGINE: Final = {"loadFormat": "fastsafetensors", "queueSize": 0, "odirect": False, "nogds": True, "ranks": 1}
_REPORTS: Final[dict[str, Json]] = {
    "prefetch": {"bytes": 16_060_000_000, "prefetchBytesPerSecond": 1_650_000_000.5, "seconds": 9.73, "threads": 8},
    "validate": {"loadSeconds": 4.25, "mode": "Load", "seconds": 6.1, "tensorCount": 291},
    "report": {
        "fileCount": 14,
        "sizeBytes": 16_060_000_000,
        "tensorCount": 291,
        "residentBytes": 16_059_000_000,
        "residentPercent": 99.9,
        "residencyMethod": "cachestat",
        "prefetchBytesPerSecond": 1_650_000_000.5,
        "loadSeconds": 4.25,
        "marker": "written",
        "engine": {**_ENGINE, "tuned": False},
    },
}
_FAILURE: Final[Json] = {"step": "prefetch", "exitCode": 10, "reason": "ReadFailed"}


def write_stages() -> str:
    """The documents for kwok's configuration file."""
    ends = 100 - FAILING_PERCENT - SLOW_PERCENT
    stages = [
        # Nodes are ready from the start, and nobody writes to them but the operator.
        _stage("node-stays", "Node", [_needs(".metadata.annotations.never", "Exists")], (), _NOTHING),
        _stage("pod-runs", "Pod", [_LIVES, _STARTS], (500, 2000), _running()),
        _stage("pod-ends", "Pod", [_LIVES, _RUNS], (1000, 5000), _ended(), ends),
        _stage("pod-ends-late", "Pod", [_LIVES, _RUNS], (30_000, 90_000), _ended(), SLOW_PERCENT),
        _stage("pod-fails", "Pod", [_LIVES, _RUNS], (1000, 5000), _failed(), FAILING_PERCENT),
        {
            **_stage("pod-goes", "Pod", [_needs(".metadata.deletionTimestamp", "Exists")], (), _NOTHING),
        },
    ]
    stages[-1]["spec"]["next"] = {"delete": True}
    options = {"apiVersion": "config.kwok.x-k8s.io/v1alpha1", "kind": "KwokConfiguration"}
    config = {**options, "options": {"podPlayStageParallelism": 16, "nodeLeaseDurationSeconds": 0}}
    return "\n---\n".join(json.dumps(document) for document in (config, *stages))


def _needs(key: str, operator: str, *values: str) -> Json:
    return {"key": key, "operator": operator, **({"values": list(values)} if values else {})}


_LIVES: Final = _needs(".metadata.deletionTimestamp", "DoesNotExist")
_STARTS: Final = _needs(".status.startTime", "DoesNotExist")
_RUNS: Final = _needs(".status.initContainerStatuses.[].state.running.startedAt", "Exists")
_NOTHING: Final = "{}"


def _stage(name: str, kind: str, needs: list[Json], delay: tuple[int, ...], status: str, weight: int = 1) -> Json:
    spec: Json = {
        "resourceRef": {"apiGroup": "v1", "kind": kind},
        "selector": {"matchExpressions": needs},
        "weight": weight,
        "next": {"statusTemplate": status},
    }
    if delay:
        spec["delay"] = {"durationMilliseconds": delay[0], "jitterDurationMilliseconds": delay[1]}
    return {"apiVersion": "kwok.x-k8s.io/v1alpha1", "kind": "Stage", "metadata": {"name": name}, "spec": spec}


def _container(name: str, state: Json) -> Json:
    return {"name": name, "image": "loader", "imageID": "loader", "ready": False, "restartCount": 0, "state": state}


def _terminated(step: str, report: Json, code: int = 0) -> Json:
    body = {"step": step, "exitCode": code, **report}
    padding = REPORT_BYTES - len(json.dumps({**body, "message": ""}))
    text = json.dumps({**body, "message": ("read with eight threads; " * 40)[: max(padding, 0)]})
    return {"terminated": {"exitCode": code, "message": text, "startedAt": "@NOW@", "finishedAt": "@NOW@"}}


def _status(phase: str, *init: Json, report: Json) -> str:
    """A template in which the time and the digest are filled in; JSON is YAML too."""
    status = {
        "phase": phase,
        "startTime": "@NOW@",
        "initContainerStatuses": list(init),
        "containerStatuses": [report],
    }
    digest = f'{{{{ sha256sum (index .metadata.labels "{names.OWNER_LABEL}") }}}}'
    return json.dumps(status).replace("@NOW@", "{{ Now }}").replace(_DIGEST, digest)


_WAITING: Final = {"waiting": {"reason": "PodInitializing"}}


def _running() -> str:
    running = _container("prefetch", {"running": {"startedAt": "@NOW@"}})
    return _status("Pending", running, _container("validate", _WAITING), report=_container("report", _WAITING))


def _ended() -> str:
    digest = {"manifestDigest": f"sha256:{_DIGEST}"}
    steps = [_container(step, _terminated(step, _REPORTS[step])) for step in ("prefetch", "validate")]
    return _status(
        "Succeeded", *steps, report=_container("report", _terminated("report", {**digest, **_REPORTS["report"]}))
    )


def _failed() -> str:
    failed = _container("prefetch", _terminated("prefetch", _FAILURE, code=10))
    return _status("Failed", failed, _container("validate", _WAITING), report=_container("report", _WAITING))
