"""A program that asks another reader about checkpoints: `python readers.py safetensors|parallel`.

Started by `verdicts`. Reads one JSON list `[[files], user, seconds]` a line and answers with `{"verdict", "said"}` a line.
The reader is imported once; each case runs in a fork of its own, so that a crash and a hang are answers too. Imports
nothing of this repository.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_MEMORY_BYTES = 8 * 2**30


def _make_safetensors() -> Callable[[list[str]], None]:
    import numpy as np  # noqa: F401, PLC0415 - before the fork, which may be another user's
    from safetensors import safe_open  # noqa: PLC0415 - only the reader that is asked

    def read(files: list[str]) -> None:
        for file in files:
            with safe_open(file, framework="np") as opened:
                opened.keys()

    return read


def _make_parallel() -> Callable[[list[str]], None]:
    import torch  # noqa: PLC0415
    from fastsafetensors import ParallelLoader, SingleGroup  # noqa: PLC0415

    torch.set_num_threads(1)

    def read(files: list[str]) -> None:
        loader = ParallelLoader(
            SingleGroup(), hf_weights_files=files, device="cpu", nogds=True, queue_size=-1, use_tqdm_on_load=False
        )
        with contextlib.closing(loader.iterate_weights()) as weights:
            for _name, tensor in weights:
                tensor.clone()
        loader.close()

    return read


def _ask(read: Callable[[list[str]], None], files: list[str], user: int, seconds: float) -> dict[str, str]:
    receiving, sending = os.pipe()
    child = os.fork()
    if child == 0:
        _answer(read, files, user, sending)
    os.close(sending)
    status = _wait(child, seconds)
    with os.fdopen(receiving, encoding="utf-8", errors="replace") as pipe:
        said = pipe.read()
    if status is None:
        return {"verdict": "hangs", "said": ""}
    if os.WIFSIGNALED(status):
        return {"verdict": "dies", "said": signal.Signals(os.WTERMSIG(status)).name}
    return {"verdict": "accepts" if os.WEXITSTATUS(status) == 0 else "rejects", "said": said}


def _answer(read: Callable[[list[str]], None], files: list[str], user: int, sending: int) -> None:
    """Runs in the fork, and ends it without a look back."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    code = 0
    try:
        if user:
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
        read(files)
    except BaseException as error:  # noqa: BLE001 - whatever it is, is the answer
        os.write(sending, f"{type(error).__name__}: {error}"[:1000].encode("utf-8", "replace"))
        code = 1
    os._exit(code)


def _wait(child: int, seconds: float) -> int | None:
    deadline = time.monotonic() + seconds
    pause = 0.0005
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def main() -> None:
    """Answers until the input ends."""
    read = {"safetensors": _make_safetensors, "parallel": _make_parallel}[sys.argv[1]]()
    for line in sys.stdin:
        files, user, seconds = json.loads(line)
        answer = _ask(read, files, user, seconds) if files else {"verdict": "no file", "said": ""}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
