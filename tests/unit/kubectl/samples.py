"""A ModelWeights as JSON, for the tables of this folder."""

from typing import Any

Json = dict[str, Any]

DIGEST = "sha256:" + "a" * 64
_SINCE: Json = {"lastTransitionTime": "2026-11-30T12:00:00Z"}
OTHER = "sha256:" + "b" * 64
READY: Json = {"state": "Ready", "reason": "Staged", "manifestDigest": DIGEST, "bootID": "boot", "residentBytes": 1000}


def entry(state: str, reason: str, message: str = "", **more: Any) -> Json:
    return {"state": state, "reason": reason, "message": message, **more}


def model(
    nodes: Json | None = None, *, ready: tuple[str, str, str] = ("False", "Staging", "it moves"), **metadata: Any
) -> Json:
    """One whose published checkpoint has 1000 bytes."""
    status, reason, message = ready
    return {
        "metadata": {"namespace": "team", "name": "llama", "uid": "uid-1", "generation": 1, **metadata},
        "spec": {"source": {"hostPath": {"path": "/models/llama"}}},
        "status": {
            "observedGeneration": 1,
            "published": {"manifestDigest": DIGEST, "sizeBytes": 1000},
            "summary": {"desired": len(nodes or {}), "ready": 0, "readyRatio": f"0/{len(nodes or {})}"},
            "nodes": nodes or {},
            "conditions": [
                {"type": "Available", "status": "True", "reason": "NodesStaged", "message": "pods may start", **_SINCE},
                {"type": "Ready", "status": status, "reason": reason, "message": message, **_SINCE},
            ],
        },
    }
