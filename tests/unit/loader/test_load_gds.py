"""GPUDirect Storage: the decision and the retry, as tables. The way itself was never run: there was no GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from modelweights_loader.load import gds, parallel, worker
from modelweights_loader.load.contract import LoadRequest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ALL = gds.GdsSigns(gpu=True, device_node=True, module=True, library=True)


@pytest.mark.parametrize(
    ("wanted", "device", "world_size", "signs", "use", "word"),
    [
        ("Auto", "cuda", 1, ALL, True, "there"),
        ("Auto", "cuda:3", 1, ALL, True, "there"),
        ("Never", "cuda", 1, ALL, False, "wanted"),
        ("Auto", "cpu", 1, ALL, False, "cpu"),
        ("Auto", "cuda", 2, ALL, False, "2 ranks"),
        ("Auto", "cuda", 1, ALL._replace(gpu=False), False, "no GPU"),
        ("Auto", "cuda", 1, ALL._replace(device_node=False), False, "/dev/nvidia-fs0"),
        ("Auto", "cuda", 1, ALL._replace(module=False), False, "kernel module"),
        ("Auto", "cuda", 1, ALL._replace(library=False), False, "libcufile"),
    ],
)
def test_when_it_is_asked_for(
    wanted: str,
    device: str,
    world_size: int,
    signs: gds.GdsSigns,
    use: bool,  # noqa: FBT001 - a table's column
    word: str,
) -> None:
    decision = gds.decide(wanted, device, world_size, signs)
    assert decision.use == use
    assert word in decision.why


def test_what_is_looked_at(tmp_path: Path) -> None:
    root, packages = tmp_path / "root", tmp_path / "packages"
    nothing = gds.GdsSigns(gpu=False, device_node=False, module=False, library=False)
    assert nothing == gds.observe(gpu=False, root=str(root), search=[str(packages)])
    for path in ("dev/nvidia-fs0", "proc/driver/nvidia-fs/version"):
        (root / path).parent.mkdir(parents=True)
        (root / path).touch()
    library = packages / "nvidia/cu13/lib/libcufile.so.0"
    library.parent.mkdir(parents=True)
    library.touch()
    assert gds.observe(gpu=True, root=str(root), search=[str(packages)]) == ALL


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RuntimeError("submit_io: register_buffer failed for GDS"), True),
        (RuntimeError("wait_gds_read failed"), True),
        (Exception("[FAIL] init_gds()"), True),
        (Exception("gds is fine, the header is not"), False),
        (RuntimeError("CUDA error"), False),
    ],
)
def test_which_errors_are_about_gds(error: Exception, expected: bool) -> None:  # noqa: FBT001 - a table's column
    assert expected == gds.mentions_gds(error)


GDS_ERROR = Exception("[FAIL] init_gds()")


@pytest.mark.parametrize(
    ("use", "endings", "calls", "warnings", "outcome"),
    [
        (False, [None], [True], 0, "NotUsed"),
        (True, [None], [False], 0, "Used"),
        (True, [GDS_ERROR, None], [False, True], 1, "Failed"),
        (True, [RuntimeError("wait_gds_read failed"), None], [False, True], 1, "Failed"),
        (True, [GDS_ERROR, GDS_ERROR], [False, True], 1, "Exception: [FAIL] init_gds()"),
        (True, [ValueError("x")], [False], 0, "ValueError: x"),
        (False, [GDS_ERROR], [True], 0, "Exception: [FAIL] init_gds()"),
    ],
)
def test_it_is_tried_once_warned_of_once_and_no_tensor_comes_twice(
    monkeypatch: pytest.MonkeyPatch,
    use: bool,  # noqa: FBT001 - a table's column
    endings: list[Exception | None],
    calls: list[bool],
    warnings: int,
    outcome: str,
) -> None:
    """Each attempt gives one tensor before it ends as the table says."""
    called: list[bool] = []
    left = list(endings)

    def iterate(*_: Any, nogds: bool) -> Iterator[tuple[str, Any]]:
        called.append(nogds)
        yield "a", torch.zeros(2)
        ending = left.pop(0)
        if ending is not None:
            raise ending

    monkeypatch.setenv("FASTSAFETENSORS_ODIRECT", "0")
    monkeypatch.setattr(worker, "_decide_gds", lambda _: gds.GdsDecision(use=use, why="the table says so"))
    monkeypatch.setattr(parallel, "iterate_parallel", iterate)
    events: list[dict[str, Any]] = []
    worker.answer(LoadRequest(files=[], dtypes=[], max_batch_bytes=0), events.append, lambda _: None)
    *warned, result = events
    assert (calls, warnings) == (called, len(warned))
    assert outcome == (result["gds"] if result["ok"] else result["error"])
    if result["ok"]:
        assert [("a", 8)] == [(tensor.name, tensor.size_bytes) for tensor in result["tensors"]]
