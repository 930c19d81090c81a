"""Reads all headers of a checkpoint; prints the seconds and the number of tensors. Usage: read_headers.py FOLDER."""

import sys
import time

from modelweights_loader.checkpoint import find_checkpoint
from modelweights_loader.structure import read_structure


def main() -> None:
    started = time.monotonic()
    structure = read_structure(find_checkpoint(sys.argv[1]))
    print(time.monotonic() - started, structure.tensor_count)


if __name__ == "__main__":
    main()
