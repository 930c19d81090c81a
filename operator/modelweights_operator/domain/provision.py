"""Pods that wait for a node which isn't there yet, since autoscalers skip pods at a gate. Called by `gate`; pure.

With `placement.whenNoRoom: Provision` a pod whose own init container waits on the node needs no gate: it is lifted without the
required label, which no node that is to come has, and prefers nodes that are staged. The autoscaler sees it, brings a node, the
node is staged (staging asks for no GPU), and the init container ends.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

WEIGHT: Final = 100
EVENT: Final = (
    "Provisioned",
    "the pod may be scheduled before the weights are staged: its init container waits for them on the node",
)

_PROGRAM: Final = "modelweights-loader"
_MODULE: Final = "modelweights_loader"
_WAIT: Final = "wait"


def runs_wait(container: Mapping[str, Any]) -> bool:
    """Whether a container is the loader's `wait`: by its arguments, since images have many names."""
    words = [*(container.get("command") or ()), *(container.get("args") or ())]
    for index, word in enumerate(words):
        if str(word).rpartition("/")[2] in (_PROGRAM, _MODULE):
            words = words[index + 1 :]
            break
    else:
        # The image's own entry point is the loader's.
        words = [] if container.get("command") else words
    return words[:1] == [_WAIT] and len(words) > 1


def preferences(expressions: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A preferred term for each node label, so that a node with most of them comes first."""
    return [{"weight": WEIGHT, "preference": {"matchExpressions": [dict(each)]}} for each in expressions]


def why_not(model: str, *, provisions: bool) -> tuple[str, str]:
    """Reason and message for a pod that waits at the gate though no node is selected, or though it could do without."""
    if provisions:
        return (
            "ProvisionNeedsWait",
            (
                f"ModelWeights {model} has placement.whenNoRoom Provision, but the pod has no init container that runs "
                f"`{_PROGRAM} {_WAIT} PATH`: it stays at the gate until a node is staged, and autoscalers skip it"
            ),
        )
    return (
        "NoNodes",
        (
            f"ModelWeights {model} selects no node, and autoscalers bring none for pods that wait at a gate: keep a node, or set "
            f"placement.whenNoRoom to Provision and give the pod an init container that runs `{_PROGRAM} {_WAIT} PATH`"
        ),
    )
