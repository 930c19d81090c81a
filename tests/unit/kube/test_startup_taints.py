"""What holds a tainted node, with a connection that answers from what the test puts there."""

from typing import Any

import pytest

from modelweights_operator import errors
from modelweights_operator.domain import startup_taint
from modelweights_operator.domain.startup_taint import Selector
from modelweights_operator.kube import paths
from modelweights_operator.kube.startup_taints import StartupTaints
from modelweights_operator.metrics import Metrics
from tests.unit.domain.samples import make_node, make_spec, make_taint

NODE = make_node(taints=(make_taint("modelweights.io/unstaged"), make_taint("nvidia.com/gpu")))
METADATA = {"namespace": "team", "name": "llama", "uid": "uid-llama", "generation": 1, "resourceVersion": "1"}


class Connection:
    """One node with the taint, one ModelWeights."""

    def __init__(self) -> None:
        self.objects = {"llama": METADATA}
        self.asked: list[str] = []
        self.events: list[str] = []
        self.taints = [{"key": "modelweights.io/unstaged"}]

    async def get(self, path: str, **_: Any) -> dict[str, Any]:
        self.asked.append(path)
        if path == paths.ALL_MODELWEIGHTS:
            return {"items": [{"metadata": metadata} for metadata in self.objects.values()]}
        if path == paths.NODES:
            node = {"name": NODE.name, "uid": NODE.uid, "resourceVersion": "1"}
            return {"items": [{"metadata": node, "spec": {"taints": self.taints}}]}
        name = path.rpartition("/")[2]
        if name not in self.objects:
            raise errors.NotFoundError("gone", status=404)
        spec = make_spec().model_dump(by_alias=True, exclude_none=True)
        return {"metadata": self.objects[name], "spec": spec}

    async def patch(self, _path: str, body: dict[str, Any]) -> None:
        self.taints = body["spec"]["taints"] or []

    async def create(self, _path: str, body: dict[str, Any]) -> None:
        self.events.append(body["reason"])


async def test_one_without_a_plan_holds_the_node_and_is_soon_looked_at_again() -> None:
    api = Connection()
    taints = StartupTaints(api, {NODE.name: NODE}, Metrics(), enabled=True)  # type: ignore[arg-type]
    assert await taints._look("") == 2
    assert (len(api.taints), api.asked) == (1, [paths.ALL_MODELWEIGHTS])
    taints._models["uid-llama"] = Selector(
        "uid-llama", "team", "llama", 1, make_spec().placement, {NODE.name: NODE.boot_id}
    )
    assert await taints._look("") is None
    assert (api.taints, api.events) == ([], [])


async def test_one_whose_plan_cannot_be_carried_out_does_not_hold_it_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup_taint, "STUCK_SECONDS", 0.0)
    api = Connection()
    taints = StartupTaints(api, {NODE.name: NODE}, Metrics(), enabled=True)  # type: ignore[arg-type]
    await taints._look("")
    assert (api.taints, api.events) == ([], ["StartupTaintRemoved"])
    # It is read once, however often it is looked at.
    await taints._look("")
    assert [path.rpartition("/")[2] for path in api.asked].count("llama") == 1
