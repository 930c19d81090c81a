"""Decides whether to ask for GPUDirect Storage, and what to do when it fails.

Called by `load.worker`. Values in, values out; only `observe` looks at the machine. None of the ways that need a GPU was
ever run by us: there was none. They follow the sources of fastsafetensors 0.5.0 (copier/gds.py) and of vLLM 0.33. Must
not import torch.
"""

from __future__ import annotations

import ctypes.util
import glob
import os
import sys
from typing import NamedTuple

AUTO = "Auto"
NEVER = "Never"

USED = "Used"
NOT_USED = "NotUsed"
FAILED = "Failed"

# Of the kernel module nvidia-fs. Without the node cuFileDriverOpen fails and closes the process's descriptor 0.
_DEVICE_NODE = "dev/nvidia-fs0"
_MODULE = "proc/driver/nvidia-fs"
# Wheels of torch and of CUDA bring the library in a folder that the linker doesn't know.
_BUNDLED = os.path.join("nvidia", "*", "lib", "libcufile.so*")


class GdsSigns(NamedTuple):
    """What was found on the machine: a GPU that torch can use, nvidia-fs's device node, its module, libcufile."""

    gpu: bool
    device_node: bool
    module: bool
    library: bool


class GdsDecision(NamedTuple):
    """Whether to ask for it, and why."""

    use: bool
    why: str


def observe(*, gpu: bool, root: str = "/", search: list[str] | None = None) -> GdsSigns:
    """Looks for what GPUDirect Storage needs.

    Args:
        gpu: Whether torch sees a GPU.
        root: Where /dev and /proc are; for tests.
        search: Where Python's packages are; sys.path by default.

    Returns:
        The signs.
    """
    bundled = any(glob.glob(os.path.join(folder, _BUNDLED)) for folder in (sys.path if search is None else search))
    return GdsSigns(
        gpu=gpu,
        device_node=os.path.exists(os.path.join(root, _DEVICE_NODE)),
        module=os.path.exists(os.path.join(root, _MODULE)),
        library=bundled or (search is None and ctypes.util.find_library("cufile") is not None),
    )


def decide(wanted: str, device: str, world_size: int, signs: GdsSigns) -> GdsDecision:
    """Decides whether to ask for GPUDirect Storage.

    Args:
        wanted: `Auto` or `Never`.
        device: `cpu`, `cuda` or `cuda:N`.
        world_size: Processes in the group.
        signs: From `observe`.

    Returns:
        The decision; its reason is for the log.
    """
    checks = (
        (wanted != AUTO, "not wanted"),
        (not device.startswith("cuda"), f"the device is {device}"),
        # As vLLM: a group of several ranks loads without.
        (world_size > 1, f"the group has {world_size} ranks"),
        (not signs.gpu, "torch sees no GPU"),
        (not signs.device_node, "/dev/nvidia-fs0 is not there (in a container: not passed in)"),
        (not signs.module, "/proc/driver/nvidia-fs is not there: the kernel module nvidia-fs is not loaded"),
        (not signs.library, "libcufile is not there"),
    )
    for fails, why in checks:
        if fails:
            return GdsDecision(use=False, why=why)
    return GdsDecision(use=True, why="device, driver and library are there")


def mentions_gds(error: BaseException) -> bool:
    """Whether an error is about GPUDirect Storage, as vLLM decides it, plus the one that is no RuntimeError.

    Args:
        error: What the loader raised.

    Returns:
        True when a load without GPUDirect Storage is worth a try.
    """
    said = str(error).lower()
    return "gds" in said and (isinstance(error, RuntimeError) or "[fail] init_gds()" in said)
