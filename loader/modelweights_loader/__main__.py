"""Makes `python -m modelweights_loader` the same as the console script."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

with suppress(FileNotFoundError):
    # `-m` looks into the current folder before Python's own, and that may be a checkpoint with a json.py in it.
    if sys.path[0] == os.getcwd():
        del sys.path[0]

from modelweights_loader.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
