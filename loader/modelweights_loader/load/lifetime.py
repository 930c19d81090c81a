"""Ties the load process to its parent: it must not outlive it, whatever ends that one.

Called by `load.worker` before anything else. Must not import torch.
"""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def end_with_parent(parent_pid: int) -> None:
    """Makes the kernel kill this process as soon as the thread that started it ends, also by SIGKILL.

    Args:
        parent_pid: Of the process that started this one. When it is gone already, this process ends at once: the
            kernel tells only of deaths after the request.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(1)
