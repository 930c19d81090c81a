"""`python -m kubectl_modelweights`: the same as the console script `kubectl-modelweights`."""

import sys

from kubectl_modelweights.cli import main

if __name__ == "__main__":
    sys.exit(main())
