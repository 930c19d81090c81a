"""Loads tensors with the safetensors library, as engines do without fastsafetensors.

Called by `load.worker`, in the load process. Imports torch and safetensors only inside functions. Works where safetensors
is not installed, by saying so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from modelweights_loader.load import failures

if TYPE_CHECKING:
    from collections.abc import Iterator

    from modelweights_loader.load.contract import LoadRequest

_PIECE_BYTES = 16 * 2**20


def is_installed() -> bool:
    """Says whether safetensors can be imported.

    Returns:
        True when it can.
    """
    try:
        import safetensors  # noqa: F401, PLC0415 - see the module's docstring
    except ImportError:
        return False
    return True


def view_bytes(tensor: Any) -> Any:
    """Views a tensor as its bytes.

    Args:
        tensor: Contiguous, on any device.

    Returns:
        A flat uint8 tensor on the same memory.
    """
    import torch  # noqa: PLC0415 - see the module's docstring

    return tensor.detach().reshape(-1).view(torch.uint8)


def iterate_plain(request: LoadRequest) -> Iterator[tuple[str, Any]]:
    """Loads every tensor, and copies each into a buffer that is used again: memory is bounded by it.

    Args:
        request: Files and device.

    Yields:
        Name and tensor, in the order of the file. Each is only to be used until the next one is asked for.
    """
    import torch  # noqa: PLC0415 - see the module's docstring

    # safe_open maps the file: until somebody copies a tensor, hardly a byte of it has been read.
    buffer = torch.empty(_PIECE_BYTES, dtype=torch.uint8)
    for path in request.files:
        for name, tensor in _open_tensors(path, request.device):
            if not request.borrow:
                yield name, tensor.clone()
                continue
            if tensor.device.type == "cpu":
                flat = view_bytes(tensor)
                for begin in range(0, flat.numel(), _PIECE_BYTES):
                    piece = flat[begin : begin + _PIECE_BYTES]
                    buffer[: piece.numel()].copy_(piece)
            yield name, tensor


def _open_tensors(path: str, device: str) -> Iterator[tuple[str, Any]]:
    from safetensors import safe_open  # noqa: PLC0415 - see the module's docstring

    with safe_open(path, framework="pt", device=device) as opened:
        # By name in older versions, which is as good but for whoever reads beside.
        names = opened.offset_keys() if hasattr(opened, "offset_keys") else opened.keys()
        for name in names:
            yield name, opened.get_tensor(name)


def find_refusal(request: LoadRequest) -> str | None:
    """Asks whether safetensors accepts headers and dtypes, without reading any tensor.

    Args:
        request: Which files.

    Returns:
        Its words when it refuses, an empty string when it accepts, None when it could not find out, for lack of memory
        and the like.
    """
    for path in request.files:
        try:
            for _ in _open_tensors(path, "cpu"):
                continue
        except Exception as error:  # noqa: BLE001 - whatever it raises is its refusal
            return failures.find_refusal(error)
    return ""
