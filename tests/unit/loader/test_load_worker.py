"""Real loads by the load process: what each library gives, under every setting, and which of them refuses."""

from __future__ import annotations

import json
import math
import random
from typing import TYPE_CHECKING, Any

import fastsafetensors
import pytest
import torch
from safetensors import safe_open

from modelweights_loader.checkpoint import find_checkpoint
from modelweights_loader.load import dtypes, parallel, plain, worker
from modelweights_loader.load.compare import BitComparer, BitsDifferError
from modelweights_loader.load.contract import LoadedTensor, LoadRequest
from modelweights_loader.load.versions import find_support
from modelweights_loader.safetensors_header import DTYPE_BITS
from modelweights_loader.structure import read_structure
from modelweights_loader.validate import compare_with_headers
from tests.checkpoints.writer import write_raw

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

SUPPORT = find_support(fastsafetensors.__version__)
FASTSAFETENSORS_DTYPES = [
    name
    for name in DTYPE_BITS
    if dtypes.find_lacking_in_torch([name]) is None and dtypes.find_lacking_in_fastsafetensors([name]) is None
]
SHAPES = ((3, 6), (), (2, 3, 4), (1000, 34), (0, 4), (70,))


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The load process sets it for itself; here it is put back."""
    monkeypatch.setenv("FASTSAFETENSORS_ODIRECT", "0")


def write_random(path: Path, names: Iterable[str], seed: int, shapes: tuple[tuple[int, ...], ...] = SHAPES) -> None:
    """Writes tensors of the given dtypes in several shapes, with bytes that are all different."""
    source = random.Random(seed)  # noqa: S311 - bytes of a test
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for dtype in names:
        for shape in shapes:
            if dtype == "F4" and (not shape or shape[-1] % 2):
                continue
            count = math.prod(shape) * DTYPE_BITS[dtype] // 8
            header[f"{path.stem}.{dtype}.{len(shape)}.{count}"] = {
                "dtype": dtype,
                "shape": list(shape),
                "data_offsets": [len(data), len(data) + count],
            }
            # A bool is 0 or 1 only.
            data += bytes(source.choices((0, 1), k=count)) if dtype == "BOOL" else source.randbytes(count)
    text = json.dumps(header).encode()
    write_raw(path, text + b" " * (-len(text) % 8), data)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven shards with every dtype that both libraries have, in several shapes."""
    folder = tmp_path_factory.mktemp("every-dtype")
    for number in range(7):
        path = folder / f"model-{number + 1:05}-of-00007.safetensors"
        write_random(path, FASTSAFETENSORS_DTYPES[number % 3 :: 2], number)
    return folder


def make_request(folder: Path, **settings: Any) -> LoadRequest:
    checkpoint = find_checkpoint(str(folder))
    headers = read_structure(checkpoint).headers.values()
    found = sorted({tensor.dtype for header in headers for tensor in header.tensors.values()})
    return LoadRequest(files=[shard.real_path for shard in checkpoint.shards], dtypes=found, **settings)


def ask(request: LoadRequest) -> dict[str, Any]:
    """Has a request answered in this process; warnings are an error."""
    events: list[dict[str, Any]] = []
    good = worker.answer(request, events.append, lambda _: None)
    assert [event["event"] for event in events] == ["result"]
    assert good == events[0]["ok"]
    return events[0]


def assert_as_headers_say(folder: Path, result: dict[str, Any]) -> None:
    headers = read_structure(find_checkpoint(str(folder))).headers
    compare_with_headers("m", headers, [LoadedTensor(*tensor) for tensor in result["tensors"]])


def test_the_dtypes_of_low_precision_are_among_those_that_are_loaded() -> None:
    assert {"F8_E4M3", "F8_E5M2", "F8_E8M0", "F4", "BF16", "U64", "BOOL"} <= set(FASTSAFETENSORS_DTYPES)


