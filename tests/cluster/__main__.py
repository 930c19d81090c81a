"""Makes ``python -m tests.cluster`` a command."""

import sys

from tests.cluster.cli import main

sys.exit(main())
