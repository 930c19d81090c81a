"""The prefetch of an engine, from its description: one file per thread of a pool, each block read into new bytes.

Usage: engine_prefetch.py THREADS BLOCK_BYTES FILE…; prints the seconds. Written for the comparison; no code of an engine.
"""

import sys
import time
from concurrent.futures import ThreadPoolExecutor


def read(path: str, block_bytes: int) -> int:
    """Read one file to its end; return its size."""
    total = 0
    with open(path, "rb") as file:  # noqa: PTH123 - as in the description
        while block := file.read(block_bytes):
            total += len(block)
    return total


def main() -> None:
    threads, block_bytes, files = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    started = time.monotonic()
    with ThreadPoolExecutor(max_workers=threads) as pool:
        list(pool.map(lambda path: read(path, block_bytes), files))
    print(time.monotonic() - started)


if __name__ == "__main__":
    main()
