"""Makes `python -m modelweights_loader` the same as the console script."""

from __future__ import annotations

from modelweights_loader.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
