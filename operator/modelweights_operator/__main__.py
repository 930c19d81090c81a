"""`python -m modelweights_operator`: run the operator until SIGTERM. One line and exit code 1 when it can't start."""

import logging
import sys

import kopf

from modelweights_operator import handlers  # noqa: F401 - importing it registers the handlers


def main() -> int:
    """Run the operator; blocks."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # kopf logs each event that it passes on; what the operator does it says itself.
    logging.getLogger("kopf").setLevel(logging.WARNING)
    # It shows a traceback where a start fails for a reason that has a sentence.
    logging.getLogger("kopf.activities.startup").setLevel(logging.CRITICAL)
    try:
        kopf.run(registry=kopf.get_default_registry(), standalone=True, clusterwide=True)
    except Exception as error:
        # kopf wraps what a start-up handler raises in an error that it doesn't export.
        if not isinstance(error.__cause__, kopf.PermanentError):
            raise
        sys.stderr.write(f"modelweights-operator: {error.__cause__}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