@pytest.mark.parametrize("batch_bytes", [0, 300_000])
@pytest.mark.parametrize("queue_size", [-1, 0, 1, 2, 5])
def test_every_queue_size_gives_the_bits_that_safetensors_gives(
    shards: Path, queue_size: int, batch_bytes: int
) -> None:
    request = make_request(shards, queue_size=queue_size)
    wanted: dict[str, torch.Tensor] = {}
    for path in request.files:
        with safe_open(path, framework="pt") as opened:
            wanted |= {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - no mapping
    for name, tensor in parallel.iterate_parallel(request, SUPPORT, None, batch_bytes, nogds=True):
        expected = wanted.pop(name)
        assert (tensor.dtype, tensor.shape) == (expected.dtype, expected.shape)
        assert torch.equal(plain.view_bytes(tensor), plain.view_bytes(expected))
    assert wanted == {}


@pytest.mark.parametrize("load_format", ["fastsafetensors", "safetensors"])
@pytest.mark.parametrize("compare", [False, True])
def test_both_formats_give_what_the_headers_say(shards: Path, load_format: str, *, compare: bool) -> None:
    result = ask(make_request(shards, load_format=load_format, compare=compare, both_verdicts=True))
    assert result["ok"], result
    assert_as_headers_say(shards, result)
    assert result["verdicts"] == {"parallelLoader": "Accepts", "safetensors": "Accepts"}
    assert result["compared_bytes"] == (result["loaded_bytes"] if compare else 0)
    assert result["tensor_count"] == len(result["tensors"])
    assert result["peak_bytes"] >= result["base_bytes"] > 0


def test_tensors_need_not_be_listed(shards: Path) -> None:
    listed, counted = ask(make_request(shards)), ask(make_request(shards, list_tensors=False))
    assert counted["tensors"] == []
    assert (counted["tensor_count"], counted["loaded_bytes"]) == (listed["tensor_count"], listed["loaded_bytes"])


def _write_one(folder: Path, dtype: str) -> None:
    write_random(folder / "model.safetensors", [dtype], 1)


@pytest.mark.parametrize("compare", [False, True])
@pytest.mark.parametrize("dtype", ["C64", "F8_E4M3FNUZ", "F8_E5M2FNUZ"])
def test_what_only_safetensors_loads_is_refused_and_accepted_apart(
    tmp_path: Path, dtype: str, *, compare: bool
) -> None:
    _write_one(tmp_path, dtype)
    apart = {"parallelLoader": "Refuses", "safetensors": "Accepts"}
    refused = ask(make_request(tmp_path, both_verdicts=True, compare=compare))
    assert (refused["ok"], refused["kind"], refused["verdicts"]) == (False, "DtypeUnsupported", apart)
    assert dtype in refused["error"]
    accepted = ask(make_request(tmp_path, load_format="safetensors", both_verdicts=True, compare=compare))
    assert (accepted["ok"], accepted["verdicts"]) == (True, apart)
    assert dtype in accepted["refusals"]["parallelLoader"]
    assert_as_headers_say(tmp_path, accepted)


@pytest.mark.parametrize("load_format", ["fastsafetensors", "safetensors"])
@pytest.mark.parametrize("dtype", ["F6_E2M3", "F6_E3M2"])
def test_a_dtype_that_torch_lacks_is_not_the_checkpoints_fault(tmp_path: Path, dtype: str, load_format: str) -> None:
    header = {"a": {"dtype": dtype, "shape": [4], "data_offsets": [0, 3]}}
    write_raw(tmp_path / "model.safetensors", json.dumps(header).encode(), bytes(3))
    result = ask(make_request(tmp_path, load_format=load_format))
    assert (result["ok"], result["kind"]) == (False, "DtypeUnsupported")
    assert f"no type for {dtype}" in result["error"]


def test_every_dtype_of_the_format_has_a_verdict() -> None:
    for dtype in DTYPE_BITS:
        said = dtypes.find_lacking_in_torch([dtype]) or dtypes.find_lacking_in_fastsafetensors([dtype])
        assert (said is None) == (dtype in FASTSAFETENSORS_DTYPES)
        assert said is None or dtype in said


def test_without_safetensors_its_verdict_is_not_tried(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "is_installed", lambda: False)
    result = ask(make_request(shards, both_verdicts=True))
    assert result["verdicts"] == {"parallelLoader": "Accepts", "safetensors": "NotTried"}
    missing = ask(make_request(shards, load_format="safetensors"))
    assert (missing["ok"], missing["kind"]) == (False, "LoaderMissing")


def test_a_single_flipped_bit_is_found(shards: Path) -> None:
    source = min(shards.iterdir())
    comparer = BitComparer([str(source)])
    with safe_open(str(source), framework="pt") as opened:
        for name in opened.keys():  # noqa: SIM118 - no mapping
            tensor = opened.get_tensor(name).clone()
            comparer.compare(name, tensor)
            if tensor.numel() == 0:
                continue
            plain.view_bytes(tensor)[-1] ^= 1
            with pytest.raises(BitsDifferError, match=name):
                comparer.compare(name, tensor)
    comparer.close()


def test_a_library_that_gives_other_bits_fails_the_full_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = parallel.iterate_parallel

    def flip(*arguments: Any, **settings: Any) -> Any:
        for name, tensor in given(*arguments, **settings):
            if name.endswith(".4000"):
                plain.view_bytes(tensor)[7] ^= 4
            yield name, tensor

    header = {"a.4000": {"dtype": "F32", "shape": [1000], "data_offsets": [0, 4000]}}
    text = json.dumps(header).encode()
    write_raw(tmp_path / "model.safetensors", text + b" " * (-len(text) % 8), bytes(4000))
    monkeypatch.setattr(parallel, "iterate_parallel", flip)
    assert ask(make_request(tmp_path))["ok"]
    result = ask(make_request(tmp_path, compare=True))
    assert (result["ok"], result["kind"]) == (False, "TensorBitsDiffer")
    assert "a.4000" in result["error"]


@pytest.mark.parametrize("library", [plain, parallel])
def test_what_cannot_be_asked_for_the_machines_sake_is_no_refusal(tmp_path: Path, library: Any) -> None:
    _write_one(tmp_path, "F32")
    request = make_request(tmp_path)
    assert library.find_refusal(request) == ""
    (tmp_path / "model.safetensors").unlink()
    assert library.find_refusal(request) is None
    (tmp_path / "model.safetensors").write_bytes(b"no header")
    assert library.find_refusal(request)
