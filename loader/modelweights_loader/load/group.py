"""Joins the load process to its group of ranks, over gloo on the loopback interface.

Called by `load.worker`, in the load process. Imports torch only inside functions.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from modelweights_loader.load.contract import LoadRequest

# The caller's own time-out ends a group that hangs; this one is only the last resort.
_TIMEOUT_HOURS = 24


def join_group(request: LoadRequest) -> Any:
    """Joins the group that the request names, once for each process.

    Args:
        request: rank, world_size, store.

    Returns:
        The group WORLD; None when the process is alone.
    """
    import torch.distributed as dist  # noqa: PLC0415 - see the module's docstring

    if dist.is_available() and dist.is_initialized():
        return dist.group.WORLD
    if request.world_size == 1:
        return None
    import datetime as dt  # noqa: PLC0415 - only for groups

    # The ranks are on this machine, and nobody else is to reach their ports.
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        "gloo",
        init_method=f"file://{request.store}",
        rank=request.rank,
        world_size=request.world_size,
        timeout=dt.timedelta(hours=_TIMEOUT_HOURS),
    )
    return dist.group.WORLD
