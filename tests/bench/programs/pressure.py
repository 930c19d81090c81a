"""Uses up memory on command. Reads lines from standard input, answers each with one.

`read FILE OFFSET LENGTH` reads a range through the page cache; `allocate BYTES` takes memory and writes to each page.
"""

import mmap
import os
import sys

_BLOCK_BYTES = 2**20
_PAGE_BYTES = 4096


def main() -> None:
    taken: list[mmap.mmap] = []
    for line in sys.stdin:
        command, *arguments = line.split()
        if command == "read":
            _read(arguments[0], int(arguments[1]), int(arguments[2]))
        else:
            memory = mmap.mmap(-1, int(arguments[0]))
            for offset in range(0, len(memory), _PAGE_BYTES):
                memory[offset] = 1
            taken.append(memory)
        print("done", flush=True)


def _read(path: str, offset: int, length: int) -> None:
    buffer = bytearray(_BLOCK_BYTES)
    descriptor = os.open(path, os.O_RDONLY)
    while length > 0:
        got = os.preadv(descriptor, [memoryview(buffer)[:length]], offset)
        if got == 0:
            break
        offset, length = offset + got, length - got
    os.close(descriptor)


if __name__ == "__main__":
    main()
