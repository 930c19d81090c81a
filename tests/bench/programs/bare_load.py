"""A bare script that loads every tensor, as an engine's loader does on a processor.

Usage: bare_load.py safetensors|ParallelLoader KEYWORDS FILE…; KEYWORDS is a JSON object for ParallelLoader. Prints one
JSON object: seconds of the load without imports, tensors, bytes, bytes that came from a disk.
"""

import contextlib
import json
import sys
import time
from pathlib import Path
from typing import Any


def main() -> None:
    kind, keywords, files = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3:]
    load = {"safetensors": _load_safetensors, "ParallelLoader": _load_parallel}[kind]
    # Imports don't count as loading; fastsafetensors would import torch only when it needs it.
    import torch  # noqa: F401, PLC0415

    if kind == "safetensors":
        import safetensors.torch  # noqa: F401, PLC0415
    else:
        import fastsafetensors  # noqa: F401, PLC0415
    read_before = _read_from_disk()
    started = time.monotonic()
    tensors, size_bytes = load(files, keywords)
    seconds = time.monotonic() - started
    disk_bytes = _read_from_disk() - read_before
    print(json.dumps({"seconds": seconds, "tensors": tensors, "bytes": size_bytes, "disk_bytes": disk_bytes}))


def _load_safetensors(files: list[str], _keywords: dict[str, Any]) -> tuple[int, int]:
    """Maps each file and copies each tensor out of it, as copying into a model's parameter does."""
    import safetensors  # noqa: PLC0415 - see main

    tensors = size_bytes = 0
    for path in files:
        with safetensors.safe_open(path, framework="pt", device="cpu") as file:
            for name in file.keys():  # noqa: SIM118 - not a dictionary
                copy = file.get_tensor(name).clone()
                tensors += 1
                size_bytes += copy.nbytes
    return tensors, size_bytes


def _load_parallel(files: list[str], keywords: dict[str, Any]) -> tuple[int, int]:
    """Its tensors are in new memory already, so nothing is copied here; whether the library does it is a keyword."""
    import fastsafetensors  # noqa: PLC0415 - see main

    tensors = size_bytes = 0
    settings = {"use_tqdm_on_load": False, "device": "cpu", "nogds": True, **keywords}
    with (
        contextlib.redirect_stdout(sys.stderr),
        contextlib.closing(fastsafetensors.ParallelLoader(None, files, **settings)) as loader,
        contextlib.closing(loader.iterate_weights()) as weights,
    ):
        for _name, tensor in weights:
            tensors += 1
            size_bytes += tensor.nbytes
    return tensors, size_bytes


def _read_from_disk() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


if __name__ == "__main__":
    main()
